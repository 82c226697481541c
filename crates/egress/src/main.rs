//! The network of one session, on the host: its standard input is the channel to the session's warden.

use std::os::fd::AsFd;
use std::process::ExitCode;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() -> ExitCode {
    // Keys will be in memory: not in a core dump, and not for a debugger.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let (Ok(()), Ok(stdin)) = (hidden, stdin) else { return ExitCode::FAILURE };
    // What went wrong is told over the channel; there is nobody else to tell.
    match bastide_egress::run(stdin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
