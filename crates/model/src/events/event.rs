//! The event itself, and its texts.

use serde_json::{Map, Number, Value};
use uuid::Uuid;

use super::time::EventTime;
use crate::json_text;

/// Something an operation of a session did.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The version of the form.
    pub version: i128,
    /// The event's own name.
    pub event_id: Uuid,
    /// When it was made.
    pub ts: EventTime,
    /// The session it is about.
    pub session_id: Uuid,
    /// Its place among the events of the session.
    pub seq: i128,
    /// The operation.
    pub op: &'static str,
    /// What the start and the finish of one operation share.
    pub span_id: String,
    /// What surrounds the operation in a trace.
    pub parent_span_id: Option<String>,
    /// The trace.
    pub trace_id: Option<String>,
    /// What the operation was given, and what came of it.
    pub data: Map<String, Value>,
    /// How it ended; `None` while it starts.
    pub finish: Option<Finish>,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Finish {
    /// Whether it succeeded.
    pub ok: bool,
    /// How long it took.
    pub duration_ms: f64,
    /// The code of its error.
    pub error_code: Option<&'static str>,
    /// The class of its error.
    pub error_type: Option<String>,
    /// The words of its error.
    pub error_message: Option<String>,
    /// Whether trying again may help.
    pub error_retryable: Option<bool>,
    /// What a command wrote, as far as a policy lets it be said.
    pub stdout: Option<String>,
    /// What a command wrote to standard error, as far as a policy lets it be said.
    pub stderr: Option<String>,
    /// What a command wrote; only in memory, for policies to cut from.
    pub stdout_bytes: Option<Vec<u8>>,
    /// What a command wrote to standard error; only in memory.
    pub stderr_bytes: Option<Vec<u8>>,
}

impl Event {
    /// The word for its half of the operation: `start` or `finish`.
    #[must_use]
    pub fn phase(&self) -> &'static str {
        if self.finish.is_some() { "finish" } else { "start" }
    }

    /// The event as JSON; every key is always there.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        let whole = |number: i128| number.to_string().parse().map_or(Value::Null, Value::Number);
        put("version", whole(self.version));
        put("event_id", self.event_id.to_string().into());
        put("ts", self.ts.to_string().into());
        put("session_id", self.session_id.to_string().into());
        put("seq", whole(self.seq));
        put("op", self.op.into());
        put("phase", self.phase().into());
        put("span_id", self.span_id.clone().into());
        put("parent_span_id", self.parent_span_id.clone().into());
        put("trace_id", self.trace_id.clone().into());
        put("data", Value::Object(self.data.clone()));
        if let Some(finish) = &self.finish {
            let duration = Number::from_f64(finish.duration_ms).map_or(Value::Null, Value::Number);
            put("ok", finish.ok.into());
            put("duration_ms", duration);
            put("error_code", finish.error_code.into());
            put("error_type", finish.error_type.clone().into());
            put("error_message", finish.error_message.clone().into());
            put("error_retryable", finish.error_retryable.into());
            put("stdout", finish.stdout.clone().into());
            put("stderr", finish.stderr.clone().into());
        }
        Value::Object(object)
    }

    /// The line for a log, with its line end.
    #[must_use]
    pub fn json_line(&self) -> String {
        json_text::sorted_ascii(&self.to_json()) + "\n"
    }

    /// The body to post to an HTTP sink.
    #[must_use]
    pub fn http_body(&self) -> String {
        json_text::compact(&self.to_json())
    }
}
