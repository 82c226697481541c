//! What backends on this host share: private folders, identifying processes, and following paths.

pub mod egress;
mod fork_guard;
mod git;
pub mod mounts;
mod ownership;
pub mod process_identity;
pub mod resolve;
pub mod token;

use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use tokio::process::Command;

use crate::{Error, ErrorKind, Result, SessionId};

pub use fork_guard::ForkGuard;
pub use git::isolated_git;
pub use ownership::{own_folder, session_of_folder};

/// Creates a folder that only its owner can access, with missing parents, unless it exists. Returns
/// whether it was created.
///
/// # Errors
///
/// Fails if it cannot be created. Also if it cannot be determined whether it exists, with that
/// reason: creating it would only report that it exists.
pub fn make_private(folder: &Path) -> io::Result<bool> {
    if folder.try_exists()? {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    Ok(true)
}

/// Whether both are of one file: the same inode of the same file system.
#[must_use]
pub fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Why a session cannot be reached: it is not there, or this process lacks what it takes.
#[must_use]
pub fn not_connected(id: &SessionId, error: io::Error) -> Error {
    let (kind, message) = match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
            (ErrorKind::Io, format!("cannot connect to session {id}: {error}"))
        }
        _ => (ErrorKind::BackendLost, format!("session {id} is not running: {error}")),
    };
    Error::new(kind, message).with_source(error)
}

/// Puts the names in a folder on the disk.
///
/// # Errors
///
/// Fails if the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes a folder, whatever is in it, by the guest program `guest`: a session's (`how` is `remove`), or any (`remove-tree`). A
/// missing one is no failure.
///
/// # Errors
///
/// Fails if something in it cannot be removed, or not in so long.
pub async fn remove_folder(guest: &Path, how: &str, dir: &Path, most: Duration) -> Result<()> {
    let failed = |why: String| {
        let message = format!("cannot remove {}: {why}", dir.display());
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    };
    if !dir.try_exists().map_err(|error| failed(error.to_string()))? {
        return Ok(());
    }
    let mut remover = Command::new(guest)
        .arg0("bastide-remover")
        .arg(how)
        .arg(dir)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(most, remover.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => Err(failed("something in it cannot be removed".to_owned())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("it takes too long".to_owned())),
    }
}

/// Whether something failed because a disk, or somebody's share of it, is full.
pub(crate) fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
