//! What backends on this host share: private folders, identifying processes, and following paths.

mod git;
pub mod process_identity;
pub mod resolve;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

pub use git::isolated_git;

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

/// Puts the names in a folder on the disk.
///
/// # Errors
///
/// Fails if the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Whether something failed because a disk, or somebody's share of it, is full.
pub(crate) fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
