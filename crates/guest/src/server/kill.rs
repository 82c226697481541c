//! Ending everything that descends from a command.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// How often the tree is looked at before it is killed as it is; each look stops what is new, so only
/// a fork bomb that outruns us gets this far, and the next round catches what is left of it.
const LOOKS: usize = 64;

/// Ends everything that descends from `supervisor`, but not the supervisor itself, which has still
/// to collect the dead and report.
///
/// A process that is being killed can fork first, so everything is stopped before anything is
/// killed: when two looks in a row find the same processes, all of them stand still. A stopped
/// process cannot fork, leave, or be waited for by a live one.
pub(crate) fn kill_descendants(supervisor: Pid) {
    let mut stopped = HashSet::new();
    for _ in 0..LOOKS {
        let found = descendants(supervisor);
        let new: Vec<_> = found.difference(&stopped).copied().collect();
        if new.is_empty() {
            break;
        }
        for pid in &new {
            signal(*pid, Signal::STOP);
        }
        stopped.extend(new);
    }
    for pid in stopped {
        signal(pid, Signal::KILL);
    }
    // A command may have stopped its own supervisor.
    signal(supervisor, Signal::CONT);
}

/// A process that is gone already is what we want.
fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

fn descendants(ancestor: Pid) -> HashSet<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = HashSet::new();
    let mut open = vec![ancestor];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

/// Every process inside, with its parent.
fn processes() -> impl Iterator<Item = (Pid, Pid)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = fs::read(entry.path().join("stat")).ok()?;
        Some((pid, parent_of(&stat)?))
    })
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which stands in
/// parentheses and may hold anything, other parentheses included.
fn parent_of(stat: &[u8]) -> Option<Pid> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_parent_behind_a_hostile_name() {
        let cases: &[(&[u8], Option<i32>)] = &[
            (b"12 (sh) S 7 12 12 0", Some(7)),
            (b"12 (a) S 1 (b) R 9 1", Some(9)),
            (b"12 (\xff\xfe) S 7 1", Some(7)),
            (b"1 (init) S 0 1", None),
            (b"12 (sh", None),
        ];
        for (stat, want) in cases {
            assert_eq!(parent_of(stat).map(Pid::as_raw_pid), *want, "{stat:?}");
        }
    }
}
