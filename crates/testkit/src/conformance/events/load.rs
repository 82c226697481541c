//! Many events: nothing is lost on a clean close, and what waits is bounded.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bastide::events::{
    AuditOptions, CallbackSink, ChainedSink, Delivery, EventOptions, EventSource, HttpSink,
    JsonlOutbox, LineSink, OnError, Operation, OperationResult, OtelSink, Sink, SinkOptions,
    WorkspaceJsonl, WorkspaceLogOptions, verify,
};
use bastide::model::Manifest;
use bastide::{CreateOptions, SessionId};

use crate::suite::{Context, Outcome, Trial, TrialError};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    loses_no_event_to_an_outbox,
    loses_no_event_to_a_server,
    loses_no_event_to_a_collector,
    loses_no_event_to_callbacks_lines_and_chains,
    loses_no_event_to_sinks_of_a_session,
    counts_what_finds_no_room,
    loses_no_record,
];

/// How many events each sink gets.
const EVENTS: usize = 100_000;

/// How many bytes of events may wait: far less than all of them have together.
const WAITING: usize = 1 << 20;

/// Everything in order, behind the operation; operations wait for room.
fn all() -> SinkOptions {
    SinkOptions::best_effort().delivery(Delivery::Async).queue_bytes(WAITING)
}

/// Tells of so many operations, two events each.
async fn emit(sink: Arc<dyn Sink>, events: usize) -> bastide::Result<EventSource> {
    let options = EventOptions::new().shared_sink(sink);
    let source = EventSource::new(&options, &SessionId::random())?;
    for number in 0..events / 2 {
        let path = format!("a/rather/long/path/to/a/file/that/is/written/{number:09}");
        let operation = Operation::Write { path, user: None, bytes: Some(number as u64) };
        source.observe(operation, async { Ok(()) }, |()| OperationResult::Done).await?;
    }
    source.flush().await;
    Ok(source)
}

fn check(source: &EventSource, events: usize) {
    for stats in source.stats() {
        assert_eq!((stats.delivered, stats.dropped, stats.failed), (events as u64, 0, 0));
        assert!(stats.most_waiting <= WAITING as u64, "{stats:?}");
    }
}

async fn loses_no_event_to_an_outbox(context: Context) -> Outcome {
    let events = context.count(EVENTS);
    let host = tempfile::tempdir()?;
    let path = host.path().join("outbox.jsonl");
    let source = emit(Arc::new(JsonlOutbox::new(&path).options(all())), events).await?;
    check(&source, events);
    let mut seq = 0;
    for line in BufReader::new(fs::File::open(path)?).lines() {
        let event: serde_json::Value = serde_json::from_str(&line?)?;
        seq += 1;
        assert_eq!(event["seq"], seq);
    }
    assert_eq!(seq, events);
    Ok(())
}

async fn loses_no_event_to_a_server(context: Context) -> Outcome {
    let events = context.count(EVENTS);
    let server = Counter::start()?;
    let sink = HttpSink::new(&format!("http://{}/", server.address))?;
    let source = emit(Arc::new(sink.batch(256).gzip().options(all())), events).await?;
    check(&source, events);
    assert!(server.requests.load(Ordering::Relaxed) >= (events / 256) as u64);
    Ok(())
}

async fn loses_no_event_to_a_collector(context: Context) -> Outcome {
    let events = context.count(EVENTS);
    let server = Counter::start()?;
    let sink = OtelSink::new(&format!("http://{}", server.address))?;
    let source = emit(Arc::new(sink.options(all().extended())), events).await?;
    check(&source, events);
    assert!(server.requests.load(Ordering::Relaxed) >= (events / 256) as u64);
    Ok(())
}

async fn loses_no_event_to_callbacks_lines_and_chains(context: Context) -> Outcome {
    let events = context.count(EVENTS);
    let recorded_events = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&recorded_events);
    let lines = LineSink::new(move |lines| {
        count.fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
        Ok(())
    });
    let count = Arc::clone(&recorded_events);
    let more = LineSink::new(move |lines| {
        count.fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
        Ok(())
    });
    // Without a session it fails every time, and that is all it does.
    let unbound = CallbackSink::new(|_, _| Ok(()));
    let unbound = unbound.options(SinkOptions::sync().on_error(OnError::Ignore));
    let chain = ChainedSink::new([
        Arc::new(lines.options(all())) as Arc<dyn Sink>,
        Arc::new(unbound) as Arc<dyn Sink>,
        Arc::new(more) as Arc<dyn Sink>,
    ]);
    let source = emit(Arc::new(chain), events).await?;
    let stats = source.stats();
    let counts: Vec<_> = stats.iter().map(|stats| (stats.delivered, stats.failed)).collect();
    let events = events as u64;
    assert_eq!(counts, [(events, 0), (0, events), (events, 0)]);
    assert_eq!(recorded_events.load(Ordering::Relaxed), 2 * events);
    Ok(())
}

