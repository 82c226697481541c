//! What hears of events, and how it wants them.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::PosixPath;
use bastide_model::events::{Event, PayloadPolicy};
use bastide_model::paths::WorkspacePathPolicy;

use crate::backend::{Backend, Machine, MachineStatus, SessionId};
use crate::link::Link;
use crate::{Files, GuestPath, Result};

/// When an event is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Before the operation goes on.
    Sync,
    /// Behind the operation, in order. When too much waits, operations wait for room: nothing is lost
    /// as long as the sink takes anything at all. With [`OnError::Raise`] it is as [`Sync`](Self::Sync),
    /// and the sink's own error is passed on.
    Async,
    /// Behind the operation, in order. When too much waits, events are dropped and counted. An operation
    /// never notices.
    BestEffort,
}

/// What becomes of a sink's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnError {
    /// The operation fails with it; one that has not begun is not begun.
    Raise,
    /// It is counted and [reported](super::EventOptions::report).
    Log,
    /// It is counted.
    Ignore,
}

/// How a sink wants its events.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkOptions {
    /// What it is called where somebody counts.
    pub name: Option<String>,
    /// When it gets them.
    pub delivery: Delivery,
    /// What becomes of its failures.
    pub on_error: OnError,
    /// What it may be told; what it leaves open is chosen by wider policies.
    pub policy: Option<PayloadPolicy>,
    /// Whether it also hears of operations that the reference has no events for.
    pub extended: bool,
    /// How many bytes of events may wait for it.
    pub queue_bytes: usize,
}

impl SinkOptions {
    /// Delivered before the operation goes on, which fails with it.
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

    /// Delivered behind the operation, which never notices.
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

    /// Sets when it gets events.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets what becomes of its failures.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Sets what it may be told.
    #[must_use]
    pub fn policy(mut self, policy: PayloadPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Lets it hear of every operation.
    #[must_use]
    pub fn extended(mut self) -> Self {
        self.extended = true;
        self
    }

    /// Sets how many bytes of events may wait for it.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }
}

/// Something that hears of events.
///
/// One sink may serve many sessions: what it needs to know about one of them it is told when it is
/// [bound](Self::bind) to it.
#[async_trait]
pub trait Sink: fmt::Debug + Send + Sync {
    /// What kind of sink it is, for messages.
    fn kind(&self) -> &'static str;

    /// How it wants its events.
    fn options(&self) -> &SinkOptions;

    /// Gets to know a session before its first event. Whoever has to remember something about it
    /// returns a sink of the session's own.
    ///
    /// # Errors
    ///
    /// Fails if it cannot serve the session; the session is not given out then.
    fn bind(&self, session: &BoundSession) -> Result<Option<Arc<dyn Sink>>> {
        let _ = session;
        Ok(None)
    }

    /// Takes events: one, or, where they come from a queue, as many as wait, in their order.
    ///
    /// # Errors
    ///
    /// Fails if it cannot take them.
    async fn handle(&self, events: &[Arc<Event>]) -> Result<()>;

    /// Puts what it has gathered where it belongs. Called when a session is closed.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be put there.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// The sinks it stands for, which are served in their order, each by its own rules.
    fn members(&self) -> Option<&[Arc<dyn Sink>]> {
        None
    }

    /// A file of the workspace that is its own and stays out of snapshots.
    fn skip_path(&self) -> Option<PosixPath> {
        None
    }
}

/// A session as its sinks have it: what they do with it makes no events.
#[derive(Debug, Clone)]
pub struct BoundSession {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) machine: Machine,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) policy: WorkspacePathPolicy,
    pub(crate) root: GuestPath,
}

impl BoundSession {
    /// The session's name.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.machine.id
    }

    /// Where its workspace is inside.
    #[must_use]
    pub fn root(&self) -> &GuestPath {
        &self.root
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
