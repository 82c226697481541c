//! The delivery of events to one sink.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bastide_model::events::{Event, PayloadPolicy};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::sink::{BoundSession, Delivery, OnError, Sink};
use crate::compat::raise;
use crate::{Error, ErrorKind, Result};

/// The most events handed over at once.
const BATCH: usize = 256;

/// How long an operation waits for room in the queue of a sink that wants everything.
const ROOM: Duration = Duration::from_secs(5);

/// How long a sink may take over one batch from its queue.
const HANDLE: Duration = Duration::from_secs(60);

/// How long a sink may take to put everything where it belongs at the end.
const FLUSH: Duration = Duration::from_secs(30);

/// How long the queues of sessions that are gone may take together.
const SETTLE: Duration = Duration::from_secs(10);

/// Receives failures that fail no operation.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// The statistics of one sink.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkStats {
    /// Its name, or its kind.
    pub sink: String,
    /// How many events it accepted.
    pub delivered: u64,
    /// How many were dropped, because the queue was full or it did not answer.
    pub dropped: u64,
    /// How many it failed to accept.
    pub failed: u64,
    /// The most bytes of events that were queued for it.
    pub most_waiting: u64,
}

/// An event before any sink's policy, with its place in both counts.
#[derive(Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) event: Event,
    /// Its place among the events of the reference; none for operations that are not the reference's.
    pub(crate) seq: Option<u64>,
    /// Its place among all events.
    pub(crate) seq_of_all: u64,
    /// What is said besides, where everything is.
    pub(crate) extra: Map<String, Value>,
}

/// The policies all sinks share.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    pub(crate) general: PayloadPolicy,
    pub(crate) by_op: HashMap<String, PayloadPolicy>,
}

#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    most_waiting: AtomicU64,
}

/// A sink that is bound to a session, or a chain of them.
pub(crate) struct SinkDelivery {
    sink: Arc<dyn Sink>,
    /// For a chain: its sinks, each by its own rules.
    members: Vec<Self>,
    queue: Option<Queue>,
    counts: Arc<Counts>,
    report: Option<Report>,
}

struct Queue {
    sink: Arc<dyn Sink>,
    counts: Arc<Counts>,
    report: Option<Report>,
    room: Arc<Semaphore>,
    most: u32,
    /// Somebody serves it from its first event on.
    waiting: OnceLock<mpsc::UnboundedSender<QueueItem>>,
}

enum QueueItem {
    Event(Arc<Event>, OwnedSemaphorePermit),
    Flush(oneshot::Sender<Result<()>>),
}

impl SinkDelivery {
    /// Binds a sink to a session.
    pub(crate) fn bind(
        sink: &Arc<dyn Sink>,
        session: Option<&BoundSession>,
        report: Option<&Report>,
        in_chain: bool,
    ) -> Result<Self> {
        let bound = session.map(|session| sink.bind(session)).transpose()?.flatten();
        let sink = bound.unwrap_or_else(|| Arc::clone(sink));
        let members = sink.members().unwrap_or_default().iter();
        let members = members.map(|member| Self::bind(member, session, report, true));
        let members = members.collect::<Result<Vec<_>>>()?;
        let counts = Arc::new(Counts::default());
        let options = sink.options();
        let is_behind = match options.delivery {
            Delivery::Sync => false,
            Delivery::Async => options.on_error != OnError::Raise,
            Delivery::BestEffort => true,
        };
        let queue = (is_behind && !in_chain && sink.members().is_none())
            .then(|| Queue::new(&sink, &counts, report));
        Ok(Self { members, queue, counts, report: report.cloned(), sink })
    }

