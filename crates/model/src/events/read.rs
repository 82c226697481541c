//! Reading events back.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::event::{Event, Finish};
use super::time::EventTime;
use crate::error::{CODES, OPS, Result};
use crate::lax::{self, Checked, Fields, FromInput, Input};

impl Event {
    /// Reads an event that was written before. Where it has no name or time of its own, it gets
    /// `event_id` and `now`.
    ///
    /// # Errors
    /// `ValidationError` with every wrong field.
    pub fn read(value: &Value, event_id: Uuid, now: EventTime) -> Result<Self> {
        let draft: PartialEvent = lax::read(value)?;
        Ok(Self {
            event_id: draft.event_id.unwrap_or(event_id),
            ts: draft.ts.unwrap_or(now),
            ..draft.event
        })
    }
}

/// An event whose name and time may be missing.
struct PartialEvent {
    event: Event,
    event_id: Option<Uuid>,
    ts: Option<EventTime>,
}

impl FromInput for PartialEvent {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        input.tagged("phase", &[("start", read_start), ("finish", read_finish)])
    }
}

fn read_start(input: Input<'_>) -> Checked<PartialEvent> {
    read_half(input, false)
}

fn read_finish(input: Input<'_>) -> Checked<PartialEvent> {
    read_half(input, true)
}

fn read_half(input: Input<'_>, is_finish: bool) -> Checked<PartialEvent> {
    let mut fields = input.fields("SandboxSessionEvent")?;
    let version = fields.or("version", 1_i128);
    let event_id = fields.or_with("event_id", None, |input| Uuid::from_input(input).map(Some));
    let ts = fields.or_with("ts", None, |input| EventTime::from_input(input).map(Some));
    let session_id = fields.required("session_id");
    let seq = fields.required("seq");
    let op = fields.required_with("op", |input| input.one_of(&OPS.map(|op| (op, op))));
    let span_id = fields.required("span_id");
    let parent_span_id = fields.or_default("parent_span_id");
    let trace_id = fields.or_default("trace_id");
    let data = fields.or_with("data", Map::new(), object);
    let finish = if is_finish { read_finish_fields(&mut fields).map(Some) } else { Some(None) };
    fields.build(|| {
        let event = Event {
            version: version?,
            event_id: Uuid::nil(),
            ts: EventTime::from_unix_micros(0),
            session_id: session_id?,
            seq: seq?,
            op: op?,
            span_id: span_id?,
            parent_span_id: parent_span_id?,
            trace_id: trace_id?,
            data: data?,
            finish: finish?,
        };
        Some(PartialEvent { event, event_id: event_id?, ts: ts? })
    })
}

fn read_finish_fields(fields: &mut Fields<'_>) -> Option<Finish> {
    let ok = fields.required("ok");
    let duration_ms = fields.required("duration_ms");
    let error_code = fields.or_with("error_code", None, error_code);
    let error_type = fields.or_default("error_type");
    let error_message = fields.or_default("error_message");
    let error_retryable = fields.or_default("error_retryable");
    let stdout = fields.or_default("stdout");
    let stderr = fields.or_default("stderr");
    let stdout_bytes = fields.or_with("stdout_bytes", None, bytes);
    let stderr_bytes = fields.or_with("stderr_bytes", None, bytes);
    Some(Finish {
        ok: ok?,
        duration_ms: duration_ms?,
        error_code: error_code?,
        error_type: error_type?,
        error_message: error_message?,
        error_retryable: error_retryable?,
        stdout: stdout?,
        stderr: stderr?,
        stdout_bytes: stdout_bytes?,
        stderr_bytes: stderr_bytes?,
    })
}

fn object(input: Input<'_>) -> Checked<Map<String, Value>> {
    match input.value() {
        Value::Object(object) => Ok(object.clone()),
        _ => Err(input.field_error("dict_type", "Input should be a valid dictionary")),
    }
}

fn error_code(input: Input<'_>) -> Checked<Option<&'static str>> {
    match input.value() {
        Value::Null => Ok(None),
        _ => input.one_of(&CODES.map(|code| (code, code))).map(Some),
    }
}

fn bytes(input: Input<'_>) -> Checked<Option<Vec<u8>>> {
    match input.value() {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone().into_bytes())),
        _ => Err(input.field_error("bytes_type", "Input should be a valid bytes")),
    }
}

impl FromInput for Uuid {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        match input.value() {
            Value::String(text) => Self::try_parse(text).map_err(|error| {
                let message = format!("Input should be a valid UUID, {error}");
                input.field_error("uuid_parsing", message)
            }),
            _ => {
                let message = "UUID input should be a string, bytes or UUID object";
                Err(input.field_error("uuid_type", message))
            }
        }
    }
}
