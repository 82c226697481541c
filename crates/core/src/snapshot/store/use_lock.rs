//! Who uses a store: processes that come and go, some of them killed.
//!
//! Whoever saves or restores holds a use lock: a file of its own, locked for as long as it works. The
//! kernel lets go of the lock when the process ends, in whatever way. What decides something for
//! everybody, such as publishing a snapshot or putting packs aside, takes the one lock of the store
//! for that moment.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::errors::failed;
use crate::{Error, ErrorKind, Result};

/// How long somebody may hold the store's lock. It is held for renames and short lists only.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait before trying again.
const AGAIN: Duration = Duration::from_millis(2);

/// The right to use what is in the store now. Nothing of it goes away while this is held.
#[derive(Debug)]
pub(crate) struct UseLock {
    path: PathBuf,
    _lock: File,
}

impl UseLock {
    /// Takes a use lock in the folder for use locks.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        loop {
            let path = folder.join(uuid::Uuid::new_v4().simple().to_string());
            let making = |error| failed("make", &path, error);
            let lock = File::options().write(true).create_new(true).open(&path).map_err(making)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(making(error)),
            }
            // Somebody may have taken it for one that was left behind, before it was locked.
            if path.exists() {
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    /// Its name; what it is for is called so while it is not done.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for UseLock {
    fn drop(&mut self) {
        // One that stays is not locked any more, and removed by whoever finds it.
        drop(fs::remove_file(&self.path));
    }
}

/// The use locks somebody holds. Those that were left behind are removed.
pub(crate) fn held(folder: &Path) -> Result<Vec<String>> {
    let reading = |error| failed("read", folder, error);
    let mut held = Vec::new();
    for entry in fs::read_dir(folder).map_err(reading)? {
        let path = entry.map_err(reading)?.path();
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("open", &path, error)),
        };
        match lock.try_lock_shared() {
            Ok(()) => drop(fs::remove_file(&path)),
            // Where it cannot be told, somebody may be there.
            Err(_) => {
                held.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            }
        }
    }
    Ok(held)
}

/// Takes the lock of the store, for a moment.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let locking = |error| failed("lock", path, error);
    let file =
        File::options().create(true).truncate(false).write(true).open(path).map_err(locking)?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!("somebody holds {} for too long", path.display());
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            Err(TryLockError::Error(error)) => return Err(locking(error)),
        }
        pause(AGAIN);
    }
}

/// Waits a little; this is never on a thread that serves others.
pub(crate) fn pause(time: Duration) {
    std::thread::park_timeout(time);
}
