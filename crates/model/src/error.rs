//! The one error type of Bastide.
//!
//! An [`Error`] answers four questions at once: what kind of failure it is ([`ErrorKind`], for
//! programs that only branch), which of the reference's classes it stands for (`class`, `code`,
//! `op`, `context`, `retryable`, for programs written against the reference), what happened
//! (`message`, for people), and what to do next (`hint`).

mod class;
mod condition;
pub mod raise;
mod redact;

use std::error::Error as StdError;
use std::fmt;

use serde_json::{Map, Value};

use crate::lax::PathSegment;

pub use class::{CLASSES, CODES, ErrorClass, ErrorClassRow, OPS, class_name, code_named, op_named};
pub use condition::Condition;

/// The result of everything in Bastide that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure an [`Error`] is; few, so that a caller can branch on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller asked for something that can never work: bad input, a bad option, a bad path.
    InvalidInput,
    /// A thing named by the caller does not exist.
    NotFound,
    /// A thing that should not exist yet does.
    Conflict,
    /// Refused by permissions, a policy or a wall.
    PermissionDenied,
    /// This machine, backend or rung cannot do it.
    Unsupported,
    /// A deadline passed.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// A limit was reached: size, count, memory, disk.
    LimitExceeded,
    /// A command ran and failed.
    CommandFailed,
    /// The guest stopped answering or went away.
    AgentLost,
    /// The backend stopped answering, or the machine under the session is gone.
    BackendLost,
    /// The operating system, the network or a peer failed.
    Io,
    /// A promise of our own was broken.
    Internal,
}

impl ErrorKind {
    /// The word programs see, such as `invalid_input`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::PermissionDenied => "permission_denied",
            Self::Unsupported => "unsupported",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::LimitExceeded => "limit_exceeded",
            Self::CommandFailed => "command_failed",
            Self::AgentLost => "agent_lost",
            Self::BackendLost => "backend_lost",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }
}

/// One field of an input that does not validate: where, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// The reference's word for the place: keys and indices from the top of the input to the field,
    /// with the tags of unions and without the keys of some maps.
    pub loc: Vec<Value>,
    /// The place itself: every key and index from the top of the input to the field.
    pub path: Vec<PathSegment>,
    /// A machine-readable tag such as `missing` or `int_parsing`.
    pub tag: String,
    /// What is wrong, for people.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.loc.iter().enumerate() {
            let dot = if index == 0 { "" } else { "." };
            match step {
                Value::String(key) => write!(f, "{dot}{key}")?,
                other => write!(f, "{dot}{other}")?,
            }
        }
        write!(f, ": {}", self.message)
    }
}

/// A failure, with everything needed to act on it.
///
/// ```
/// use bastide_model::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::NotFound, "image `debian:nine` does not exist")
///     .with_context("image", "debian:nine")
///     .with_hint("list the images of this machine with `docker images`");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "image `debian:nine` does not exist");
/// assert_eq!(error.context()["image"], "debian:nine");
/// ```
pub struct Error {
    // Boxed so that `Result<T>` stays small on the paths where nothing fails.
    data: Box<Data>,
}

struct Data {
    kind: ErrorKind,
    class: Option<ErrorClass>,
    code: Option<&'static str>,
    op: Option<&'static str>,
    message: String,
    context: Map<String, Value>,
    retryable: Option<bool>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    detail: Detail,
    condition: Option<Condition>,
    message_is_safe: bool,
    protected: bool,
    redacted: bool,
}

/// The typed fields some classes have beside their context, whose values a raiser may override.
#[derive(Default)]
struct Detail {
    command: Option<Vec<String>>,
    exit_code: Option<i64>,
    stdout: Option<Vec<u8>>,
    stderr: Option<Vec<u8>>,
    timeout_s: Option<f64>,
    session_id: Option<i64>,
    errno: Option<i32>,
    status: Option<u16>,
    fields: Vec<FieldError>,
}

