//! Ending everything that descends from the first process of a sandbox without namespaces, where neither its warden nor
//! itself does.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often the tree is looked at before it is killed as it is. Each look stops what is new.
const LOOKS: usize = 64;

/// How often all of that is done: only a fork bomb that outruns us needs more than one.
const ROUNDS: usize = 16;

/// How many processes are held, and waited for, at a time.
const HELD: usize = 128;

/// How long those may take to be gone that were killed, in steps.
const GOING: u32 = 100;
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Ends everything that descends from a process, but not the process itself.
///
/// A reaper is never stopped: zombies would use up the pids. So what is ours goes first,
/// from the top down: guest and launchers, which are children of the first process, so that there are no new
/// supervisors; then those, which are its children by then. What they looked after falls to the first process,
/// and is stopped before anything of it is killed, so that nothing forks meanwhile.
pub(crate) fn kill_descendants(ancestor: i32) -> io::Result<()> {
    kill_in(&mut Host, ancestor)
}

/// The processes of a machine.
trait Machine {
    /// Every process there is.
    fn look(&mut self) -> io::Result<Vec<Process>>;

    /// Signals one that was seen, if it is still that one; what is held can be waited for.
    fn signal(&mut self, who: ScannedEntry, signal: Signal) -> Option<OwnedFd>;
}

/// This machine's.
struct Host;

impl Machine for Host {
    fn look(&mut self) -> io::Result<Vec<Process>> {
        let names = fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
        Ok(numbers.filter_map(Process::by_number).collect())
    }

    fn signal(&mut self, who: ScannedEntry, signal: Signal) -> Option<OwnedFd> {
        who.signal(signal)
    }
}

fn kill_in(machine: &mut impl Machine, ancestor: i32) -> io::Result<()> {
    for _generation in ["guest and launchers", "supervisors"] {
        let mut children = machine.look()?;
        children.retain(|process| process.parent == ancestor);
        for some in children.chunks(HELD) {
            let going = some.iter().filter_map(|child| machine.signal(child.who, Signal::KILL));
            await_all(&going.collect::<Vec<_>>());
        }
    }
    for _ in 0..ROUNDS {
        if stop_and_kill(machine, ancestor)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Says how many there were.
fn stop_and_kill(machine: &mut impl Machine, ancestor: i32) -> io::Result<usize> {
    let mut stopped: HashSet<ScannedEntry> = HashSet::new();
    for _ in 0..LOOKS {
        let found = descendants(ancestor, machine.look()?);
        let new: Vec<_> = found.difference(&stopped).copied().collect();
        if new.is_empty() {
            break;
        }
        for process in &new {
            drop(machine.signal(*process, Signal::STOP));
        }
        stopped.extend(new);
    }
    for process in &stopped {
        drop(machine.signal(*process, Signal::KILL));
    }
    Ok(stopped.len())
}

/// Waits until all of these have ended, but not for long.
fn await_all(processes: &[OwnedFd]) {
    let mut left = GOING;
    for process in processes {
        let mut waits = [PollFd::new(process, PollFlags::IN)];
        while left > 0 && !matches!(poll(&mut waits, Some(&STEP)), Ok(1..)) {
            left -= 1;
        }
    }
}

/// A process that was seen. Its number alone may be another's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ScannedEntry {
    pid: i32,
    /// In ticks since boot.
    started: u64,
}

/// What is known of a process at one look.
#[derive(Debug, Clone, Copy)]
struct Process {
    who: ScannedEntry,
    parent: i32,
    /// It only waits to be collected.
    is_dead: bool,
}

impl Process {
    /// The process that has a number now.
    fn by_number(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may hold anything, other parentheses included.
        let name = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(name + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            who: ScannedEntry { pid, started: fields.get(19)?.parse().ok()? },
            parent: fields.get(1)?.parse().ok()?,
            is_dead: matches!(*fields.first()?, "Z" | "X"),
        })
    }
}

impl ScannedEntry {
    /// Signals it; what is held can be waited for. One that is gone already is what we want.
    fn signal(self, signal: Signal) -> Option<OwnedFd> {
        // Held before it is looked at: what is seen is then known to be about the process that is signalled.
        let held = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        (Process::by_number(self.pid)?.who == self).then_some(())?;
        let _ = pidfd_send_signal(&held, signal);
        Some(held)
    }
}

/// Everything alive that descends from a process.
fn descendants(ancestor: i32, all: Vec<Process>) -> HashSet<ScannedEntry> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = HashSet::new();
    let mut open = vec![ancestor];
    while let Some(above) = open.pop() {
        for child in children.remove(&above).into_iter().flatten() {
            open.push(child.who.pid);
            if !child.is_dead {
                found.insert(child.who);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn started(script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        (child, output)
    }

    #[test]
    fn signals_nobody_who_has_the_number_of_one_that_was_seen() {
        let (mut child, _output) = started("echo up; exec sleep 7122");
        let seen = Process::by_number(child.id().cast_signed()).unwrap().who;
        let earlier = ScannedEntry { started: seen.started - 1, ..seen };
        assert!(earlier.signal(Signal::KILL).is_none(), "that is somebody else");
        assert!(seen.signal(Signal::KILL).is_some());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
    }

    /// Processes that are written down: who, and whose child. What loses its parent falls to the first one.
    struct FakeMachine {
        parents: Vec<(i32, i32)>,
        signalled: Vec<(i32, Signal)>,
    }

    const INIT: i32 = 10;

    impl Machine for FakeMachine {
        fn look(&mut self) -> io::Result<Vec<Process>> {
            let process = |(pid, parent): &(i32, i32)| Process {
                who: ScannedEntry { pid: *pid, started: 7 },
                parent: *parent,
                is_dead: false,
            };
            Ok(self.parents.iter().map(process).collect())
        }

        fn signal(&mut self, who: ScannedEntry, signal: Signal) -> Option<OwnedFd> {
            self.signalled.push((who.pid, signal));
            if signal == Signal::KILL {
                self.parents.retain(|(pid, _)| *pid != who.pid);
                let orphans = self.parents.iter_mut().filter(|(_, parent)| *parent == who.pid);
                orphans.for_each(|(_, parent)| *parent = INIT);
            }
            None
        }
    }

    #[test]
    fn never_stops_whoever_collects_the_dead() {
        let (guest, launcher, supervisors, commands) = (11, 12, [13, 14], [15, 16, 17]);
        let parents = vec![
            (guest, INIT),
            (launcher, INIT),
            (supervisors[0], launcher),
            (supervisors[1], launcher),
            (commands[0], supervisors[0]),
            (commands[1], supervisors[1]),
            (commands[2], commands[1]),
            (99, 1),
        ];
        let mut machine = FakeMachine { parents, signalled: Vec::new() };
        kill_in(&mut machine, INIT).unwrap();
        assert_eq!(machine.parents, [(99, 1)], "everything has ended, and nothing else");
        let stopped = machine.signalled.iter().filter(|(_, signal)| *signal == Signal::STOP);
        let mut stopped: Vec<i32> = stopped.map(|(pid, _)| *pid).collect();
        stopped.sort_unstable();
        assert_eq!(stopped, commands, "only what collects nobody");
    }
}
