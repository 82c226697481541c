//! What a session says about each of its operations.

mod egress;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bastide_model::PosixPath;
use bastide_model::events::{Event, EventTime, Operation, OperationResult};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::EventOptions;
use super::audit::Auditor;
use super::redact::Redactor;
use super::sink::BoundSession;
use super::sink_delivery::{Policies, RecordedEvent, SinkDelivery, SinkStats};
use super::trace::{Names, TraceContext};
use crate::backend::SessionId;
use crate::host;
use crate::{Error, ErrorKind, Result};

tokio::task_local! {
    /// Set where everything is part of one operation that is recorded.
    static NESTED: ();
}

/// Makes the events of one session, and hands them to the audit log and to sinks.
#[derive(Debug)]
pub(crate) struct Recorder {
    session: Uuid,
    seq: AtomicU64,
    seq_of_all: AtomicU64,
    deliveries: Vec<SinkDelivery>,
    policies: Policies,
    redactor: Redactor,
    trace: Option<TraceContext>,
    audit: Option<Auditor>,
    /// The session and its home, where its network notes what it decides.
    network: Option<(PathBuf, SessionId)>,
}

/// What came of an operation, for its finish event.
#[derive(Debug)]
pub(crate) struct Finished {
    /// What the reference says.
    pub(crate) result: Result<OperationResult>,
    /// What is said besides, where everything is.
    pub(crate) extra: Map<String, Value>,
}

impl Finished {
    /// Nothing more to say than that it is done.
    pub(crate) fn done() -> Self {
        Self { result: Ok(OperationResult::Done), extra: Map::new() }
    }

    /// Whether a session runs.
    pub(crate) fn running(alive: bool) -> Self {
        Self { result: Ok(OperationResult::Running { alive }), extra: Map::new() }
    }

    /// A workspace that was saved.
    pub(crate) fn persisted(bytes: Option<u64>) -> Self {
        Self { result: Ok(OperationResult::Persisted { bytes }), extra: Map::new() }
    }

    /// The result of such an operation.
    pub(crate) fn extension(data: Value) -> Self {
        Self { result: Ok(OperationResult::Extension { data: object(data) }), extra: Map::new() }
    }

    /// Says something besides.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(key.to_owned(), value.into());
        self
    }
}

/// Whether an error is that there was no room to put something on record.
pub(crate) fn is_storage_full(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(host::is_storage_full)
}

/// An operation that the reference has no events for.
pub(crate) fn extension(op: &'static str, data: Value) -> Operation {
    Operation::Extension { op, data: object(data) }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// The scope of an operation: its start and end become events, if there is a sink.
#[derive(Debug)]
pub(crate) struct OperationScope<'a>(Option<(&'a Arc<Recorder>, Operation)>);

/// Opens the scope of an operation. What it is is only asked if anybody listens.
pub(crate) fn operation_scope(
    recorder: Option<&Arc<Recorder>>,
    operation: impl FnOnce() -> Operation,
) -> OperationScope<'_> {
    let recorder = recorder.filter(|_| NESTED.try_with(|()| ()).is_err());
    OperationScope(recorder.map(|recorder| (recorder, operation())))
}

