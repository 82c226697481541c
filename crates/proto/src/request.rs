//! What a host can ask a guest for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::GuestPath;

/// The first message of every call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Runs a command.
    Exec(Exec),
    /// Reads what a process said, from an offset on, and what it says from now on.
    Attach(Attach),
    /// Sends a signal to a process.
    Signal(Signal),
    /// Ends a process and everything descended from it, because nobody wants it any more.
    Cancel {
        /// Its record.
        process: u64,
    },
    /// Lets a process live on when the call that started it is dropped.
    Detach {
        /// Its record.
        process: u64,
    },
    /// Lists every process there is a record of, each as an item.
    Processes,
    /// Lays out files and folders, sent as items after the request.
    Put(Put),
    /// Answers at once; shows that the guest is alive.
    Ping,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The program and its arguments; never empty.
    pub argv: Vec<ByteBuf>,
    /// The whole environment of the command.
    pub env: Vec<(ByteBuf, ByteBuf)>,
    /// Where it starts.
    pub cwd: GuestPath,
    /// Where its input comes from.
    pub stdin: Stdin,
    /// After this long, everything descended from the command is ended.
    pub timeout: Option<Duration>,
    /// The terminal it runs on, if it runs on one.
    pub terminal: Option<TerminalSize>,
    /// Whether it lives on when this call is dropped. The call then ends as soon as it is accepted.
    pub detached: bool,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// How many lines.
    pub rows: u16,
    /// How many columns.
    pub columns: u16,
}

/// A process to listen to. Dropping the call leaves the process alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Its record.
    pub process: u64,
    /// How many bytes of its output the host has already; both streams count together.
    pub from: u64,
    /// Whether the call ends with what has been said so far.
    pub only_so_far: bool,
}

/// A signal for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    /// Its record.
    pub process: u64,
    /// Which signal. `SIGKILL` goes to everything descended from the command, any other to its
    /// process group.
    pub signal: i32,
}

/// What a host wants of a process in the middle of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Control {
    /// The terminal has another size now.
    Resize(TerminalSize),
}

/// Where the input of a command comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// From nowhere: it reads the end of the file.
    Null,
    /// From the input frames of the call.
    Stream,
}

/// A tree to lay out beneath one folder.
///
/// After the guest accepted, the host sends, for each entry, an `Item` frame with an [`Entry`]; for
/// a file its content follows in `Input` frames and one `InputEnd`. An `InputEnd` where an item is
/// due ends the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The folder everything lies beneath; made if it is missing.
    pub base: GuestPath,
}

/// One file or folder of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where, relative to the base, normalized; empty names the base itself.
    pub path: String,
    /// What.
    pub kind: EntryKind,
    /// Its permission bits.
    pub mode: u32,
}

/// What an [`Entry`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EntryKind {
    /// A folder; one that exists keeps its content.
    Dir,
    /// A regular file; one that exists is replaced.
    File,
}
