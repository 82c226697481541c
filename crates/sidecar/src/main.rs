//! What works beside a session on the host. The name it is called by tells it what it is; its standard input is the
//! channel to whoever started it.
//!
//! - `bastide-egress` is the session's network, for its warden.
//! - `bastide-mounts keep` looks after the session's mounts, for its warden.
//! - `bastide-mount` answers FUSE for mounts; `bastide-mount attach` makes one in the session's namespaces, or takes
//!   it away.

#[cfg(target_env = "gnu")]
mod sys;

use std::env::args_os;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use bastide_mount::{Channel, attach, keep, serve};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() -> ExitCode {
    // Keys will be in memory: not in a core dump, and not for a debugger.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let (Ok(()), Ok(stdin)) = (hidden, stdin) else { return ExitCode::FAILURE };
    // What went wrong is told over the channel; there is nobody else to tell.
    match work(stdin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn work(stdin: OwnedFd) -> io::Result<()> {
    let name = args_os().next().unwrap_or_default();
    match name.as_encoded_bytes() {
        b"bastide-egress" => bastide_egress::run(stdin),
        b"bastide-mount" | b"bastide-mounts" => mount(stdin),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn mount(stdin: OwnedFd) -> io::Result<()> {
    match args_os().nth(1) {
        None => {
            #[cfg(target_env = "gnu")]
            sys::keep_little_memory();
            serve(Channel::new(stdin)?)
        }
        Some(word) if word == "keep" => keep(stdin),
        Some(word) if word == "attach" => attach(&Channel::new(stdin)?),
        Some(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}
