//! What the session and its commands used.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bastide_proto::{Accepted, End, Usage, UsageRecord, UsageSource};

use super::Guest;
use super::call::{Outbox, Refusal};
use super::kill::ProcessTree;
use super::process::Process;
use crate::tree_usage::TreeUsage;

/// Where the control groups of a container are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// What commands used that are over, all of them together, and who else counts.
#[derive(Debug, Default)]
pub(crate) struct SessionUsage {
    over: Mutex<TreeUsage>,
    /// Whether the groups that are seen hold this session and nothing else.
    has_own_groups: bool,
}

impl SessionUsage {
    pub(crate) fn new(has_own_groups: bool) -> Self {
        Self { over: Mutex::default(), has_own_groups }
    }

    /// Adds what a command used of which nothing is left.
    pub(crate) fn add(&self, used: TreeUsage) {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        *over = over.and(used);
    }

    fn over(&self) -> TreeUsage {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a command used, for the host.
pub(super) fn of_process(process: &Process) -> Usage {
    usage(process.used())
}

fn usage(used: TreeUsage) -> Usage {
    let TreeUsage { cpu_us, peak_memory, read, written } = used;
    Usage { cpu_us, peak_memory, read, written, source: UsageSource::Rusage }
}

/// Answers a request to say what was used.
pub(super) async fn send_usage(guest: &Guest, outbox: &mut Outbox) -> Result<(), Refusal> {
    look_at_living(guest);
    let mut all = guest.usage.over();
    let mut records = Vec::new();
    for process in guest.processes.all() {
        if process.is_alive() {
            all = all.and(process.used());
        }
        records.push(UsageRecord { process: Some(process.id), usage: of_process(&process) });
    }
    let mut session = usage(all);
    if guest.usage.has_own_groups {
        count_by_groups(Path::new(CGROUPS), &mut session);
    }
    outbox.accept(Accepted::default()).await?;
    outbox.item(&UsageRecord { process: None, usage: session }).await?;
    for record in &records {
        outbox.item(record).await?;
    }
    Ok(outbox.end(&End::Done).await?)
}

/// Notes what commands used so far that live.
fn look_at_living(guest: &Guest) {
    let alive: Vec<Arc<Process>> = guest.processes.alive();
    if alive.is_empty() {
        return;
    }
    let tree = ProcessTree::scan();
    for process in alive {
        // The supervisor has what it collected, and next to nothing of its own.
        let supervisor = TreeUsage::of_process(process.supervisor.as_raw_pid());
        let supervisor = TreeUsage { peak_memory: 0, ..supervisor };
        let living = tree.descendants(process.supervisor).into_iter();
        let used = living
            .map(|found| TreeUsage::of_process(found.pid.as_raw_pid()))
            .fold(supervisor, TreeUsage::and);
        process.note_used(used);
    }
}

/// Takes what the groups count in the place of what processes say, where they do.
fn count_by_groups(groups: &Path, session: &mut Usage) {
    let read = |name: &str| fs::read_to_string(groups.join(name)).ok();
    let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok());
    let of_two = read("cpu.stat").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        line.and_then(|number| number.trim().parse().ok())
    });
    if let Some(cpu_us) = of_two {
        session.cpu_us = cpu_us;
        session.peak_memory = number("memory.peak").unwrap_or(session.peak_memory);
        session.source = UsageSource::CgroupV2;
    } else if let Some(nanoseconds) = number("cpuacct/cpuacct.usage") {
        session.cpu_us = nanoseconds / 1000;
        let peak = number("memory/memory.max_usage_in_bytes");
        session.peak_memory = peak.unwrap_or(session.peak_memory);
        session.source = UsageSource::CgroupV1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn believes_groups_of_both_versions_and_says_which() {
        let folder = tempfile::tempdir().unwrap();
        let before = Usage { cpu_us: 1, peak_memory: 2, read: 3, written: 4, ..Usage::default() };
        let mut session = before;
        count_by_groups(folder.path(), &mut session);
        assert_eq!(session, before, "where there are none, processes count");
        for name in ["cpuacct", "memory"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("cpuacct/cpuacct.usage"), "5000\n").unwrap();
        fs::write(folder.path().join("memory/memory.max_usage_in_bytes"), "4096\n").unwrap();
        count_by_groups(folder.path(), &mut session);
        assert_eq!((session.cpu_us, session.peak_memory), (5, 4096));
        assert_eq!(session.source, UsageSource::CgroupV1);
        fs::write(folder.path().join("cpu.stat"), "usage_usec 77\nuser_usec 70\n").unwrap();
        count_by_groups(folder.path(), &mut session);
        assert_eq!((session.cpu_us, session.peak_memory), (77, 4096), "no peak is told there");
        assert_eq!((session.source, session.written), (UsageSource::CgroupV2, 4));
    }
}
