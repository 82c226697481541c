//! What somebody allowed who was asked.

use std::time::{Duration, Instant};

use bastide::egress::{Answer, PendingFlow};
use bastide::model::policy::{Flow, Host, Verdict};
use bastide::{Client, CreateOptions, Session, SessionId};

use super::{Greeter, TIMEOUT, client, policy};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![remembers_what_was_approved_for_the_session];

/// What waits, once something does.
async fn pending(client: &Client, id: &SessionId) -> Result<PendingFlow, TrialError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(flow) = client.egress_pending(id).await?.pop() {
            return Ok(flow);
        }
        if Instant::now() > deadline {
            return Err("nothing waits".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Dials, and answers for somebody who is asked about it.
async fn dial(
    client: &Client,
    session: &Session,
    port: u16,
    answer: Answer,
) -> Result<String, TrialError> {
    let port = port.to_string();
    let arguments = ["asked.test", port.as_str()];
    let (said, answered) = tokio::join!(attempt(session, "dial", &arguments), async {
        let flow = pending(client, session.id()).await?;
        Ok::<_, TrialError>(client.egress_answer(session.id(), flow.id, answer).await?)
    });
    answered?;
    said
}

async fn remembers_what_was_approved_for_the_session(context: Context) -> Outcome {
    let server = Greeter::start()?;
    let text = format!(
        "rules:\n- ask: asked.test\n  ports: [{}]\nhosts: {{asked.test: 127.0.0.1}}\nask_seconds: 60\n",
        server.port
    );
    let client = client(&context);
    let options = CreateOptions::default().policy(policy(&text)?).detached();
    let session = client.create(&with_probe(bastide::model::Manifest::default())?, options).await?;
    let id = session.id().clone();
    let host = Host::parse("asked.test")?;
    let explained = async || -> Result<Verdict, TrialError> {
        let policy = client.egress_policy(&id).await?;
        Ok(policy.explain(&Flow { host: &host, port: server.port, http: None }).verdict)
    };
    assert_eq!(dial(&client, &session, server.port, Answer::Once).await?, "heard \"welcome\"\n");
    assert_eq!(explained().await?, Verdict::Ask);
    assert_eq!(dial(&client, &session, server.port, Answer::Session).await?, "heard \"welcome\"\n");
    assert_eq!(explained().await?, Verdict::Allow, "what is explained is what holds");
    drop(session);
    client.stop(&id).await?;
    let session = client.resume(&id).await?;
    let port = server.port.to_string();
    let said = attempt(&session, "dial", &["asked.test", &port]).await?;
    assert_eq!(said, "heard \"welcome\"\n", "nobody is asked again");
    // Another policy is another word.
    client.set_egress_policy(&id, &policy(&text)?).await?;
    assert_eq!(explained().await?, Verdict::Ask);
    Ok(session.delete().await?)
}
