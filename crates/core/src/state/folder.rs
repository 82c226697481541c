//! The folder of one session, and the lock that says whether anybody keeps the session alive.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::warden::LOCK_NAME;
use tokio::time::Instant;

use super::record::{self, Record, Stamp};
use crate::backend::SessionId;
use crate::host::is_for_want_of_room;
use crate::{Error, ErrorKind, Result};

/// Present in a folder whose session somebody wants gone while it is still being made.
const UNWANTED: &str = "unwanted";

/// How long a folder may be in somebody else's hands before we give up making it ours. Whoever only
/// looks at it needs microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(1);

/// The folder of one session, held: as long as this or a copy of its lock is open in any process, the
/// session counts as alive.
#[derive(Debug)]
pub struct SessionFolder {
    id: SessionId,
    path: PathBuf,
    lock: File,
}

impl SessionFolder {
    /// Makes the folder of a new session under a backend's home. [`Client`](crate::Client) does this
    /// for its sessions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if there is a session of that name.
    pub async fn make(home: &Path, id: SessionId) -> Result<Self> {
        reserve(home.join(super::SESSIONS).join(id.as_str()), id).await
    }

    /// Whose folder it is.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock. A backend hands a copy of it to whatever keeps the machine up.
    #[must_use]
    pub fn lock(&self) -> &File {
        &self.lock
    }

    /// Writes what is on record about the session.
    pub(crate) fn write(&self, record: &Record) -> Result<Stamp> {
        record::write(&self.path, record)
    }

    /// Whether somebody removed the session, or asked for that, while it was being made.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.path.join(UNWANTED).exists() || !is_in_place(&self.lock, &self.path).unwrap_or(true)
    }
}

/// Asks whoever makes this session right now to give up. False if there is no such session.
pub(crate) fn mark_unwanted(path: &Path) -> io::Result<bool> {
    match File::options().create(true).append(true).mode(0o600).open(path.join(UNWANTED)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Removing a session is what makes room. One that is just being made is waited for then.
        Err(error) if is_for_want_of_room(&error) => path.try_exists(),
        Err(error) => Err(error),
    }
}

/// What somebody finds who wants a session that nobody keeps alive.
#[derive(Debug)]
pub(crate) enum Claim {
    /// There is no such session.
    Missing,
    /// Somebody keeps it alive.
    Kept,
    /// Nobody did; now the caller does.
    Ours(SessionFolder),
}

/// Whether anybody keeps a session alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// There is no such session.
    Missing,
    /// Somebody does.
    Kept,
    /// Nobody does.
    Left,
}

/// Makes a session's folder. It must not exist.
pub(super) async fn reserve(path: PathBuf, id: SessionId) -> Result<SessionFolder> {
    let failed = |error: io::Error| {
        let message = format!("cannot make a folder for session {id}: {error}");
        Error::new(ErrorKind::Io, message).with("path", path.display().to_string())
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("session {id} exists already"),
                )
                .with("path", path.display().to_string())
                .hint("delete it first, or let the new one have a name of its own"));
            }
            Err(error) => return Err(failed(error)),
        }
        // Somebody who sweeps may take a folder without a lock for one that was left behind, and
        // remove it: then it is made again. Somebody who only looks is soon done.
        loop {
            let late = Instant::now() >= deadline;
            match claim(path.clone(), &id)? {
                Claim::Ours(folder) => return Ok(folder),
                Claim::Missing | Claim::Kept if late => {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
                Claim::Missing => break,
                Claim::Kept => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

/// Takes hold of a session nobody keeps alive.
pub(super) fn claim(path: PathBuf, id: &SessionId) -> Result<Claim> {
    let failed = |error: io::Error| {
        let message = format!("cannot lock session {id}: {error}");
        Error::new(ErrorKind::Io, message).with("path", path.display().to_string())
    };
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    let lock = match options.open(path.join(LOCK_NAME)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Missing),
        Err(error) => return Err(failed(error)),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Claim::Kept),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // Between opening and locking it, the folder may have been removed, and made again.
    if is_in_place(&lock, &path).map_err(failed)? {
        return Ok(Claim::Ours(SessionFolder { id: id.clone(), path, lock }));
    }
    Ok(Claim::Missing)
}

/// Whether the lock is still the one that is found in the folder.
fn is_in_place(lock: &File, path: &Path) -> io::Result<bool> {
    let held = lock.metadata()?;
    match fs::symlink_metadata(path.join(LOCK_NAME)) {
        Ok(found) => Ok((held.dev(), held.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether anybody keeps a session alive. Looking takes the lock together with whoever else looks, so
/// that nobody mistakes a look for a life.
pub(super) fn life(path: &Path) -> Life {
    match File::open(path.join(LOCK_NAME)) {
        Ok(lock) => match lock.try_lock_shared() {
            // Where that cannot be told, somebody may.
            Err(_) => Life::Kept,
            Ok(()) => Life::Left,
        },
        Err(error) if error.kind() != io::ErrorKind::NotFound => Life::Kept,
        Err(_) if path.exists() => Life::Left,
        Err(_) => Life::Missing,
    }
}
