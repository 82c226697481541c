//! The lease of a live session.

use std::time::Duration;

use serde_json::json;

use super::Session;
use crate::client::lease::{changed, described, explain};
use crate::events::Finished;
use crate::{Error, LeaseChange, LeaseStatus, Result};

/// The lease of a session: when it ends by itself, and what becomes of it then.
#[derive(Debug, Clone, Copy)]
pub struct SessionLease<'s>(&'s Session);

impl SessionLease<'_> {
    /// What the lease is.
    ///
    /// # Errors
    ///
    /// As [`change`](Self::change).
    pub async fn status(self) -> Result<LeaseStatus> {
        changed(self.0.backend.as_ref(), &self.0.machine, LeaseChange::default()).await
    }

    /// Changes the lease, and says what it is then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where nobody on this host keeps the session alive, and for
    /// sessions that an earlier version started; [`InvalidInput`](crate::ErrorKind::InvalidInput) for no time at all.
    pub async fn change(self, change: LeaseChange) -> Result<LeaseStatus> {
        let scope = self.0.extension("lease", || described(&change));
        let work = changed(self.0.backend.as_ref(), &self.0.machine, change);
        scope.record(work, |_| Finished::extension(json!({}))).await
    }

    /// Gives the session so much time from now on, whatever it had.
    ///
    /// # Errors
    ///
    /// As [`change`](Self::change).
    pub async fn extend(self, ttl: Duration) -> Result<LeaseStatus> {
        self.change(LeaseChange::default().ttl(ttl)).await
    }
}

impl Session {
    /// Its lease.
    #[must_use]
    pub fn lease(&self) -> SessionLease<'_> {
        SessionLease(self)
    }

    /// What an error really says: a guest that does not answer any more may have ended with the lease of its session.
    pub async fn explain(&self, error: Error) -> Error {
        explain(self.backend.as_ref(), &self.machine, error).await
    }
}
