//! Identifying a process. A pid alone means nothing once its process has ended: the kernel gives it
//! to another one.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process of one boot of this machine, identified by pid, start time and boot id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pid: i32,
    start_time: u64,
    boot_id: String,
}

impl ProcessIdentity {
    /// The process that has this pid now.
    ///
    /// # Errors
    ///
    /// Fails if `/proc` cannot be read for it.
    pub fn of(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(io::Error::other)?;
        Ok(Self { pid, start_time: start_time(pid)?, boot_id: boot_id()?.to_owned() })
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Opens a pidfd of the process; `None` if it has ended.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be examined.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        if boot_id()? != self.boot_id {
            return Ok(None);
        }
        let held = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(held) => held,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Only now is the id known to stay with one process while it is looked at.
        let same = match start_time(self.pid) {
            Ok(start_time) => start_time == self.start_time,
            Err(error) if is_gone(&error) => false,
            // Who cannot be looked at has not ended for that.
            Err(error) => return Err(error),
        };
        // A process that has ended but was not collected yet keeps its id.
        Ok((same && !has_ended(&held)?).then_some(held))
    }
}

/// Where a session's folder says which process of this host keeps the session running, if no warden does: whoever counts
/// the sessions that run finds it there.
const KEEPER: &str = "keeper.json";

/// Notes which process of this host keeps a session running.
///
/// # Errors
///
/// Fails if the folder cannot be written to.
pub fn note_keeper(folder: &Path, keeper: &ProcessIdentity) -> io::Result<()> {
    let unfinished = folder.join(format!("{KEEPER}.new"));
    fs::write(&unfinished, serde_json::to_vec(keeper)?)?;
    fs::rename(&unfinished, folder.join(KEEPER))
}

/// Whether a process of this host that keeps a session running is noted and lives. Where that cannot be told, it may.
pub(crate) fn has_keeper(folder: &Path) -> bool {
    match fs::read(folder.join(KEEPER)) {
        Ok(noted) => serde_json::from_slice::<ProcessIdentity>(&noted)
            .is_ok_and(|keeper| !matches!(keeper.open(), Ok(None))),
        Err(_) => false,
    }
}

/// Whether what is read of a process is not there because the process is not.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

fn has_ended(process: &OwnedFd) -> io::Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once))? > 0)
}

/// Kills the process of a pidfd; one that has ended already is no error.
///
/// # Errors
///
/// Fails if the signal cannot be sent.
pub fn kill(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until the process of a pidfd has ended.
///
/// # Errors
///
/// Fails if it has not ended after `most`, or cannot be waited for.
pub async fn ended(process: OwnedFd, most: Duration) -> io::Result<()> {
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    let wait = move || match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&most)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    };
    tokio::task::spawn_blocking(wait).await.map_err(io::Error::other)?
}

/// This boot of the machine, which no process outlives.
fn boot_id() -> io::Result<&'static str> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT.get() {
        return Ok(known);
    }
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(BOOT.get_or_init(|| read))
}

/// More than the kernel says of a process.
const STAT: usize = 4096;

/// When a process started, in ticks since boot: the 20th field after its name, which stands in
/// parentheses and may hold anything.
fn start_time(pid: i32) -> io::Result<u64> {
    let mut stat = [0; STAT];
    // By one call: where many processes are looked at, each further one would be felt.
    let count = fs::File::open(format!("/proc/{pid}/stat"))?.read(&mut stat)?;
    let stat = String::from_utf8_lossy(&stat[..count]);
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_a_process_from_the_next_one_with_its_id() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(own.open().unwrap().is_some());
        let earlier = ProcessIdentity { start_time: own.start_time - 1, ..own.clone() };
        assert!(earlier.open().unwrap().is_none());
        let last_boot = ProcessIdentity { boot_id: "another".to_owned(), ..own };
        assert!(last_boot.open().unwrap().is_none());
    }

    #[test]
    fn finds_the_process_that_keeps_a_session_running() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_keeper(folder.path()), "nobody is noted");
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        note_keeper(folder.path(), &own).unwrap();
        assert!(has_keeper(folder.path()));
        let earlier = ProcessIdentity { start_time: own.start_time - 1, ..own };
        note_keeper(folder.path(), &earlier).unwrap();
        assert!(!has_keeper(folder.path()), "it has ended");
    }
}
