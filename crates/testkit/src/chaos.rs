//! What happens when things break: every call ends in time with the true reason, other sessions do not
//! notice, and nothing stays behind.

mod disk;
mod launcher;
mod limits;

use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{
    Command, CreateOptions, ErrorKind, ExitReason, ResourceLimits, Rung, Session, SessionStatus,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::suite::{Context, Outcome, Trial, block_sweeps, say, sh, skip};
use crate::trials;

/// Every chaos trial.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [TRIALS, disk::EVERYWHERE, launcher::TRIALS, limits::TRIALS].concat()
}

/// Those about workspaces on a file system of their own, which only
/// root's sessions on this machine have.
#[must_use]
pub fn bounded_trials() -> Vec<Trial> {
    disk::BOUNDED.to_vec()
}

const TRIALS: &[Trial] = trials![
    t4_says_that_memory_ran_out,
    bounds_the_number_of_processes,
    tells_the_truth_about_processors,
    t1_ends_a_call_whose_guest_stands_still,
    ends_a_call_whose_guest_is_killed,
    deletes_a_session_whose_guest_stands_still,
    keeps_other_calls_going_when_one_connection_drops,
];

/// A session with limits.
async fn limited(context: &Context, limits: ResourceLimits) -> Result<Session, TrialError> {
    let options = CreateOptions::default().limits(limits);
    Ok(context.client().create(&Manifest::default(), options).await?)
}

/// Sixty-four workers that want a hundred megabytes each, in one gibibyte; or a tenth of all that.
async fn t4_says_that_memory_ran_out(context: Context) -> Outcome {
    let most = context.count(1 << 30) as u64;
    let limits = ResourceLimits { memory: Some(most), ..ResourceLimits::default() };
    let session = limited(&context, limits).await?;
    let memory = session.receipt().limits.memory.clone();
    assert_eq!(memory.asked, Some(most));
    if !memory.enforced_by.as_deref().is_some_and(|by| by.starts_with("cgroup")) {
        // Each process alone is bounded then, and the receipt says so.
        let by = memory.enforced_by.unwrap_or_default();
        assert!(by.starts_with("rlimit") && by.ends_with("each process"), "{by}");
        let line = format!("head -c {} /dev/zero | tail -c {}", most * 2, most * 2);
        let output = session.exec(sh(&format!("{line} > /dev/null"))).await?;
        assert_ne!(output.exit.code, 0, "twice of what there is was had");
        assert_eq!(say(&session, "echo alive").await?, "alive\n", "the guest survives it");
        return Ok(session.delete().await?);
    }
    let each = context.count(100_000_000);
    let worker = format!("head -c {each} /dev/zero | tail -c {each} > /dev/null");
    let line = format!(
        "n=0; while [ $n -lt 64 ]; do ({worker}) & pids=\"$pids $!\"; n=$((n+1)); done
         bad=0; for pid in $pids; do wait $pid || bad=1; done; exit $bad"
    );
    let output = session.exec(sh(&line)).await?;
    assert_eq!(output.exit.reason, ExitReason::OutOfMemory, "{:?}", output.exit);
    assert_eq!(say(&session, "echo alive").await?, "alive\n", "the guest survives it");
    Ok(session.delete().await?)
}

async fn bounds_the_number_of_processes(context: Context) -> Outcome {
    let limits = ResourceLimits { pids: Some(40), ..ResourceLimits::default() };
    let session = limited(&context, limits).await?;
    if session.receipt().limits.pids.enforced_by.is_none() {
        // Without a group of its own, only where the kernel counts its user apart.
        let said = session.receipt().not_enforced.clone();
        assert_ne!(session.receipt().rung, Rung::Namespaces, "{said:?}");
        assert!(said.iter().any(|open| open.starts_with("the limit on pids")), "{said:?}");
        return Ok(session.delete().await?);
    }
    let line = "n=0; while [ $n -lt 100 ]; do sleep 7505 & n=$((n+1)); done; jobs -p | wc -l";
    let output = session.exec(sh(line)).await?;
    assert_ne!(output.exit.code, 0, "a hundred processes fit into forty");
    session.signal(output.process, 9).await?;
    // The dead count until somebody has collected them.
    let deadline = Instant::now() + Duration::from_secs(20);
    while session.exec(sh("true")).await.is_err() && Instant::now() < deadline {}
    assert_eq!(say(&session, "echo alive").await?, "alive\n", "and there is room again");
    Ok(session.delete().await?)
}

