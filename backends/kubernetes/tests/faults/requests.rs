//! How many requests things cost, by the server's own audit log.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bastide::CreateOptions;
use bastide::model::Manifest;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for, say};
use bastide_testkit::trials;

pub(crate) const TRIALS: &[Trial] = trials![asks_little_of_the_server];

/// Whom these tests are.
const USER: &str = "system:serviceaccount:bastide-test:bastide-host";

/// A place in the log: what is after it has not been read.
struct Mark(u64);

fn log() -> Result<std::path::PathBuf, TrialError> {
    let config = bastide_testkit::kubernetes::for_tests()?;
    Ok(config.with_file_name("audit.log"))
}

fn mark() -> Result<Mark, TrialError> {
    // What was asked before this is written by the time the server answers this.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    crate::administer(&["get", "--raw", &format!("/api?bastide-mark={now}")])?;
    Ok(Mark(std::fs::metadata(log()?)?.len()))
}

/// What was asked since then, as verb and address.
fn since(mark: &Mark) -> Result<Vec<String>, TrialError> {
    self::mark()?;
    let text = std::fs::read(log()?)?;
    let text = text.get(usize::try_from(mark.0)?..).unwrap_or_default();
    let mut all = Vec::new();
    for line in String::from_utf8_lossy(text).lines() {
        let Ok(entry) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        // One that lasts is there twice: when it begins, and when it is over.
        let is_ours = entry["user"]["username"] == USER;
        if is_ours && (entry["stage"] != "ResponseComplete" || !lasts(&entry)) {
            all.push(format!("{} {}", entry["verb"], entry["requestURI"]));
        }
    }
    Ok(all)
}

fn lasts(entry: &serde_json::Value) -> bool {
    entry["verb"] == "watch" || entry["objectRef"]["subresource"] == "exec"
}

fn execs(all: &[String]) -> usize {
    all.iter().filter(|one| one.contains("/exec?")).count()
}

async fn asks_little_of_the_server(context: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    // A process that has asked nothing yet.
    let client = client_for(Arc::new(crate::backend(home.path())?));
    let options = CreateOptions::default().untied();
    let begun = mark()?;
    let session = client.create(&Manifest::default(), options.clone()).await?;
    let asked = since(&begun)?;
    assert!(asked.len() <= 8, "{} requests: {asked:#?}", asked.len());
    let begun = mark()?;
    for number in 0..50 {
        assert_eq!(say(&session, &format!("echo {number}")).await?, format!("{number}\n"));
    }
    let more = since(&begun)?;
    assert!(more.is_empty(), "{more:#?}");
    assert_eq!(execs(&asked), 1, "{asked:#?}");
    let mut sessions = vec![session];
    for _ in 1..context.count(100) {
        sessions.push(client.create(&Manifest::default(), options.clone()).await?);
    }
    // Another process that has asked nothing yet.
    let client = client_for(Arc::new(crate::backend(home.path())?));
    let begun = mark()?;
    for session in &sessions {
        client.inspect(session.id()).await?;
    }
    let asked = since(&begun)?;
    assert!(asked.len() <= 2, "{} requests: {asked:#?}", asked.len());
    for session in sessions {
        session.delete().await?;
    }
    Ok(())
}
