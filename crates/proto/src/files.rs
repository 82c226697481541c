//! Files of a session: what a host can ask for, and what it gets.
//!
//! The guest accepts every file request at once and then answers in items and data, so that a file
//! system that does not answer is told apart from a guest that does not. Every call ends with
//! [`End::Done`](crate::End::Done) or [`End::Failed`](crate::End::Failed).
//!
//! ```text
//! Read       guest: Item(Opened) · Stdout*
//! Write      guest: Item(WriteReady), only where a descriptor was asked for · host: Input* InputEnd
//! List       guest: Item(Vec<DirListing>)*
//! Stat       guest: Item(FoundFile)
//! SameFile   guest: Item(Resolved) · Item(bool)
//! Glob       guest: Item(Vec<ByteBuf>)*
//! Watch      guest: Item(Vec<Change>)*, the first one empty: from then on nothing is missed
//! Remove     guest: Item(Progress)*
//! Rename     guest: Item(Resolved) · Item(Progress)*
//! ```

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::UnresolvedPath;

/// The most bytes of entries in one item; what is left of a frame is for the largest single entry.
pub const BATCH_BYTES: usize = 40 * 1024;

/// The longest name of a user or group that is reported.
pub const MAX_ACCOUNT_NAME: usize = 256;

/// Something to do with files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    /// On whose behalf: a name or a number; the session's default user if none.
    pub user: Option<String>,
    /// What.
    pub op: FileOp,
}

/// What to do with files.
///
/// Paths lead through symbolic links as long as these stay in the workspace or a grant. The last
/// name is followed too, unless what is meant is the entry itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FileOp {
    /// Reads a regular file.
    Read(Read),
    /// Writes a regular file: it is there whole, or as before.
    Write(Write),
    /// Lists a folder.
    List {
        /// The folder.
        path: UnresolvedPath,
    },
    /// Describes a file.
    Stat {
        /// The file.
        path: UnresolvedPath,
        /// Whether a link in its place is followed.
        follow: bool,
    },
    /// Makes a folder; one that is there already is fine.
    MakeDir {
        /// The folder.
        path: UnresolvedPath,
        /// Whether missing parents are made.
        parents: bool,
    },
    /// Removes an entry; a link is removed, never what it points to.
    Remove {
        /// The entry. For a root of the session, what is in it is removed and the folder stays.
        path: UnresolvedPath,
        /// Whether folders are removed with all that is in them, and a missing entry is fine.
        recursive: bool,
    },
    /// Renames a regular file or a link, replacing what is there.
    Rename {
        /// The entry; a link is renamed itself.
        from: UnresolvedPath,
        /// Its new place; a link there is replaced itself.
        to: UnresolvedPath,
    },
    /// Tells whether two paths name the same file; a missing one is the same as nothing.
    SameFile {
        /// One.
        left: UnresolvedPath,
        /// The other.
        right: UnresolvedPath,
        /// Whether links in their places are followed; if not, a link is the same as nothing.
        follow: bool,
    },
    /// Sets permission bits.
    SetMode {
        /// The file.
        path: UnresolvedPath,
        /// Its permission bits.
        mode: u32,
    },
    /// Sets owner and group.
    SetOwner {
        /// The file.
        path: UnresolvedPath,
        /// The owner, by name or number; unchanged if none.
        owner: Option<String>,
        /// The group, by name or number; unchanged if none.
        group: Option<String>,
        /// Whether a link in its place is followed.
        follow: bool,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where.
        path: UnresolvedPath,
        /// What it says; kept as it is.
        target: ByteBuf,
    },
    /// Finds files by pattern.
    Glob(Glob),
    /// Reports changes below a folder.
    Watch {
        /// The folder, or a file.
        path: UnresolvedPath,
        /// Whether folders below it are watched too.
        recursive: bool,
    },
    /// Lets files be in what is mounted on a folder by now: storage that the host has just mounted there.
    EnterMount {
        /// The folder.
        path: UnresolvedPath,
    },
    /// Sets when something was last changed; a link in its place is not followed.
    SetTime {
        /// The file, folder or link.
        path: UnresolvedPath,
        /// When.
        modified: FileTime,
    },
}

