//! Sessions that their leases deleted with nobody there: what their wardens could not do.

use serde_json::json;

use tokio::time::Instant;

use super::Client;
use super::removal::busy;
use crate::Result;
use crate::backend::SessionId;
use crate::events::audit_folder;
use crate::state::{AGAIN, BUSY, Deletion, DeletionAttempt};

impl Client {
    /// Does what is left to do about sessions that their leases deleted: removes what the home's store has of them, and puts
    /// their ends on record. What cannot be done now is done by whoever comes next.
    pub async fn finish_deletions(&self) {
        for deletion in self.state.deletions().unwrap_or_default() {
            if self.finish(&deletion).await.is_ok_and(|is_settled| is_settled) {
                deletion.finish();
            }
        }
    }

    /// Does so for the session that had this name before, whose folder the caller has just made: until then somebody else
    /// may be at it, and would take what the new session keeps for the old one's.
    pub(super) async fn settle_before(&self, id: &SessionId) -> Result<()> {
        let deadline = Instant::now() + BUSY;
        let deletion = loop {
            match self.state.deletion(id)? {
                DeletionAttempt::Ours(deletion) => break deletion,
                DeletionAttempt::Missing => return Ok(()),
                DeletionAttempt::Taken if Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                DeletionAttempt::Taken => return Err(busy(id)),
            }
        };
        if self.settle_gone(&deletion).await? {
            deletion.finish();
        }
        Ok(())
    }

    /// Whether nothing is left to do.
    async fn finish(&self, deletion: &Deletion) -> Result<bool> {
        // Its warden is not done with it yet, or another session has its name.
        if self.state.path_of(&deletion.id).exists() {
            return Ok(false);
        }
        self.settle_gone(deletion).await
    }

    async fn settle_gone(&self, deletion: &Deletion) -> Result<bool> {
        let Deletion { id, end, .. } = deletion;
        let store = self.state.store()?;
        store.forget_points(id.as_str())?;
        // What it was kept in while it was stopped is of no use without it.
        store.remove(id.as_str())?;
        self.state.forget(id);
        let has_log = audit_folder(self.backend.home(), id).exists();
        if has_log && self.events.audit.is_none() {
            return Ok(false);
        }
        if has_log && let Some(end) = end {
            self.audit_late_end(id, end).await?;
        }
        match has_log {
            true => self.audit_deleted(id, json!({"by": "lease"})).await?,
            // Nobody wanted to know anything about it.
            false => crate::events::forget_notes(self.backend.home(), id, false),
        }
        Ok(true)
    }
}
