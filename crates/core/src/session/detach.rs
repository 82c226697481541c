//! Letting go of a session that ends with this process.

use bastide_proto::Request;

use super::Session;
use crate::state::TransitionAttempt;
use crate::{Error, ErrorKind, Result};

impl Session {
    /// Has the session live on without this process. One that does so anyway stays as it is.
    ///
    /// # Errors
    ///
    /// [`Conflict`](ErrorKind::Conflict) while somebody else changes it,
    /// [`BackendLost`](ErrorKind::BackendLost) if its machine has ended. It then is what it was.
    pub async fn detach(&self) -> Result<()> {
        let Some(keep_alive) = &self.keep_alive else { return Ok(()) };
        let id = self.id();
        let TransitionAttempt::Ours(transition) = self.state.lock_transition(id).await? else {
            let message = format!("session {id} is being changed or removed");
            return Err(Error::new(ErrorKind::Conflict, message));
        };
        let Some(mut record) = self.state.record(id)? else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no session {id}")));
        };
        // First on record: a session that lives on must be found by others.
        self.state.sync_remembered(id)?;
        let was_tied = std::mem::replace(&mut record.tied, false);
        self.state.write(&record, &transition)?;
        let released = self.detach_by_link().await;
        if let Err(error) = released.and_then(|()| keep_alive.release_shared()) {
            record.tied = was_tied;
            self.state.write(&record, &transition)?;
            return Err(error);
        }
        Ok(())
    }

    /// Tells the guest to go on without this process, where it would end by a clock of its own.
    pub(crate) async fn detach_by_link(&self) -> Result<()> {
        match self.backend.detaches_by_link() {
            true => {
                self.link.open(Request::LetGo).await?.finish().await?;
                self.backend.detach_machine(&self.machine).await
            }
            false => Ok(()),
        }
    }
}
