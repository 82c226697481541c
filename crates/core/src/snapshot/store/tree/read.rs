//! Reading lists.

use super::{Entry, FilePart, Kind, MAX_RECORD, Order, TreeRecord, check_attributes, check_link};
use crate::Result;
use crate::snapshot::store::chunk::ChunkId;
use crate::snapshot::store::errors::damaged;

/// Where the chunks of a list come from.
pub(crate) trait Content {
    /// The content of a chunk, which is what its name says.
    fn chunk(&mut self, id: &ChunkId) -> Result<Vec<u8>>;
}

/// Reads the list of a snapshot, entry by entry, and checks what it reads.
#[derive(Debug)]
pub(crate) struct TreeReader<C> {
    content: C,
    chunks: std::vec::IntoIter<ChunkId>,
    buffer: Vec<u8>,
    at: usize,
    order: Order,
    /// A record that was read ahead.
    next: Option<TreeRecord>,
    read: u64,
}

impl<C: Content> TreeReader<C> {
    pub(crate) fn new(content: C, chunks: Vec<ChunkId>) -> Self {
        let (buffer, order) = (Vec::new(), Order::default());
        Self { content, chunks: chunks.into_iter(), buffer, at: 0, order, next: None, read: 0 }
    }

    /// The names that lead to the last entry from the top.
    pub(crate) fn names(&self) -> &[Vec<u8>] {
        self.order.names()
    }

    /// The path of the last entry.
    pub(crate) fn path(&self) -> String {
        self.order.path()
    }

    /// The next entry, with all its pieces; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let mut entry = match self.record()? {
            None if self.read == 0 => return Err(damaged("a list has no entries")),
            None => return Ok(None),
            Some(TreeRecord::Entry(entry)) => entry,
            Some(TreeRecord::Parts(_)) => return Err(damaged("a list has pieces of no file")),
        };
        let checked = self.check(&entry);
        checked.map_err(|what| damaged(format!("in a list, at {}: {what}", self.order.path())))?;
        if let Kind::File { size, file_parts, .. } = &mut entry.kind {
            while let Some(record) = self.record()? {
                match record {
                    TreeRecord::Parts(more) => file_parts.extend(more),
                    record @ TreeRecord::Entry(_) => {
                        self.next = Some(record);
                        break;
                    }
                }
            }
            let mut total = 0_u64;
            for file_part in file_parts {
                let sum = total.checked_add(file_part.length()).filter(|sum| sum <= size);
                let what = || format!("in a list, at {}: pieces do not add up", self.order.path());
                total = sum.ok_or_else(|| damaged(what()))?;
                file_part.check().map_err(damaged)?;
            }
            if total != *size {
                let path = self.order.path();
                return Err(damaged(format!("in a list, at {path}: pieces are missing")));
            }
        }
        self.read += 1;
        Ok(Some(entry))
    }

    fn check(&mut self, entry: &Entry) -> Result<(), &'static str> {
        self.order.next(entry.depth, &entry.name, entry.kind == Kind::Dir)?;
        check_attributes(&entry.attributes)?;
        if entry.modified.nanos >= 1_000_000_000 || entry.mode & !0o7777 != 0 {
            return Err("it has no time or mode a file can have");
        }
        match &entry.kind {
            Kind::Symlink { target } => check_link(target),
            Kind::Link { entry } if *entry >= self.read => Err("it links to what comes later"),
            Kind::File { size, .. } if i64::try_from(*size).is_err() => Err("it is too long"),
            _ => Ok(()),
        }
    }

    fn record(&mut self) -> Result<Option<TreeRecord>> {
        if let Some(record) = self.next.take() {
            return Ok(Some(record));
        }
        if !self.fill(4)? {
            return match self.at == self.buffer.len() {
                true => Ok(None),
                false => Err(damaged("a list is cut off")),
            };
        }
        let length = self.buffer[self.at..].first_chunk::<4>().copied().unwrap_or_default();
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_RECORD {
            return Err(damaged("a list has a record that is too long"));
        }
        self.at += 4;
        if !self.fill(length)? {
            return Err(damaged("a list is cut off"));
        }
        let record = bastide_proto::decode(&self.buffer[self.at..self.at + length])
            .map_err(|error| damaged(format!("a list has a record that is none: {error}")))?;
        self.at += length;
        Ok(Some(record))
    }

    /// Makes sure that so many bytes are there; false if the list ends before.
    fn fill(&mut self, wanted: usize) -> Result<bool> {
        while self.buffer.len() - self.at < wanted {
            let Some(id) = self.chunks.next() else { return Ok(false) };
            self.buffer.drain(..self.at);
            self.at = 0;
            self.buffer.extend(self.content.chunk(&id)?);
        }
        Ok(true)
    }
}

/// The pieces of a file that are chunks.
pub(crate) fn chunks_of(file_parts: &[FilePart]) -> impl Iterator<Item = ChunkId> + '_ {
    file_parts.iter().filter_map(|file_part| match file_part {
        FilePart::Chunk { id, .. } => Some(*id),
        FilePart::Hole(_) => None,
    })
}
