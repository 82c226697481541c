//! Whole trees: what a host asks for to save a workspace, and how it puts one back.
//!
//! Both directions describe a tree as a list of entries in one order: a folder, then what is in it by
//! name, each folder's content right behind it. An entry says how deep it is and its own name, so
//! that a deep tree costs no more than a wide one.
//!
//! ```text
//! Scan       guest: Item(ScanMessage::Clock)
//!            guest: Item(ScanMessage::Entries) · host: Item(FetchList), one for each, in order
//!            guest, for each wanted file in order: Item(ScanMessage::Files) Stdout* ·
//!                   Item(Large) (Item(Hole) | Stdout)* Item(LargeEnd) · Item(Passed)
//! Restore    host: Item(RestoreItem::Entries) Input*, for as many bytes as the files hold
//!                  Item(Large) · guest: Item(RestoreMessage::Ready) ·
//!                  host: (Item(Hole) | Input)* Item(LargeEnd)
//!                  Item(Commit) · Item(Abandon)
//! ```

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::GuestPath;
use crate::files::FileTime;

/// How deep a tree may be.
pub const MAX_DEPTH: usize = 1 << 14;

/// The longest name of an entry.
pub const MAX_NAME: usize = 255;

/// The longest text of a link.
pub const MAX_LINK: usize = 4096;

/// The most bytes of extended attributes of one file that are carried, names and values together.
pub const MAX_ATTRIBUTES: usize = 16 * 1024;

/// From this size on a file is sent by itself.
pub const LARGE: u64 = 128 * 1024;

/// The most bytes of files that follow one list of them.
pub const BATCH_CONTENT: u64 = 512 * 1024;

/// The most lists of entries that are on their way before the host has answered the first of them.
pub const AHEAD: usize = 4;

/// A tree to look through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// The folder at its top.
    pub base: GuestPath,
    /// What is left out, relative to the base, each with all that is below it.
    pub left_out: Vec<ByteBuf>,
}

/// What a guest says while it looks through a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ScanMessage {
    /// Some entries, in order. The host answers with a [`FetchList`].
    Entries(Vec<ScannedEntry>),
    /// Some wanted files, whole; their bytes follow, one file's right behind the other's.
    Files(Vec<SmallFile>),
    /// A wanted file whose content follows, piece by piece.
    Large {
        /// How it was when it was opened.
        stat: ScannedStat,
        /// Its extended attributes.
        attributes: Attributes,
    },
    /// In the middle of a large file: so many bytes that were never written.
    Hole(u64),
    /// The end of a large file.
    LargeEnd {
        /// How it is now.
        stat: ScannedStat,
    },
    /// The descriptor of a wanted file is on its way, with the ticket that was asked for.
    Passed {
        /// How it was when it was opened.
        stat: ScannedStat,
        /// Its extended attributes.
        attributes: Attributes,
    },
    /// The guest is busy looking; nothing else has changed.
    Busy,
    /// Which clock the times of files are of. It comes before all entries, unless there is no telling.
    Clock(Clock),
    /// What the tree is known by, as [`TreeToken`](crate::TreeToken) says: the last word, if anything.
    Token([u8; 16]),
}

/// A clock, and how it is set. Times of files are comparable only under the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// What tells this run of the kernel from every other.
    pub boot: ByteBuf,
    /// The time of day, less the time since the kernel was started: it changes only if somebody sets the
    /// clock.
    pub offset_nanos: i64,
}

/// The longest name of a run of the kernel.
pub const MAX_BOOT: usize = 64;

/// Names and values of extended attributes, by name.
pub type Attributes = Vec<(ByteBuf, ByteBuf)>;

/// Which files of a list of entries the host wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchList {
    /// Which, in order.
    pub files: Vec<FetchFile>,
}

/// One file the host wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFile {
    /// Its place in the list.
    pub index: u32,
    /// What its descriptor is to be sent with, if one is wanted.
    pub ticket: Option<u64>,
}

/// An entry of a tree that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScannedEntry {
    /// How many folders it lies in; 0 is the base itself, whose name is empty.
    pub depth: u32,
    /// Its own name.
    pub name: ByteBuf,
    /// What it is.
    pub kind: ScannedKind,
    /// What else is known.
    pub stat: ScannedStat,
}

/// What an entry of a tree is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ScannedKind {
    /// A folder.
    Dir {
        /// Its extended attributes.
        attributes: Attributes,
    },
    /// A regular file.
    File,
    /// A symbolic link, and what it says.
    Symlink {
        /// What it says.
        target: ByteBuf,
    },
    /// A pipe with a name.
    Fifo,
    /// A socket; it cannot be kept.
    Socket,
    /// A device; it cannot be kept.
    Device,
    /// Something is mounted there.
    Mount,
    /// It cannot be looked into.
    Closed {
        /// The system's error number.
        errno: i32,
    },
}

/// What is known about an entry besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScannedStat {
    /// Its permission bits, with the three above them.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How many bytes it has.
    pub size: u64,
    /// How many names it has.
    pub names: u64,
    /// Its number on its device.
    pub inode: u64,
    /// When its content was last changed.
    pub modified: FileTime,
    /// When anything about it was last changed.
    pub changed: FileTime,
    /// Whether every change of its content after this look shows in the time of the last change. Known
    /// only of files that were opened.
    pub settled: bool,
}

/// A small file, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SmallFile {
    /// It is here.
    Here {
        /// How it was when it was opened.
        stat: ScannedStat,
        /// Its extended attributes.
        attributes: Attributes,
        /// What it is made of, in order.
        extents: Vec<Extent>,
    },
    /// It is not there any more.
    Gone,
    /// It cannot be read.
    Closed {
        /// The system's error number.
        errno: i32,
    },
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// So many bytes.
    Data(u64),
    /// So many bytes that were never written.
    Hole(u64),
}

