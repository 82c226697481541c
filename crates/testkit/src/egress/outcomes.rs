//! Policies that are changed: what it comes to, and what is said where it cannot be.

#![expect(clippy::unwrap_used, reason = "a trial fails by its message")]

use bastide::events::{EventOptions, JsonlOutbox, SinkOptions};
use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind};

use super::{Greeter, SECRET_VARIABLE, client, policy, policy_for};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, say, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    reads_tls_only_where_programs_trust_whoever_does,
    keeps_what_stands_for_a_secret_through_other_policies,
    changes_the_policy_of_a_stopped_session,
    leaves_no_notes_behind,
    tells_sinks_what_was_decided,
];

const READS: &str = "rules:\n- allow: api.test\n  http: [{methods: [GET]}]\n";

/// How many certificates programs inside are told to trust.
const COUNT: &str = "grep -c BEGIN \"$SSL_CERT_FILE\"";

async fn reads_tls_only_where_programs_trust_whoever_does(context: Context) -> Outcome {
    let client = client(&context);
    let options =
        CreateOptions::default().policy(policy("rules:\n- allow: api.test\n")?).detached();
    let session = client.create(&Manifest::default(), options).await?;
    let id = session.id().clone();
    assert_eq!(say(&session, "echo \"$SSL_CERT_FILE\"").await?, "\n");
    let error = client.set_egress_policy(&id, &policy(READS)?).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("has TLS read"), "{error}");
    assert!(client.egress_status(&id).await?.certificate.is_none(), "nothing is changed");
    drop(session);
    client.stop(&id).await?;
    client.set_egress_policy(&id, &policy(READS)?).await?;
    let session = client.resume(&id).await?;
    let first: u32 = say(&session, COUNT).await?.trim().parse()?;
    // From here on other hosts can be read, too: their authority is added to what is trusted.
    let other = policy("rules:\n- allow: other.test\n  http: [{methods: [GET]}]\n")?;
    client.set_egress_policy(&id, &other).await?;
    let second: u32 = say(&session, COUNT).await?.trim().parse()?;
    assert_eq!(second, first + 1);
    let trusted = say(&session, "cat \"$SSL_CERT_FILE\"").await?;
    let now = client.egress_status(&id).await?.certificate.ok_or("no certificate")?;
    assert!(trusted.contains(now.trim()), "{now}");
    Ok(session.delete().await?)
}

async fn keeps_what_stands_for_a_secret_through_other_policies(context: Context) -> Outcome {
    let with = format!(
        "rules:\n- allow: api.test\nsecrets:\n  KEY: {{from: 'env:{SECRET_VARIABLE}', env: API_KEY, hosts: [api.test]}}\n"
    );
    let client = client(&context);
    let options = CreateOptions::default().policy(policy(&with)?).detached();
    let session = client.create(&Manifest::default(), options).await?;
    let id = session.id().clone();
    let inside = say(&session, "echo \"$API_KEY\"").await?;
    client.set_egress_policy(&id, &policy("rules:\n- allow: other.test\n")?).await?;
    client.set_egress_policy(&id, &policy(&with)?).await?;
    drop(session);
    client.stop(&id).await?;
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "echo \"$API_KEY\"").await?, inside);
    Ok(session.delete().await?)
}

async fn changes_the_policy_of_a_stopped_session(context: Context) -> Outcome {
    let (before, after) = (Greeter::start()?, Greeter::start()?);
    let client = client(&context);
    let options = CreateOptions::default().policy(policy_for(&before)?).detached();
    let session = client.create(&with_probe(Manifest::default())?, options).await?;
    let id = session.id().clone();
    drop(session);
    client.stop(&id).await?;
    let error = client.egress_status(&id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("does not run"), "{error}");
    client.set_egress_policy(&id, &policy_for(&after)?).await?;
    let session = client.resume(&id).await?;
    let port = after.port.to_string();
    let greeted = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!((greeted.as_str(), before.count()), ("heard \"welcome\"\n", 0));
    Ok(session.delete().await?)
}

async fn leaves_no_notes_behind(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let options = CreateOptions::default().policy(policy_for(&allowed)?);
    let session = client(&context).create(&with_probe(Manifest::default())?, options).await?;
    attempt(&session, "dial", &["denied.test", "443"]).await?;
    let notes = bastide::events::egress_notes(context.backend.home(), session.id());
    assert!(notes.exists());
    session.delete().await?;
    assert!(!notes.exists(), "{}", notes.display());
    Ok(())
}

async fn tells_sinks_what_was_decided(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let folder = tempfile::tempdir()?;
    let outbox = folder.path().join("events");
    let sink = JsonlOutbox::new(&outbox).options(SinkOptions::sync().extended());
    let client = client(&context).with_events(EventOptions::new().sink(sink));
    let options = CreateOptions::default().policy(policy_for(&allowed)?);
    let session = client.create(&with_probe(Manifest::default())?, options).await?;
    let port = allowed.port.to_string();
    attempt(&session, "dial", &["allowed.test", &port]).await?;
    attempt(&session, "dial", &["denied.test", &port]).await?;
    session.delete().await?;
    let reported = std::fs::read_to_string(&outbox)?;
    let events = reported.lines().map(serde_json::from_str::<serde_json::Value>);
    let events: Vec<_> = events.collect::<Result<_, _>>()?;
    for (host, decision) in [("allowed.test", "allow"), ("denied.test", "deny")] {
        let is_it = |event: &&serde_json::Value| {
            let data = &event["data"];
            event["op"] == "egress" && data["host"] == host && data["decision"] == decision
        };
        let phases: Vec<_> = events.iter().filter(is_it).map(|event| &event["phase"]).collect();
        assert!(phases.len() >= 2 && phases[0] == "start" && phases[1] == "finish", "{reported}");
    }
    Ok(())
}
