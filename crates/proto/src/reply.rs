//! How a guest answers, and how a call ends.

use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// The guest does what was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The number of the process record, where the call concerns one.
    pub process: Option<u64>,
    /// The offset of the first output that follows. It is more than was asked for where a bounded log
    /// no longer holds what lies before.
    pub from: u64,
}

/// How a call that was accepted ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum End {
    /// It is done; calls that run no command end like this.
    Done,
    /// It failed on the way.
    Failed(Fault),
    /// The command ended by itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// A signal ended the command.
    Signalled {
        /// Which.
        signal: i32,
    },
    /// It, or something it started, was killed because the session's memory was used up.
    OutOfMemory {
        /// What the shell would call its exit code.
        code: i32,
    },
    /// The deadline ended the command and everything descended from it.
    Timeout,
    /// The host gave up, and everything descended from the command was ended.
    Cancelled,
    /// The program could not be executed at all.
    NotStarted(Fault),
    /// The process goes on; the call has said all it had to.
    Detached,
}

/// Something to know about a process before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ProcessNotice {
    /// So many bytes of output were said after the log was full, and are lost.
    Lost(u64),
    /// What it used, all that descended from it and has ended included.
    Usage(Usage),
}

/// One process there is a record of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// The number of the record.
    pub process: u64,
    /// The command's process id inside.
    pub pid: i32,
    /// The program and its arguments, cut to a bounded length.
    pub argv: Vec<String>,
    /// When it was started, in milliseconds since the epoch.
    pub started_ms: u64,
    /// How it ended, if it has.
    pub end: Option<End>,
    /// How many bytes of output it has produced; both streams count together.
    pub output: u64,
    /// Whether it runs on a terminal.
    pub terminal: bool,
    /// What else descended from it is alive.
    pub children: Vec<ChildRecord>,
}

/// Something alive that descended from a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRecord {
    /// Its process id inside.
    pub pid: i32,
    /// Its command line, cut to a bounded length.
    pub command: String,
}

/// Why the guest did not do something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of failure.
    pub kind: FaultKind,
    /// What happened, naming the thing.
    pub message: String,
    /// The system's error number, where a system call failed.
    pub errno: Option<i32>,
    /// The path it is about, links followed as far as they lead, where there is one.
    pub path: Option<String>,
}

impl Fault {
    /// Makes a fault that no system call caused.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), errno: None, path: None }
    }
}

/// What kind of failure a [`Fault`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FaultKind {
    /// The request makes no sense.
    Invalid,
    /// What it names does not exist.
    NotFound,
    /// Permissions or a wall refused it.
    Denied,
    /// This sandbox cannot do it at all.
    Unsupported,
    /// A path leads out of where it must stay.
    Escape,
    /// What must not exist does.
    Exists,
    /// A path leads to where only reading is granted.
    ReadOnly,
    /// More than was asked for at most.
    TooMuch,
    /// The file system did not answer in time.
    Stuck,
    /// The operating system failed.
    Io,
    /// The guest itself failed.
    Internal,
}
