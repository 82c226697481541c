//! Processes of a cluster: each is known by its name, with its number, its command and its log in files.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};

use super::rest;

/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(10);

/// Starts a process that outlives this one, and notes how.
pub(super) fn start(run: &Path, name: &str, command: &Command) -> io::Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    fs::write(run.join(format!("{name}.command")), serde_json::to_vec(&words)?)?;
    start_again(run, name)
}

/// Starts a process as it was started before.
pub(super) fn start_again(run: &Path, name: &str) -> io::Result<()> {
    let words: Vec<String> =
        serde_json::from_slice(&fs::read(run.join(format!("{name}.command")))?)?;
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidData)?;
    let log =
        fs::File::options().create(true).append(true).open(run.join(format!("{name}.log")))?;
    // By a shell in between, which ends at once: whoever starts it has no child to collect.
    let mut command = Command::new("setsid");
    command.args(["--fork", "sh", "-c", "echo $$ > \"$0\" && exec \"$@\""]);
    command.arg(run.join(format!("{name}.pid"))).arg(program).args(arguments);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    drop(fs::remove_file(run.join(format!("{name}.pid"))));
    if !command.status()?.success() {
        return Err(io::Error::other(format!("{name} cannot be started")));
    }
    let deadline = Instant::now() + GONE;
    while find(run, name).is_none() {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{name} was not started")));
        }
        rest();
    }
    Ok(())
}

/// The number of a process.
pub(super) fn find(run: &Path, name: &str) -> Option<Pid> {
    let text = fs::read_to_string(run.join(format!("{name}.pid"))).ok()?;
    Pid::from_raw(text.trim().parse().ok()?)
}

pub(super) fn is_alive(run: &Path, name: &str) -> bool {
    find(run, name).is_some_and(|pid| test_kill_process(pid).is_ok() && !is_zombie(pid))
}

fn is_zombie(pid: Pid) -> bool {
    let stat =
        fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// Kills a process, and waits until it is gone.
pub(super) fn kill(run: &Path, name: &str) -> io::Result<()> {
    let pid =
        find(run, name).ok_or_else(|| io::Error::other(format!("the cluster has no {name}")))?;
    // One that has ended is what is wanted.
    let _ = kill_process(pid, Signal::KILL);
    let deadline = Instant::now() + GONE;
    while is_alive(run, name) {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{name} does not end")));
        }
        rest();
    }
    fs::remove_file(run.join(format!("{name}.pid")))
}

/// As [`kill`], with every process that it started.
pub(super) fn kill_session(run: &Path, name: &str) -> io::Result<()> {
    if let Some(pid) = find(run, name) {
        // It leads a session and a group of its own.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    kill(run, name)
}

pub(super) fn last_log_line(run: &Path, name: &str) -> String {
    let log = fs::read_to_string(run.join(format!("{name}.log"))).unwrap_or_default();
    log.lines().next_back().unwrap_or("it said nothing").to_owned()
}
