//! Leases: sessions that end by themselves, whoever is there or not.

use std::time::{Duration, Instant};

use bastide_proto::warden::{LeaseState, LeaseUpdate};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use bastide_proto::warden::ExpiryAction;

use super::Client;
use crate::backend::{Backend, Machine, MachineStatus, SessionId};
use crate::state::Record;
use crate::{Condition, Error, ErrorKind, Result};

/// How much time a session has at least that is about to be saved.
const WHILE_SAVING: Duration = Duration::from_secs(60 * 60);

/// How long a warden may take to write down why its sandbox ended.
const END_RECORDED: Duration = Duration::from_secs(2);

/// When a session ends by itself, and what becomes of it then.
///
/// Whoever keeps the session alive keeps its lease, so that it runs out with no client there. It begins when the
/// session is created, and anew each time it is resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeaseOptions {
    /// How long the session lasts.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Duration>,
    /// After how long a time in which nothing happens it ends: no command or terminal is open, no port has traffic,
    /// and no client does anything.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    pub idle: Option<Duration>,
    /// What happens at its end.
    #[serde(default)]
    pub then: ExpiryAction,
}

impl LeaseOptions {
    /// A lease of so long.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// A lease that ends when nothing has happened for so long.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Has that happen at its end.
    #[must_use]
    pub fn then(mut self, then: ExpiryAction) -> Self {
        self.then = then;
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        let shortest = Duration::from_millis(1);
        let is_short = |time: Option<Duration>| time.is_some_and(|time| time < shortest);
        if is_short(self.ttl) || is_short(self.idle) {
            let message = "a lease of no time would end before it begins";
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("give it a millisecond at least, or no limit"));
        }
        Ok(())
    }
}

/// A change to the lease of a session that runs; what is not given stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseChange {
    /// Whether the session has no lease any more, but for what else is given here.
    pub forget: bool,
    /// How much time is left from now on.
    pub ttl: Option<Duration>,
    /// Whether that much is left at least: a lease that lasts longer is not shortened.
    pub at_least: bool,
    /// After how long a time in which nothing happens it ends.
    pub idle: Option<Duration>,
    /// What happens at its end.
    pub then: Option<ExpiryAction>,
}

impl LeaseChange {
    /// Takes the lease away, but for what else is asked for.
    #[must_use]
    pub fn forget(mut self) -> Self {
        self.forget = true;
        self
    }

    /// Leaves so much time from now on.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Leaves so much time at least: a lease that lasts longer is not shortened.
    #[must_use]
    pub fn at_least(mut self, ttl: Duration) -> Self {
        self.at_least = true;
        self.ttl(ttl)
    }

    /// Ends the session when nothing has happened for so long.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Has that happen at its end.
    #[must_use]
    pub fn then(mut self, then: ExpiryAction) -> Self {
        self.then = Some(then);
        self
    }

    fn update(self) -> LeaseUpdate {
        LeaseUpdate {
            forget: self.forget,
            ttl_ms: self.ttl.map(to_millis),
            at_least: self.at_least,
            idle_ms: self.idle.map(to_millis),
            then: self.then,
        }
    }
}

/// The lease of a session that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// How much time is left, if that is limited.
    pub remaining: Option<Duration>,
    /// After how long a time in which nothing happens it ends, if it does.
    pub idle: Option<Duration>,
    /// What happens at its end.
    pub then: ExpiryAction,
}

impl LeaseStatus {
    /// Whether anything ends the session.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.remaining.is_some() || self.idle.is_some()
    }
}

impl From<LeaseState> for LeaseStatus {
    fn from(state: LeaseState) -> Self {
        let LeaseState { remaining_ms, idle_ms, then } = state;
        let time = |millis: Option<u64>| millis.map(Duration::from_millis);
        Self { remaining: time(remaining_ms), idle: time(idle_ms), then }
    }
}

impl Client {
    /// Refuses a lease that nobody would keep.
    pub(super) fn check_lease(&self, lease: Option<&LeaseOptions>) -> Result<()> {
        let Some(lease) = lease else { return Ok(()) };
        lease.validate()?;
        match self.backend.leases() {
            Some(_) => Ok(()),
            None => Err(unsupported(self.backend.name())),
        }
    }

    /// As [`Session::explain`](crate::Session::explain), for a session that this process attached to.
    pub async fn explain(&self, id: &SessionId, error: Error) -> Error {
        match self.record(id) {
            Ok(Record { machine: Some(machine), .. }) => {
                explain(self.backend.as_ref(), &machine, error).await
            }
            Err(missing) if missing.kind() == ErrorKind::NotFound => {
                let message =
                    format!("session {id} was deleted meanwhile, by its lease or by somebody");
                Error::new(ErrorKind::Conflict, message).with_source(error)
            }
            _ => error,
        }
    }

