//! The launcher: takes a user's ids, goes behind the walls, and forks supervisors.
//!
//! One launcher serves all commands of one user, because one Landlock domain must hold them all: a
//! domain of its own for each command would keep a later command from signalling an earlier one.

use std::os::fd::OwnedFd;

use bastide_proto::boot::{BootFailure, Enforced, HostIds, Ids, Rung};
use rustix::process::{Pid, setsid};
use serde::{Deserialize, Serialize};

use crate::accounts::Identity;
use crate::jail::{
    LimitContext, ProcessCount, Processors, Protected, SandboxSpec, StepContext, StepError,
    UNASKED, UNASKED_OF_HOST, WallsReport, limit_commands, raise_walls,
};
use crate::sys::{Fork, default_signals, exit_now, fork};
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

/// The groups a launcher joins, with all it will fork.
#[derive(Debug)]
pub(crate) struct CommandCgroups {
    /// Open `cgroup.procs` files: writing 0 to one joins.
    pub(crate) cgroup_procs: Vec<OwnedFd>,
    /// What they enforce.
    pub(crate) enforced: Enforced,
}

/// Whom a launcher serves, and whom it keeps commands from.
#[derive(Debug)]
pub(crate) struct LauncherSpec {
    /// Who commands are; whoever this process is, if none.
    pub(crate) who: Option<Identity>,
    /// Processes of ours that commands must not reach.
    pub(crate) others: Vec<Pid>,
}

/// The life of a launcher.
pub(crate) fn run(
    plan: &SandboxSpec,
    job: LauncherSpec,
    requests: &OwnedFd,
    cgroups: CommandCgroups,
) -> ! {
    serve(enter(plan, job, cgroups), requests)
}

/// The life of a launcher from where it is behind its walls, or is not.
pub(crate) fn serve(walls: Result<WallsReport, StepError>, requests: &OwnedFd) -> ! {
    // Once for all commands: dispositions are inherited, and there are too many to set for each.
    default_signals();
    let failed = walls.is_err();
    let pid = rustix::process::getpid().as_raw_pid();
    let message: LauncherReport =
        walls.map(|walls| Launched { pid, walls }).map_err(BootFailure::from);
    let reported = packet::send(requests, &message, &[]);
    if failed || reported.is_err() {
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
    }
    exit_now(0)
}

fn enter(
    plan: &SandboxSpec,
    job: LauncherSpec,
    cgroups: CommandCgroups,
) -> Result<WallsReport, StepError> {
    // A group of its own, so that no signal to somebody's group reaches it.
    let launcher = setsid().step(|| "start a session of processes".to_owned())?;
    for procs_file in &cgroups.cgroup_procs {
        // 0 is the process that writes it.
        rustix::io::write(procs_file, b"0")
            .step(|| "join the group of the limits".to_owned())
            .map_err(StepError::of_session)?;
    }
    let context = LimitContext {
        count: match &plan.base_spec.ids {
            // Where the host counts, it counts all the user's processes.
            Ids::Host(HostIds::Caller | HostIds::Given(_)) => ProcessCount::Shared,
            Ids::Host(HostIds::Claimed { .. }) | Ids::Own { .. } => ProcessCount::Session,
            // Root inside can be any of them.
            Ids::Range { .. } | Ids::Subordinate { .. } => ProcessCount::EachUser,
        },
        own_root: plan.base_spec.rung == Rung::Namespaces,
        unasked_pids: match plan.base_spec.rung {
            Rung::Namespaces => Some(UNASKED),
            Rung::Landlock(_) => Some(UNASKED_OF_HOST),
            Rung::Unconfined => None,
        },
        writes_elsewhere: plan.session.writable.len() > 1,
    };
    let enforced = limit_commands(&plan.session.limits, &cgroups.enforced, context)?;
    let protected = Protected([job.others, vec![launcher]].concat());
    let processors = processors(&enforced, &cgroups.enforced);
    let walls = raise_walls(plan, job.who.as_ref(), &protected, processors)?;
    Ok(WallsReport { enforced, ..walls })
}

/// Commands are kept on their processors where no group counts their time.
pub(crate) fn processors(enforced: &Enforced, by_cgroups: &Enforced) -> Processors {
    match (&enforced.cpu, &by_cgroups.cpu) {
        (Some(_), None) => Processors::Pinned,
        _ => Processors::Free,
    }
}
