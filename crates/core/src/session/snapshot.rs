//! Saving the workspace of a session, and restoring it.

use serde_json::json;

use super::Session;
use crate::Result;
use crate::client::DEFAULT_ROOT;
use crate::events::Finished;
use crate::store::{Progress, RestoreReport, SaveReport, Store, Tree};

impl Session {
    /// The workspace, as a [`Store`] saves and restores it. A folder of the caller's is never
    /// restored over what it holds.
    #[must_use]
    pub fn tree(&self) -> Tree<'_> {
        let mut tree = Tree::new(self.link.as_ref(), &self.root);
        tree.session = Some(self.machine.id.to_string());
        tree.only_empty = self.backend.has_host_files() && self.root.as_str() != DEFAULT_ROOT;
        tree
    }

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
        let told = self.further("save_snapshot", || json!({"snapshot": name}));
        let tree = Tree { progress, ..self.tree() };
        told.quietly(store.save(&tree, name), |_| Finished::done()).await
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
        let told = self.further("restore_snapshot", || json!({"snapshot": name}));
        let tree = Tree { progress, ..self.tree() };
        told.quietly(store.restore(&tree, name), |_| Finished::done()).await
    }
}