    /// Hands an event over.
    pub(crate) async fn deliver(
        &self,
        recorded: &RecordedEvent,
        policies: &Policies,
    ) -> Result<()> {
        if self.sink.members().is_some() {
            for member in &self.members {
                member.deliver_in_chain(recorded, policies).await?;
            }
            return Ok(());
        }
        let Some(event) = self.shown(recorded, policies) else { return Ok(()) };
        if let Some(queue) = &self.queue {
            let waits = self.sink.options().delivery == Delivery::Async;
            if !queue.put(event, waits).await {
                self.dropped();
            }
            return Ok(());
        }
        let (delivery, on_error) = (self.sink.options().delivery, self.sink.options().on_error);
        let handled = self.handle(&event).await;
        match (handled, delivery, on_error) {
            (Ok(()), ..) => Ok(()),
            (Err(error), Delivery::Async, OnError::Raise) => Err(error),
            (Err(error), _, OnError::Raise) => Err(self.failure(&event, error)),
            (Err(error), _, OnError::Log) => {
                self.say(&error);
                Ok(())
            }
            (Err(_), _, OnError::Ignore) => Ok(()),
        }
    }

    /// In a chain everybody is waited for, in order, however they would have it otherwise.
    async fn deliver_in_chain(&self, recorded: &RecordedEvent, policies: &Policies) -> Result<()> {
        if self.sink.members().is_some() {
            return Box::pin(self.deliver(recorded, policies)).await;
        }
        let Some(event) = self.shown(recorded, policies) else { return Ok(()) };
        let options = self.sink.options();
        match (self.handle(&event).await, options.delivery, options.on_error) {
            (Ok(()), ..) | (Err(_), _, OnError::Ignore) => Ok(()),
            (Err(error), Delivery::BestEffort, _) | (Err(error), _, OnError::Log) => {
                if options.on_error == OnError::Log {
                    self.say(&error);
                }
                Ok(())
            }
            (Err(error), _, OnError::Raise) => Err(self.failure(&event, error)),
        }
    }

    /// Hands an event over where that needs no waiting; elsewhere it counts as dropped.
    pub(crate) fn deliver_now(&self, recorded: &RecordedEvent, policies: &Policies) {
        self.members.iter().for_each(|member| member.deliver_now(recorded, policies));
        if self.sink.members().is_some() {
            return;
        }
        let Some(event) = self.shown(recorded, policies) else { return };
        match &self.queue {
            Some(queue) if queue.put_now(event).is_ok() => {}
            _ => self.dropped(),
        }
    }

