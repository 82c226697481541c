//! The two events of an operation.

use std::net::IpAddr;

use serde_json::{Map, Number, Value, json};
use uuid::Uuid;

use super::event::{Event, Finish};
use super::time::EventTime;
use crate::error::{Error, ErrorClass};

/// An operation of a session, with what is said about it when it starts.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the fields are named as in the events")]
pub enum Operation {
    /// Starting the session.
    Start,
    /// Stopping it.
    Stop,
    /// Ending it.
    Shutdown,
    /// Running a command, as the caller gave it.
    Exec { command: Vec<String>, timeout_s: Option<Number>, shell: Value, user: Option<String> },
    /// Reading a file, or no more than so much of it.
    Read { path: String, user: Option<String>, max_bytes: Option<u64> },
    /// Writing a file, and how much if that is known.
    Write { path: String, user: Option<String>, bytes: Option<u64> },
    /// Asking whether the session runs.
    Running,
    /// Asking where a port can be reached.
    ResolveExposedPort { port: i64 },
    /// Saving the workspace.
    PersistWorkspace { workspace_root: String, tar_path: Option<String> },
    /// Filling the workspace.
    HydrateWorkspace { untar_dir: String, bytes: Option<u64> },
    /// One the reference says nothing about; only those who ask for it hear of it.
    Extension { op: &'static str, data: Map<String, Value> },
}

/// What came of an operation that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are named as in the events")]
pub enum OperationResult {
    /// Nothing to say.
    Done,
    /// A command ended.
    Exec { exit_code: i64, stdout: Vec<u8>, stderr: Vec<u8> },
    /// Whether the session runs.
    Running { alive: bool },
    /// Where a port can be reached.
    Port { host: String, port: i64 },
    /// How large the saved workspace is, if that is known.
    Persisted { bytes: Option<u64> },
    /// What there is to say besides, after one of the further operations.
    Extension { data: Map<String, Value> },
}

/// What ties the events of one operation together, and to a trace if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The operation.
    pub span_id: String,
    /// What surrounds it.
    pub parent_span_id: Option<String>,
    /// The trace.
    pub trace_id: Option<String>,
}

impl Span {
    /// A span without a trace, named by `id`.
    #[must_use]
    pub fn untraced(id: Uuid) -> Self {
        Self {
            span_id: format!("sandbox_op_{}", id.simple()),
            parent_span_id: None,
            trace_id: None,
        }
    }
}

fn with_length(mut data: Map<String, Value>, key: &str, length: Option<u64>) -> Map<String, Value> {
    if let Some(length) = length {
        data.insert(key.to_owned(), length.into());
    }
    data
}

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

