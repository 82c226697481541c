//! Saving the workspace of a session, and restoring it.

use super::Session;
use crate::Result;
use crate::snapshot::{Progress, Workspace};
use crate::store::{RestoreReport, SaveReport, Store, Tree};

impl Session {
    /// Saves the workspace as the snapshot `name`: [`Store::save`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn save_snapshot(
        &self,
        store: &Store,
        name: &str,
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<SaveReport> {
        let manifest = self.manifest();
        let workspace = Workspace { progress, ..self.workspace(&manifest)? };
        store.save(&Tree::of(&workspace), name).await
    }

    /// Makes the workspace what it was when the snapshot `name` was saved: [`Store::restore`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn restore_snapshot(
        &self,
        store: &Store,
        name: &str,
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<RestoreReport> {
        let manifest = self.manifest();
        let workspace = Workspace { progress, ..self.workspace(&manifest)? };
        store.restore(&Tree::of(&workspace), name).await
    }

    /// What the fingerprint of a snapshot of the workspace would be: [`Store::fingerprint`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn snapshot_fingerprint(&self, store: &Store) -> Result<String> {
        let manifest = self.manifest();
        let workspace = self.workspace(&manifest)?;
        store.fingerprint(&Tree::of(&workspace)).await
    }
}