impl Error {
    /// Makes an error that has no counterpart in the reference.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            data: Box::new(Data {
                kind,
                class: None,
                code: None,
                op: None,
                message: message.into(),
                context: Map::new(),
                retryable: None,
                hint: None,
                source: None,
                detail: Detail::default(),
                condition: None,
                message_is_safe: false,
                protected: false,
                redacted: false,
            }),
        }
    }

    /// Names the reference's exception class this error stands for.
    #[must_use]
    pub fn with_class(mut self, class: ErrorClass) -> Self {
        self.data.class = Some(class);
        self
    }

    /// Sets the reference's `error_code`.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.data.code = Some(code);
        self
    }

    /// Names the operation that failed, in the reference's words.
    #[must_use]
    pub fn with_op(mut self, op: &'static str) -> Self {
        self.data.op = Some(op);
        self
    }

    /// Adds a key to the context; a key that is there already is replaced.
    #[must_use]
    pub fn with_context(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.context.insert(key.to_owned(), value.into());
        self
    }

    /// Merges `extra` into the context; its keys win.
    #[must_use]
    pub fn with_contexts(mut self, extra: Map<String, Value>) -> Self {
        self.data.context.extend(extra);
        self
    }

    /// Says whether trying again may help.
    #[must_use]
    pub fn with_retryable(mut self, retryable: impl Into<Option<bool>>) -> Self {
        self.data.retryable = retryable.into();
        self
    }

    /// Says what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.data.hint = Some(hint.into());
        self
    }

    /// Keeps the failure this one came from. Retryability that is not known yet is taken from it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = source.into();
        if self.data.retryable.is_none() {
            self.data.retryable = source.downcast_ref::<Self>().and_then(Self::is_retryable);
        }
        self.data.source = Some(source);
        self
    }

    /// What kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.data.kind
    }

    /// The reference's exception class, such as [`ExecTimeoutError`](ErrorClass::ExecTimeoutError).
    #[must_use]
    pub fn class(&self) -> Option<ErrorClass> {
        self.data.class
    }

    /// The code programs see: the reference's `error_code` where there is one, else the kind.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.data.code.unwrap_or_else(|| self.data.kind.as_str())
    }

    /// The reference's `error_code`, where this error has one.
    #[must_use]
    pub fn error_code(&self) -> Option<&'static str> {
        self.data.code
    }

    /// The operation that failed.
    #[must_use]
    pub fn op(&self) -> Option<&'static str> {
        self.data.op
    }

    /// What happened, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.data.message
    }

    /// Details for programs, in the order they were added.
    #[must_use]
    pub fn context(&self) -> &Map<String, Value> {
        &self.data.context
    }

    /// Whether trying again may help; `None` is "not known".
    #[must_use]
    pub fn is_retryable(&self) -> Option<bool> {
        self.data.retryable
    }

    /// The command that could not be run or failed, for errors about commands.
    #[must_use]
    pub fn command(&self) -> Option<&[String]> {
        self.data.detail.command.as_deref()
    }

    /// The exit code of the command that failed.
    #[must_use]
    pub fn exit_code(&self) -> Option<i64> {
        self.data.detail.exit_code
    }

    /// What the command that failed wrote to its standard output.
    #[must_use]
    pub fn stdout(&self) -> Option<&[u8]> {
        self.data.detail.stdout.as_deref()
    }

    /// What the command that failed wrote to its standard error.
    #[must_use]
    pub fn stderr(&self) -> Option<&[u8]> {
        self.data.detail.stderr.as_deref()
    }

    /// How long the command was given, in seconds.
    #[must_use]
    pub fn timeout_s(&self) -> Option<f64> {
        self.data.detail.timeout_s
    }

    /// The id of the interactive process that was not found.
    #[must_use]
    pub fn session_id(&self) -> Option<i64> {
        self.data.detail.session_id
    }

    /// What the reader can do about it, where somebody knew.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.data.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.data.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.data.kind)
            .field("class", &self.data.class)
            .field("code", &self.data.code)
            .field("message", &self.data.message)
            .field("context", &self.data.context)
            .field("source", &self.data.source)
            .finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.data.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherits_retryability_only_where_it_is_unknown() {
        let cause = || Error::new(ErrorKind::Io, "socket closed").with_retryable(true);
        let unknown = Error::new(ErrorKind::Io, "save failed").with_source(cause());
        let known =
            Error::new(ErrorKind::Io, "save failed").with_retryable(false).with_source(cause());
        assert_eq!((unknown.is_retryable(), known.is_retryable()), (Some(true), Some(false)));
    }
}
