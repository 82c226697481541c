//! The folder of one session, and its two locks. `lock` says whether anybody keeps the session alive;
//! whoever does so inherits it. `transition.lock` is held by the one process that makes, starts, stops or
//! removes the session, from the first look at the record to the last change of it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::warden::{LOCK_FILE, TRANSITION_LOCK_FILE, UNWANTED_FILE};
use tokio::time::Instant;

use super::origin::{self, Origin};
use super::record::{self, Record, Stamp};
use crate::backend::SessionId;
use crate::host::{is_storage_full, sync_folder};
use crate::{Error, ErrorKind, Result};

/// How long a folder may be in somebody else's hands before we give up making it ours. Whoever only
/// looks at it needs microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(1);

/// The folder of one session, locked: while this, or a copy of its lock, is open in any process,
/// the session counts as alive.
#[derive(Debug)]
pub struct SessionFolder {
    id: SessionId,
    path: PathBuf,
    lock: File,
    /// Held for as long as this is, where the session is being made or started.
    _transition: Option<Transition>,
    is_new: bool,
    is_tied: bool,
}

/// The right to change what a session is, for as long as this is held. The kernel takes it from a process
/// that is killed.
#[derive(Debug)]
pub(crate) struct Transition {
    path: PathBuf,
    lock: File,
}

impl Transition {
    /// Whether the session is still the one it was taken of.
    pub(crate) fn is_in_place(&self) -> bool {
        // Where that cannot be told it may be another's, and is left alone.
        is_in_place(&self.lock, &self.path.join(TRANSITION_LOCK_FILE)).unwrap_or(false)
    }
}

/// What somebody finds who wants to change what a session is.
#[derive(Debug)]
pub(crate) enum TransitionAttempt {
    /// There is no such session.
    Missing,
    /// Somebody else is changing it.
    Taken,
    /// Nobody was; now the caller is.
    Ours(Transition),
}

impl SessionFolder {
    /// Creates the folder of a new session under a backend's home. [`Client`](crate::Client) does
    /// this for its sessions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if a session with that id exists.
    pub async fn make(home: &Path, id: SessionId) -> Result<Self> {
        reserve(home.join(super::SESSIONS).join(id.as_str()), id).await
    }

