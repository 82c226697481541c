//! Leases of sessions in pods: the guest keeps them by its own clock, and the session's folder has a note of them, so that
//! looking at a session costs no request.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bastide::backend::{Backend, LeaseState, LeaseUpdate, Leases};
use bastide::link::lease;
use bastide::{Error, ErrorKind, ExpiryAction, Machine, Result};
use serde::{Deserialize, Serialize};

use crate::KubernetesBackend;
use crate::state::{COPIED, own_state, write_private};

/// The note of a session's lease, in its folder.
const NOTE: &str = "lease.json";

/// The longest note.
const MAX_BYTES: u64 = 4096;

/// A lease as it was when it was changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseNote {
    /// When it is over, in milliseconds since 1970, by this host's clock. The guest's own counts.
    until_ms: Option<u64>,
    idle_ms: Option<u64>,
    pub(crate) then: ExpiryAction,
}

impl LeaseNote {
    fn of(state: &LeaseState, now: u64) -> Self {
        let until_ms = state.remaining_ms.map(|left| now.saturating_add(left));
        Self { until_ms, idle_ms: state.idle_ms, then: state.then }
    }

    fn state(self, now: u64) -> LeaseState {
        let remaining_ms = self.until_ms.map(|until| until.saturating_sub(now));
        LeaseState { remaining_ms, idle_ms: self.idle_ms, then: self.then }
    }

    /// Whether its time has passed.
    pub(crate) fn is_over(self) -> bool {
        self.until_ms.is_some_and(|until| until <= now())
    }

    pub(crate) fn load(dir: &Path) -> Option<Self> {
        let file = fs::File::open(dir.join(NOTE)).ok()?;
        serde_json::from_reader(io::Read::take(file, MAX_BYTES)).ok()
    }
}

/// What a machine that is started anew had before is over.
pub(crate) fn forget(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(NOTE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl Leases for KubernetesBackend {
    async fn update(&self, machine: &Machine, update: LeaseUpdate) -> Result<LeaseState> {
        let (_, Some(own)) = own_state(self.home(), machine)? else {
            let message = format!("session {} is not running: {COPIED}", machine.id);
            return Err(Error::new(ErrorKind::BackendLost, message));
        };
        let nothing =
            LeaseState { remaining_ms: None, idle_ms: None, then: ExpiryAction::default() };
        if update == LeaseUpdate::default() {
            return Ok(LeaseNote::load(&own.dir).map_or(nothing, |note| note.state(now())));
        }
        let connection = self.connect(machine).await?;
        let state = lease::change(&machine.id, connection, machine.protocol, update).await?;
        let noted = match state == nothing {
            true => forget(&own.dir),
            false => serde_json::to_vec(&LeaseNote::of(&state, now()))
                .map_err(io::Error::from)
                .and_then(|text| write_private(&own.dir.join(NOTE), &text)),
        };
        noted.map_err(|error| {
            let message = format!("cannot note the lease of session {}: {error}", machine.id);
            Error::new(ErrorKind::Io, message)
        })?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_left_from_the_note() {
        let state =
            LeaseState { remaining_ms: Some(500), idle_ms: Some(7), then: ExpiryAction::Delete };
        let note = LeaseNote::of(&state, 1000);
        assert_eq!(note.state(1200), LeaseState { remaining_ms: Some(300), ..state });
        assert_eq!(note.state(9000), LeaseState { remaining_ms: Some(0), ..state });
    }
}
