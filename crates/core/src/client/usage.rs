//! What sessions used, asked from outside.

use super::Client;
use crate::backend::SessionId;
use crate::link::MuxLink;
use crate::session::usage::{self, Usage};
use crate::state::Stage;
use crate::{Error, ErrorKind, Result};

impl Client {
    /// What a session that runs used since its machine was started. Asking is no use of the session: nothing is put on
    /// record, and an idle session stays idle.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach) and [`Session::usage`](crate::Session::usage).
    pub async fn usage(&self, id: &SessionId) -> Result<Usage> {
        let record = self.record(id)?;
        let (Stage::Running | Stage::Saving, Some(machine)) = (record.stage, &record.machine)
        else {
            let message = format!("session {id} does not run");
            return Err(Error::new(ErrorKind::Conflict, message));
        };
        let connected = async {
            let connection = self.backend.connect(machine).await?;
            MuxLink::connect_at(connection, machine.protocol).await
        };
        match connected.await {
            Ok(link) => usage::of_session(self.backend.as_ref(), machine, &link).await,
            Err(error) => Err(self.with_exit_reason(machine, error).await),
        }
    }
}