/// A tree to put in the place of what a folder holds.
///
/// Everything is made beside what is there, under a name of its own. Only when all of it is there and
/// the host says so does it take its place; until then nothing that was there is touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// The folder.
    pub base: GuestPath,
    /// What stays where it is, relative to the base, each with all that is below it.
    pub kept: Vec<ByteBuf>,
    /// Whether a folder that holds anything else is left alone, and the call fails.
    pub only_empty: bool,
    /// What may be replaced. Where it is anything else by then, the call fails, and everything stays.
    pub replaced: Option<TreeChecksum>,
}

/// What tells one set of files from another: a sum over all of them, so that it does not grow with them. It is no
/// seal, for whoever wants to can find another set with the same sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeChecksum {
    entries: u64,
    sum: u64,
}

impl TreeChecksum {
    /// Adds a folder. Its times change with what is in it.
    pub fn folder<'a>(&mut self, path: impl IntoIterator<Item = &'a [u8]>) {
        self.add(path, b'd', 0, FileTime { seconds: 0, nanos: 0 });
    }

    /// Adds anything else, with the time of its last change; of a file also its size.
    pub fn other<'a>(
        &mut self,
        path: impl IntoIterator<Item = &'a [u8]>,
        size: Option<u64>,
        modified: FileTime,
    ) {
        let kind = if size.is_some() { b'f' } else { b'o' };
        self.add(path, kind, size.unwrap_or(0), modified);
    }

    fn add<'a>(
        &mut self,
        path: impl IntoIterator<Item = &'a [u8]>,
        kind: u8,
        size: u64,
        modified: FileTime,
    ) {
        // FNV-1a, in 64 bits.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut take = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for name in path {
            take(name);
            take(b"/");
        }
        take(&[kind]);
        take(&size.to_le_bytes());
        take(&modified.seconds.to_le_bytes());
        take(&modified.nanos.to_le_bytes());
        self.entries = self.entries.wrapping_add(1);
        self.sum = self.sum.wrapping_add(hash);
    }
}

/// The next piece of a tree to restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RestoreItem {
    /// Some entries, in order. The bytes of files among them follow, one file's behind the other's.
    Entries(Vec<NewEntry>),
    /// One large file. The guest answers that it is ready.
    Large {
        /// The file; what it is made of is not said here.
        entry: NewEntry,
        /// How many bytes it will have.
        size: u64,
        /// What its descriptor is to be sent with, if one is wanted.
        ticket: Option<u64>,
    },
    /// In the middle of a large file: so many bytes that are not written.
    Hole(u64),
    /// The end of a large file.
    LargeEnd,
    /// That was all: it takes its place.
    Commit,
    /// There will be no more: what was made is cleared away, and the call fails after that.
    Abandon,
}

/// An entry to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEntry {
    /// How many folders it lies in; 0 is the base itself, whose name is empty.
    pub depth: u32,
    /// Its own name.
    pub name: ByteBuf,
    /// What it is.
    pub kind: NewEntryKind,
    /// Its permission bits, with the three above them.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When its content was last changed.
    pub modified: FileTime,
    /// Its extended attributes.
    pub attributes: Attributes,
}

/// What an entry to make is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NewEntryKind {
    /// A folder.
    Dir,
    /// A regular file of these parts.
    File {
        /// In order; the bytes of `Data` follow the list.
        extents: Vec<Extent>,
    },
    /// A symbolic link.
    Symlink {
        /// What it says.
        target: ByteBuf,
    },
    /// A pipe with a name.
    Fifo,
    /// Another name of a file that was made before.
    Link {
        /// The names that lead to it from the base.
        to: Vec<ByteBuf>,
    },
}

/// What a guest says while it restores a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RestoreMessage {
    /// So many entries are made.
    Progress {
        /// How many.
        made: u64,
    },
    /// A large file is ready to be filled.
    Ready {
        /// Whether its descriptor was passed; if not, the content is expected in the call.
        passed: bool,
    },
    /// The tree is in its place.
    Restored {
        /// How many entries could not be given their owner.
        unowned: u64,
        /// How many extended attributes could not be set.
        unattributed: u64,
        /// Whether what was there before is gone; if not, it lies in a hidden folder of the base.
        cleared: bool,
    },
}

/// How the names of what a guest puts beside a workspace for a while begin.
pub const HIDDEN_PREFIX: &[u8] = b".bastide-";

/// Whether a name is one that a guest gives to what is there only for a while.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(HIDDEN_PREFIX) else { return false };
    let Some((digits, kind)) = rest.split_at_checked(24) else { return false };
    digits.iter().all(u8::is_ascii_hexdigit) && matches!(kind, b".tmp" | b".new" | b".old")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_names_a_guest_makes_up() {
        let cases: &[(&[u8], bool)] = &[
            (b".bastide-0123456789abcdef01234567.tmp", true),
            (b".bastide-0123456789abcdef01234567.new", true),
            (b".bastide-0123456789abcdef01234567.old", true),
            (b".bastide-0123456789abcdef01234567.txt", false),
            (b".bastide-0123456789abcdef0123456.tmp", false),
            (b".bastide-0123456789abcdef0123456x.tmp", false),
            (b".bastide-", false),
            (b"bastide", false),
        ];
        for (name, want) in cases {
            assert_eq!(is_hidden(name), *want, "{}", String::from_utf8_lossy(name));
        }
    }
}
