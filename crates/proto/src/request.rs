//! What a host can ask a guest for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::GuestPath;
use crate::accounts::Accounts;
use crate::boot::UserAndGroup;
use crate::files::{FileRequest, FileTime};
use crate::tree::{Restore, Scan};

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
    /// Does something with files.
    Files(FileRequest),
    /// Looks through a tree, to save it.
    Scan(Scan),
    /// Puts a tree in the place of another.
    Restore(Restore),
    /// Answers at once; shows that the guest is alive.
    Ping,
    /// Makes users and groups.
    Accounts(Accounts),
    /// Keeps every process of the session from running for as long as the call lasts, or ends them all; no
    /// command starts meanwhile. The guest answers with a [`Frozen`], and the host ends the call.
    Freeze {
        /// Whether they are ended.
        end: bool,
    },
    /// Says what the session and each process of a record used, each as an item: a [`UsageRecord`](crate::UsageRecord).
    Usage,
    /// Lets the session live on without whoever made it, for as long as [its lease](crate::pod::PodLease) says.
    LetGo,
    /// Says who has the terminal of a process: the guest answers with a [`TerminalState`].
    Terminal {
        /// Its record.
        process: u64,
    },
    /// Changes the lease of a session that ends by its guest's own clock. The guest answers with an item: what the lease
    /// is then, a [`LeaseState`](crate::warden::LeaseState).
    Lease(crate::warden::LeaseUpdate),
    /// Connects to a port of the session's loopback. Once it is accepted, input is what is said to the port, and standard
    /// output is what it says: an empty frame of it is its last. The call ends when both have said everything.
    Connect {
        /// The port.
        port: u16,
    },
    /// Asks whether anything can have changed the tree that was last [known](crate::tree::ScanMessage::Token): the
    /// guest answers with a [`TreeToken`].
    TreeToken,
}

/// What the last tree that was looked through is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeToken {
    /// By chance, and another one for each tree. None if something may have changed the tree since, or began to
    /// while it was looked through, or if nobody can tell.
    pub token: Option<[u8; 16]>,
}

/// Who has the terminal of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalState {
    /// Whether the process itself is in the foreground, and nothing that it started.
    pub is_own: bool,
    /// Whether the terminal reads a line and shows nothing of it, as for a password.
    pub is_hidden: bool,
}

/// Nothing of the session runs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// How many processes were stopped, or ended.
    pub processes: u32,
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
    /// On whose behalf: a name or a number; the session's default user if none.
    pub user: Option<String>,
    /// Where its input comes from.
    pub stdin: Stdin,
    /// After this long, everything descended from the command is ended.
    pub timeout: Option<Duration>,
    /// The terminal it runs on, if it runs on one.
    pub terminal: Option<TerminalSize>,
    /// When the call is accepted, and whether it ends with that.
    pub answer: AcceptWhen,
}

/// When a call that runs a command is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcceptWhen {
    /// As soon as the command has its orders: somebody waits for that.
    AtOnce,
    /// As soon as the command has its orders. It lives on by itself, and the call ends.
    Detached,
    /// With the command's first output or its end: nobody is woken for less.
    Together,
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
/// After the guest accepted, the host sends an `Item` frame with a [`PutItem`] for each entry; for a
/// file its content follows in `Input` frames and one `InputEnd`. An `InputEnd` where an item is due
/// ends the tree. The guest tells in `Item` frames with a [`PutMessage`] how it gets on, and what was in
/// the way before it fails because of that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// On whose behalf: a name or a number; the session's default user if none.
    pub user: Option<String>,
    /// The folder everything lies beneath; made if it is missing.
    pub base: GuestPath,
    /// What becomes of what is there already.
    pub existing: OnConflict,
    /// Whether links below the base are followed on the way to an entry; if not, one that is met
    /// is an obstacle.
    pub through_links: bool,
}

/// What becomes of something that is where an entry goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnConflict {
    /// A file or link is replaced, and so is what is in the place of a folder. A folder where
    /// something else goes is an obstacle.
    Replaced,
    /// A file is replaced by one with its permissions. Anything of another kind is an obstacle.
    Overwritten,
}

/// The next piece of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PutItem {
    /// Something to make.
    Entry(Entry),
    /// In the middle of a file: its content cannot be had. The file is not made, and the tree ends.
    Abort,
}

/// One thing of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where, relative to the base, normalized; empty names the base itself.
    pub path: ByteBuf,
    /// What.
    pub kind: EntryKind,
    /// Its permission bits; those of the file it replaces or the usual ones if none.
    pub mode: Option<u32>,
    /// Its owner, as numbers of the sandbox; whoever makes it if none.
    pub owner: Option<UserAndGroup>,
    /// When it was last changed; now if none.
    pub modified: Option<FileTime>,
}

impl Entry {
    /// An entry with nothing special about it.
    pub fn new(path: impl Into<Vec<u8>>, kind: EntryKind) -> Self {
        Self { path: ByteBuf::from(path.into()), kind, mode: None, owner: None, modified: None }
    }
}

/// What an [`Entry`] is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EntryKind {
    /// A folder; one that exists keeps its content.
    Dir,
    /// A regular file; its content follows.
    File,
    /// A symbolic link.
    Symlink {
        /// What it says; kept as it is, never followed.
        target: ByteBuf,
    },
    /// Another name of a file that is there already.
    Hardlink {
        /// The file, relative to the base.
        to: ByteBuf,
    },
}

/// What a guest says while a tree is laid out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PutMessage {
    /// So many entries are made.
    Progress {
        /// How many.
        made: u64,
    },
    /// Something is in the way; the call fails.
    Obstacle(PutObstacle),
}

/// What was in the way of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutObstacle {
    /// Which entry, counted from 0.
    pub entry: u64,
    /// What.
    pub what: PutObstacleKind,
}

/// What can be in the way of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PutObstacleKind {
    /// A link, on the way or in the place itself.
    Link {
        /// Where it is, relative to the base.
        at: ByteBuf,
        /// Whether it leads out of the base.
        leaves: bool,
    },
    /// A folder, in the place of something else.
    Folder,
    /// Whatever kept a parent from being made.
    Parents {
        /// The system's error number.
        errno: i32,
    },
    /// Whatever kept the entry itself from being made.
    Place {
        /// The system's error number.
        errno: i32,
    },
}
