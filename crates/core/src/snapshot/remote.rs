//! Snapshots that a client of the program's keeps: tar archives under names.

use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::snapshot::FingerprintRecord;

use super::{Saved, SnapshotStorage, Workspace, tar};
use crate::compat::raise;
use crate::session::files::Spool;
use crate::{Content, Error, Result};

/// Stores archives under names. A program binds one as `Arc<dyn RemoteSnapshots>` under the key
/// that its snapshots name.
#[async_trait]
pub trait RemoteSnapshots: Send + Sync {
    /// Stores an archive under a name, replacing one that exists. The old one is kept until the new
    /// one is complete.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be stored.
    async fn upload(&self, id: &str, archive: Content<'static>) -> Result<()>;

    /// The archive under a name.
    ///
    /// # Errors
    ///
    /// Fails if there is none.
    async fn download(&self, id: &str) -> Result<Content<'static>>;

    /// Whether there is an archive under a name.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be determined.
    async fn exists(&self, id: &str) -> Result<bool>;
}

/// The type that is bound under the key of a client.
pub type RemoteSnapshotsBinding = Arc<dyn RemoteSnapshots>;

/// Keeps a workspace with a client of the program's.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) id: String,
    pub(super) key: String,
}

impl Remote {
    async fn client(&self, workspace: &Workspace<'_>) -> Result<RemoteSnapshotsBinding> {
        let dependencies = workspace.dependencies();
        let bound = dependencies.require::<RemoteSnapshotsBinding>(&self.key, "RemoteSnapshot");
        Ok(Arc::clone(&*bound.await?))
    }

    fn location(&self) -> String {
        format!("<remote:{}>", self.key)
    }

    fn not_saved(&self, error: Error) -> Error {
        raise::snapshot_persist(&self.id, self.location()).with_source(error)
    }

    fn not_restored(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        raise::snapshot_restore(&self.id, self.location()).with_source(error)
    }
}

#[async_trait]
impl SnapshotStorage for Remote {
    async fn is_restorable(&self, workspace: &Workspace<'_>) -> Result<bool> {
        self.client(workspace).await?.exists(&self.id).await
    }

    async fn save(&self, workspace: &Workspace<'_>) -> Result<Saved> {
        let client = self.client(workspace).await.map_err(|error| self.not_saved(error))?;
        let spool = tempfile::tempfile()
            .map_err(|error| self.not_saved(Error::new(crate::ErrorKind::Io, error.to_string())))?;
        // All of it is here before any of it goes: a workspace that cannot be read costs nothing.
        let (file, saved) = tar::save(workspace, spool).await?;
        let content = tar::content(file)
            .map_err(|error| self.not_saved(Error::new(crate::ErrorKind::Io, error.to_string())))?;
        client.upload(&self.id, content).await.map_err(|error| self.not_saved(error))?;
        Ok(saved)
    }

    async fn restore(&self, workspace: &Workspace<'_>) -> Result<()> {
        let client = self.client(workspace).await.map_err(|error| self.not_restored(error))?;
        let content = client.download(&self.id).await.map_err(|error| self.not_restored(error))?;
        let spool = Spool::fill(content, None).await;
        let spool = spool.map_err(|_| self.not_restored("the archive cannot be read"))?;
        let file = spool.into_file().map_err(|error| self.not_restored(error))?;
        tar::restore(workspace, file).await
    }

    async fn fingerprint(&self, workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
        tar::fingerprint(workspace).await
    }
}