impl OperationScope<'_> {
    /// Does it, and records its start and its end.
    pub(crate) async fn record<T>(
        self,
        work: impl Future<Output = Result<T>>,
        finished: impl FnOnce(&T) -> Finished,
    ) -> Result<T> {
        let Some((recorder, operation)) = self.0 else { return work.await };
        let open = recorder.begin(operation).await?;
        let done = match open.inside() {
            Some(context) => context.scope(work).await,
            None => work.await,
        };
        match &done {
            Ok(value) => open.finish(finished(value)).await?,
            Err(error) => open.fail(error).await?,
        }
        done
    }

    /// As
    /// [`record_unit`](Self::record_unit), for what frees space: where there is none to put its start on record, it is done all the same, and both are recorded afterwards.
    pub(crate) async fn record_freeing_space(
        self,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let Some((recorder, operation)) = self.0 else { return work.await };
        let started = Instant::now();
        let open = match recorder.begin(operation.clone()).await {
            Ok(open) => open,
            Err(error) if is_storage_full(&error) => {
                work.await?;
                let late = Map::from_iter([("late".to_owned(), true.into())]);
                let recorded = match recorder.begin_with(operation, late).await {
                    Ok(mut open) => {
                        open.started = started;
                        open.finish(Finished::done()).await
                    }
                    Err(error) => Err(error),
                };
                return recorded.map_err(|error| error.with_hint("it was done all the same"));
            }
            Err(error) => return Err(error),
        };
        let done = work.await;
        match &done {
            Ok(()) => open.finish(Finished::done()).await?,
            Err(error) => open.fail(error).await?,
        }
        done
    }

    /// As [`record`](Self::record), for what has no result worth recording.
    pub(crate) async fn record_unit<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.record(work, |_| Finished::done()).await
    }

    /// As [`record`](Self::record); the operations it consists of are not recorded.
    pub(crate) async fn record_as_one<T>(
        self,
        work: impl Future<Output = Result<T>>,
        finished: impl FnOnce(&T) -> Finished,
    ) -> Result<T> {
        match self.0 {
            Some(_) => self.record(NESTED.scope((), work), finished).await,
            None => work.await,
        }
    }

    /// Records its start; the caller records its end.
    pub(crate) async fn open(self) -> Result<Option<OpenOperation>> {
        match self.0 {
            Some((recorder, operation)) => recorder.begin(operation).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Recorder {
    /// A recorder for a session, or none if nobody listens.
    pub(crate) fn new(
        options: &EventOptions,
        session: &BoundSession,
        audit: Option<Auditor>,
        redactor: Redactor,
    ) -> Result<Option<Arc<Self>>> {
        if options.sinks.is_empty() && audit.is_none() {
            return Ok(None);
        }
        let mut recorder = Self::of(options, session.id(), Some(session), audit, redactor)?;
        recorder.network = session.network();
        Ok(Some(Arc::new(recorder)))
    }

    fn of(
        options: &EventOptions,
        id: &SessionId,
        session: Option<&BoundSession>,
        audit: Option<Auditor>,
        redactor: Redactor,
    ) -> Result<Self> {
        let report = options.report.as_ref();
        let deliveries =
            options.sinks.iter().map(|sink| SinkDelivery::bind(sink, session, report, false));
        Ok(Self {
            session: Uuid::parse_str(id.as_str()).unwrap_or_default(),
            seq: AtomicU64::new(0),
            seq_of_all: AtomicU64::new(0),
            deliveries: deliveries.collect::<Result<_>>()?,
            policies: Policies { general: options.policy, by_op: options.policy_by_op.clone() },
            redactor,
            trace: options.trace,
            audit,
            network: None,
        })
    }

    /// Another recorder for the same session, with other sinks; it counts from the start.
    pub(crate) fn with_options(
        &self,
        options: &EventOptions,
        session: &BoundSession,
    ) -> Result<Option<Arc<Self>>> {
        Self::new(options, session, self.audit.clone(), self.redactor.clone())
    }

    /// Records the start of an operation. Where a sink that must have it fails, the operation must not start.
    pub(crate) async fn begin(self: &Arc<Self>, operation: Operation) -> Result<OpenOperation> {
        self.begin_with(operation, Map::new()).await
    }

    async fn begin_with(
        self: &Arc<Self>,
        operation: Operation,
        mut extra: Map<String, Value>,
    ) -> Result<OpenOperation> {
        let names = Names::new(self.trace);
        let event = operation.start_event(self.session, 0, &names.span, stamp());
        extra.extend(self.secrets(&event));
        let recorded = self.recorded_event(event, &operation, extra);
        self.emit(&recorded).await?;
        Ok(OpenOperation {
            recorder: Arc::clone(self),
            operation,
            names,
            started: Instant::now(),
            is_over: false,
        })
    }

    /// Puts a change of the session's state on record before anything else is.
    pub(crate) fn defer_state(&self, state: &str, data: Value) {
        if let Some(audit) = &self.audit {
            audit.defer_state(state, data);
        }
    }

    /// The names of the secrets an operation was given.
    fn secrets(&self, event: &Event) -> Map<String, Value> {
        let used = self.redactor.used(&event.data);
        match used.is_empty() {
            true => Map::new(),
            false => Map::from_iter([("secrets".to_owned(), used.into())]),
        }
    }

    fn recorded_event(
        &self,
        mut event: Event,
        operation: &Operation,
        mut extra: Map<String, Value>,
    ) -> RecordedEvent {
        self.redactor.event(&mut event);
        self.redactor.map(&mut extra);
        let next = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed) + 1;
        RecordedEvent {
            event,
            seq: (!operation.is_extension()).then(|| next(&self.seq)),
            seq_of_all: next(&self.seq_of_all),
            extra,
        }
    }

    async fn emit(&self, recorded: &RecordedEvent) -> Result<()> {
        if let Some(audit) = &self.audit {
            audit.event(recorded).await?;
        }
        for delivery in &self.deliveries {
            delivery.deliver(recorded, &self.policies).await?;
        }
        Ok(())
    }

    fn emit_now(&self, recorded: &RecordedEvent) {
        if let Some(audit) = &self.audit {
            audit.event_now(recorded);
        }
        self.deliveries.iter().for_each(|delivery| delivery.deliver_now(recorded, &self.policies));
    }

    /// How many bytes of each stream of a command's output any sink may get.
    pub(crate) fn output_wanted(&self, op: &str) -> usize {
        let wanted =
            self.deliveries.iter().map(|delivery| delivery.output_wanted(&self.policies, op));
        match wanted.max().unwrap_or(0) {
            // A secret must be found also where the limit on output cuts it.
            wanted if wanted > 0 && !self.redactor.is_empty() => usize::MAX,
            wanted => wanted,
        }
    }

    /// Waits until every sink has its events, and the audit log is synced.
    pub(crate) async fn flush(&self) {
        futures::future::join_all(self.deliveries.iter().map(SinkDelivery::flush)).await;
        if let Some(audit) = &self.audit {
            audit.sync().await;
        }
    }

    /// Whether there is an audit log.
    pub(crate) fn has_audit(&self) -> bool {
        self.audit.is_some()
    }

    /// The session is gone, or could not be removed: either way everybody gets the rest.
    pub(crate) async fn close(&self, is_deleted: bool) {
        // It is gone, whoever cannot hear it.
        drop(self.record_network().await);
        if let (Some(audit), true) = (&self.audit, is_deleted) {
            // It is gone, whoever cannot hear it.
            drop(audit.state("deleted", Value::Object(Map::new())).await);
        }
        self.flush().await;
    }

    /// What became of the events, for each sink.
    pub(crate) fn stats(&self) -> Vec<SinkStats> {
        let mut stats = Vec::new();
        self.deliveries.iter().for_each(|delivery| delivery.stats(&mut stats));
        stats
    }

    /// Files of the workspace that are sinks' own and stay out of snapshots.
    pub(crate) fn skip_paths(&self) -> Vec<PosixPath> {
        let sinks = self.deliveries.iter().flat_map(SinkDelivery::sinks);
        sinks.filter_map(|sink| sink.skip_path()).collect()
    }
}

/// Emits events for operations that are done elsewhere, such as by a session of another library, in
/// the way a session does for its own. Sinks that need the session do not get one here.
#[derive(Debug, Clone)]
pub struct EventSource(Arc<Recorder>);

impl EventSource {
    /// Emits events for the session `session`.
    ///
    /// # Errors
    ///
    /// Fails if a sink cannot serve it.
    pub fn new(options: &EventOptions, session: &SessionId) -> Result<Self> {
        let redactor = Redactor::new(options.secrets.iter().cloned());
        Recorder::of(options, session, None, None, redactor).map(Arc::new).map(Self)
    }

    /// Runs an operation and emits its start and finish events; `result` derives the finish event
    /// from the outcome.
    ///
    /// # Errors
    ///
    /// The operation's error; or that of a sink with
    /// [`OnError::Raise`](crate::events::OnError::Raise).
    pub async fn observe<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
        result: impl FnOnce(&T) -> OperationResult,
    ) -> Result<T> {
        let finished = |value: &T| Finished { result: Ok(result(value)), extra: Map::new() };
        operation_scope(Some(&self.0), || operation).record(work, finished).await
    }

    /// Waits until every sink has its events, each for a limited time.
    pub async fn flush(&self) {
        self.0.flush().await;
    }

    /// The statistics of each sink.
    #[must_use]
    pub fn stats(&self) -> Vec<SinkStats> {
        self.0.stats()
    }
}

