//! Events posted to a server.

use std::time::Duration;

use bastide::events::{Delivery, EventOptions, HttpSink, OnError, SinkOptions};
use bastide::{ErrorClass, ErrorKind, SessionId};
use serde_json::Value;

use super::receiver::Receiver;
use super::{run, source, write};

fn sink(receiver: &Receiver) -> HttpSink {
    HttpSink::new(&format!("http://{}/events", receiver.address)).unwrap()
}

fn seqs(receiver: &Receiver) -> Vec<u64> {
    let bodies = receiver.received();
    let bodies = bodies.iter().map(|received| String::from_utf8(received.plain()).unwrap());
    let lines: Vec<String> =
        bodies.flat_map(|body| body.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| event["seq"].as_u64().unwrap()).collect()
}

#[test]
fn posts_each_event_as_the_reference_does() {
    let receiver = Receiver::start(|_| 200);
    let sink = sink(&receiver).header("authorization", "Bearer x");
    let source = source(&EventOptions::new().sink(sink), &SessionId::random());
    run(async {
        write(&source, "ä").await;
        source.flush().await;
    });
    let received = receiver.received();
    assert_eq!((received.len(), received[0].path.as_str()), (2, "/events"));
    assert_eq!(received[0].headers["content-type"], "application/json");
    assert_eq!(received[0].headers["authorization"], "Bearer x");
    let body = String::from_utf8(received[0].body.clone()).unwrap();
    assert!(body.starts_with("{\"version\":1,\"event_id\":\"") && body.contains("\"path\":\"ä\""));
    assert_eq!(seqs(&receiver), [1, 2]);
}

#[test]
fn sends_many_at_once_and_compressed() {
    let receiver = Receiver::start(|_| 204);
    let sink = sink(&receiver).batch(100).gzip();
    let sink = sink.options(SinkOptions::best_effort().delivery(Delivery::Async));
    let source = source(&EventOptions::new().sink(sink), &SessionId::random());
    run(async {
        for number in 0..500 {
            write(&source, &number.to_string()).await;
        }
        source.flush().await;
    });
    assert_eq!(seqs(&receiver), (1..=1000).collect::<Vec<u64>>());
    let received = receiver.received();
    assert!(received.len() < 300, "{} requests", received.len());
    let is_small = received.iter().all(|one| one.body.len() < one.plain().len());
    assert!(is_small && received[0].headers["content-type"] == "application/x-ndjson");
}

#[test]
fn tries_again_what_may_help_and_nothing_else() {
    for (status, attempts) in [(503, 3), (429, 3), (400, 1), (302, 1)] {
        // The first event is not taken; the second is.
        let receiver = Receiver::start(move |number| if number < attempts { status } else { 200 });
        let spool = tempfile::tempdir().unwrap();
        let path = spool.path().join("deep/spool.jsonl");
        let sink = sink(&receiver).spool(&path);
        let options = SinkOptions::sync().delivery(Delivery::Async).on_error(OnError::Log);
        let source = source(&EventOptions::new().sink(sink.options(options)), &SessionId::random());
        run(async {
            write(&source, "x").await;
            source.flush().await;
        });
        assert_eq!(receiver.received().len(), attempts + 1, "{status}");
        let spooled = std::fs::read_to_string(&path).unwrap();
        assert_eq!(spooled.lines().count(), 1);
        assert!(spooled.contains("\"phase\":\"start\""), "{spooled}");
        let stats = source.stats();
        assert!(stats[0].failed > 0 && stats[0].dropped == 0, "{stats:?}");
    }
}

#[test]
fn fails_by_name_when_it_must_be_heard() {
    // A server that never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let sink = HttpSink::new(&format!("http://{address}/")).unwrap();
    let sink = sink.timeout(Duration::from_millis(50)).attempts(1);
    let sink = sink.options(SinkOptions::sync().delivery(Delivery::Async));
    let source = source(&EventOptions::new().sink(sink), &SessionId::random());
    let operation = bastide::events::Operation::Running;
    let result = |(): &()| bastide::events::OperationResult::Done;
    let error = run(source.observe(operation, async { Ok(()) }, result)).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::RuntimeError));
    assert!(error.message().starts_with("http proxy sink POST failed: "), "{error}");
}

#[test]
fn takes_no_address_it_cannot_reach() {
    for address in ["", "localhost:80", "ftp://x", "file:///etc/passwd"] {
        let refused = HttpSink::new(address).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::InvalidInput), "{address}");
    }
}
