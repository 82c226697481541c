//! Cloud storage for sessions, on the host. Without a word it answers FUSE for mounts, and its standard input is the
//! channel to whoever started it; `keep` looks after the mounts of a session, for its warden; `attach` makes one in the
//! session's namespaces, or takes it away.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use bastide_mount::{Channel, attach, keep, serve};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() -> ExitCode {
    // Keys will be in memory: not in a core dump, and not for a debugger.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let (Ok(()), Ok(stdin)) = (hidden, stdin) else { return ExitCode::FAILURE };
    // What went wrong is told over the channel; there is nobody else to tell.
    match work(stdin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn work(stdin: OwnedFd) -> std::io::Result<()> {
    // The first word tells it what it is.
    match std::env::args_os().nth(1) {
        None => serve(Channel::new(stdin)?),
        Some(word) if word == "keep" => keep(stdin),
        Some(word) if word == "attach" => attach(&Channel::new(stdin)?),
        Some(_) => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}
