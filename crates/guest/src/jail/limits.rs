//! Limits that a process can put on itself and all it forks: the second choice, where no cgroup
//! holds them.

use bastide_proto::boot::{Enforced, ResourceLimits};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, dumpable_behavior, getrlimit, set_dumpable_behavior,
    setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{StepContext, StepError};

/// Makes commands likelier victims than anybody of ours when memory runs out.
const OOM_SCORE: i32 = 500;

/// The same where ours are as likely already: a node gives most containers of pods a score near the highest.
const HIGHEST_OOM_SCORE: i32 = 1000;

/// What says how likely a victim this process is.
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// How many processes and threads a user of commands may have at most where nobody asked for a limit: a fork storm must
/// leave pids and processor time for whoever ends it. As many as in a container.
pub(crate) const UNASKED: u64 = 4096;

/// The same where commands have the host's own pids, and their user may have other processes.
pub(crate) const UNASKED_OF_HOST: u64 = 32_768;

/// What the kernel gives at most, and says in a file.
const MAX_PID: &str = "/proc/sys/kernel/pid_max";

/// Whose processes the kernel counts together for these commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessCount {
    /// The session's, all of them.
    Session,
    /// Those of each of the session's users.
    EachUser,
    /// All of somebody who has processes outside, too.
    Shared,
}

/// What of the sandbox decides how a limit can be held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitContext {
    /// Whose processes are counted together.
    pub(crate) count: ProcessCount,
    /// Whether there is a root of the sandbox's own, where what lies in memory is limited already.
    pub(crate) own_root: bool,
    /// How many processes there may be though nobody asked for a limit.
    pub(crate) unasked_pids: Option<u64>,
    /// Whether commands may write to files of the host besides their workspace.
    pub(crate) writes_elsewhere: bool,
}

/// Puts what limits no group holds on this process and all it forks, and says which those are. A limit that cannot be
/// set was asked for, and says nothing about what the machine has.
pub(crate) fn limit_commands(
    limits: &ResourceLimits,
    by_cgroups: &Enforced,
    context: LimitContext,
) -> Result<Enforced, StepError> {
    set_limits(limits, by_cgroups, context).map_err(StepError::of_session)
}

fn set_limits(
    limits: &ResourceLimits,
    by_cgroups: &Enforced,
    context: LimitContext,
) -> Result<Enforced, StepError> {
    raise_oom_score()?;
    let mut enforced = Enforced::default();
    if let Some(bytes) = limits.memory.filter(|_| by_cgroups.memory.is_none()) {
        limit(&MEMORY, bytes)?;
        // Not what is shared, nor what lies in files in memory.
        enforced.memory = Some("rlimit data, private memory of each process".to_owned());
    }
    match limits.pids.filter(|_| by_cgroups.pids.is_none()) {
        Some(count) if context.count != ProcessCount::Shared => {
            // Our own processes of the same user are few.
            limit(&PIDS, count)?;
            enforced.pids = Some(match context.count {
                ProcessCount::EachUser => "rlimit nproc, each user".to_owned(),
                ProcessCount::Session | ProcessCount::Shared => "rlimit nproc".to_owned(),
            });
        }
        Some(_) | None => {
            if let Some(most) = context.unasked_pids {
                limit_fork_bomb(most)?;
            }
        }
    }
    if let Some(millis) = limits.cpu_millis {
        restrict_processors(millis)?;
        enforced.cpu = Some("affinity, whole processors".to_owned());
    }
    let by_file = by_cgroups.disk.is_none() || context.writes_elsewhere;
    if let Some(bytes) = limits.disk.filter(|_| by_file) {
        limit(&DISK, bytes)?;
        enforced.disk = Some(match context.own_root {
            true => "size of /tmp and /dev/shm; rlimit fsize, each file elsewhere".to_owned(),
            false => "rlimit fsize, each file".to_owned(),
        });
    }
    Ok(enforced)
}

fn own_oom_score() -> i32 {
    let text = std::fs::read_to_string(OOM_SCORE_FILE).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Makes this process, and what it forks, no likelier a victim than any other, where the kernel lets it: in a pod everything
/// starts as the likeliest. A command raises its own score afterwards.
pub(crate) fn lower_oom_score() {
    if own_oom_score() > 0 {
        drop(std::fs::write(OOM_SCORE_FILE, "0"));
    }
}

/// The file is root's while this process cannot be traced. A kernel that does not know it kills somebody else when memory
/// runs out; nothing is promised about that.
fn raise_oom_score() -> Result<(), StepError> {
    let step = || "be looked at".to_owned();
    let was_open = dumpable_behavior().step(step)? == DumpableBehavior::Dumpable;
    set_dumpable_behavior(DumpableBehavior::Dumpable).step(step)?;
    let score = if own_oom_score() < OOM_SCORE { OOM_SCORE } else { HIGHEST_OOM_SCORE };
    drop(std::fs::write(OOM_SCORE_FILE, score.to_string()));
    match was_open {
        true => Ok(()),
        false => set_dumpable_behavior(DumpableBehavior::NotDumpable).step(step),
    }
}

/// Keeps a fork storm from using up all pids.
fn limit_fork_bomb(most: u64) -> Result<(), StepError> {
    let text = std::fs::read_to_string(MAX_PID).unwrap_or_default();
    let numbers = text.trim().parse().unwrap_or(u64::MAX);
    let most = most.min(numbers / 2);
    match getrlimit(Resource::Nproc).maximum {
        Some(already) if already <= most => Ok(()),
        _ => limit(&PIDS, most),
    }
}

/// A limit that the kernel holds for a process.
struct ProcessLimit {
    resource: Resource,
    /// What the kernel calls it.
    name: &'static str,
    /// What it bounds, as it is asked for.
    what: &'static str,
}

const MEMORY: ProcessLimit =
    ProcessLimit { resource: Resource::Data, name: "RLIMIT_DATA", what: "memory" };
const PIDS: ProcessLimit =
    ProcessLimit { resource: Resource::Nproc, name: "RLIMIT_NPROC", what: "pids" };
const DISK: ProcessLimit =
    ProcessLimit { resource: Resource::Fsize, name: "RLIMIT_FSIZE", what: "disk" };

fn limit(limit: &ProcessLimit, most: u64) -> Result<(), StepError> {
    let both = Rlimit { current: Some(most), maximum: Some(most) };
    let ProcessLimit { resource, name, what } = limit;
    let already = getrlimit(*resource).maximum.filter(|already| *already < most);
    let set = setrlimit(*resource, both).step(|| match already {
        Some(already) => format!("limit {what} to {most}: {name} of the caller is {already}"),
        None => format!("limit {what} to {most}"),
    });
    match already {
        Some(_) => set.map_err(|error| {
            error.with_hint(
                "ask for no more than that, or raise the caller's hard limit (`ulimit -H`)",
            )
        }),
        None => set,
    }
}

/// As many processors as the limit needs, so that programs that count them count right.
fn restrict_processors(millis: u64) -> Result<(), StepError> {
    let step = || format!("limit processors to {millis} thousandths");
    let may = sched_getaffinity(None).step(step)?;
    let wanted = usize::try_from(millis.div_ceil(1000).max(1)).unwrap_or(usize::MAX);
    let mut chosen = CpuSet::new();
    for processor in (0..CpuSet::MAX_CPU).filter(|number| may.is_set(*number)).take(wanted) {
        chosen.set(processor);
    }
    sched_setaffinity(None, &chosen).step(step)
}
