//! Every command ends when it must, with all that descends from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Command, CreateOptions, ExitReason, OutputEvent, ResourceLimits, Session};

use crate::escape::probe::FLAG;
use crate::suite::{Context, Outcome, Trial, TrialError, running, sh, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t2_returns_at_the_deadline_though_a_child_ignores_signals_and_holds_the_pipe,
    ends_everything_descended_at_the_timeout,
    returns_though_a_child_holds_the_pipe,
    ends_everything_when_the_caller_gives_up,
    ends_thousands_of_children_at_the_timeout,
    deletes_a_session_with_thousands_of_processes,
];

/// A tree that does its best to stay: it ignores every signal it can, leaves its session, forks twice,
/// and holds the pipes. Each part marks itself by its name.
const STUBBORN: &str = "trap '' TERM INT HUP
    (setsid sh -c 'trap \"\" TERM INT HUP; exec sleep 7001' &)
    (sh -c '(sleep 7002 &) ; sleep 7003' &)
    setsid sh -c 'sleep 7004 & exec sleep 7005' &
    echo up
    sleep 7006";

/// How many of the marked processes there are.
async fn alive(session: &Session) -> Result<usize, TrialError> {
    running(session, "^sleep 700[0-9]").await
}

/// The command itself is long over when the deadline comes for its caller: what it left holds the pipe, and
/// wants to hear nothing.
async fn t2_returns_at_the_deadline_though_a_child_ignores_signals_and_holds_the_pipe(
    context: Context,
) -> Outcome {
    let options = CreateOptions::default()
        .limits(ResourceLimits { pids: Some(200), ..ResourceLimits::default() });
    let session = context.client().create(&Manifest::default(), options).await?;
    let line = "sh -c 'trap \"\" TERM INT HUP; echo up; while :; do sleep 7008; done' & wait";
    let started = Instant::now();
    let output = session.exec(sh(line).timeout(Duration::from_secs(1))).await?;
    let took = started.elapsed();
    assert_eq!((output.exit.reason, output.exit.code), (ExitReason::Timeout, 124));
    assert_eq!(output.stdout, b"up\n");
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "took {took:?}");
    assert_eq!(alive(&session).await?, 0);
    // Where this machine counts processes in a group, none of them is in it.
    let group = session.id().as_str().to_owned();
    for path in members(Path::new("/sys/fs/cgroup"), &format!("bastide-{group}"), 8) {
        for pid in fs::read_to_string(path).unwrap_or_default().lines() {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!line.starts_with(b"sleep\x007008"), "{pid} is in the group still");
        }
    }
    Ok(session.delete().await?)
}

/// The lists of processes of every group with this name.
fn members(folder: &Path, name: &str, depth: usize) -> Vec<PathBuf> {
    let own = folder.join(name).join("cgroup.procs");
    let mut found: Vec<_> = own.exists().then_some(own).into_iter().collect();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if depth > 0 {
            found.extend(members(&entry.path(), name, depth - 1));
        }
    }
    found
}

async fn ends_everything_descended_at_the_timeout(context: Context) -> Outcome {
    let session = context.session().await?;
    let started = Instant::now();
    let output = session.exec(sh(STUBBORN).timeout(Duration::from_secs(1))).await?;
    let took = started.elapsed();
    assert_eq!((output.exit.reason, output.exit.code), (ExitReason::Timeout, 124));
    assert_eq!(output.stdout, b"up\n", "what it said before is kept");
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "took {took:?}");
    assert_eq!(alive(&session).await?, 0);
    Ok(session.delete().await?)
}

async fn returns_though_a_child_holds_the_pipe(context: Context) -> Outcome {
    let session = context.session().await?;
    let started = Instant::now();
    let output = session.exec(sh("sleep 7007 & echo started")).await?;
    assert!(started.elapsed() < Duration::from_secs(5), "waited for the child");
    assert_eq!((&output.stdout[..], output.exit.code), (&b"started\n"[..], 0));
    assert_eq!(alive(&session).await?, 1, "the child lives on");
    Ok(session.delete().await?)
}

async fn ends_everything_when_the_caller_gives_up(context: Context) -> Outcome {
    let session = context.session().await?;
    let mut process = session.spawn(sh(STUBBORN)).await?;
    assert_eq!(process.next().await?, OutputEvent::Stdout("up\n".into()));
    assert!(alive(&session).await? > 0);
    drop(process);
    let deadline = Instant::now() + Duration::from_secs(5);
    while alive(&session).await? > 0 {
        assert!(Instant::now() < deadline, "still alive after the call was dropped");
    }
    Ok(session.delete().await?)
}

/// How many processes a probe of this session's has, on this host or inside.
async fn families(session: &Session) -> Result<usize, TrialError> {
    running(session, "^./probe --bastide-probe family").await
}

async fn ends_thousands_of_children_at_the_timeout(context: Context) -> Outcome {
    let session = context.session_with(&with_probe(Manifest::default())?).await?;
    let many = "4000";
    let command = Command::new(["./probe", FLAG, "family", many]);
    let output = session.exec(command.timeout(Duration::from_secs(10))).await?;
    assert_eq!((output.exit.reason, output.exit.code), (ExitReason::Timeout, 124));
    assert_eq!(String::from_utf8(output.stdout)?, format!("{many}\n"), "all were there");
    assert_eq!(families(&session).await?, 0);
    Ok(session.delete().await?)
}

async fn deletes_a_session_with_thousands_of_processes(context: Context) -> Outcome {
    let session = context.session_with(&with_probe(Manifest::default())?).await?;
    let mark = (2000 + std::process::id() % 1000).to_string();
    let mut process = session.spawn(Command::new(["./probe", FLAG, "family", &mark])).await?;
    assert_eq!(process.next().await?, OutputEvent::Stdout(format!("{mark}\n").into()));
    let place = session.root().to_string();
    session.delete().await?;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let is_family = line.ends_with(format!("family\0{mark}\0").as_bytes());
        let is_there = fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == Path::new(&place));
        assert!(!(is_family && is_there), "{} outlived its session", path.display());
    }
    Ok(())
}
