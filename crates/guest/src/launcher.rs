//! The launcher: takes a user's ids, goes behind the walls, and forks supervisors.
//!
//! One launcher serves all commands of one user, because one Landlock domain must hold them all: a
//! domain of its own for each command would keep a later command from signalling an earlier one.

use std::os::fd::OwnedFd;

use bastide_proto::boot::{BootFailure, BootSpec};
use rustix::process::{Pid, setsid};
use serde::{Deserialize, Serialize};

use crate::jail::{Protected, Step, StepError, WallsReport, raise_walls};
use crate::sys::{Fork, exit_now, fork, hear_of_children};
use crate::{packet, supervisor};

/// What the guest asks of a launcher: a supervisor on the two sockets that come with it, the
/// supervisor's and the command's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForkSupervisor;

/// What a launcher tells the guest first: that it is behind its walls, or why not.
pub(crate) type LauncherReport = Result<Launched, BootFailure>;

/// A launcher that is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Launched {
    /// Its process.
    pub(crate) pid: i32,
    /// Its walls.
    pub(crate) walls: WallsReport,
}

/// The life of a launcher.
pub(crate) fn run(spec: &BootSpec, guest: Pid, requests: &OwnedFd) -> ! {
    hear_of_children();
    let walls = enter(spec, guest);
    let failed = walls.is_err();
    let pid = rustix::process::getpid().as_raw_pid();
    let message: LauncherReport =
        walls.map(|walls| Launched { pid, walls }).map_err(BootFailure::from);
    let told = packet::send(requests, &message, &[]);
    if failed || told.is_err() {
        exit_now(1);
    }
    while let Ok(Some((ForkSupervisor, sockets))) = packet::receive(requests) {
        let Ok([to_guest, to_command]) = <[OwnedFd; 2]>::try_from(sockets) else {
            exit_now(1);
        };
        match fork() {
            Ok(Fork::Child) => supervisor::run(&to_guest, to_command),
            // The guest sees its ends of the sockets close, and says that no process could be made.
            Ok(Fork::Parent(_)) | Err(_) => {}
        }
        reap();
    }
    exit_now(0)
}

fn enter(spec: &BootSpec, guest: Pid) -> Result<WallsReport, StepError> {
    // A group of its own, so that no signal to somebody's group reaches it.
    let launcher = setsid().step(|| "start a session of processes".to_owned())?;
    raise_walls(&spec.ids, &spec.writable, Protected { guest, launcher })
}

/// Collects supervisors that have ended, without waiting for any.
fn reap() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
