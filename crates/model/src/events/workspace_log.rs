//! A log of events in the workspace itself.

use uuid::Uuid;

use super::event::Event;
use crate::PosixPath;
use crate::error::Result;
use crate::error::raise;
use crate::manifest::rel_path;

/// Where and how to keep a log in the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceLogOptions {
    /// The file; `{session_id}` and `{session_id_hex}` stand for the session.
    pub workspace_relpath: String,
    /// Whether the file stays out of snapshots.
    pub ephemeral: bool,
    /// After how many events to write; at least one.
    pub flush_every: i64,
    /// How large the file may grow.
    pub max_bytes: Option<i64>,
}

impl Default for WorkspaceLogOptions {
    fn default() -> Self {
        Self {
            workspace_relpath: "logs/events-{session_id}.jsonl".to_owned(),
            ephemeral: false,
            flush_every: 1,
            max_bytes: None,
        }
    }
}

/// The log of one session. It holds what is to be written; whoever owns it reads and writes the
/// file.
///
/// For every event, call [`record`](Self::record). If it asks for a write and the session runs,
/// read what the file holds, write what [`content`](Self::content) makes of it, and say so with
/// [`written`](Self::written).
///
/// What can write to the workspace can change this log; it is no evidence.
#[derive(Debug)]
pub struct WorkspaceLog {
    path: PosixPath,
    ephemeral: bool,
    flush_every: i64,
    max_bytes: Option<usize>,
    pending: Vec<u8>,
    seen: i64,
    stopped: bool,
}

impl WorkspaceLog {
    /// A log for the session.
    ///
    /// # Errors
    /// `ValueError` if it may hold nothing; `InvalidManifestPathError` if it is to be kept out of
    /// snapshots and is not in the workspace.
    pub fn new(options: &WorkspaceLogOptions, session_id: Uuid) -> Result<Self> {
        let max_bytes = match options.max_bytes {
            Some(limit) if limit <= 0 => {
                return Err(raise::value_error("max_bytes must be positive"));
            }
            limit => limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        };
        let template = options.workspace_relpath.as_str();
        let rendered = expand(template, session_id).unwrap_or_else(|| template.to_owned());
        let path = PosixPath::new(&rendered);
        if options.ephemeral {
            rel_path(path.as_str())?;
            if path.is_empty() {
                return Err(raise::value_error(
                    "Persist workspace skip paths must target a concrete relative path.",
                ));
            }
        }
        Ok(Self {
            path,
            ephemeral: options.ephemeral,
            flush_every: options.flush_every.max(1),
            max_bytes,
            pending: Vec::new(),
            seen: 0,
            stopped: false,
        })
    }

    /// The file, from the workspace's folder.
    #[must_use]
    pub fn path(&self) -> &PosixPath {
        &self.path
    }

    /// The file, if it stays out of snapshots.
    #[must_use]
    pub fn skip_path(&self) -> Option<&PosixPath> {
        self.ephemeral.then_some(&self.path)
    }

    /// Takes an event, and says whether it is time to write. A log that was stopped takes none.
    ///
    /// # Errors
    /// `RuntimeError` if the log has grown too large; it stops for good.
    pub fn record(&mut self, event: &Event) -> Result<bool> {
        if self.stopped {
            return Ok(false);
        }
        let line = event.json_line();
        self.check(self.pending.len() + line.len())?;
        self.pending.extend_from_slice(line.as_bytes());
        self.seen += 1;
        // Before the workspace is saved, and before nothing can be written any more.
        let is_last_chance = match (event.op, event.phase()) {
            ("persist_workspace" | "shutdown", phase) => phase == "start",
            (op, _) => op == "stop",
        };
        Ok(is_last_chance || self.seen % self.flush_every == 0)
    }

    /// How much of the file to read: a little more than it may hold, to see that it is too much.
    #[must_use]
    pub fn read_limit(&self) -> Option<usize> {
        self.max_bytes.map(|limit| limit.saturating_add(1))
    }

    /// What the file is to hold, where it holds `existing` now; `None` if there is nothing to add.
    ///
    /// # Errors
    /// `RuntimeError` if that is too large; the log stops for good.
    pub fn content(&mut self, existing: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        self.check(existing.len() + self.pending.len())?;
        Ok(Some([existing, &self.pending].concat()))
    }

    /// Notes that the file holds what [`content`](Self::content) gave.
    pub fn written(&mut self) {
        self.pending.clear();
    }

    fn check(&mut self, length: usize) -> Result<()> {
        match self.max_bytes {
            Some(limit) if length > limit => {
                self.stopped = true;
                self.pending = Vec::new();
                Err(raise::runtime_error(format!(
                    "WorkspaceJsonlSink exceeded max_bytes={limit}; delivery stopped. \
                     Use a new outbox and sink, or JsonlOutboxSink/HttpProxySink."
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The template with the session put in; `None` if it cannot be read as one.
fn expand(template: &str, session_id: Uuid) -> Option<String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_str(&rest[..1]);
            rest = &rest[2..];
            continue;
        }
        let (field, tail) = rest.strip_prefix('{')?.split_once('}')?;
        let (name, precision) = match field.split_once(":.") {
            Some((name, precision)) => (name, Some(precision.parse::<usize>().ok()?)),
            None => (field, None),
        };
        let value = match name {
            "session_id" if precision.is_none() => session_id.to_string(),
            "session_id!s" => session_id.to_string(),
            "session_id_hex" | "session_id_hex!s" | "session_id.hex" => {
                session_id.simple().to_string()
            }
            _ => return None,
        };
        out.push_str(&value[..precision.unwrap_or(value.len()).min(value.len())]);
        rest = tail;
    }
    out.push_str(rest);
    Some(out)
}
