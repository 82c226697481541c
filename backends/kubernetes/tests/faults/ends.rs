//! Pods that others end: the reason is known soon.

use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{CreateOptions, ResourceLimits, Session};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh};
use bastide_testkit::trials;

use crate::{NAMESPACE, administer, objects};

pub(crate) const TRIALS: &[Trial] = trials![
    says_that_a_pod_was_evicted,
    says_that_a_pod_was_deleted,
    says_that_a_job_was_deleted,
    says_that_a_pod_ran_out_of_memory,
    is_refused_what_pod_security_forbids,
];

/// How soon a reason is known: five seconds, and what a machine with much else to do takes longer.
const SOON: Duration = Duration::from_secs(15);

async fn made(context: &Context) -> Result<Session, TrialError> {
    let options = CreateOptions::default().detached();
    Ok(context.client().create(&Manifest::default(), options).await?)
}

/// How a session ended, once it has.
async fn reason(context: &Context, session: &Session) -> Result<(String, String), TrialError> {
    let begun = Instant::now();
    loop {
        if let Some(end) = context.client().inspect(session.id()).await?.end {
            return Ok((end.reason, end.detail));
        }
        if begun.elapsed() > SOON {
            return Err("nobody knows that it ended".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn of(session: &Session) -> String {
    format!("bastide.session={}", session.id())
}

async fn says_that_a_pod_was_evicted(context: Context) -> Outcome {
    let session = made(&context).await?;
    let pod = objects("pods", &of(&session))?.pop().ok_or("no pod")?;
    let file = tempfile::NamedTempFile::new()?;
    let eviction = format!(
        r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{pod}","namespace":"{NAMESPACE}"}}}}"#
    );
    std::fs::write(file.path(), eviction)?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction");
    administer(&["create", "--raw", &path, "-f", &file.path().to_string_lossy()])?;
    let (reason, detail) = reason(&context, &session).await?;
    assert_eq!(reason, "evicted", "{detail}");
    Ok(session.delete().await?)
}

async fn says_that_a_pod_was_deleted(context: Context) -> Outcome {
    let session = made(&context).await?;
    let pod = objects("pods", &of(&session))?.pop().ok_or("no pod")?;
    administer(&["-n", NAMESPACE, "delete", "pod", &pod, "--wait=false"])?;
    let (reason, detail) = reason(&context, &session).await?;
    assert_eq!(reason, "backend_lost", "{detail}");
    assert!(detail.contains("deleted") || detail.contains("gone"), "{detail}");
    Ok(session.delete().await?)
}

async fn says_that_a_job_was_deleted(context: Context) -> Outcome {
    let session = made(&context).await?;
    let job = objects("jobs", &of(&session))?.pop().ok_or("no job")?;
    administer(&["-n", NAMESPACE, "delete", "job", &job, "--wait=false"])?;
    let (reason, detail) = reason(&context, &session).await?;
    assert_eq!(reason, "backend_lost", "{detail}");
    // It is on its way out for a moment. Another of the same name would not be this session's.
    let begun = Instant::now();
    let error = loop {
        match session.exec(sh("true")).await {
            Err(error) => break error,
            Ok(_) if begun.elapsed() > SOON => return Err("it runs commands".into()),
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(
        matches!(error.kind(), bastide::ErrorKind::AgentLost | bastide::ErrorKind::BackendLost),
        "{error}"
    );
    Ok(session.delete().await?)
}

/// Whatever the kernel chooses: a command that says so, or the whole container.
async fn says_that_a_pod_ran_out_of_memory(context: Context) -> Outcome {
    let limits = ResourceLimits { memory: Some(64 << 20), ..ResourceLimits::default() };
    let options = CreateOptions::default().detached().limits(limits);
    let session = context.client().create(&Manifest::default(), options).await?;
    let line = "head -c 300m /dev/zero | tail -c 300m | wc -c";
    match session.exec(sh(line)).await {
        Ok(output) => assert!(!output.stdout.starts_with(b"314572800"), "it had the memory"),
        Err(_) => {
            let (reason, detail) = reason(&context, &session).await?;
            assert_eq!(reason, "oom", "{detail}");
        }
    }
    Ok(session.delete().await?)
}

/// The namespace of the tests enforces `restricted`: whatever passes here passed that.
async fn is_refused_what_pod_security_forbids(context: Context) -> Outcome {
    let bad = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"bastide-test/base","securityContext":{"privileged":true}}]}}"#;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), bad)?;
    let path = file.path().to_string_lossy().into_owned();
    let refused = administer(&["-n", NAMESPACE, "create", "-f", &path]);
    let why = refused.err().ok_or("a privileged pod was taken")?.to_string();
    assert!(why.contains("violates PodSecurity \"restricted"), "{why}");
    let session = context.session().await?;
    assert_eq!(say(&session, "id -u").await?, "1000\n");
    Ok(session.delete().await?)
}
