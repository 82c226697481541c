//! Limits that a process can put on itself and all it forks: the second choice, where no control group
//! holds them.

use bastide_proto::boot::{Enforced, Limits};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{Step, StepError};

/// Makes commands likelier victims than anybody of ours when memory runs out.
const VICTIM: &str = "500";

/// What of the sandbox decides how a limit can be held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings {
    /// Whether the kernel counts the processes of these commands' user apart.
    pub(crate) own_count: bool,
    /// Whether there is a root of the sandbox's own, where what lies in memory is limited already.
    pub(crate) own_root: bool,
    /// Whether commands may write to files of the host besides their workspace.
    pub(crate) writes_elsewhere: bool,
}

/// Puts what limits no group holds on this process and all it forks, and says which those are.
pub(crate) fn limit_commands(
    limits: &Limits,
    by_groups: &Enforced,
    around: Surroundings,
) -> Result<Enforced, StepError> {
    // A kernel that does not know the file kills somebody else; nothing is promised about that.
    drop(std::fs::write("/proc/self/oom_score_adj", VICTIM));
    let mut enforced = Enforced::default();
    if let Some(bytes) = limits.memory.filter(|_| by_groups.memory.is_none()) {
        limit(Resource::Data, bytes)?;
        enforced.memory = Some("rlimit data, each process".to_owned());
    }
    if let Some(count) = limits.pids.filter(|_| by_groups.pids.is_none() && around.own_count) {
        // Counted within this user namespace: our own processes of the same user are few.
        limit(Resource::Nproc, count)?;
        enforced.pids = Some("rlimit nproc".to_owned());
    }
    if let Some(millis) = limits.cpu_millis {
        restrict_processors(millis)?;
        enforced.cpu = Some("affinity".to_owned());
    }
    let by_file = by_groups.disk.is_none() || around.writes_elsewhere;
    if let Some(bytes) = limits.disk.filter(|_| by_file) {
        limit(Resource::Fsize, bytes)?;
        enforced.disk = Some(match around.own_root {
            true => "size of /tmp and /dev/shm; rlimit fsize, each file elsewhere".to_owned(),
            false => "rlimit fsize, each file".to_owned(),
        });
    }
    Ok(enforced)
}

fn limit(resource: Resource, most: u64) -> Result<(), StepError> {
    let both = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(resource, both).step(|| format!("limit {resource:?}"))
}

/// As many processors as the limit needs, so that programs that count them count right.
fn restrict_processors(millis: u64) -> Result<(), StepError> {
    let step = || "choose processors".to_owned();
    let may = sched_getaffinity(None).step(step)?;
    let wanted = usize::try_from(millis.div_ceil(1000).max(1)).unwrap_or(usize::MAX);
    let mut chosen = CpuSet::new();
    for processor in (0..CpuSet::MAX_CPU).filter(|number| may.is_set(*number)).take(wanted) {
        chosen.set(processor);
    }
    sched_setaffinity(None, &chosen).step(step)
}
