//! Sessions that their leases deleted with nobody there: what their wardens could not do.

use serde_json::json;

use super::Client;
use crate::Result;
use crate::events::audit_folder;
use crate::state::Deletion;

impl Client {
    /// Does what is left to do about sessions that their leases deleted: removes what the home's store has of them, and puts
    /// their ends on record. What cannot be done now is done by whoever comes next.
    pub async fn settle_deletions(&self) {
        for deletion in self.state.deletions().unwrap_or_default() {
            if self.settle(&deletion).await.is_ok_and(|is_settled| is_settled) {
                deletion.settle();
            }
        }
    }

    /// Whether nothing is left to do.
    async fn settle(&self, deletion: &Deletion) -> Result<bool> {
        let Deletion { id, end, .. } = deletion;
        // Its warden is not done with it yet.
        if self.state.path_of(id).exists() {
            return Ok(false);
        }
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
