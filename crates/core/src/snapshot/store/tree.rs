//! The list of everything in a snapshot.
//!
//! A list is a sequence of records, each a length (u32, little-endian) and a message in postcard's
//! form. Entries come in one order: a folder, then what is in it by name, each folder's content right
//! behind it. So the same tree gives the same list, and lists can be compared while they are read. The
//! sequence is cut into chunks like any content.

mod read;
mod write;

use bastide_proto::files::FileTime;
use bastide_proto::tree::{Attributes, MAX_ATTRIBUTES, MAX_DEPTH, MAX_LINK, MAX_NAME};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::chunk::{ChunkId, MAX_CHUNK};

pub(crate) use read::{Content, TreeReader, chunks_of};
pub(crate) use write::{TreeWriter, push_piece};

/// The longest record.
pub(crate) const MAX_RECORD: usize = 256 << 10;

/// How many pieces of a file are in one record at most.
pub(crate) const PARTS_PER_RECORD: usize = 4096;

/// One record of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TreeRecord {
    /// The next entry.
    Entry(Entry),
    /// More pieces of the file before it.
    Parts(Vec<FilePart>),
}

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// How many folders it lies in; 0 is the top itself, whose name is empty.
    pub(crate) depth: u32,
    pub(crate) name: ByteBuf,
    pub(crate) kind: Kind,
    /// Its permission bits, with the three above them.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: FileTime,
    pub(crate) attributes: Attributes,
}

/// What something in a tree is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Dir,
    File {
        size: u64,
        /// Whether later entries may be other names of it.
        shared: bool,
        /// Its first pieces; what is missing to its size follows in records of its own.
        file_parts: Vec<FilePart>,
    },
    Symlink {
        target: ByteBuf,
    },
    Fifo,
    /// Another name of an earlier entry.
    Link {
        /// Which, counted from 0.
        entry: u64,
    },
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FilePart {
    Chunk {
        id: ChunkId,
        length: u32,
    },
    /// So many bytes that were never written.
    Hole(u64),
}

impl FilePart {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Chunk { length, .. } => u64::from(*length),
            Self::Hole(length) => *length,
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let longest = u32::try_from(MAX_CHUNK).unwrap_or(u32::MAX);
        match self {
            Self::Chunk { length, .. } if *length == 0 || *length > longest => {
                Err("a piece has no length a chunk can have")
            }
            Self::Hole(0) => Err("a hole is empty"),
            _ => Ok(()),
        }
    }
}

/// Checks that entries come as they must, whoever says so: a guest, or a file.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The names from the top to the last entry; empty before the first.
    names: Vec<Vec<u8>>,
    begun: bool,
    /// Whether the last entry can have others in it.
    in_dir: bool,
}

impl Order {
    /// The names that lead to the last entry.
    pub(crate) fn names(&self) -> &[Vec<u8>] {
        &self.names
    }

    /// The path of the last entry, as text.
    pub(crate) fn path(&self) -> String {
        match self.names.is_empty() {
            true => ".".to_owned(),
            false => String::from_utf8_lossy(&self.names.join(&b'/')).into_owned(),
        }
    }

    /// Takes the next entry.
    pub(crate) fn next(
        &mut self,
        depth: u32,
        name: &[u8],
        is_dir: bool,
    ) -> Result<(), &'static str> {
        let depth = usize::try_from(depth).unwrap_or(usize::MAX);
        if !self.begun {
            if depth != 0 || !name.is_empty() || !is_dir {
                return Err("the first entry is not the folder at the top");
            }
            (self.begun, self.in_dir) = (true, true);
            return Ok(());
        }
        if !is_name(name) {
            return Err("a name is none");
        }
        if depth > MAX_DEPTH {
            return Err("an entry is too deep");
        }
        let deepest = self.names.len() + usize::from(self.in_dir);
        if depth == 0 || depth > deepest {
            return Err("an entry lies in no folder");
        }
        // The one before it in the same folder.
        if let Some(before) = self.names.get(depth - 1)
            && name <= before.as_slice()
        {
            return Err("entries are out of order");
        }
        self.names.truncate(depth - 1);
        self.names.push(name.to_vec());
        self.in_dir = is_dir;
        Ok(())
    }
}

/// Whether a name is one an entry can have.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= MAX_NAME
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Whether attributes are such as can be set.
pub(crate) fn check_attributes(attributes: &Attributes) -> Result<(), &'static str> {
    let total: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
    let is_good = |name: &[u8]| name.starts_with(b"user.") && !name.contains(&0);
    if total > MAX_ATTRIBUTES || !attributes.iter().all(|(name, _)| is_good(name)) {
        return Err("extended attributes are none of a user");
    }
    match attributes.is_sorted_by(|one, other| one.0 < other.0) {
        true => Ok(()),
        false => Err("extended attributes are out of order"),
    }
}

/// Whether what a link says is something a link can say.
pub(crate) fn check_link(target: &[u8]) -> Result<(), &'static str> {
    match target.is_empty() || target.len() >= MAX_LINK || target.contains(&0) {
        true => Err("a link says nothing a link can say"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_entries_in_order_only() {
        type Step = (u32, &'static [u8], bool);
        let top: Step = (0, b"", true);
        let cases: &[(&[Step], bool)] = &[
            (&[top], true),
            (&[top, (1, b"a", false), (1, b"b", true), (2, b"a", false), (1, b"c", false)], true),
            (&[(1, b"a", false)], false),
            (&[(0, b"", false)], false),
            (&[top, top], false),
            (&[top, (1, b"b", false), (1, b"a", false)], false),
            (&[top, (1, b"a", false), (1, b"a", false)], false),
            (&[top, (1, b"a", false), (2, b"b", false)], false),
            (&[top, (1, b"a", true), (3, b"b", false)], false),
            (&[top, (1, b"..", true)], false),
            (&[top, (1, b"a/b", true)], false),
            (&[top, (1, b"", true)], false),
            (&[top, (1, b"b", true), (2, b"x", false), (1, b"a", true)], false),
        ];
        for (steps, fine) in cases {
            let mut order = Order::default();
            let taken =
                steps.iter().try_for_each(|(depth, name, dir)| order.next(*depth, name, *dir));
            assert_eq!(taken.is_ok(), *fine, "{steps:?}: {taken:?}");
        }
    }
}
