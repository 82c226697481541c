//! The supervisor of one command, and the process that becomes the command.
//!
//! Both are forked ahead of need, so that no fork is in the way when a command is asked for: the
//! second one waits for its orders and then only has to execute. The supervisor is the reaper of all
//! that descends from it, so a process that double-forks, or starts a session of its own, still has
//! the supervisor for an ancestor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Mode;
use rustix::process::{
    Pid, WaitOptions, ioctl_tiocsctty, set_child_subreaper, setsid, umask, wait,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::packet;
use crate::removable_walls::{Wall, is_removed};
use crate::sys::{default_sigchld, exec, exit_now, fork_vm, reset_signals};
use crate::tree_usage::TreeUsage;

/// What a supervisor tells the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SupervisorMessage {
    /// It is ready; these are its own process and the one that will be the command.
    Ready {
        /// The supervisor.
        supervisor: i32,
        /// The command.
        command: i32,
    },
    /// What of the command and all that descended from it has ended used. It comes before the command's end, and again
    /// when nothing is left of it.
    Used(TreeUsage),
    /// The command exited.
    Exited(i32),
    /// A signal ended the command.
    Signalled(i32),
}

/// The orders of a process that is to become a command. Its standard streams come with them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExecSpec {
    /// The program and its arguments.
    pub(crate) argv: Vec<ByteBuf>,
    /// The whole environment.
    pub(crate) env: Vec<(ByteBuf, ByteBuf)>,
    /// Where it starts.
    pub(crate) cwd: String,
    /// Whether its standard streams are a terminal that becomes its own.
    pub(crate) terminal: bool,
}

/// Why a command could not become what it was told to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum ExecFailure {
    /// The folder to start in could not be entered.
    Folder(i32),
    /// The program could not be executed.
    Program(i32),
}

/// Whether supervisors go on that cannot adopt what their command leaves behind. It is set once, before
/// there are any.
static SUBREAPER_OPTIONAL: AtomicBool = AtomicBool::new(false);

/// Becomes the parent of whatever loses its own; false where that cannot be had.
fn become_subreaper() -> bool {
    // Any pid but 0 turns PR_SET_CHILD_SUBREAPER on.
    set_child_subreaper(Some(Pid::INIT)).is_ok()
}

/// Finds out whether this process could adopt what descends from it, and lets the supervisors it forks
/// go on where it could not: engines that only look like a kernel may not know how.
pub(crate) fn probe_subreaper() -> bool {
    let has_subreaper = become_subreaper() && set_child_subreaper(None).is_ok();
    SUBREAPER_OPTIONAL.store(!has_subreaper, Ordering::Relaxed);
    has_subreaper
}

/// The life of a supervisor.
pub(crate) fn run(to_guest: &OwnedFd, to_command: OwnedFd) -> ! {
    // Unlike those it was forked from, it wants to know.
    default_sigchld();
    if !become_subreaper() && !SUBREAPER_OPTIONAL.load(Ordering::Relaxed) {
        exit_now(1);
    }
    // Without it everything is the same, only later.
    drop(prefault());
    // This closes the command's socket here: it must close with the command, or nobody could tell that
    // it started.
    let Ok(command) = fork_vm(become_command, to_command) else { exit_now(1) };
    let ready = SupervisorMessage::Ready {
        supervisor: rustix::process::getpid().as_raw_pid(),
        command: command.as_raw_pid(),
    };
    // From here on the heap is the other's, which waits for orders that come after this word.
    if packet::send_brief(to_guest, &ready).is_err() {
        exit_now(1);
    }
    let mut is_told = true;
    // Lives until nothing that descends from the command does.
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if pid != command {
            is_told = false;
            continue;
        }
        let message = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => SupervisorMessage::Exited(code),
            (None, signal) => SupervisorMessage::Signalled(signal.unwrap_or(libc::SIGKILL)),
        };
        // A command that was killed on its way may have left the heap in the middle of something.
        if packet::send_brief(to_guest, &SupervisorMessage::Used(TreeUsage::of_children())).is_err()
            || packet::send_brief(to_guest, &message).is_err()
        {
            exit_now(1);
        }
        is_told = true;
    }
    if !is_told {
        // A guest that is gone has nobody to tell it to.
        drop(packet::send_brief(to_guest, &SupervisorMessage::Used(TreeUsage::of_children())));
    }
    exit_now(0)
}

