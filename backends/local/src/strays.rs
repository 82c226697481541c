//! What no session leads to any more: processes whose session's folder is gone or whose warden is, and
//! files and locks of processes that were killed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bastide::SweepMode;
use bastide::host::process::kill;
use bastide_proto::warden::HOST_INIT;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::backend::GUESTS;
use crate::user::ID_LOCKS;

/// Ends and removes what no session under `home` leads to, if `mode` says so, and says what it was.
pub(crate) fn sweep(home: &Path, mode: SweepMode) -> io::Result<Vec<String>> {
    let home = fs::canonicalize(home)?;
    let mut swept = Vec::new();
    for process in processes()? {
        // Held before it is looked at: what is seen is then known to be about the process that is
        // ended.
        let Some(pid) = Pid::from_raw(process) else { continue };
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if let Some(why) = Stray::of(process, &home) {
            if mode == SweepMode::Remove {
                if is_host_init(process) {
                    kill_descendants(process)?;
                }
                kill(&held)?;
            }
            swept.push(format!("process {process}, {}", why.as_str()));
        }
    }
    unfinished_guests(&home.join(GUESTS), mode, &mut swept)?;
    free_ranges(Path::new(ID_LOCKS), mode, &mut swept)?;
    Ok(swept)
}

/// Whether a process is one that everything in a sandbox without namespaces descends from: nothing ends
/// with it by itself.
pub(crate) fn is_host_init(pid: i32) -> bool {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.strip_suffix(b"\n") == Some(HOST_INIT.to_bytes()) && pid_inside(pid) == Some(pid)
}

/// Ends everything that descends from a process. All of it is stopped before anything is ended, so that
/// nothing forks meanwhile.
pub(crate) fn kill_descendants(ancestor: i32) -> io::Result<()> {
    const LOOKS: usize = 64;
    let mut stopped: HashSet<(i32, u64)> = HashSet::new();
    for _ in 0..LOOKS {
        let found = descendants(ancestor)?;
        let new: Vec<_> = found.difference(&stopped).copied().collect();
        if new.is_empty() {
            break;
        }
        for process in &new {
            signal(*process, Signal::STOP);
        }
        stopped.extend(new);
    }
    for process in stopped {
        signal(process, Signal::KILL);
    }
    Ok(())
}

/// Everything that descends from a process, each with the time it started at.
fn descendants(ancestor: i32) -> io::Result<HashSet<(i32, u64)>> {
    let mut children: HashMap<i32, Vec<(i32, u64)>> = HashMap::new();
    for pid in processes()? {
        if let (Some(parent), Some(started)) = (parent(pid), started(pid)) {
            children.entry(parent).or_default().push((pid, started));
        }
    }
    let mut found = HashSet::new();
    let mut open = vec![ancestor];
    while let Some(above) = open.pop() {
        for child in children.get(&above).into_iter().flatten() {
            if found.insert(*child) {
                open.push(child.0);
            }
        }
    }
    Ok(found)
}

/// Signals a process that was seen: its number may be another's by now. One that is gone already is what we want.
fn signal((pid, seen): (i32, u64), signal: Signal) {
    let Some(number) = Pid::from_raw(pid) else { return };
    // Held before it is looked at: what is seen is then known to be about the process that is signalled.
    if let Ok(held) = pidfd_open(number, PidfdFlags::empty())
        && started(pid) == Some(seen)
    {
        let _ = pidfd_send_signal(&held, signal);
    }
}

/// When a process started, in ticks since boot: the twentieth field after its name.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The wardens that live in a session's folder, and the first processes of their sandboxes, held.
pub(crate) fn living_in(home: &Path, folder: &Path) -> io::Result<Vec<(i32, OwnedFd)>> {
    let home = fs::canonicalize(home)?;
    let Ok(folder) = fs::canonicalize(folder) else { return Ok(Vec::new()) };
    let lives_there = |pid: i32| {
        let place = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        is_ours(pid, &home) && is_warden(pid) && place.starts_with(&folder)
    };
    let mut found = Vec::new();
    for process in processes()? {
        let Some(pid) = Pid::from_raw(process) else { continue };
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let is_init = || {
            let is_first = is_ours(process, &home)
                && (pid_inside(process) == Some(1) || is_host_init(process));
            is_first && parent(process).is_some_and(lives_there)
        };
        if lives_there(process) || is_init() {
            found.push((process, held));
        }
    }
    Ok(found)
}

