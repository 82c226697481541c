//! What no session leads to any more: processes whose session's folder is gone or whose warden is, and
//! files and locks of processes that were killed.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bastide::SweepMode;
use bastide::host::is_same_file;
use bastide::host::process_identity::kill;
use bastide_proto::warden::HOST_INIT;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::backend::GUESTS;
use crate::descendants::kill_descendants;
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
        if let Some(why) = Orphan::of(process, &home) {
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

/// Why a process is an orphan.
enum Orphan {
    WardenWithoutFolder,
    SandboxWithoutWarden,
}

impl Orphan {
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
        let is_gone = matches!(folder.try_exists(), Ok(false));
        (is_warden(pid) && is_gone).then_some(Self::WardenWithoutFolder)
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
            let has_callers_credentials = effective_user(pid) == Some(own);
            let words = words(pid);
            let last = words.iter().rfind(|word| !word.is_empty());
            let from = last.map(|word| Path::new(OsStr::from_bytes(word)));
            let from = from.and_then(|from| fs::canonicalize(from).ok());
            has_callers_credentials && is_warden(pid) && from == Some(guests)
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

/// Guest programs whose writer was killed before it was done. It holds a lock on what it writes.
fn unfinished_guests(guests: &Path, mode: SweepMode, swept: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(guests)? {
        let path = entry?.path();
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let Some(rest) = name.strip_suffix(".tmp") else { continue };
        let writer = rest.rsplit('.').next().unwrap_or_default();
        // Earlier versions took no lock; the process id of the writer is all that is known of it.
        let is_earlier = writer.bytes().all(|byte| byte.is_ascii_digit());
        if is_earlier && !matches!(Path::new("/proc").join(writer).try_exists(), Ok(false)) {
            continue;
        }
        // Held while it is removed, so that nobody goes on with one that is about to go.
        match File::open(&path).map(|lock| lock.try_lock().map(|()| lock)) {
            Ok(Ok(_lock)) => remove(&path, mode, swept)?,
            Ok(Err(TryLockError::WouldBlock)) => {}
            Ok(Err(TryLockError::Error(error))) => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
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
            (Ok(held), Ok(found)) => is_same_file(&held, &found),
            _ => false,
        };
        if is_free && in_place && is_nobodys(&path) {
            remove(&path, mode, swept)?;
        }
    }
    Ok(())
}

/// Whether no files have the ids of a range: a session that does not run keeps those of its files, and the lock says where
/// they are. Where that cannot be told, somebody has them.
fn is_nobodys(lock: &Path) -> bool {
    let Ok(owner) = fs::read(lock) else { return false };
    owner.is_empty() || is_gone(Path::new(OsStr::from_bytes(&owner)))
}

/// Whether a session's folder is known to be gone. Without the folder around it nobody can tell: the home may have been
/// moved, or lie on a disk that is not mounted now.
fn is_gone(session: &Path) -> bool {
    session.parent().is_some_and(Path::is_dir) && matches!(session.try_exists(), Ok(false))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_range_for_free_only_where_its_session_is_known_to_be_gone() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = folder.path().join("sessions");
        fs::create_dir_all(sessions.join("kept")).unwrap();
        let unmounted = folder.path().join("unmounted/sessions/kept");
        let cases = [
            ("nobodys", None, true),
            ("kept", Some(sessions.join("kept")), false),
            ("removed", Some(sessions.join("removed")), true),
            ("of a home that is not there", Some(unmounted), false),
        ];
        let locks = folder.path().join("locks");
        fs::create_dir(&locks).unwrap();
        let mut freed = Vec::new();
        for (name, owner, is_free) in &cases {
            let owner = owner.as_ref().map_or(OsStr::new(""), |owner| owner.as_os_str());
            fs::write(locks.join(name), owner.as_bytes()).unwrap();
            freed.extend(is_free.then(|| locks.join(name).display().to_string()));
        }
        let mut swept = Vec::new();
        free_ranges(&locks, SweepMode::Remove, &mut swept).unwrap();
        swept.sort_unstable();
        assert_eq!(swept, freed);
        for (name, _, is_free) in cases {
            assert_eq!(locks.join(name).exists(), !is_free, "{name}");
        }
    }

    #[test]
    fn removes_an_unfinished_guest_only_if_nobody_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, "half").unwrap();
            path
        };
        // Its number is a living process's, which is not its writer.
        let left = make(&format!("guest-1.{}-0.tmp", std::process::id()));
        let written = make("guest-1.999999999-0.tmp");
        let earlier = make(&format!("guest-1.{}.tmp", std::process::id()));
        let lock = File::open(&written).unwrap();
        lock.lock().unwrap();
        let mut swept = Vec::new();
        unfinished_guests(folder.path(), SweepMode::Remove, &mut swept).unwrap();
        assert_eq!(swept, [left.display().to_string()]);
        assert!(!left.exists() && written.exists() && earlier.exists());
    }
}
