//! Saving the workspace of a session, and restoring it.

use serde_json::json;

use super::Session;
use crate::Result;
use crate::events::Finished;
use crate::snapshot::store::{RestoreReport, SaveOptions, SaveReport, Store, Tree};
use crate::snapshot::{Progress, Workspace};

/// Snapshots of a session's workspace in one store.
#[derive(Debug, Clone, Copy)]
pub struct SessionSnapshots<'s> {
    session: &'s Session,
    store: &'s Store,
}

impl Session {
    /// Snapshots of its workspace in `store`.
    #[must_use]
    pub fn snapshots<'s>(&'s self, store: &'s Store) -> SessionSnapshots<'s> {
        SessionSnapshots { session: self, store }
    }
}

impl SessionSnapshots<'_> {
    /// Saves the workspace as the snapshot `name`: [`Store::save`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn save(
        self,
        name: &str,
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<SaveReport> {
        self.save_with(name, SaveOptions { full_read: false, progress }).await
    }

    /// As [`save`](Self::save), with a say in how.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn save_with(self, name: &str, options: SaveOptions<'_>) -> Result<SaveReport> {
        let SaveOptions { full_read, progress } = options;
        let scope = self.session.extension("save_snapshot", || json!({"snapshot": name}));
        let manifest = self.session.manifest();
        let workspace = Workspace { progress, ..self.session.workspace(&manifest)? };
        let tree = Tree { full_read, ..Tree::of(&workspace) };
        scope.record_as_one(self.store.save(&tree, name), |_| Finished::done()).await
    }

    /// Makes the workspace what it was when the snapshot `name` was saved: [`Store::restore`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn restore(
        self,
        name: &str,
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<RestoreReport> {
        let scope = self.session.extension("restore_snapshot", || json!({"snapshot": name}));
        let manifest = self.session.manifest();
        let workspace = Workspace { progress, ..self.session.workspace(&manifest)? };
        let tree = Tree::of(&workspace);
        scope.record_as_one(self.store.restore(&tree, name), |_| Finished::done()).await
    }

    /// What the fingerprint of a snapshot of the workspace would be: [`Store::fingerprint`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn fingerprint(self) -> Result<String> {
        let manifest = self.session.manifest();
        let workspace = self.session.workspace(&manifest)?;
        self.store.fingerprint(&Tree::of(&workspace)).await
    }
}
