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
