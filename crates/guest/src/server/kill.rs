//! Ending everything that descends from a command.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// How often the tree is looked at before it is killed as it is; each look stops what is new, so only
/// a fork bomb that outruns us gets this far, and the next round catches what is left of it.
const SCANS: usize = 64;

/// How often orphans that were killed are looked for, a millisecond apart.
const REAP_SCANS: usize = 900;

/// How long processes of ours may take to be gone that were killed, in milliseconds.
const EXIT_MS: u32 = 1000;

/// How many processes are held, and waited for, at a time.
const HELD: usize = 128;

/// How much of a command line is read for a listing.
const MOST_SHOWN: usize = 4096;

/// Ends everything that descends from `supervisor`, but not the supervisor itself, which has still
/// to reap and report.
///
/// A process that is being killed can fork first, so everything is stopped before anything is
/// killed: when two looks in a row find the same processes, all of them stand still. A stopped
/// process cannot fork, leave, or be waited for by a live one.
pub(crate) fn kill_descendants(supervisor: Pid) {
    kill_all(|tree| tree.descendants(supervisor));
    // A command may have stopped its own supervisor.
    if let Some(supervisor) = ProcessRef::by_pid(supervisor) {
        drop(supervisor.signal(Signal::CONT));
    }
}

/// Whether anything that descends from `supervisor` is in a group of processes; a number of a group that has nobody may
/// be somebody else's by now.
pub(crate) fn has_group(supervisor: Pid, group: Pid) -> bool {
    let is_in =
        |found: &ProcessRef| stat_of(found.pid).and_then(|stat| group_of(&stat)) == Some(group);
    ProcessTree::scan().descendants(supervisor).iter().any(is_in)
}

/// Ends everything that descends from `init`, but not init itself, where no namespace ends with it.
///
/// A reaper is never stopped: zombies would use up the pids. So what is ours goes
/// first, from the top down: guest and launchers, which are init's children, so that there are no new supervisors; then
/// those, which are its children by then. What they looked after falls to init, and is stopped and killed.
pub(crate) fn end_session(init: Pid) {
    for _generation in ["guest and launchers", "supervisors"] {
        let children = ProcessTree::scan().children(init);
        // Whatever lost its parent is among them: after a storm those are more than there are descriptors.
        for some in children.chunks(HELD) {
            let going = some.iter().filter_map(|child| child.signal(Signal::KILL));
            await_all(&going.collect::<Vec<_>>());
        }
    }
    kill_all(|tree| tree.descendants(init));
}

/// Waits until all of these processes have ended, but not for long.
fn await_all(processes: &[OwnedFd]) {
    let mut left = EXIT_MS;
    for process in processes {
        let mut waits = [PollFd::new(process, PollFlags::IN)];
        while left > 0 && !matches!(poll(&mut waits, Some(&STEP)), Ok(1..)) {
            left = left.saturating_sub(10);
        }
    }
}

const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Ends what a supervisor left behind that was killed from inside: what descends from the first
/// process but is neither this process nor one of `others` of ours nor looked after by one.
pub(crate) async fn kill_orphans(supervisor: Pid, others: &[Pid]) {
    let ours = rustix::process::getpid();
    let orphans = |tree: &ProcessTree| -> HashSet<ProcessRef> {
        let first = rustix::process::getppid().unwrap_or(Pid::INIT);
        let tops = tree.children(first).into_iter();
        let orphans = tops.filter(|found| found.pid != ours && !others.contains(&found.pid));
        let orphans =
            orphans.flat_map(|found| tree.descendants(found.pid).into_iter().chain([found]));
        // A process that is ending closes its sockets before it gives its children away.
        orphans.chain(tree.descendants(supervisor)).collect()
    };
    // Nobody reports their death, so it is looked for; the kernel takes its time over a large one.
    for _ in 0..REAP_SCANS {
        let over = has_exited(supervisor);
        kill_all(orphans);
        if over && orphans(&ProcessTree::scan()).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether a process has given its children away: it is gone, or only waits to be collected.
fn has_exited(pid: Pid) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.ok().is_none_or(|stat| after_name(&stat).is_none_or(|rest| rest.starts_with(" Z")))
}

fn kill_all(find: impl Fn(&ProcessTree) -> HashSet<ProcessRef>) {
    let mut stopped = HashSet::new();
    for _ in 0..SCANS {
        let found = find(&ProcessTree::scan());
        let new: Vec<_> = found.difference(&stopped).copied().collect();
        if new.is_empty() {
            break;
        }
        for process in &new {
            drop(process.signal(Signal::STOP));
        }
        stopped.extend(new);
    }
    for process in stopped {
        drop(process.signal(Signal::KILL));
    }
}

/// Whether processes are numbered apart from the host's. Only the guest knows: it begins as a child of the first one.
static OWN_PID_NAMESPACE: AtomicBool = AtomicBool::new(false);

/// Finds that out, at the beginning of the guest.
pub(crate) fn detect_pid_namespace() {
    let is_first = rustix::process::getppid() == Some(Pid::INIT);
    OWN_PID_NAMESPACE.store(is_first, Ordering::Relaxed);
}

/// A process that was seen. Its number alone may be another's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProcessRef {
    pub(crate) pid: Pid,
    /// In ticks since boot.
    started: u64,
}

/// Sends a signal to a process that is held. Where whoever confines this one lets nobody signal by what is
/// held (`pidfd_send_signal` is younger than many filters), it is sent by number.
pub(crate) fn send_held(held: &OwnedFd, pid: Pid, signal: Signal) {
    if let Err(Errno::NOSYS | Errno::PERM) = pidfd_send_signal(held, signal) {
        let _ = kill_process(pid, signal);
    }
}