fn processes() -> io::Result<Vec<i32>> {
    let names = fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Why a process is a stray.
enum Stray {
    WardenWithoutFolder,
    SandboxWithoutWarden,
}

impl Stray {
    fn as_str(&self) -> &'static str {
        match self {
            Self::WardenWithoutFolder => "a warden whose session's folder is gone",
            Self::SandboxWithoutWarden => "the first process of a sandbox whose warden is gone",
        }
    }

    fn of(pid: i32, home: &Path) -> Option<Self> {
        if !is_ours(pid, home) {
            return None;
        }
        if pid_inside(pid)? == 1 || is_host_init(pid) {
            let parent = parent(pid)?;
            return (!is_ours(parent, home)).then_some(Self::SandboxWithoutWarden);
        }
        // A warden lives in its session's folder once it knows which that is.
        let place = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        let folder = place.strip_prefix(home.join("sessions")).ok()?.components().next()?;
        let folder = home.join("sessions").join(folder);
        (is_warden(pid) && !folder.exists()).then_some(Self::WardenWithoutFolder)
    }
}

/// Whether a process runs a guest program of this home. What a warden forks cannot be looked at by its own user; it has
/// its command line, which says where the program came from. Whoever lies about that is somebody inside, and is ended.
fn is_ours(pid: i32, home: &Path) -> bool {
    let guests = home.join(GUESTS);
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(program) => {
            let name = program.file_name().map(OsStr::as_bytes).unwrap_or_default();
            program.parent() == Some(&guests) && name.starts_with(b"guest-")
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let own = rustix::process::geteuid().as_raw();
            let is_callers = effective_user(pid) == Some(own);
            let words = words(pid);
            let last = words.iter().rfind(|word| !word.is_empty());
            let from = last.map(|word| Path::new(OsStr::from_bytes(word)));
            let from = from.and_then(|from| fs::canonicalize(from).ok());
            is_callers && is_warden(pid) && from == Some(guests)
        }
        Err(_) => false,
    }
}

/// The command line of a process.
fn words(pid: i32) -> Vec<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

fn is_warden(pid: i32) -> bool {
    words(pid).get(1).is_some_and(|word| word == b"warden")
}

fn effective_user(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// What a process is numbered by in its own namespace, if that is another one than ours.
fn pid_inside(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let numbers: Vec<_> = numbers.split_ascii_whitespace().collect();
    match numbers.as_slice() {
        [_, .., innermost] => innermost.parse().ok(),
        _ => Some(pid),
    }
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Guest programs whose writer was killed before it was done. Its process id is in the name.
fn unfinished_guests(guests: &Path, mode: SweepMode, swept: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(guests)? {
        let path = entry?.path();
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let Some(rest) = name.strip_suffix(".tmp") else { continue };
        let writer = rest.rsplit('.').next().unwrap_or_default();
        if !PathBuf::from("/proc").join(writer).exists() {
            remove(&path, mode, swept)?;
        }
    }
    Ok(())
}

/// Locks of ranges of ids that nobody has. Removed while they are held, so that nobody takes one that
/// is about to go.
fn free_ranges(locks: &Path, mode: SweepMode, swept: &mut Vec<String>) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(locks) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        // Those of another user are that user's.
        let Ok(lock) = File::options().write(true).open(&path) else { continue };
        let is_free = lock.try_lock().is_ok();
        let in_place = match (lock.metadata(), fs::symlink_metadata(&path)) {
            (Ok(held), Ok(found)) => (held.dev(), held.ino()) == (found.dev(), found.ino()),
            _ => false,
        };
        // A session that does not run keeps the ids of its files.
        let owner = fs::read(&path).unwrap_or_default();
        let is_kept = !owner.is_empty() && Path::new(OsStr::from_bytes(&owner)).exists();
        if is_free && in_place && !is_kept {
            remove(&path, mode, swept)?;
        }
    }
    Ok(())
}

fn remove(path: &Path, mode: SweepMode, swept: &mut Vec<String>) -> io::Result<()> {
    let removed = match mode {
        SweepMode::Remove => fs::remove_file(path),
        SweepMode::Report => Ok(()),
    };
    match removed {
        Ok(()) => swept.push(path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
