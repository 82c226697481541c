//! Events of operations: where they go, what they may contain, and the audit log.
//!
//! Every operation of a session makes a start and a finish event. [Sinks](Sink) receive them:
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
mod http_post;
mod otel;
mod recorder;
mod redact;
mod sink;
mod sink_delivery;
mod sinks;
pub(crate) mod trace;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub use audit::{
    AUDIT_FOLDER, AuditKey, AuditOptions, AuditProblem, AuditProof, AuditPublicKey, AuditReader,
    AuditRecord, AuditReport, audit_folder, audited, egress_notes, forget, mount_notes, prove,
    verify,
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

pub(crate) use audit::{Auditor, digest_of, forget_notes, lock_for_fork};
pub(crate) use recorder::{
    Finished, OpenOperation, OperationScope, Recorder, extension, is_storage_full, operation_scope,
};
pub(crate) use redact::Redactor;

/// Waits, for a limited time, until sinks have every event of sessions that are closed and the
/// audit logs are on disk. To be called before the process ends.
pub async fn flush_all() {
    sink_delivery::flush_all().await;
    audit::flush_all().await;
}

/// Where the events of a client's sessions go, and what they may contain.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct EventOptions {
    /// The sinks, in the order of delivery.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// What events may contain.
    pub policy: PayloadPolicy,
    /// What events of single operations may contain, by the operation's name.
    pub policy_by_op: HashMap<String, PayloadPolicy>,
    /// Values that are redacted wherever they appear.
    pub secrets: Vec<Secret>,
    /// The audit log, if one is kept.
    pub audit: Option<AuditOptions>,
    /// The trace that operations belong to, if their task sets no other.
    pub trace: Option<TraceContext>,
    /// Receives failures of sinks that fail no operation, and the number of dropped events.
    pub report: Option<Report>,
}

impl EventOptions {
    /// No sinks and no audit log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether anybody hears of anything.
    pub(crate) fn has_listeners(&self) -> bool {
        !self.sinks.is_empty() || self.audit.is_some()
    }

    /// Adds a sink.
    #[must_use]
    pub fn sink(self, sink: impl Sink + 'static) -> Self {
        self.shared_sink(Arc::new(sink))
    }

    /// Adds a sink that is shared.
    #[must_use]
    pub fn shared_sink(mut self, sink: Arc<dyn Sink>) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Sets what events may contain.
    #[must_use]
    pub fn policy(mut self, policy: PayloadPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets what events of one operation may contain.
    #[must_use]
    pub fn policy_for(mut self, op: &str, policy: PayloadPolicy) -> Self {
        self.policy_by_op.insert(op.to_owned(), policy);
        self
    }

    /// Redacts a value: its name appears instead.
    #[must_use]
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.secrets.push(Secret { name: name.into(), value: value.into() });
        self
    }

    /// Keeps an audit log.
    #[must_use]
    pub fn audit(mut self, audit: AuditOptions) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Continues a trace of the caller's.
    #[must_use]
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Sets what receives failures that fail no operation.
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