impl Operation {
    /// Its word in events.
    #[must_use]
    pub fn op(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Shutdown => "shutdown",
            Self::Exec { .. } => "exec",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Running => "running",
            Self::ResolveExposedPort { .. } => "resolve_exposed_port",
            Self::PersistWorkspace { .. } => "persist_workspace",
            Self::HydrateWorkspace { .. } => "hydrate_workspace",
            Self::Extension { op, .. } => op,
        }
    }

    /// Whether the reference says nothing about it.
    #[must_use]
    pub fn is_extension(&self) -> bool {
        matches!(self, Self::Extension { .. })
    }

    /// What is said when it starts.
    #[must_use]
    pub fn start_data(&self) -> Map<String, Value> {
        match self {
            Self::Start | Self::Stop | Self::Shutdown | Self::Running => Map::new(),
            Self::Exec { command, timeout_s, shell, user } => map(json!({
                "command": command,
                "timeout_s": timeout_s,
                "shell": shell,
                "user": user,
            })),
            Self::Read { path, user, max_bytes } => {
                let data = map(json!({"path": path, "user": user}));
                with_length(data, "max_bytes", *max_bytes)
            }
            Self::Write { path, user, bytes } => {
                with_length(map(json!({"path": path, "user": user})), "bytes", *bytes)
            }
            Self::ResolveExposedPort { port } => map(json!({"port": port})),
            Self::PersistWorkspace { workspace_root, tar_path } => {
                let mut data = map(json!({"workspace_root": workspace_root}));
                if let Some(path) = tar_path {
                    data.insert("tar_path".to_owned(), path.as_str().into());
                }
                data
            }
            Self::HydrateWorkspace { untar_dir, bytes } => {
                with_length(map(json!({"untar_dir": untar_dir})), "bytes", *bytes)
            }
            Self::Extension { data, .. } => data.clone(),
        }
    }

    /// What is said when it has succeeded.
    #[must_use]
    pub fn finish_data(&self, result: &OperationResult) -> Map<String, Value> {
        match result {
            OperationResult::Done => self.start_data(),
            OperationResult::Exec { exit_code, .. } => {
                let mut data = self.start_data();
                data.insert("exit_code".to_owned(), (*exit_code).into());
                data.insert("process.exit.code".to_owned(), (*exit_code).into());
                data
            }
            OperationResult::Running { alive } => map(json!({"alive": alive})),
            OperationResult::Port { host, port } => {
                let mut data = map(json!({"server.port": port}));
                // Addresses of other machines are nobody's business.
                if is_this_machine(host) {
                    data.insert("server.address".to_owned(), host.as_str().into());
                }
                data
            }
            OperationResult::Persisted { bytes } => with_length(self.start_data(), "bytes", *bytes),
            OperationResult::Extension { data } => {
                let mut all = self.start_data();
                all.extend(data.clone());
                all
            }
        }
    }

    /// The event that it starts. `seq` is its place among the events of the session.
    #[must_use]
    pub fn start_event(
        &self,
        session_id: Uuid,
        seq: u64,
        span: &Span,
        (event_id, ts): (Uuid, EventTime),
    ) -> Event {
        Event {
            version: 1,
            event_id,
            ts,
            session_id,
            seq: seq.into(),
            op: self.op(),
            span_id: span.span_id.clone(),
            parent_span_id: span.parent_span_id.clone(),
            trace_id: span.trace_id.clone(),
            data: self.start_data(),
            finish: None,
        }
    }

    /// The event that it has ended, well or not.
    #[must_use]
    pub fn finish_event(
        &self,
        session_id: Uuid,
        seq: u64,
        span: &Span,
        stamp: (Uuid, EventTime),
        duration_ms: f64,
        result: Result<OperationResult, &Error>,
    ) -> Event {
        let mut event = self.start_event(session_id, seq, span, stamp);
        let mut finish = Finish { ok: true, duration_ms, ..Finish::default() };
        match result {
            Ok(result) => {
                event.data = self.finish_data(&result);
                if let OperationResult::Exec { exit_code, stdout, stderr } = result {
                    finish.ok = exit_code == 0;
                    finish.stdout_bytes = Some(stdout);
                    finish.stderr_bytes = Some(stderr);
                }
            }
            Err(error) => {
                finish.ok = false;
                finish.error_type =
                    Some(error.class().map_or_else(|| error.code(), ErrorClass::name).to_owned());
                finish.error_message = Some(error.message().to_owned());
                finish.error_code = error.error_code();
                finish.error_retryable = error.error_code().and_then(|_| error.is_retryable());
            }
        }
        event.finish = Some(finish);
        event
    }
}

fn is_this_machine(host: &str) -> bool {
    let host = host.trim().to_lowercase();
    host == "localhost"
        || host.parse::<IpAddr>().is_ok_and(|address| match address {
            IpAddr::V4(address) => address.is_loopback(),
            IpAddr::V6(address) => address.is_loopback(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_of_each_operation_what_the_reference_says() {
        let text = |text: &str| text.to_owned();
        let cases = [
            (Operation::Start, OperationResult::Done, json!({}), json!({})),
            (
                Operation::Exec {
                    command: vec![text("ls")],
                    timeout_s: None,
                    shell: json!(true),
                    user: None,
                },
                OperationResult::Exec { exit_code: 3, stdout: Vec::new(), stderr: Vec::new() },
                json!({"command": ["ls"], "timeout_s": null, "shell": true, "user": null}),
                json!({"command": ["ls"], "timeout_s": null, "shell": true, "user": null,
                       "exit_code": 3, "process.exit.code": 3}),
            ),
            (
                Operation::Read { path: text("a"), user: None, max_bytes: Some(2) },
                OperationResult::Done,
                json!({"path": "a", "user": null, "max_bytes": 2}),
                json!({"path": "a", "user": null, "max_bytes": 2}),
            ),
            (
                Operation::ResolveExposedPort { port: 80 },
                OperationResult::Port { host: text("10.0.0.1"), port: 1 },
                json!({"port": 80}),
                json!({"server.port": 1}),
            ),
            (
                Operation::PersistWorkspace { workspace_root: text("/w"), tar_path: None },
                OperationResult::Persisted { bytes: Some(13) },
                json!({"workspace_root": "/w"}),
                json!({"workspace_root": "/w", "bytes": 13}),
            ),
        ];
        for (operation, result, start, finish) in cases {
            assert_eq!(Value::Object(operation.start_data()), start);
            assert_eq!(Value::Object(operation.finish_data(&result)), finish);
        }
    }

    #[test]
    fn names_only_addresses_of_this_machine() {
        for host in ["localhost", " LOCALHOST ", "127.0.0.1", "127.9.9.9", "::1"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["example.com", "10.0.0.1", "::2", "0.0.0.0", ""] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