/// The life of a process that waits to become a command. It touches no memory but its own stack until the
/// supervisor waits for its end: both have the same.
fn become_command(orders: OwnedFd) -> ! {
    let alone = setsid();
    let Ok(Some((message, streams))) = packet::receive::<ExecSpec>(&orders) else { exit_now(0) };
    if is_removed(Wall::CloseOnExec) {
        let _ = rustix::io::fcntl_setfd(&orders, rustix::io::FdFlags::empty());
    }
    let failure = match alone {
        Ok(_) => execute(&message, &streams),
        Err(errno) => ExecFailure::Program(errno.raw_os_error()),
    };
    // If the guest is gone, so is everybody who could want to know.
    drop(packet::send(&orders, &failure, &[]));
    exit_now(127)
}

/// Takes orders nobody gave, as those that come will be taken. A forked process gets each page of its memory
/// when it first touches it; that takes half as long as executing a program, and here nobody waits for it.
/// These orders are long: memory for them is looked for everywhere.
fn prefault() -> io::Result<()> {
    let (near, far) = UnixStream::pair()?;
    let env = vec![(ByteBuf::from("PATH"), ByteBuf::from("/usr/local/bin:/usr/bin:/bin"))];
    let argv = vec![ByteBuf::from("true"), ByteBuf::from(vec![b'-'; 4096])];
    let orders = ExecSpec { argv, env, cwd: "/".to_owned(), terminal: false };
    packet::send(&near, &orders, &[near.as_fd()])?;
    let taken = packet::receive::<ExecSpec>(&far)?;
    if let Some((orders, _streams)) = &taken {
        to_c_strings(orders)?;
    }
    Ok(())
}

/// Carries out the orders; returns only if that failed.
fn execute(orders: &ExecSpec, streams: &[OwnedFd]) -> ExecFailure {
    let prepare = || -> io::Result<()> {
        let [stdin, stdout, stderr] = streams else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        dup2_stdin(stdin)?;
        dup2_stdout(stdout)?;
        dup2_stderr(stderr)?;
        if orders.terminal {
            ioctl_tiocsctty(stdin)?;
        }
        umask(Mode::from_raw_mode(0o022));
        Ok(())
    };
    if let Err(error) = prepare() {
        return ExecFailure::Program(errno(&error));
    }
    if let Err(error) = rustix::process::chdir(orders.cwd.as_str()) {
        return ExecFailure::Folder(error.raw_os_error());
    }
    match to_c_strings(orders) {
        Ok((argv, env)) => {
            reset_signals();
            ExecFailure::Program(errno(&search_and_exec(orders, &argv, &env)))
        }
        Err(error) => ExecFailure::Program(errno(&error)),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

fn to_c_strings(orders: &ExecSpec) -> io::Result<(Vec<CString>, Vec<CString>)> {
    let argv = orders.argv.iter().map(|text| c_string(text)).collect::<io::Result<_>>()?;
    let env = orders.env.iter().map(|(key, value)| c_string(&join(key, b"=", value)));
    Ok((argv, env.collect::<io::Result<_>>()?))
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn join(left: &[u8], between: &[u8], right: &[u8]) -> Vec<u8> {
    [left, between, right].concat()
}

/// Finds the program as a shell would, in the `PATH` of the command itself, and executes it.
fn search_and_exec(orders: &ExecSpec, argv: &[CString], env: &[CString]) -> io::Error {
    let Some(program) = argv.first() else { return io::Error::from_raw_os_error(libc::EINVAL) };
    let name = program.as_bytes();
    if name.contains(&b'/') {
        return exec(program, argv, env);
    }
    if name.is_empty() {
        return io::Error::from_raw_os_error(libc::ENOENT);
    }
    let path = orders.env.iter().find(|(key, _)| &key[..] == b"PATH");
    let path = path.map_or(&b"/usr/local/bin:/usr/bin:/bin"[..], |(_, value)| &value[..]);
    // "Permission denied" anywhere on the way is worth more to the reader than "not found".
    let mut failure = io::Error::from_raw_os_error(libc::ENOENT);
    for folder in path.split(|byte| *byte == b':') {
        let folder = if folder.is_empty() { &b"."[..] } else { folder };
        let Ok(candidate) = c_string(&join(folder, b"/", name)) else { continue };
        let error = exec(&candidate, argv, env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => {}
            Some(libc::EACCES) => failure = error,
            _ => return error,
        }
    }
    failure
}
