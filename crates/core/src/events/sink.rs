//! What receives events, and how it wants them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::PosixPath;
use bastide_model::events::{Event, PayloadPolicy};
use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::receipt::NetworkAccess;

use crate::backend::{Backend, Machine, MachineStatus, SessionId};
use crate::link::Link;
use crate::{Files, GuestPath, Result};

/// When an event is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Before the operation continues.
    Sync,
    /// After the operation, in order. When the queue is full, operations wait for room: nothing is
    /// lost while the sink accepts anything at all. With [`OnError::Raise`] it is as
    /// [`Sync`](Self::Sync), and the sink's own error is returned.
    Async,
    /// After the operation, in order. When the queue is full, events are dropped and counted.
    /// Operations are never delayed.
    BestEffort,
}

/// What happens when a sink fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnError {
    /// The operation fails with the sink's error; one that was not started yet is not started.
    Raise,
    /// The failure is counted and [reported](super::EventOptions::report).
    Log,
    /// The failure is counted.
    Ignore,
}

/// The options of a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkOptions {
    /// Its name in statistics.
    pub name: Option<String>,
    /// When events are delivered.
    pub delivery: Delivery,
    /// What happens when it fails.
    pub on_error: OnError,
    /// What its events may contain; wider policies decide what this leaves open.
    pub policy: Option<PayloadPolicy>,
    /// Whether it also receives events of operations that the reference has no events for.
    pub extended: bool,
    /// How many bytes of events may be queued for it.
    pub queue_bytes: usize,
}

impl SinkOptions {
    /// Delivered before the operation continues, which fails if the sink does.
    #[must_use]
    pub fn sync() -> Self {
        Self {
            name: None,
            delivery: Delivery::Sync,
            on_error: OnError::Raise,
            policy: None,
            extended: false,
            queue_bytes: 8 << 20,
        }
    }

    /// Delivered after the operation, which is never delayed.
    #[must_use]
    pub fn best_effort() -> Self {
        Self { delivery: Delivery::BestEffort, on_error: OnError::Log, ..Self::sync() }
    }

    /// Sets its name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets when events are delivered.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets what happens when it fails.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets what its events may contain.
    #[must_use]
    pub fn policy(mut self, policy: PayloadPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Lets it receive events of every operation.
    #[must_use]
    pub fn extended(mut self) -> Self {
        self.extended = true;
        self
    }

    /// Sets how many bytes of events may be queued for it.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }
}

/// A receiver of events.
///
/// One sink may serve many sessions: it learns about each of them when it is [bound](Self::bind) to
/// it.
#[async_trait]
pub trait Sink: fmt::Debug + Send + Sync {
    /// The kind of sink, for messages.
    fn kind(&self) -> &'static str;

    /// Its options.
    fn options(&self) -> &SinkOptions;

    /// Called with a session before its first event. A sink that keeps state for each session
    /// returns one of the session's own.
    ///
    /// # Errors
    ///
    /// Fails if it cannot serve the session; creating the session fails then.
    fn bind(&self, session: &BoundSession) -> Result<Option<Arc<dyn Sink>>> {
        let _ = session;
        Ok(None)
    }

    /// Delivers events: one, or as many as are queued, in order.
    ///
    /// # Errors
    ///
    /// Fails if it cannot accept them.
    async fn handle(&self, events: &[Arc<Event>]) -> Result<()>;

    /// Flushes what it has buffered. Called when a session is closed.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be written.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// The sinks of a chain, which are served in order, each by its own options.
    fn members(&self) -> Option<&[Arc<dyn Sink>]> {
        None
    }

    /// A file of the workspace that the sink writes, to be left out of snapshots.
    fn skip_path(&self) -> Option<PosixPath> {
        None
    }
}

/// A session as its sinks see it: what they do with it emits no events.
#[derive(Debug, Clone)]
pub struct BoundSession {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) machine: Machine,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) policy: WorkspacePathPolicy,
    pub(crate) root: GuestPath,
}

impl BoundSession {
    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.machine.id
    }

    /// The path of its workspace inside.
    #[must_use]
    pub fn root(&self) -> &GuestPath {
        &self.root
    }

    /// Its home, and itself, if its network has a policy: what that decides is noted there.
    pub(crate) fn network(&self) -> Option<(PathBuf, SessionId)> {
        let has_policy = self.machine.receipt.network == NetworkAccess::Policy;
        has_policy.then(|| (self.backend.home().to_owned(), self.id().clone()))
    }

    /// The name of the backend it runs on.
    #[must_use]
    pub fn backend(&self) -> &str {
        self.backend.name()
    }

    /// Its files, as its default user.
    #[must_use]
    pub fn files(&self) -> Files<'_> {
        Files::new(self.link.as_ref(), &self.policy, None)
    }

    /// Whether it runs.
    pub async fn running(&self) -> bool {
        matches!(self.backend.inspect(&self.machine).await, Ok(MachineStatus::Running { .. }))
    }
}