async fn tells_the_truth_about_processors(context: Context) -> Outcome {
    let limits = ResourceLimits { cpu_millis: Some(700), ..ResourceLimits::default() };
    let session = limited(&context, limits).await?;
    assert!(session.receipt().limits.cpu.enforced_by.is_some());
    assert_eq!(say(&session, "nproc").await?, "1\n");
    Ok(session.delete().await?)
}

type TrialError = Box<dyn std::error::Error + Send + Sync>;

/// The guest's process on this host.
async fn guest(context: &Context, session: &Session) -> Result<Pid, TrialError> {
    let info = context.client().inspect(session.id()).await?;
    let pid = info.guest_pid.ok_or_else(|| skip("the guest is no process of this host"))?;
    Pid::from_raw(i32::try_from(pid)?).ok_or_else(|| "no process".into())
}

/// The guest stops answering in the middle of a call.
async fn t1_ends_a_call_whose_guest_stands_still(context: Context) -> Outcome {
    let session = context.session().await?;
    let other = context.session().await?;
    let pid = guest(&context, &session).await?;
    let deadline = Duration::from_secs(2);
    let mut process = session.spawn(sh("echo up; sleep 7501").timeout(deadline)).await?;
    process.next().await?;
    let started = Instant::now();
    kill_process(pid, Signal::STOP)?;
    let ended = loop {
        match process.next().await {
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    let took = started.elapsed();
    assert_eq!(ended, ErrorKind::AgentLost);
    assert!(took <= deadline + Duration::from_millis(1500), "took {took:?}");
    assert_eq!(say(&other, "echo unmoved").await?, "unmoved\n", "another session goes on");
    other.delete().await?;
    let (started, deadline) = (Instant::now(), Duration::from_millis(100));
    let ended = session.exec(sh("echo never").timeout(deadline)).await;
    let took = started.elapsed();
    assert_eq!(ended.map_err(|error| error.kind()).err(), Some(ErrorKind::AgentLost));
    assert!(took <= deadline + Duration::from_millis(3500), "took {took:?}");
    // It comes back to its senses, and so does the session.
    kill_process(pid, Signal::CONT)?;
    assert_eq!(say(&session, "echo back").await?, "back\n");
    Ok(session.delete().await?)
}

async fn ends_a_call_whose_guest_is_killed(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let session = context.session().await?;
    let other = context.session().await?;
    let pid = guest(&context, &session).await?;
    let mut process = session.spawn(Command::shell("echo up; sleep 7502")).await?;
    process.next().await?;
    kill_process(pid, Signal::KILL)?;
    let ended = tokio::time::timeout(Duration::from_secs(2), process.next()).await?;
    assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::AgentLost));
    let refused = session.exec(sh("true")).await.map_err(|error| error.kind());
    assert_eq!(refused.map(|output| output.exit.code), Err(ErrorKind::AgentLost));
    let state = loop {
        let state = context.client().inspect(session.id()).await?.status;
        if state != SessionStatus::Running {
            break state;
        }
    };
    assert_ne!(state, SessionStatus::Running, "what is shown is true");
    assert_eq!(say(&other, "echo unmoved").await?, "unmoved\n", "another session goes on");
    other.delete().await?;
    Ok(session.delete().await?)
}

async fn deletes_a_session_whose_guest_stands_still(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "(setsid sleep 7503 >/dev/null 2>&1 &)").await?;
    let pid = guest(&context, &session).await?;
    kill_process(pid, Signal::STOP)?;
    session.delete().await?;
    for entry in std::fs::read_dir("/proc")? {
        let line = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        assert!(line != b"sleep\x007503\x00", "a process outlived its session");
    }
    Ok(())
}

async fn keeps_other_calls_going_when_one_connection_drops(context: Context) -> Outcome {
    let session = context.session().await?;
    let kept = session.spawn(sh("until [ -e go ]; do sleep 0.01; done; echo kept")).await?;
    let dropped = session.reconnect().await?;
    let mut lost = dropped.spawn(sh("echo up; sleep 7504")).await?;
    lost.next().await?;
    let number = lost.id();
    drop((lost, dropped));
    // The command of the connection that is gone ends; the other goes on.
    let deadline = Instant::now() + Duration::from_secs(10);
    while session.processes().await?.iter().any(|one| one.id == number && one.exit.is_none()) {
        assert!(Instant::now() < deadline, "the command outlived its caller");
    }
    say(&session, "touch go").await?;
    assert_eq!(kept.output(1000).await?.stdout, b"kept\n");
    Ok(session.delete().await?)
}