    /// The folder of a session that somebody else keeps alive, to reach what runs there. It holds no lock.
    ///
    /// # Errors
    ///
    /// Fails if there is no such folder.
    pub fn seen(path: PathBuf, id: SessionId) -> Result<Self> {
        let lock = File::open(path.join(LOCK_FILE)).map_err(|error| {
            let message = format!("cannot open the folder of session {id}: {error}");
            Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
        })?;
        Ok(Self { id, path, lock, _transition: None, is_new: false, is_tied: false })
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock. A backend passes a copy of it to the processes that keep the machine running.
    #[must_use]
    pub fn lock(&self) -> &File {
        &self.lock
    }

    /// Whether the session is being created, and did not exist before.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether the session ends with its owner, so that nothing has to be on the disk for it.
    #[must_use]
    pub fn is_tied(&self) -> bool {
        self.is_tied
    }

    /// The same folder, of a session that ends with its owner or does not.
    pub(crate) fn tied(self, is_tied: bool) -> Self {
        Self { is_tied, ..self }
    }

    /// The same folder, with the right to change what the session is.
    pub(crate) fn under(self, transition: Transition) -> Self {
        Self { _transition: Some(transition), ..self }
    }

    /// Makes a session that was copied here one of this place: it is about to get a machine of its own.
    pub(crate) fn settle(&self) -> io::Result<()> {
        match Origin::of(&self.path)? {
            Origin::Here => Ok(()),
            Origin::Copied | Origin::Unsaid => origin::settle(&self.lock),
        }
    }

    /// Writes what is on record about the session.
    pub(crate) fn write(&self, record: &Record) -> Result<Stamp> {
        record::write(&self.path, record)
    }

    /// Whether somebody removed the session, or asked for that, while it was being made.
    pub(crate) fn is_unwanted(&self) -> bool {
        is_unwanted(&self.path)
            || !is_in_place(&self.lock, &self.path.join(LOCK_FILE)).unwrap_or(true)
    }
}

/// Announces that a session is removed, before anything of it goes: whoever makes or starts it right now
/// gives up, and whoever finds what is left of it later may finish. The note is on the disk when this
/// returns, unless the session ends with its owner anyway. False if there is no such session.
pub(crate) fn mark_unwanted(path: &Path, is_tied: bool) -> io::Result<bool> {
    let mark = path.join(UNWANTED_FILE);
    match File::options().create(true).append(true).mode(0o600).open(mark) {
        Ok(_) if is_tied => Ok(true),
        Ok(mark) => {
            mark.sync_all()?;
            // Gone with the whole folder is what was wanted.
            match sync_folder(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                synced => synced.map(|()| true),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Removing a session is what makes room. One that is just being made is waited for then.
        Err(error) if is_storage_full(&error) => path.try_exists(),
        Err(error) => Err(error),
    }
}

/// Whether somebody is removing a session, or was.
pub(crate) fn is_unwanted(path: &Path) -> bool {
    path.join(UNWANTED_FILE).exists()
}

/// What somebody finds who wants a session that nobody keeps alive.
#[derive(Debug)]
pub(crate) enum ClaimAttempt {
    /// There is no such session.
    Missing,
    /// Somebody keeps it alive.
    Kept,
    /// Nobody did; now the caller does.
    Ours(SessionFolder),
}

/// Whether anybody keeps a session alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Liveness {
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
        Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
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
                .with_context("path", path.display().to_string())
                .with_hint("delete it first, or let the new one have a name of its own"));
            }
            Err(error) => return Err(failed(error)),
        }
        // Somebody who sweeps may take a folder without a lock for one that was left behind, and
        // remove it: then it is made again. Somebody who only looks is soon done.
        loop {
            let late = Instant::now() >= deadline;
            match take(&path, &id)? {
                ClaimAttempt::Ours(folder) => {
                    origin::settle(&folder.lock).map_err(failed)?;
                    return Ok(SessionFolder { is_new: true, ..folder });
                }
                ClaimAttempt::Missing | ClaimAttempt::Kept if late => {
                    return Err(failed(io::ErrorKind::TimedOut.into()));
                }
                ClaimAttempt::Missing => break,
                ClaimAttempt::Kept => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

/// Takes both locks of a session, or none.
fn take(path: &Path, id: &SessionId) -> Result<ClaimAttempt> {
    let transition = match lock_transition(path, id)? {
        TransitionAttempt::Ours(transition) => transition,
        TransitionAttempt::Missing => return Ok(ClaimAttempt::Missing),
        TransitionAttempt::Taken => return Ok(ClaimAttempt::Kept),
    };
    Ok(match claim(path.to_owned(), id)? {
        ClaimAttempt::Ours(folder) => ClaimAttempt::Ours(folder.under(transition)),
        other => other,
    })
}

/// Takes the right to change what a session is, if nobody has it.
pub(super) fn lock_transition(path: &Path, id: &SessionId) -> Result<TransitionAttempt> {
    match lock_in(path, TRANSITION_LOCK_FILE).map_err(|error| not_locked(path, id, &error))? {
        Locked::Missing => Ok(TransitionAttempt::Missing),
        Locked::Elsewhere => Ok(TransitionAttempt::Taken),
        Locked::Ours(lock) => {
            Ok(TransitionAttempt::Ours(Transition { path: path.to_owned(), lock }))
        }
    }
}

fn not_locked(path: &Path, id: &SessionId, error: &io::Error) -> Error {
    let message = format!("cannot lock session {id}: {error}");
    Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
}

enum Locked {
    Missing,
    Elsewhere,
    Ours(File),
}

/// Locks a file of a session's folder, which is made if it is not there.
fn lock_in(folder: &Path, name: &str) -> io::Result<Locked> {
    match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => {}
        // What somebody put there instead of a folder is not followed.
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Locked::Missing),
        Err(error) => return Err(error),
    }
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let path = folder.join(name);
    let lock = match options.open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Locked::Missing),
        Err(error) => return Err(error),
    };
    match lock.try_lock() {
        // Between opening and locking it, the folder may have been removed, and made again.
        Ok(()) if is_in_place(&lock, &path)? => Ok(Locked::Ours(lock)),
        Ok(()) => Ok(Locked::Missing),
        Err(TryLockError::WouldBlock) => Ok(Locked::Elsewhere),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes hold of a session nobody keeps alive.
pub(super) fn claim(path: PathBuf, id: &SessionId) -> Result<ClaimAttempt> {
    match lock_in(&path, LOCK_FILE).map_err(|error| not_locked(&path, id, &error))? {
        Locked::Missing => Ok(ClaimAttempt::Missing),
        Locked::Elsewhere => Ok(ClaimAttempt::Kept),
        Locked::Ours(lock) => {
            let id = id.clone();
            Ok(ClaimAttempt::Ours(SessionFolder {
                id,
                path,
                lock,
                _transition: None,
                is_new: false,
                is_tied: false,
            }))
        }
    }
}

/// Whether a lock is still the one that is found at its path.
fn is_in_place(lock: &File, path: &Path) -> io::Result<bool> {
    let held = lock.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((held.dev(), held.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether anybody keeps a session alive. Looking takes the lock together with whoever else looks, so
/// that nobody mistakes a look for a life. Where that cannot be told, somebody may.
pub(super) fn liveness(path: &Path) -> Liveness {
    match File::open(path.join(LOCK_FILE)) {
        Ok(lock) => match lock.try_lock_shared() {
            // Where that cannot be told, somebody may.
            Err(_) => Liveness::Kept,
            Ok(()) => Liveness::Left,
        },
        Err(error) if error.kind() != io::ErrorKind::NotFound => Liveness::Kept,
        Err(_) if path.exists() => Liveness::Left,
        Err(_) => Liveness::Missing,
    }
}