impl ProcessRef {
    /// The process that has a number now.
    fn by_pid(pid: Pid) -> Option<Self> {
        Some(Self { pid, started: started_at(&stat_of(pid)?)? })
    }

    /// Takes hold of it; nothing if it is gone.
    ///
    /// What is held stays one process, so what is seen of it then is about the one that is signalled.
    fn open_pidfd(self) -> Option<Result<OwnedFd, Errno>> {
        let held = pidfd_open(self.pid, PidfdFlags::empty());
        (Self::by_pid(self.pid)? == self).then_some(held)
    }

    /// Whether none of its threads runs: each is stopped, or over. One that is gone stands still.
    pub(crate) fn is_stopped(self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_pid())) else {
            return true;
        };
        threads.flatten().all(|thread| {
            // One that ended meanwhile cannot be read.
            let stat = fs::read(thread.path().join("stat")).unwrap_or_default();
            let state = after_name(&stat).and_then(|rest| rest.trim_start().chars().next());
            state.is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
        })
    }

    /// Sends it a signal; what is held can be waited for. One that is gone already is what we want.
    pub(crate) fn signal(self, signal: Signal) -> Option<OwnedFd> {
        // Such numbers are nobody's outside; thousands are then ended in time.
        if OWN_PID_NAMESPACE.load(Ordering::Relaxed) {
            let _ = kill_process(self.pid, signal);
            return None;
        }
        match self.open_pidfd()? {
            Ok(held) => {
                send_held(&held, self.pid, signal);
                Some(held)
            }
            // What only looks like a kernel may not know how to hold a process.
            Err(Errno::NOSYS) => {
                let _ = kill_process(self.pid, signal);
                None
            }
            Err(_) => None,
        }
    }
}

/// Who is whose child inside, at one look.
#[derive(Debug)]
pub(crate) struct ProcessTree(HashMap<Pid, Vec<ProcessRef>>);

impl ProcessTree {
    /// Looks at every process inside.
    pub(crate) fn scan() -> Self {
        let mut children: HashMap<Pid, Vec<ProcessRef>> = HashMap::new();
        for (found, parent) in processes() {
            children.entry(parent).or_default().push(found);
        }
        Self(children)
    }

    fn children(&self, of: Pid) -> Vec<ProcessRef> {
        self.0.get(&of).cloned().unwrap_or_default()
    }

    /// Everything that descends from these, parents before their children, but not those themselves.
    pub(crate) fn below(&self, ancestors: &[Pid]) -> Vec<ProcessRef> {
        let mut seen = HashSet::new();
        let mut found: Vec<ProcessRef> = Vec::new();
        let mut next: Vec<Pid> = ancestors.to_vec();
        while !next.is_empty() {
            let children = next.iter().flat_map(|pid| self.0.get(pid).into_iter().flatten());
            let new: Vec<_> = children.copied().filter(|child| seen.insert(*child)).collect();
            next = new.iter().map(|child| child.pid).collect();
            found.extend(new);
        }
        found
    }

    /// Everything that descends from `ancestor`.
    pub(crate) fn descendants(&self, ancestor: Pid) -> HashSet<ProcessRef> {
        let mut found = HashSet::new();
        let mut open = vec![ancestor];
        while let Some(pid) = open.pop() {
            for child in self.0.get(&pid).into_iter().flatten() {
                if found.insert(*child) {
                    open.push(child.pid);
                }
            }
        }
        found
    }
}

/// Every process inside, with its parent.
fn processes() -> impl Iterator<Item = (ProcessRef, Pid)> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = stat_of(pid)?;
        Some((ProcessRef { pid, started: started_at(&stat)? }, parent_of(&stat)?))
    })
}

/// The line of `/proc/PID/stat`. It is short; a file is read whole in one go.
fn stat_of(pid: Pid) -> Option<Vec<u8>> {
    let path = format!("/proc/{}/stat", pid.as_raw_pid());
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut line = vec![0; 1024];
    let length = File::from(file).read(&mut line).ok()?;
    line.truncate(length);
    Some(line)
}

/// The command line of a process, readable and bounded.
pub(crate) fn command_line(pid: Pid) -> String {
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

/// Its group of processes, in the same line: the third field after the name.
fn group_of(stat: &[u8]) -> Option<Pid> {
    after_name(stat)?.split_ascii_whitespace().nth(2)?.parse().ok().and_then(Pid::from_raw)
}

/// When it started, in ticks since boot: the twentieth field after the name.
fn started_at(stat: &[u8]) -> Option<u64> {
    after_name(stat)?.split_ascii_whitespace().nth(19)?.parse().ok()
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
    fn tells_a_process_from_the_next_one_with_its_number() {
        let mut child = std::process::Command::new("sleep").arg("7120").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let seen = ProcessRef::by_pid(pid).unwrap();
        let earlier = ProcessRef { started: seen.started - 1, ..seen };
        assert!(earlier.signal(Signal::KILL).is_none(), "that is somebody else");
        assert!(seen.signal(Signal::KILL).is_some());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
    }

    #[test]
    fn finds_descendants_however_deep() {
        let pid = |number| Pid::from_raw(number).unwrap();
        let seen = |number| ProcessRef { pid: pid(number), started: 7 };
        let children = [(1, vec![2, 3]), (3, vec![4]), (4, vec![5, 6])];
        let tree = ProcessTree(
            children
                .into_iter()
                .map(|(parent, all)| (pid(parent), all.into_iter().map(seen).collect()))
                .collect(),
        );
        assert_eq!(tree.descendants(pid(3)), HashSet::from([4, 5, 6].map(seen)));
        assert_eq!(tree.descendants(pid(2)), HashSet::new());
    }
}
