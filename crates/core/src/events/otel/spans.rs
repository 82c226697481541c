//! Operations as spans.

use std::sync::Arc;

use bastide_model::events::{Event, Finish};
use serde_json::Value as Json;

use super::wire::{Message, Value, attribute, resource, scope};

/// The kind of a span that is neither asked nor answered by another machine.
const INTERNAL: u64 = 1;

/// The code of a span that failed.
const ERROR: u64 = 2;

/// What of an event's data is said of its span, too.
const COPIED: &[&str] = &[
    "alive",
    "exit_code",
    "process.exit.code",
    "server.port",
    "server.address",
    "cpu_us",
    "peak_memory_bytes",
    "read_bytes",
    "written_bytes",
    "usage_source",
    "decision",
    "why",
    "rule",
    "protocol",
    "host",
    "port",
    "method",
    "status",
    "bytes_in",
    "bytes_out",
    "intercepted",
];

/// The operations that ended among these events, if any.
pub(super) fn message(events: &[Arc<Event>], backend: Option<&str>) -> Option<Vec<u8>> {
    let spans: Vec<_> = events
        .iter()
        .filter_map(|event| Some(span(event, event.finish.as_ref()?, backend)))
        .collect();
    if spans.is_empty() {
        return None;
    }
    let scoped = Message::default().message(1, scope()).messages(2, spans);
    let all = Message::default().message(1, resource()).message(2, scoped);
    Some(Message::default().message(1, all).into_bytes())
}

fn span(event: &Event, finish: &Finish, backend: Option<&str>) -> Message {
    let end = u64::try_from(event.ts.unix_micros()).unwrap_or(0).saturating_mul(1000);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a duration is neither negative nor centuries long"
    )]
    let took = (finish.duration_ms * 1e6) as u64;
    let (trace, id) = names(event);
    let mut span = Message::default().bytes(1, &trace).bytes(2, &id);
    if let Some(parent) = event.parent_span_id.as_deref().and_then(digits::<8>) {
        span = span.bytes(4, &parent);
    }
    span = span.text(5, &format!("sandbox.{}", event.op)).number(6, INTERNAL);
    span = span.fixed(7, end.saturating_sub(took)).fixed(8, end);
    let attributes = attributes(event, finish, backend);
    let attributes = attributes.iter().map(|(key, value)| attribute(key, value));
    span = span.messages(9, attributes);
    match failure(finish) {
        Some(why) => span.message(15, Message::default().text(2, why).number(3, ERROR)),
        None => span,
    }
}

/// Why an operation failed, without a word that may hold something secret.
fn failure(finish: &Finish) -> Option<&str> {
    match &finish.error_type {
        Some(class) => Some(class),
        None if finish.ok => None,
        None => Some("Sandbox operation returned an unsuccessful result."),
    }
}

fn attributes(event: &Event, finish: &Finish, backend: Option<&str>) -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::Text(text.to_owned());
    let session = event.session_id.to_string();
    let mut all = vec![
        ("sandbox.operation", text(event.op)),
        ("sandbox.session.id", text(&session)),
        ("session_id", text(&session)),
    ];
    all.extend(backend.map(|backend| ("sandbox.backend", text(backend))));
    for key in COPIED {
        let value = match event.data.get(*key) {
            Some(Json::String(value)) => text(value),
            Some(Json::Bool(value)) => Value::Flag(*value),
            Some(Json::Number(number)) => match number.as_i64() {
                Some(number) => Value::Number(number),
                None => continue,
            },
            _ => continue,
        };
        all.push((key, value));
    }
    match &finish.error_type {
        Some(class) => {
            all.push(("error.type", text(class)));
            all.push(("error_type", text(class)));
            all.extend(finish.error_code.map(|code| ("error_code", text(code))));
            let retryable = finish.error_retryable.map(Value::Flag);
            all.extend(retryable.map(|retryable| ("error_retryable", retryable)));
        }
        None if !finish.ok && event.op == "exec" => {
            all.push(("error.type", text("ExecNonZeroError")));
        }
        None => {}
    }
    all
}

/// The trace and the span of an operation. What nobody traces is one trace for each session.
fn names(event: &Event) -> ([u8; 16], [u8; 8]) {
    let trace = event.trace_id.as_deref().and_then(digits::<16>);
    let own = digits::<8>(&event.span_id);
    (trace.unwrap_or(*event.session_id.as_bytes()), own.unwrap_or([1; 8]))
}

/// The first bytes of a name, whose digits follow its last underscore.
fn digits<const N: usize>(name: &str) -> Option<[u8; N]> {
    let digits = name.rsplit('_').next()?;
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}
