//! Snapshots that are tar files on the host.

use crate::error::raise;
use crate::posix_path::PosixPath;
use crate::windows_path::WindowsPath;
use crate::{Error, Result};

/// A tar file on the host.
///
/// ```
/// use bastide_model::PosixPath;
/// use bastide_model::snapshot::LocalSnapshot;
///
/// let snapshot = |id: &str| LocalSnapshot { id: id.into(), base_path: PosixPath::new("/snaps") };
/// assert_eq!(snapshot("a").path()?.to_string(), "/snaps/a.tar");
/// assert!(snapshot("../a").path().is_err());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSnapshot {
    /// What it is called.
    pub id: String,
    /// The folder it is in.
    pub base_path: PosixPath,
}

impl LocalSnapshot {
    /// The file.
    ///
    /// # Errors
    /// The id is not one name, here and on Windows.
    pub fn path(&self) -> Result<PosixPath> {
        Ok(self.base_path.join(&PosixPath::new(&self.file_name()?)))
    }

    /// The file that a snapshot is written to before it takes the place of the one before;
    /// `unique` tells writers apart.
    ///
    /// # Errors
    /// The id is not one name, here and on Windows.
    pub fn temporary_path(&self, unique: &str) -> Result<PosixPath> {
        let name = format!(".{}.{unique}.tmp", self.file_name()?);
        Ok(self.base_path.join(&PosixPath::new(&name)))
    }

    /// The error for a snapshot that cannot be written.
    ///
    /// # Errors
    /// The id is not one name, here and on Windows.
    pub fn persist_error(&self) -> Result<Error> {
        Ok(raise::snapshot_persist(&self.id, self.path()?))
    }

    /// The error for a snapshot that cannot be read.
    ///
    /// # Errors
    /// The id is not one name, here and on Windows.
    pub fn restore_error(&self) -> Result<Error> {
        Ok(raise::snapshot_restore(&self.id, self.path()?))
    }

    fn file_name(&self) -> Result<String> {
        let id = self.id.as_str();
        let is_one_name = !matches!(id, "" | "." | "..")
            && !id.contains(['/', '\\'])
            && WindowsPath::new(id).drive().is_empty();
        match is_one_name {
            true => Ok(format!("{id}.tar")),
            false => Err(raise::value_error("LocalSnapshot id must be a single path segment")),
        }
    }
}
