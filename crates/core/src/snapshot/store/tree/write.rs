//! Writing lists.

use std::sync::Arc;

use super::{Entry, FilePart, Kind, PARTS_PER_RECORD, TreeRecord};
use crate::snapshot::store::chunk::{ChunkId, LISTS, cut};
use crate::snapshot::store::writer::Writer;
use crate::{Error, ErrorKind, Result};

/// Writes the list of a snapshot.
#[derive(Debug)]
pub(crate) struct TreeWriter {
    writer: Arc<Writer>,
    buffer: Vec<u8>,
    chunks: Vec<ChunkId>,
    /// How many entries it has.
    pub(crate) entries: u64,
    /// How many bytes the files in it have together.
    pub(crate) bytes: u64,
}

impl TreeWriter {
    pub(crate) fn new(writer: Arc<Writer>) -> Self {
        Self { writer, buffer: Vec::new(), chunks: Vec::new(), entries: 0, bytes: 0 }
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, mut entry: Entry) -> Result<()> {
        self.entries += 1;
        let mut rest = Vec::new();
        if let Kind::File { size, file_parts, .. } = &mut entry.kind {
            self.bytes = self.bytes.saturating_add(*size);
            if file_parts.len() > PARTS_PER_RECORD {
                rest = file_parts.split_off(PARTS_PER_RECORD);
            }
        }
        self.record(&TreeRecord::Entry(entry))?;
        for some in rest.chunks(PARTS_PER_RECORD) {
            self.record(&TreeRecord::Parts(some.to_vec()))?;
        }
        Ok(())
    }

    fn record(&mut self, record: &TreeRecord) -> Result<()> {
        let bytes = bastide_proto::encode(record)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.buffer.extend(length.to_le_bytes());
        self.buffer.extend(bytes);
        if self.buffer.len() >= 4 * LISTS.max {
            self.cut(false)?;
        }
        Ok(())
    }

    fn cut(&mut self, is_all: bool) -> Result<()> {
        let mut start = 0;
        while let Some(length) = cut(&self.buffer[start..], LISTS, is_all) {
            let chunk = &self.buffer[start..start + length];
            self.chunks.push(self.writer.put(chunk)?);
            start += length;
        }
        self.buffer.drain(..start);
        Ok(())
    }

    /// Ends the list; the chunks it is made of come back.
    pub(crate) fn finish(mut self) -> Result<Vec<ChunkId>> {
        self.cut(true)?;
        Ok(self.chunks)
    }
}

/// Joins pieces that belong together: holes beside holes.
pub(crate) fn push_piece(file_parts: &mut Vec<FilePart>, file_part: FilePart) {
    match (file_parts.last_mut(), file_part) {
        (_, FilePart::Hole(0)) => {}
        (Some(FilePart::Hole(before)), FilePart::Hole(more)) => {
            *before = before.saturating_add(more);
        }
        _ => file_parts.push(file_part),
    }
}