/// An
/// operation whose start is recorded. If it is dropped before its end, it was given up, and that is recorded.
#[derive(Debug)]
pub(crate) struct OpenOperation {
    recorder: Arc<Recorder>,
    operation: Operation,
    names: Names,
    started: Instant,
    is_over: bool,
}

impl OpenOperation {
    /// The context for work inside the operation, in a trace.
    pub(crate) fn inside(&self) -> Option<TraceContext> {
        self.names.inside
    }

    /// Who records it.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Records its end.
    pub(crate) async fn finish(mut self, finished: Finished) -> Result<()> {
        self.is_over = true;
        let recorded = match finished.result {
            Ok(result) => self.recorded_event(Ok(result), finished.extra),
            Err(error) => self.recorded_event(Err(&error), finished.extra),
        };
        self.recorder.emit(&recorded).await?;
        self.recorder.record_network().await
    }

    /// Records that it failed.
    pub(crate) async fn fail(mut self, error: &Error) -> Result<()> {
        self.is_over = true;
        let recorded = self.recorded_event(Err(error), Map::new());
        self.recorder.emit(&recorded).await?;
        self.recorder.record_network().await
    }

    fn recorded_event(
        &self,
        result: Result<OperationResult, &Error>,
        mut extra: Map<String, Value>,
    ) -> RecordedEvent {
        let took = self.started.elapsed().as_secs_f64() * 1000.0;
        let event = self.operation.finish_event(
            self.recorder.session,
            0,
            &self.names.span,
            stamp(),
            took,
            result,
        );
        extra.extend(self.recorder.secrets(&event));
        self.recorder.recorded_event(event, &self.operation, extra)
    }
}

impl Drop for OpenOperation {
    fn drop(&mut self) {
        if !self.is_over {
            let error = Error::new(ErrorKind::Cancelled, "the operation was given up");
            let recorded = self.recorded_event(Err(&error), Map::new());
            self.recorder.emit_now(&recorded);
        }
    }
}

/// A new name and the time, for an event.
fn stamp() -> (Uuid, EventTime) {
    (Uuid::new_v4(), now())
}

/// The time.
pub(crate) fn now() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EventTime::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
