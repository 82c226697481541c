//! Saving the workspace of a session, and restoring it.

use serde_json::json;

use super::Session;
use crate::Result;
use crate::events::Finished;
use crate::snapshot::store::{RestoreReport, SaveOptions, SaveReport, Store, Tree};
use crate::snapshot::{Progress, Workspace};

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
        self.save_snapshot_with(store, name, SaveOptions { full_read: false, progress }).await
    }

    /// As [`save_snapshot`](Self::save_snapshot), with a say in how.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn save_snapshot_with(
        &self,
        store: &Store,
        name: &str,
        options: SaveOptions<'_>,
    ) -> Result<SaveReport> {
        let SaveOptions { full_read, progress } = options;
        let scope = self.extension("save_snapshot", || json!({"snapshot": name}));
        let manifest = self.manifest();
        let workspace = Workspace { progress, ..self.workspace(&manifest)? };
        let tree = Tree { full_read, ..Tree::of(&workspace) };
        scope.record_as_one(store.save(&tree, name), |_| Finished::done()).await
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
        let scope = self.extension("restore_snapshot", || json!({"snapshot": name}));
        let manifest = self.manifest();
        let workspace = Workspace { progress, ..self.workspace(&manifest)? };
        let tree = Tree::of(&workspace);
        scope.record_as_one(store.restore(&tree, name), |_| Finished::done()).await
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
