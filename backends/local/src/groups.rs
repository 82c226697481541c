//! What the control groups of a session count.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bastide_proto::{Usage, UsageSource};

/// Where the groups of a session are noted, in its folder.
const NOTE: &str = "groups";

/// What the groups of a session count of processors and memory; none where it has none that do. What they do not count
/// is 0.
pub(crate) fn counted(session_dir: &Path) -> Option<Usage> {
    let noted = fs::read(session_dir.join(NOTE)).ok()?;
    let groups = noted.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    groups.map(|line| Path::new(OsStr::from_bytes(line))).filter_map(of_group).reduce(
        |one, other| Usage {
            cpu_us: one.cpu_us.max(other.cpu_us),
            peak_memory: one.peak_memory.max(other.peak_memory),
            ..one
        },
    )
}

fn of_group(group: &Path) -> Option<Usage> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok());
    let processors = read("cpu.stat").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        line.and_then(|number| number.trim().parse().ok())
    });
    if let Some(cpu_us) = processors {
        let peak_memory = number("memory.peak").unwrap_or(0);
        let source = UsageSource::CgroupV2;
        return Some(Usage { cpu_us, peak_memory, source, ..Usage::default() });
    }
    // Each controller of version 1 has a group of its own.
    let processors = number("cpuacct.usage").map(|nanoseconds| nanoseconds / 1000);
    let memory = number("memory.max_usage_in_bytes");
    processors.or(memory)?;
    Some(Usage {
        cpu_us: processors.unwrap_or(0),
        peak_memory: memory.unwrap_or(0),
        source: UsageSource::CgroupV1,
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_groups_of_a_session_do() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(counted(folder.path()), None);
        let (memory, pids) = (folder.path().join("m"), folder.path().join("p"));
        for group in [&memory, &pids] {
            fs::create_dir(group).unwrap();
        }
        fs::write(memory.join("memory.max_usage_in_bytes"), "8192\n").unwrap();
        let note = format!("{}\n{}\n", memory.display(), pids.display());
        fs::write(folder.path().join(NOTE), note).unwrap();
        let found = counted(folder.path()).unwrap();
        assert_eq!((found.cpu_us, found.peak_memory), (0, 8192));
        fs::write(memory.join("cpu.stat"), "usage_usec 5\n").unwrap();
        let found = counted(folder.path()).unwrap();
        assert_eq!((found.cpu_us, found.source), (5, UsageSource::CgroupV2));
    }
}