/// A file to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// The file.
    pub path: UnresolvedPath,
    /// Where to start.
    pub offset: u64,
    /// How many bytes at most.
    pub max: Option<u64>,
    /// Whether its descriptor is wanted instead of its content.
    pub pass: Option<PassFd>,
}

/// A descriptor that is wanted over the side channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassFd {
    /// What comes with the descriptor, so that the host knows the call it is for.
    pub ticket: u64,
    /// Only where at least so many bytes are at stake.
    pub at_least: u64,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The file.
    pub path: UnresolvedPath,
    /// Its permission bits. If none, those of the file it replaces, or else the usual ones.
    pub mode: Option<u32>,
    /// Whether a file that is there already is an error. A link there then is one, too.
    pub new: bool,
    /// How long the content is, where the host knows; anything else is then an error.
    pub size: Option<u64>,
    /// Whether a descriptor to write to is wanted, with this ticket.
    pub pass: Option<u64>,
}

/// Files to find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glob {
    /// The folder the pattern starts at.
    pub base: UnresolvedPath,
    /// Names joined by `/`: `*`, `?` and `[...]` match within a name, `**` any number of names.
    pub pattern: String,
    /// How many matches at most; one more is a failure.
    pub max: u64,
}

/// What was opened for reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Its size when it was opened.
    pub size: u64,
    /// Whether its descriptor was passed; the content does not follow then.
    pub passed: bool,
}

/// A file is ready to be written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReady {
    /// Whether its descriptor was passed; if not, the content is expected in the call.
    pub passed: bool,
}

/// Where two paths lead, links followed; not there for one that leads where it must not, which the
/// call then fails with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// The first.
    pub first: Option<ByteBuf>,
    /// The second.
    pub second: Option<ByteBuf>,
}

/// The work goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How much has been done: entries removed, or bytes copied.
    pub done: u64,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EntryType {
    /// A folder.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
}

/// A moment, counted from 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileTime {
    /// Whole seconds.
    pub seconds: i64,
    /// The rest, below a second.
    pub nanos: u32,
}

/// What is known about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// What it is.
    pub kind: EntryType,
    /// Its permission bits, with the three above them.
    pub mode: u32,
    /// Its owner's number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
    /// Its owner's name in the sandbox's own accounts.
    pub owner: Option<String>,
    /// Its group's name in the sandbox's own accounts.
    pub group: Option<String>,
    /// Its size in bytes; for a link, the length of its text.
    pub size: u64,
    /// When its content last changed.
    pub modified: FileTime,
    /// How many names it has.
    pub links: u64,
    /// What the link says, for a link.
    pub target: Option<ByteBuf>,
}

/// A file, and where it really is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundFile {
    /// Its path, links followed.
    pub path: ByteBuf,
    /// What it is.
    pub stat: FileStat,
}

/// Some entries of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirListing {
    /// The folder, links followed.
    pub folder: ByteBuf,
    /// The entries: name and description.
    pub entries: Vec<(ByteBuf, FileStat)>,
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Change {
    /// It is new here.
    Created(ChangedPath),
    /// Its content changed, or it was opened for writing and closed again.
    Modified(ChangedPath),
    /// Its permissions, owner or times changed.
    Attributes(ChangedPath),
    /// It is gone from here.
    Removed(ChangedPath),
    /// It has another name.
    Renamed {
        /// What it was called.
        from: ByteBuf,
        /// What it is called now.
        to: ChangedPath,
    },
    /// More changed than could be kept; what was not reported has to be looked for.
    Overflow,
    /// A folder below is not watched, because there are more than can be.
    NotWatched(ChangedPath),
    /// The watched folder itself is gone: nothing more will come.
    Gone,
}

/// What a [`Change`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    /// Where, below the watched folder; empty for the folder itself.
    pub path: ByteBuf,
    /// Whether it is a folder.
    pub is_dir: bool,
}
