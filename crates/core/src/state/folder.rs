//! The folder of one session, and its two locks. `lock` says whether anybody keeps the session alive;
//! whoever does so inherits it. `transition.lock` is held by the one process that makes, starts, stops or
//! removes the session, from the first look at the record to the last change of it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::warden::{LOCK_FILE, TRANSITION_LOCK_FILE, UNWANTED_FILE};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use tokio::time::Instant;

use super::origin::{self, Origin, is_owned_root};
use super::record::{self, Record, Stamp};
use crate::backend::SessionId;
use crate::host::{is_same_file, is_storage_full, sync_folder};
use crate::{Condition, Error, ErrorKind, Result};

/// How long a folder may be in somebody else's hands before we give up making it ours. Whoever only
/// looks at it needs microseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

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
    transition: Option<Transition>,
    is_new: bool,
    is_tied: bool,
}

/// The right to change what a session is, for as long as this is held. The kernel takes it from a process
/// that is killed.
#[derive(Debug)]
pub(crate) struct Transition {
    path: PathBuf,
    /// The folder itself: its path may lead to that of another session by now.
    folder: File,
    lock: File,
}

impl Transition {
    /// Whether the session is still the one it was taken of.
    ///
    /// # Errors
    ///
    /// Where that cannot be told. It may be another's then, and is left alone; but nobody said that it was removed.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        is_in_place(&self.lock, &self.path.join(TRANSITION_LOCK_FILE)).map_err(|error| {
            let path = self.path.display();
            let message =
                format!("cannot tell whether the session in {path} is still there: {error}");
            Error::new(ErrorKind::Io, message).with_context("path", path.to_string())
        })
    }

    /// Writes what is on record about the session, and about no other that has its name since.
    pub(super) fn write(&self, record: &Record) -> Result<Stamp> {
        if !self.is_in_place()? {
            let message = format!("session {} was removed meanwhile", record.id);
            return Err(
                Error::new(ErrorKind::NotFound, message).with_condition(Condition::SessionMissing)
            );
        }
        self.write_held(record)
    }

    /// Writes it into the folder itself, wherever its path leads by now.
    pub(super) fn write_held(&self, record: &Record) -> Result<Stamp> {
        record::write(&self.folder, &self.path, record)
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
        Ok(Self { id, path, lock, transition: None, is_new: false, is_tied: false })
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
    pub(crate) fn with_transition(self, transition: Transition) -> Self {
        Self { transition: Some(transition), ..self }
    }

    /// Makes a session that was copied here one of this place: it is about to get a machine of its own.
    pub(crate) fn write_origin(&self) -> io::Result<()> {
        match Origin::of(&self.path)? {
            Origin::Here => Ok(()),
            Origin::Copied | Origin::Unsaid => {
                // What is noted in it of other folders is true of the original, and would be believed from here on.
                origin::forget_owned_root(&self.path)?;
                origin::write_origin(&self.lock)
            }
        }
    }

    /// Whether a folder elsewhere was made for this session.
    pub(crate) fn owns_root(&self, root: &Path) -> bool {
        // What nobody can tell is left alone.
        matches!(is_owned_root(&self.path, root), Ok(Some(true)))
    }

    /// Makes the folder elsewhere that goes with the session, and notes it for whoever removes this one: its warden may be all
    /// there is left.
    pub(crate) fn make_owned_root(&self, root: &Path, is_new: bool) -> io::Result<()> {
        origin::make_owned_root(&self.path, root, is_new)
    }

    /// Writes what is on record about the session.
    pub(crate) fn write(&self, record: &Record) -> Result<Stamp> {
        match &self.transition {
            Some(transition) => transition.write(record),
            None => {
                let message = format!("session {} is changed by nobody here", self.id);
                Err(Error::new(ErrorKind::Internal, message))
            }
        }
    }

    /// Whether somebody removed the session, or asked for that, while it was being made.
    pub(crate) fn has_tombstone(&self) -> bool {
        has_tombstone(&self.path)
            || !is_in_place(&self.lock, &self.path.join(LOCK_FILE)).unwrap_or(true)
    }
}

/// Announces that a session is removed, before anything of it goes: whoever makes or starts it right now
/// gives up, and whoever finds what is left of it later may finish. The note is on the disk when this
/// returns, unless the session ends with its owner anyway. False if there is no such session.
pub(crate) fn write_tombstone(path: &Path, is_tied: bool) -> io::Result<bool> {
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

/// Gives the caller back what commands took that are the caller: they can close a session's folder to its own owner.
pub(crate) fn reopen(path: &Path) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_own && found.mode() & 0o700 != 0o700 {
        // Whatever needs the folder says that it has no right to.
        drop(fs::set_permissions(path, fs::Permissions::from_mode(0o700)));
    }
}

/// Whether somebody is removing a session, or was.
pub(crate) fn has_tombstone(path: &Path) -> bool {
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
    /// That cannot be told: somebody may.
    Unclear(io::ErrorKind),
}

impl Liveness {
    /// Whether somebody keeps it alive, or may.
    pub(crate) fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Unclear(_))
    }
}

/// Makes a session's folder. It must not exist.
pub(super) async fn reserve(path: PathBuf, id: SessionId) -> Result<SessionFolder> {
    let failed = |error: io::Error| {
        let message = format!("cannot make a folder for session {id}: {error}");
        Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
    };
    let deadline = Instant::now() + TIMEOUT;
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
                    origin::write_origin(&folder.lock).map_err(failed)?;
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
        ClaimAttempt::Ours(folder) => ClaimAttempt::Ours(folder.with_transition(transition)),
        other => other,
    })
}

/// Takes the right to change what a session is, if nobody has it.
pub(super) fn lock_transition(path: &Path, id: &SessionId) -> Result<TransitionAttempt> {
    match lock_in(path, TRANSITION_LOCK_FILE).map_err(|error| not_locked(path, id, &error))? {
        Locked::Missing => Ok(TransitionAttempt::Missing),
        Locked::Elsewhere => Ok(TransitionAttempt::Taken),
        Locked::Ours { folder, lock } => {
            Ok(TransitionAttempt::Ours(Transition { path: path.to_owned(), folder, lock }))
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
    Ours { folder: File, lock: File },
}

/// Locks a file of a session's folder, which is made if it is not there.
fn lock_in(path: &Path, name: &str) -> io::Result<Locked> {
    // What somebody put there instead of a folder is not followed.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match openat(CWD, path, flags, Mode::empty()) {
        Ok(folder) => File::from(folder),
        Err(Errno::NOENT) => return Ok(Locked::Missing),
        Err(errno) => return Err(errno.into()),
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let lock = match openat(&folder, name, flags, Mode::from_raw_mode(0o600)) {
        Ok(lock) => File::from(lock),
        Err(Errno::NOENT) => return Ok(Locked::Missing),
        Err(errno) => return Err(errno.into()),
    };
    match lock.try_lock() {
        // Between opening and locking it, the folder may have been removed, and made again.
        Ok(()) if is_in_place(&lock, &path.join(name))? => Ok(Locked::Ours { folder, lock }),
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
        Locked::Ours { lock, .. } => {
            let id = id.clone();
            Ok(ClaimAttempt::Ours(SessionFolder {
                id,
                path,
                lock,
                transition: None,
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
        Ok(found) => Ok(is_same_file(&held, &found)),
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
        Err(error) if error.kind() != io::ErrorKind::NotFound => Liveness::Unclear(error.kind()),
        Err(_) if path.exists() => Liveness::Left,
        Err(_) => Liveness::Missing,
    }
}