async fn loses_no_event_to_sinks_of_a_session(context: Context) -> Outcome {
    let events = context.count(EVENTS);
    let recorded_events = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&recorded_events);
    let callback = CallbackSink::new(move |_, session| {
        count.fetch_add(u64::from(!session.root().as_str().is_empty()), Ordering::Relaxed);
        Ok(())
    });
    // As the reference does it, all of the log is written each time: so not for every event.
    let log = WorkspaceJsonl::new(WorkspaceLogOptions {
        workspace_relpath: "log.jsonl".to_owned(),
        flush_every: 2000,
        ..WorkspaceLogOptions::default()
    });
    let options = EventOptions::new().sink(callback.options(all())).sink(log.options(all()));
    let client = context.client().with_events(options);
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let before = resident()?;
    for _ in 0..events / 2 {
        assert!(session.is_running().await?);
    }
    session.flush_events().await;
    for stats in session.event_stats() {
        assert!(stats.delivered >= events as u64, "{stats:?}");
        assert_eq!((stats.dropped, stats.failed), (0, 0), "{stats:?}");
        assert!(stats.most_waiting <= WAITING as u64, "{stats:?}");
    }
    let log = session.files().read("log.jsonl").await?;
    let mut lines = 0;
    for line in log[..].lines() {
        let event: serde_json::Value = serde_json::from_str(&line?)?;
        lines += 1;
        assert_eq!(event["seq"], lines);
    }
    // What came since the log was last written is written when the session ends.
    assert!(lines + 2000 > events, "{lines} of {events}");
    assert!(recorded_events.load(Ordering::Relaxed) >= events as u64, "{recorded_events:?}");
    // All of the log is in memory while it is written, and nothing else that grows.
    let most = 5 * log.len() + (32 << 20);
    let grown = resident()?.saturating_sub(before);
    assert!(!context.full || grown <= most, "{grown} bytes more");
    Ok(session.delete().await?)
}

/// How much memory this process has, in bytes.
fn resident() -> Result<usize, TrialError> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = text.split_whitespace().nth(1).ok_or("no size")?.parse()?;
    Ok(pages * 4096)
}

async fn counts_what_finds_no_room(context: Context) -> Outcome {
    let events = context.count(EVENTS);
    let host = tempfile::tempdir()?;
    let path = host.path().join("outbox.jsonl");
    let options = SinkOptions::best_effort().queue_bytes(64 << 10).on_error(OnError::Ignore);
    let source = emit(Arc::new(JsonlOutbox::new(&path).options(options)), events).await?;
    let stats = source.stats();
    assert_eq!(stats[0].delivered + stats[0].dropped, events as u64, "{stats:?}");
    assert!(stats[0].most_waiting <= 64 << 10, "{stats:?}");
    let written = BufReader::new(fs::File::open(path)?).lines().count() as u64;
    assert_eq!(written, stats[0].delivered);
    Ok(())
}

async fn loses_no_record(context: Context) -> Outcome {
    let audit = AuditOptions::default().segment_bytes(256 << 10);
    let client = context.client().with_events(EventOptions::new().audit(audit));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    // Each makes two records; the trial is about the record, not about the files.
    let operations = context.count(EVENTS) / 10;
    for _ in 0..operations {
        session.files().stat(".").await?;
    }
    session.delete().await?;
    let report = verify(context.backend.home(), &id, None)?;
    assert_eq!(report.problems, []);
    assert!(report.records > 2 * operations as u64 && report.files > 1, "{report:?}");
    Ok(())
}

/// A server that counts what it is sent.
struct Counter {
    address: String,
    requests: Arc<AtomicU64>,
}

impl Counter {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        // It ends with the process, which each trial has for itself or with the others.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || drop(serve(&stream, &count)));
            }
        });
        Ok(Self { address, requests })
    }
}

fn serve(stream: &TcpStream, count: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_lowercase();
            if let Some(said) = line.strip_prefix("content-length: ") {
                length = said.parse().unwrap_or(0);
            }
            if line.is_empty() {
                break;
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        count.fetch_add(1, Ordering::Relaxed);
        (&*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
}
