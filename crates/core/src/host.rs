//! What backends on this host have in common: wardens, knowing processes again, folders of their own.

mod git;
pub mod process_identity;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

pub use git::isolated_git;

/// Makes a folder only its owner can look into, and those around it, unless it is there. Says whether it was made.
///
/// # Errors
///
/// Fails if it cannot be made; also if it cannot be told whether it is there, then with that reason: to
/// make it would only say that something exists.
pub fn make_private(folder: &Path) -> io::Result<bool> {
    if folder.try_exists()? {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    Ok(true)
}

/// Puts the names in a folder on the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Whether something failed because a disk, or somebody's share of it, is full.
pub(crate) fn is_storage_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
