//! Snapshots that are tar files on the host, named and written as the reference's.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use async_trait::async_trait;
use bastide_model::snapshot::{FingerprintRecord, LocalSnapshot};

use super::{Saved, SnapshotStorage, Workspace, tar};
use crate::Result;

/// Keeps a workspace in a tar file.
#[derive(Debug)]
pub(super) struct Local(pub(super) LocalSnapshot);

impl Local {
    fn path(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(self.0.path()?.as_str()))
    }

    /// Opens a file beside the snapshot, to be written and renamed.
    fn begin(&self) -> Result<(PathBuf, File)> {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let temporary = PathBuf::from(self.0.temporary_path(&unique)?.as_str());
        let begin = || {
            fs::create_dir_all(self.0.base_path.as_str())?;
            File::options().write(true).create_new(true).mode(0o600).open(&temporary)
        };
        match begin() {
            Ok(file) => Ok((temporary, file)),
            Err(error) => Err(self.0.persist_error()?.with_source(error)),
        }
    }
}

#[async_trait]
impl SnapshotStorage for Local {
    async fn is_restorable(&self, _workspace: &Workspace<'_>) -> Result<bool> {
        Ok(self.path()?.is_file())
    }

    async fn save(&self, workspace: &Workspace<'_>) -> Result<Saved> {
        let path = self.path()?;
        let (temporary, file) = self.begin()?;
        let _guard = TempFile(temporary.clone());
        let (file, saved) = tar::save(workspace, file).await?;
        let published = tokio::task::spawn_blocking(move || {
            // What takes the place of the snapshot before must be whole, also after the power went.
            file.sync_all()?;
            fs::rename(&temporary, &path)
        });
        let published = published.await.map_err(io::Error::other).and_then(|done| done);
        match published {
            Ok(()) => Ok(saved),
            Err(error) => Err(self.0.persist_error()?.with_source(error)),
        }
    }

    async fn restore(&self, workspace: &Workspace<'_>) -> Result<()> {
        let file = match File::open(self.path()?) {
            Ok(file) => file,
            Err(error) => return Err(self.0.restore_error()?.with_source(error)),
        };
        tar::restore(workspace, file).await
    }

    async fn fingerprint(&self, workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
        tar::fingerprint(workspace).await
    }
}

/// A file that goes unless it was renamed.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        // Renamed, it has another name.
        drop(fs::remove_file(&self.0));
    }
}