    async fn handle(&self, event: &Arc<Event>) -> Result<()> {
        let handled = self.sink.handle(std::slice::from_ref(event)).await;
        let count = if handled.is_ok() { &self.counts.delivered } else { &self.counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        handled
    }

    /// The event as the sink may see it; `None` if it does not concern the sink.
    fn shown(&self, recorded: &RecordedEvent, policies: &Policies) -> Option<Arc<Event>> {
        let options = self.sink.options();
        let seq = if options.extended { Some(recorded.seq_of_all) } else { recorded.seq }?;
        let policy = policies.general.for_sink(&policies.by_op, recorded.event.op, options.policy);
        let mut event = policy.apply(&recorded.event);
        event.seq = seq.into();
        if options.extended {
            event.data.extend(recorded.extra.clone());
        }
        Some(Arc::new(event))
    }

    /// Whether any sink of this delivery hears of operations that are not the reference's.
    pub(crate) fn is_extended(&self) -> bool {
        match self.sink.members() {
            Some(_) => self.members.iter().any(Self::is_extended),
            None => self.sink.options().extended,
        }
    }

    /// How much of a command's output any sink of this delivery may be told, in bytes of each stream.
    pub(crate) fn output_wanted(&self, policies: &Policies, op: &str) -> usize {
        let of_members = self.members.iter().map(|member| member.output_wanted(policies, op));
        let policy = policies.general.for_sink(&policies.by_op, op, self.sink.options().policy);
        let own = match policy.include_exec_output && self.sink.members().is_none() {
            true => {
                let most = policy.max_stdout_chars.max(policy.max_stderr_chars);
                // A letter has four bytes at most, and one more tells that there was more.
                usize::try_from(most.saturating_add(1).saturating_mul(4)).unwrap_or(usize::MAX)
            }
            false => 0,
        };
        of_members.max().unwrap_or(0).max(own)
    }

    /// Waits until everything before this call is where it belongs.
    pub(crate) async fn flush(&self) {
        for member in &self.members {
            Box::pin(member.flush()).await;
        }
        let flushing = async {
            match &self.queue {
                Some(queue) => queue.flush().await,
                None => self.sink.flush().await,
            }
        };
        let flushed = tokio::time::timeout(FLUSH, flushing).await;
        let late = || Error::new(ErrorKind::Timeout, "it did not take everything in time");
        if let Err(error) = flushed.unwrap_or_else(|_| Err(late()))
            && self.sink.options().on_error != OnError::Ignore
        {
            self.say(&error);
        }
    }

    /// Notes what became of the events for this sink, and for those of its chain.
    pub(crate) fn stats(&self, into: &mut Vec<SinkStats>) {
        if self.sink.members().is_none() {
            let name = self.sink.options().name.clone();
            into.push(SinkStats {
                sink: name.unwrap_or_else(|| self.sink.kind().to_owned()),
                delivered: self.counts.delivered.load(Ordering::Relaxed),
                dropped: self.counts.dropped.load(Ordering::Relaxed),
                failed: self.counts.failed.load(Ordering::Relaxed),
                most_waiting: self.counts.most_waiting.load(Ordering::Relaxed),
            });
        }
        self.members.iter().for_each(|member| member.stats(into));
    }

    /// The sinks of this delivery, one for each that hears of events by itself.
    pub(crate) fn sinks(&self) -> Vec<&Arc<dyn Sink>> {
        let members = self.members.iter().flat_map(Self::sinks);
        std::iter::once(&self.sink).chain(members).collect()
    }

    fn dropped(&self) {
        let before = self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        // The first is said at once; how many it were in the end is in the counts.
        if before == 0 && self.sink.options().on_error != OnError::Ignore {
            let full = "too much waits for it: events are dropped from now on";
            self.say(&Error::new(ErrorKind::LimitExceeded, full));
        }
    }

    fn failure(&self, event: &Event, error: Error) -> Error {
        let (kind, id) = (self.sink.kind(), event.event_id);
        let message = format!("sandbox event sink failed: {kind} while handling event {id}");
        raise::runtime_error(message).with_source(error)
    }

    fn say(&self, error: &Error) {
        if let Some(report) = &self.report {
            report(&format!("sandbox event sink failed (ignored): {}: {error}", self.sink.kind()));
        }
    }
}

impl Queue {
    fn new(sink: &Arc<dyn Sink>, counts: &Arc<Counts>, report: Option<&Report>) -> Self {
        let most = u32::try_from(sink.options().queue_bytes).unwrap_or(u32::MAX >> 4).max(1);
        Self {
            sink: Arc::clone(sink),
            counts: Arc::clone(counts),
            report: report.cloned(),
            room: Arc::new(Semaphore::new(most as usize)),
            most,
            waiting: OnceLock::new(),
        }
    }

    /// The way to whoever serves it; none where nothing can be done behind anything.
    fn waiting(&self) -> Option<&mpsc::UnboundedSender<QueueItem>> {
        if let Some(waiting) = self.waiting.get() {
            return Some(waiting);
        }
        let runtime = Handle::try_current().ok()?;
        Some(self.waiting.get_or_init(|| {
            let (waiting, events) = mpsc::unbounded_channel();
            let (sink, counts) = (Arc::clone(&self.sink), Arc::clone(&self.counts));
            let serving = runtime.spawn(serve(sink, events, counts, self.report.clone()));
            let mut all = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|serving| !serving.is_finished());
            all.push(serving);
            waiting
        }))
    }

