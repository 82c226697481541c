//! Ending everything that descends from a command.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How often the tree is looked at before it is killed as it is; each look stops what is new, so only
/// a fork bomb that outruns us gets this far, and the next round catches what is left of it.
const LOOKS: usize = 64;

/// How often strays that were killed are looked for, a millisecond apart.
const BURIAL_LOOKS: usize = 900;

/// How much of a command line is read for a listing.
const MOST_SHOWN: usize = 4096;

/// Ends everything that descends from `supervisor`, but not the supervisor itself, which has still
/// to collect the dead and report.
///
/// A process that is being killed can fork first, so everything is stopped before anything is
/// killed: when two looks in a row find the same processes, all of them stand still. A stopped
/// process cannot fork, leave, or be waited for by a live one.
pub(crate) fn kill_descendants(supervisor: Pid) {
    kill_all(|tree| tree.descendants(supervisor));
    // A command may have stopped its own supervisor.
    signal(supervisor, Signal::CONT);
}

/// Ends what a supervisor left behind that was killed from inside: what descends from the first
/// process but is neither this process nor one of `others` of ours nor looked after by one.
pub(crate) async fn kill_strays(supervisor: Pid, others: &[Pid]) {
    let ours = rustix::process::getpid();
    let strays = |tree: &Tree| -> HashSet<Pid> {
        let first = rustix::process::getppid().unwrap_or(Pid::INIT);
        let tops = tree.children(first).iter().copied();
        let strays = tops.filter(|pid| *pid != ours && !others.contains(pid));
        let strays = strays.flat_map(|pid| tree.descendants(pid).into_iter().chain([pid]));
        // A process that is ending closes its sockets before it gives its children away.
        strays.chain(tree.descendants(supervisor)).collect()
    };
    // Nobody reports their death, so it is looked for; the kernel takes its time over a large one.
    for _ in 0..BURIAL_LOOKS {
        let over = is_over(supervisor);
        kill_all(strays);
        if over && strays(&Tree::look()).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether a process has given its children away: it is gone, or only waits to be collected.
fn is_over(pid: Pid) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.ok().is_none_or(|stat| after_name(&stat).is_none_or(|rest| rest.starts_with(" Z")))
}

fn kill_all(find: impl Fn(&Tree) -> HashSet<Pid>) {
    let mut stopped = HashSet::new();
    for _ in 0..LOOKS {
        let found = find(&Tree::look());
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
}

/// A process that is gone already is what we want.
fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// Who is whose child inside, at one look.
#[derive(Debug)]
pub(crate) struct Tree(HashMap<Pid, Vec<Pid>>);

impl Tree {
    /// Looks at every process inside.
    pub(crate) fn look() -> Self {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for (pid, parent) in processes() {
            children.entry(parent).or_default().push(pid);
        }
        Self(children)
    }

    fn children(&self, of: Pid) -> &[Pid] {
        self.0.get(&of).map_or(&[], Vec::as_slice)
    }

    /// Everything that descends from `ancestor`.
    pub(crate) fn descendants(&self, ancestor: Pid) -> HashSet<Pid> {
        let mut found = HashSet::new();
        let mut open = vec![ancestor];
        while let Some(pid) = open.pop() {
            for child in self.children(pid) {
                if found.insert(*child) {
                    open.push(*child);
                }
            }
        }
        found
    }
}

/// Every process inside, with its parent.
fn processes() -> impl Iterator<Item = (Pid, Pid)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = fs::read(entry.path().join("stat")).ok()?;
        Some((pid, parent_of(&stat)?))
    })
}

/// The command line of a process, readable and bounded.
pub(crate) fn command_line(pid: Pid) -> String {
    use std::io::Read;
    let mut line = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{}/cmdline", pid.as_raw_pid())) {
        // A process that ends meanwhile has no command line; it is listed without.
        drop(file.take(MOST_SHOWN as u64).read_to_end(&mut line));
    }
    let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which stands in
/// parentheses and may hold anything, other parentheses included.
fn parent_of(stat: &[u8]) -> Option<Pid> {
    after_name(stat)?.split_ascii_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

fn after_name(stat: &[u8]) -> Option<&str> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()
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

    #[test]
    fn finds_descendants_however_deep() {
        let pid = |number| Pid::from_raw(number).unwrap();
        let children = [(1, vec![2, 3]), (3, vec![4]), (4, vec![5, 6])];
        let tree = Tree(
            children
                .into_iter()
                .map(|(parent, all)| (pid(parent), all.into_iter().map(pid).collect()))
                .collect(),
        );
        assert_eq!(tree.descendants(pid(3)), HashSet::from([4, 5, 6].map(pid)));
        assert_eq!(tree.descendants(pid(2)), HashSet::new());
    }
}
