//! A proxy that dies, stands still or is attacked: the network is served again, or closed. It is never open.

use bastide::ErrorKind;
use rustix::process::{Pid, Signal, kill_process};

use super::{Greeter, TIMEOUT, next_proxy, own_address, policy, policy_for, session};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    serves_again_after_the_proxy_died_and_closes_when_it_keeps_dying,
    lets_nothing_out_while_the_proxy_stands_still,
    survives_whatever_commands_kill,
    takes_another_policy_at_once,
];

fn signal(pid: u32, signal: Signal) -> Result<(), TrialError> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process")?;
    Ok(kill_process(pid, signal)?)
}

async fn serves_again_after_the_proxy_died_and_closes_when_it_keeps_dying(
    context: Context,
) -> Outcome {
    let (allowed, canary) = (Greeter::start()?, Greeter::anywhere()?);
    let session = session(&context, policy_for(&allowed)?).await?;
    let port = allowed.port.to_string();
    let mut proxy = context.client().egress_status(session.id()).await?.pid;
    for _ in 0..3 {
        signal(proxy, Signal::KILL)?;
        proxy = next_proxy(&context, &session, proxy).await?.pid;
        let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
        assert_eq!(greeted, "heard \"welcome\"\n");
    }
    signal(proxy, Signal::KILL)?;
    let deadline = std::time::Instant::now() + TIMEOUT;
    let lost = loop {
        match context.client().egress_status(session.id()).await {
            Err(error) if error.message().contains("closed") => break error,
            _ if std::time::Instant::now() > deadline => return Err("it was not closed".into()),
            _ => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    assert_eq!(lost.kind(), ErrorKind::BackendLost);
    assert_eq!(attempt(&session, "dial", &["198.18.0.77", &port]).await?, "refused\n");
    if let Some(own) = own_address() {
        let canary_port = canary.port.to_string();
        let said = attempt(&session, "dial", &[&own.ip().to_string(), &canary_port]).await?;
        assert_eq!(said, "refused\n");
    }
    assert_eq!((allowed.count(), canary.count()), (3, 0));
    let notes = bastide::events::egress_notes(context.backend.home(), session.id());
    let noted = std::fs::read_to_string(notes)?;
    assert!(noted.contains("\"egress_lost\""), "{noted}");
    Ok(session.delete().await?)
}

async fn lets_nothing_out_while_the_proxy_stands_still(context: Context) -> Outcome {
    let (allowed, canary) = (Greeter::start()?, Greeter::anywhere()?);
    let session = session(&context, policy_for(&allowed)?).await?;
    let proxy = context.client().egress_status(session.id()).await?.pid;
    signal(proxy, Signal::STOP)?;
    let port = allowed.port.to_string();
    let held = attempt(&session, "dial", &["198.18.0.77", &port]).await;
    let own = own_address().map(|own| own.ip().to_string());
    let refused = match &own {
        Some(own) => attempt(&session, "dial", &[own, &canary.port.to_string()]).await,
        None => Ok("refused\n".to_owned()),
    };
    let received = (allowed.count(), canary.count());
    signal(proxy, Signal::CONT)?;
    assert!(!held?.contains("welcome"));
    assert_eq!((refused?.as_str(), received), ("refused\n", (0, 0)));
    let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!(greeted, "heard \"welcome\"\n");
    Ok(session.delete().await?)
}

/// Neither the proxy nor the process that makes listening sockets can be reached from inside.
async fn survives_whatever_commands_kill(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let session = session(&context, policy_for(&allowed)?).await?;
    let proxy = context.client().egress_status(session.id()).await?.pid;
    // It may well end itself that way.
    drop(attempt(&session, "kill-everybody", &[]).await);
    assert_eq!(context.client().egress_status(session.id()).await?.pid, proxy);
    let port = allowed.port.to_string();
    let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!(greeted, "heard \"welcome\"\n");
    // A port that nobody listened to yet needs the process in the egress namespace.
    let other = Greeter::start()?;
    super::client(&context).set_egress_policy(session.id(), &policy_for(&other)?).await?;
    let port = other.port.to_string();
    let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!(greeted, "heard \"welcome\"\n");
    Ok(session.delete().await?)
}

async fn takes_another_policy_at_once(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let session = session(&context, policy_for(&allowed)?).await?;
    let client = super::client(&context);
    let port = allowed.port.to_string();
    client.set_egress_policy(session.id(), &policy("rules: []\n")?).await?;
    let said = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert!(!said.contains("welcome"), "{said}");
    assert_eq!(allowed.count(), 0);
    assert_eq!(client.egress_policy(session.id()).await?.rules.len(), 0);
    client.set_egress_policy(session.id(), &policy_for(&allowed)?).await?;
    let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!(greeted, "heard \"welcome\"\n");
    Ok(session.delete().await?)
}