    /// Says more than that nobody answers, if more is known.
    pub(super) async fn with_exit_reason(&self, machine: &Machine, error: Error) -> Error {
        let Ok(MachineStatus::Ended(end)) = self.backend.inspect(machine).await else {
            return error;
        };
        if end.is_expired() {
            return expired(&machine.id);
        }
        let message = format!("session {} has ended: {}", machine.id, end.detail);
        Error::new(ErrorKind::BackendLost, message)
            .with_context("reason", end.reason)
            .with_context("at_ms", end.at_ms)
            .with_hint("its files are there until it is deleted")
    }

    /// The lease of a session, if anybody can tell.
    pub(super) async fn lease_of(&self, machine: &Machine) -> Option<LeaseStatus> {
        let asked = changed(self.backend.as_ref(), machine, LeaseChange::default()).await;
        asked.ok().filter(LeaseStatus::is_limited)
    }
}

pub(crate) async fn explain(backend: &dyn Backend, machine: &Machine, error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::AgentLost | ErrorKind::BackendLost) {
        return error;
    }
    // The guest is gone before its warden has written down why.
    let until = Instant::now() + END_RECORDED;
    loop {
        match backend.inspect(machine).await {
            Ok(MachineStatus::Ended(end)) if end.is_expired() => return expired(&machine.id),
            Ok(MachineStatus::Running { .. } | MachineStatus::Broken { .. })
                if Instant::now() < until =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            _ => return error,
        }
    }
}

/// Begins the lease of a session.
pub(super) async fn begin(
    backend: &dyn Backend,
    machine: &Machine,
    lease: Option<&LeaseOptions>,
) -> Result<()> {
    let Some(&LeaseOptions { ttl, idle, then }) = lease else { return Ok(()) };
    let change = LeaseChange { forget: true, ttl, idle, then: Some(then), at_least: false };
    changed(backend, machine, change).await.map(drop)
}

/// Keeps the lease of a session that is about to be saved and stopped from ending it meanwhile: whoever stops a session
/// wants its files kept.
pub(crate) async fn suspend_expiry(backend: &dyn Backend, machine: &Machine) {
    let status = changed(backend, machine, LeaseChange::default()).await;
    if status.is_ok_and(|status| status.is_limited()) {
        let change = LeaseChange::default().at_least(WHILE_SAVING).then(ExpiryAction::Stop);
        // Without it the lease runs out as it would have.
        drop(changed(backend, machine, change).await);
    }
}

pub(crate) async fn changed(
    backend: &dyn Backend,
    machine: &Machine,
    change: LeaseChange,
) -> Result<LeaseStatus> {
    LeaseOptions { ttl: change.ttl, idle: change.idle, then: ExpiryAction::default() }
        .validate()?;
    let leases = backend.leases().ok_or_else(|| unsupported(backend.name()))?;
    Ok(leases.update(machine, change.update()).await?.into())
}

/// What a lease is, for the record of what happened.
pub(crate) fn described(change: &LeaseChange) -> serde_json::Value {
    let millis = |time: Option<Duration>| time.map(to_millis);
    json!({
        "forget": change.forget,
        "ttl_ms": millis(change.ttl),
        "at_least": change.at_least,
        "idle_ms": millis(change.idle),
        "then": change.then,
    })
}

/// That the lease of a session ran out.
pub(super) fn expired(id: &SessionId) -> Error {
    let message = format!("session {id} has expired: its lease ran out");
    Error::new(ErrorKind::Conflict, message)
        .with_context("reason", "expired")
        .with_condition(Condition::SessionExpired(id.to_string()))
}

fn unsupported(backend: &str) -> Error {
    let message = format!(
        "nobody on this host keeps sessions of the backend `{backend}` alive, so they have no leases"
    );
    Error::new(ErrorKind::Unsupported, message).with_hint("stop or delete the session yourself")
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Times in records: whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the form serde calls")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(super::to_millis).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_kept_in_milliseconds_and_read_back() {
        let lease =
            LeaseOptions::default().ttl(Duration::from_secs(7200)).then(ExpiryAction::Delete);
        let text = serde_json::to_string(&lease).unwrap();
        assert_eq!(text, r#"{"ttl":7200000,"then":"delete"}"#);
        assert_eq!(serde_json::from_str::<LeaseOptions>(&text).unwrap(), lease);
        assert_eq!(serde_json::from_str::<LeaseOptions>("{}").unwrap(), LeaseOptions::default());
        assert!(LeaseOptions::default().idle(Duration::ZERO).validate().is_err());
    }
}
