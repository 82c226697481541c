//! Finding out what became of a transition that was interrupted.

use super::context::JournalContext;
use super::file::Journal;
use crate::Result;
use crate::snapshot::store::points::{FileTree, OpenPoint};

impl JournalContext {
    /// Finds out what became of a transition whose process was killed. As long as a guest lives it does all
    /// of it or nothing; with a new machine it may have been in the middle, and is finished.
    pub(super) async fn settle_pending(
        &self,
        journal: &mut Journal,
        is_new_machine: bool,
    ) -> Result<()> {
        let Some(pending) = journal.pending.clone() else { return Ok(()) };
        let (saved, freeze) = self.save_frozen().await?;
        if saved.fingerprint == pending.to {
            return self.complete(journal);
        }
        let from = self.open(&pending.from, "what the workspace was").await?;
        let to = self.open(&pending.to, "what the workspace was to become").await?;
        let now = self.open(&saved.fingerprint, "the workspace").await?;
        let far = |tree: &FileTree| now.tree.changes_to(tree).len();
        if is_new_machine {
            // Where nothing had moved yet, only what lies beside it is cleared away.
            let is_before = far(&from.tree) == 0 && far(&to.tree) > 0;
            let transition_target = match is_before {
                true => from.clone(),
                false => self.finished(&from, &to, &now).await?,
            };
            let tree = self.replaced_tree(&saved, &now.tree)?;
            self.store.restore_difference(&tree, &now.tree, &transition_target).await?;
            match is_before {
                true => {
                    journal.pending = None;
                    journal.write(&self.folder)?;
                }
                false => self.complete(journal)?,
            }
            return freeze.end().await.map(drop);
        }
        // Somebody worked in it since; that stays, and it is known by what it is nearer to.
        if far(&to.tree) < far(&from.tree) {
            return self.complete(journal);
        }
        journal.pending = None;
        journal.write(&self.folder)
    }

    /// What a workspace becomes that is neither what it was nor what it was to be. In a folder of the
    /// caller's, what is neither of both is the caller's.
    async fn finished(
        &self,
        from: &OpenPoint,
        to: &OpenPoint,
        now: &OpenPoint,
    ) -> Result<OpenPoint> {
        if !self.in_place {
            return Ok(to.clone());
        }
        let mut tree = FileTree::clone(&to.tree);
        for (path, node) in &now.tree.0 {
            let is_known =
                |known: &FileTree| known.get(path).is_some_and(|other| other.is_like(node));
            if !is_known(&from.tree) && !is_known(&to.tree) {
                tree.0.insert(path.clone(), node.clone());
            }
        }
        if tree.stray().is_some() {
            return Ok(now.clone());
        }
        let fingerprint = self.store.compose()?.keep(&self.id, &tree)?;
        self.open(&fingerprint, "the workspace").await
    }

    /// Finishes what was under way when the last machine of the session ended.
    pub(crate) async fn recover(&self) -> Result<()> {
        let _lock = super::file::lock(&self.folder, &self.id).await?;
        let mut journal = Journal::read(&self.folder)?;
        self.settle_pending(&mut journal, true).await
    }
}
