//! Everything that happened: who hears of it, how much may be said, and what stays on record.
//!
//! Every operation of a session makes a start and a finish event. [Sinks](Sink) hear of them:
//! exactly those of the reference, in its order and form, unless a sink asks for
//! [more](SinkOptions::extended). The [audit log](AuditOptions) keeps all of them.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bastide::events::{AuditOptions, EventOptions, JsonlOutbox};
//!
//! let events = EventOptions::new()
//!     .sink(JsonlOutbox::new("/var/log/agents.jsonl"))
//!     .audit(AuditOptions::default().actor("nightly build"));
//! # drop(events);
//! // let client = Client::new(backend).with_events(events);
//! ```

mod audit;
mod otel;
mod post;
mod recorder;
mod redact;
mod sink;
mod sink_delivery;
mod sinks;
mod trace;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub use audit::{
    AUDIT_FOLDER, AuditKey, AuditOptions, AuditProblem, AuditProof, AuditPublicKey, AuditReader,
    AuditRecord, AuditReport, audit_folder, audited, forget, prove, verify,
};
pub use bastide_model::events::{
    Event, EventTime, Finish, Operation, OperationResult, PayloadPolicy, WorkspaceLogOptions,
};
pub use otel::OtelSink;
pub use recorder::EventSource;
pub use redact::Secret;
pub use sink::{BoundSession, Delivery, OnError, Sink, SinkOptions};
pub use sink_delivery::{Report, SinkStats};
pub use sinks::{CallbackSink, ChainedSink, HttpSink, JsonlOutbox, LineSink, WorkspaceJsonl};
pub use trace::TraceContext;

pub(crate) use audit::{Auditor, digest_of};
pub(crate) use recorder::{
    Finished, OpenOperation, OperationScope, Recorder, extension, is_storage_full, operation_scope,
};
pub(crate) use redact::Redactor;

/// Waits, for a while, until sinks have everything that sessions that are gone have told them, and
/// everything on record is on the disk. For whoever is about to end the process.
pub async fn settle() {
    sink_delivery::settle().await;
    audit::settle().await;
}

/// Who hears of the events of a client's sessions, and how much.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct EventOptions {
    /// Who hears of them, in this order.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// What may be said.
    pub policy: PayloadPolicy,
    /// What may be said of single operations, by their names.
    pub policy_by_op: HashMap<String, PayloadPolicy>,
    /// What must never be said, whatever it is part of.
    pub secrets: Vec<Secret>,
    /// Where everything stays on record, if it does.
    pub audit: Option<AuditOptions>,
    /// The trace operations are part of where their task says nothing else.
    pub trace: Option<TraceContext>,
    /// Hears of failures of sinks that change nothing, and of events that were dropped.
    pub report: Option<Report>,
}

impl EventOptions {
    /// Nobody hears of anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether anybody hears of anything.
    pub(crate) fn is_heard(&self) -> bool {
        !self.sinks.is_empty() || self.audit.is_some()
    }

    /// One more hears of them.
    #[must_use]
    pub fn sink(self, sink: impl Sink + 'static) -> Self {
        self.shared_sink(Arc::new(sink))
    }

    /// One more hears of them.
    #[must_use]
    pub fn shared_sink(mut self, sink: Arc<dyn Sink>) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Sets what may be said.
    #[must_use]
    pub fn policy(mut self, policy: PayloadPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets what may be said of one operation.
    #[must_use]
    pub fn policy_for(mut self, op: &str, policy: PayloadPolicy) -> Self {
        self.policy_by_op.insert(op.to_owned(), policy);
        self
    }

    /// Never says this; says the name instead.
    #[must_use]
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.secrets.push(Secret { name: name.into(), value: value.into() });
        self
    }

    /// Keeps everything on record.
    #[must_use]
    pub fn audit(mut self, audit: AuditOptions) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Goes on with a trace of the caller's.
    #[must_use]
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Tells `report` of failures that change nothing.
    #[must_use]
    pub fn report(mut self, report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.report = Some(Arc::new(report));
        self
    }
}

impl fmt::Debug for EventOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventOptions")
            .field("sinks", &self.sinks)
            .field("audit", &self.audit)
            .finish_non_exhaustive()
    }
}
