//! How many requests things cost, by the server's own audit log.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide::CreateOptions;
use bastide::model::Manifest;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for, say, sh};
use bastide_testkit::trials;

pub(crate) const TRIALS: &[Trial] = trials![
    asks_little_of_the_server,
    closes_links_that_nobody_uses,
    takes_another_stream_when_one_is_old,
];

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
    // One that lasts is there twice: when it begins, and when it is over.
    logged(mark, |entry| entry["stage"] != "ResponseComplete" || !lasts(entry))
}

/// What lasted and is over since then.
fn finished(mark: &Mark) -> Result<Vec<String>, TrialError> {
    logged(mark, |entry| entry["stage"] == "ResponseComplete" && lasts(entry))
}

fn logged(
    mark: &Mark,
    counts: impl Fn(&serde_json::Value) -> bool,
) -> Result<Vec<String>, TrialError> {
    self::mark()?;
    let text = std::fs::read(log()?)?;
    let text = text.get(usize::try_from(mark.0)?..).unwrap_or_default();
    let mut all = Vec::new();
    for line in String::from_utf8_lossy(text).lines() {
        let Ok(entry) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if entry["user"]["username"] == USER && counts(&entry) {
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

fn watches(all: &[String]) -> usize {
    all.iter().filter(|one| one.contains("watch=true")).count()
}

async fn asks_little_of_the_server(context: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    // A process that has asked nothing yet.
    let client = client_for(Arc::new(crate::backend(home.path())?));
    let options = CreateOptions::default().detached();
    let begun = mark()?;
    let session = client.create(&Manifest::default(), options.clone()).await?;
    let asked = since(&begun)?;
    // A node that is slow to start a container costs a call more.
    let late = execs(&asked).saturating_sub(1);
    assert!(late <= 1 && asked.len() - late <= 8, "{} requests: {asked:#?}", asked.len());
    let begun = mark()?;
    for number in 0..50 {
        assert_eq!(say(&session, &format!("echo {number}")).await?, format!("{number}\n"));
    }
    let more = since(&begun)?;
    assert!(more.is_empty(), "{more:#?}");
    let mut sessions = vec![session];
    let (begun, count) = (mark()?, context.count(100));
    for _ in 1..count {
        sessions.push(client.create(&Manifest::default(), options.clone()).await?);
    }
    let asked = since(&begun)?;
    // The first had the watch, and everything that is known about the namespace.
    assert!(asked.len() <= 4 * count, "{} requests: {asked:#?}", asked.len());
    assert!(watches(&asked) <= 1 + count / 50, "{asked:#?}");
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

async fn closes_links_that_nobody_uses(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    // What is told by the log takes seconds where the machine has more to do.
    let (idle, age) = (Duration::from_secs(6), Duration::from_secs(3600));
    let backend = crate::backend(home.path())?.with_link_times(idle, age);
    let client = client_for(Arc::new(backend));
    // One that lives by its link keeps it.
    let tied = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let session = client.create(&Manifest::default(), CreateOptions::default().detached()).await?;
    let begun = mark()?;
    assert_eq!(say(&session, "sleep 8; echo there").await?, "there\n");
    assert_eq!(execs(&since(&begun)?), 0, "a call was open");
    let closed = || Ok(finished(&begun)?.iter().filter(|one| one.contains("/exec?")).count() == 1);
    crate::until(Duration::from_secs(40), "the link is closed", closed).await?;
    let begun = mark()?;
    assert_eq!(say(&session, "echo again").await?, "again\n");
    assert_eq!(execs(&since(&begun)?), 1, "it was opened again");
    let begun = mark()?;
    assert_eq!(say(&tied, "echo tied").await?, "tied\n");
    assert_eq!(execs(&since(&begun)?), 0, "it was open");
    session.delete().await?;
    Ok(tied.delete().await?)
}

async fn takes_another_stream_when_one_is_old(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let (idle, age) = (Duration::from_secs(60), Duration::from_secs(3));
    let backend = crate::backend(home.path())?.with_link_times(idle, age);
    let client = client_for(Arc::new(backend));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let begun = mark()?;
    let script =
        "i=0; while [ $i -lt 1200 ]; do i=$((i + 1)); echo line $i; sleep 0.01; done; exit 7";
    let output = session.exec(sh(script)).await?;
    let expected: String = (1..=1200).map(|number| format!("line {number}\n")).collect();
    assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    assert_eq!(output.exit.code, 7);
    let streams = execs(&since(&begun)?);
    assert!(streams >= 2, "{streams} streams in 12 s");
    Ok(session.delete().await?)
}