    /// Whether the event found room.
    async fn put(&self, event: Arc<Event>, waits: bool) -> bool {
        let Err(event) = self.put_now(event) else { return true };
        if !waits {
            return false;
        }
        let room = Arc::clone(&self.room).acquire_many_owned(self.weight(&event));
        match tokio::time::timeout(ROOM, room).await {
            Ok(Ok(room)) => self.waiting().is_some_and(|waiting| self.send(waiting, event, room)),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn put_now(&self, event: Arc<Event>) -> Result<(), Arc<Event>> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(self.weight(&event));
        let (Ok(room), Some(waiting)) = (room, self.waiting()) else { return Err(event) };
        if self.send(waiting, Arc::clone(&event), room) { Ok(()) } else { Err(event) }
    }

    fn send(
        &self,
        waiting: &mpsc::UnboundedSender<QueueItem>,
        event: Arc<Event>,
        room: OwnedSemaphorePermit,
    ) -> bool {
        let used = u64::from(self.most).saturating_sub(self.room.available_permits() as u64);
        self.counts.most_waiting.fetch_max(used, Ordering::Relaxed);
        waiting.send(QueueItem::Event(event, room)).is_ok()
    }

    /// About how much memory an event takes.
    fn weight(&self, event: &Event) -> u32 {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let said = event.finish.as_ref().map_or(0, |finish| {
            text(&finish.stdout)
                + text(&finish.stderr)
                + text(&finish.error_message)
                + bytes(&finish.stdout_bytes)
                + bytes(&finish.stderr_bytes)
        });
        let data: usize = event.data.iter().map(|(key, value)| 64 + key.len() + size(value)).sum();
        u32::try_from(512 + said + data).unwrap_or(u32::MAX).min(self.most)
    }

    async fn flush(&self) -> Result<()> {
        let gone = || Error::new(ErrorKind::Internal, "nobody serves its queue any more");
        // What nothing was put into is empty.
        let Some(waiting) = self.waiting.get() else { return self.sink.flush().await };
        let (answer, answered) = oneshot::channel();
        waiting.send(QueueItem::Flush(answer)).map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 32 + size(item)).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| 64 + key.len() + size(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 16,
    }
}

/// Whoever serves a queue in this process.
static SERVING: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Waits, for a while, until all queues whose sessions are gone are empty.
pub(super) async fn flush_all() {
    let all = std::mem::take(&mut *SERVING.lock().unwrap_or_else(PoisonError::into_inner));
    drop(tokio::time::timeout(SETTLE, futures::future::join_all(all)).await);
}

/// Hands what waits to the sink, in order, until nobody can put more.
async fn serve(
    sink: Arc<dyn Sink>,
    mut waiting: mpsc::UnboundedReceiver<QueueItem>,
    counts: Arc<Counts>,
    report: Option<Report>,
) {
    let mut taken = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut taken, BATCH).await > 0 {
        let mut events = Vec::with_capacity(taken.len());
        let mut rooms = Vec::with_capacity(taken.len());
        for one in taken.drain(..) {
            match one {
                QueueItem::Event(event, room) => {
                    events.push(event);
                    rooms.push(room);
                }
                QueueItem::Flush(answer) => {
                    hand_over(&sink, &mut events, &counts, report.as_ref()).await;
                    rooms.clear();
                    // Whoever asked may have given up.
                    drop(answer.send(sink.flush().await));
                }
            }
        }
        hand_over(&sink, &mut events, &counts, report.as_ref()).await;
    }
    // There is nobody left to tell whether that went well.
    drop(tokio::time::timeout(FLUSH, sink.flush()).await);
}

async fn hand_over(
    sink: &Arc<dyn Sink>,
    events: &mut Vec<Arc<Event>>,
    counts: &Counts,
    report: Option<&Report>,
) {
    if events.is_empty() {
        return;
    }
    let count = events.len() as u64;
    let handled = tokio::time::timeout(HANDLE, sink.handle(events)).await;
    let late = || Error::new(ErrorKind::Timeout, "it did not take them in time");
    match handled.unwrap_or_else(|_| Err(late())) {
        Ok(()) => drop(counts.delivered.fetch_add(count, Ordering::Relaxed)),
        Err(error) => {
            counts.failed.fetch_add(count, Ordering::Relaxed);
            if let (OnError::Log, Some(report)) = (sink.options().on_error, report) {
                let kind = sink.kind();
                report(&format!("sandbox event sink failed (ignored): {kind}: {error}"));
            }
        }
    }
    events.clear();
}

impl fmt::Debug for SinkDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkDelivery").field("sink", &self.sink).finish_non_exhaustive()
    }
}
