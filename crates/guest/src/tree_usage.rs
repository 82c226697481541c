//! What processes used: those that ended, as the kernel hands it on to whoever collects them, and those that live.

use serde::{Deserialize, Serialize};

use crate::sys::{Rusage, rusage_of_children};

/// How many ticks of a processor make a second, for programs.
const TICKS: u64 = 100;

/// What some processes used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeUsage {
    pub(crate) cpu_us: u64,
    /// Of the largest of them.
    pub(crate) peak_memory: u64,
    /// From and to storage, as far as that is known: the kernel tells it of what has ended.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl TreeUsage {
    /// What descended from this process and was collected. Asks for no memory.
    pub(crate) fn of_children() -> Self {
        let Rusage { cpu_us, peak_memory, blocks: (read, written) } = rusage_of_children();
        Self { cpu_us, peak_memory, read, written }
    }

    /// What a process used that lives, with all that it collected.
    pub(crate) fn of_process(pid: i32) -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let ticks = read("stat").ok().and_then(|stat| ticks(&stat)).unwrap_or(0);
        let peak = read("status").ok().and_then(|status| peak(&status)).unwrap_or(0);
        let cpu_us = ticks * (1_000_000 / TICKS);
        Self { cpu_us, peak_memory: peak, ..Self::default() }
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_add(other.cpu_us),
            peak_memory: self.peak_memory.max(other.peak_memory),
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
        }
    }

    /// The larger of each: what was seen once is not unseen.
    pub(crate) fn at_least(self, other: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.max(other.cpu_us),
            peak_memory: self.peak_memory.max(other.peak_memory),
            read: self.read.max(other.read),
            written: self.written.max(other.written),
        }
    }
}

/// The ticks of a process, in user and system mode, and of those it collected.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields = rest.split_ascii_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_says_of_a_process() {
        let stat = "7 (a) b) R 1 1 1 0 -1 4 0 0 0 0 12 3 100 5 20 0 1 0 99 0 0";
        assert_eq!(ticks(stat), Some(120));
        assert_eq!(ticks("7 (sh) R 1"), Some(0), "what is cut off counts for nothing");
        assert_eq!(ticks("nonsense"), None);
        assert_eq!(peak("Name:\tx\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        let own = TreeUsage::of_process(i32::try_from(std::process::id()).unwrap());
        assert!(own.peak_memory > 0, "{own:?}");
    }
}
