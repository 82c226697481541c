//! Sinks that speak to servers, and servers that understand what arrives.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "servers/http.rs"]
mod http;
#[path = "servers/otel.rs"]
mod otel;
#[path = "servers/receiver.rs"]
mod receiver;

use bastide::events::{EventOptions, EventSource, Operation, OperationResult};
use bastide::{Error, SessionId};

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

fn source(options: &EventOptions, id: &SessionId) -> EventSource {
    EventSource::new(options, id).unwrap()
}

/// Tells of a write.
async fn write(source: &EventSource, path: &str) {
    let operation = Operation::Write { path: path.to_owned(), user: None, bytes: Some(7) };
    source.observe(operation, async { Ok(()) }, |()| OperationResult::Done).await.unwrap();
}

/// Tells of a command.
async fn exec(source: &EventSource, result: Result<OperationResult, Error>) {
    let operation = Operation::Exec {
        command: vec!["echo hi".to_owned()],
        timeout_s: None,
        shell: true.into(),
        user: None,
    };
    // What it fails with is in the events.
    drop(source.observe(operation, async { result }, OperationResult::clone).await);
}
