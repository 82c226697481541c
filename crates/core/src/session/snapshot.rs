//! Saving the workspace of a session, and restoring it.

use super::Session;
use crate::Result;
use crate::client::DEFAULT_ROOT;
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
        store.save(&Tree { progress, ..self.tree() }, name).await
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
        store.restore(&Tree { progress, ..self.tree() }, name).await
    }
}
