//! The content of one member.

use std::io::{self, Read};

use super::BLOCK;
use super::member::TarMember;
use crate::compression::Decompressed;

/// What is left of a member's content.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// Bytes the archive holds for it.
    stored: u64,
    /// Bytes of it that were a map and no content.
    dropped: u64,
    /// What the file consists of, last piece first.
    parts: Vec<ContentPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentPart {
    Zeros(u64),
    Data(u64),
}

impl Content {
    pub(super) fn new(stored: u64) -> Self {
        Self { stored, ..Self::default() }
    }

    pub(super) fn set_stored(&mut self, stored: u64) {
        self.stored = stored;
    }

    pub(super) fn drop_block(&mut self) {
        self.dropped = self.dropped.saturating_add(BLOCK as u64);
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Lays out the file; `false` if what is said about it does not fit together.
    pub(super) fn start(&mut self, member: &TarMember) -> bool {
        let available = self.stored.saturating_sub(self.dropped);
        self.parts = Vec::new();
        let Some(map) = &member.sparse else {
            self.parts.push(ContentPart::Data(member.size));
            return !member.kind.has_content() || member.size == self.stored;
        };
        let (mut end, mut data) = (0_u64, 0_u64);
        for (offset, length) in map.iter().copied().filter(|(_, length)| *length > 0) {
            let (Some(hole), Some(piece_end), Some(total)) =
                (offset.checked_sub(end), offset.checked_add(length), data.checked_add(length))
            else {
                return false;
            };
            self.parts.extend([ContentPart::Zeros(hole), ContentPart::Data(length)]);
            (end, data) = (piece_end, total);
        }
        let Some(hole) = member.size.checked_sub(end) else { return false };
        self.parts.push(ContentPart::Zeros(hole));
        self.parts.reverse();
        data <= available
    }

    /// How many bytes of the file are not in the archive.
    pub(super) fn zeros(&self) -> u64 {
        let zeros = self.parts.iter().map(|part| match part {
            ContentPart::Zeros(count) => *count,
            ContentPart::Data(_) => 0,
        });
        zeros.fold(0, u64::saturating_add)
    }
}

/// Reads the content of one member, with the holes of a sparse file filled in.
#[derive(Debug)]
pub struct TarContent<'a, R: Read> {
    pub(super) input: &'a mut Decompressed<R>,
    pub(super) position: &'a mut u64,
    pub(super) content: &'a mut Content,
}

impl<R: Read> Read for TarContent<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Holes take time, too, and nothing is read for them.
        self.input.check_time()?;
        while matches!(
            self.content.parts.last(),
            Some(ContentPart::Zeros(0) | ContentPart::Data(0))
        ) {
            self.content.parts.pop();
        }
        let room = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let (read, left) = match self.content.parts.last_mut() {
            None => return Ok(0),
            Some(ContentPart::Zeros(left)) => {
                let zeros = room.min(*left);
                let filled = usize::try_from(zeros).unwrap_or(0);
                buffer.iter_mut().take(filled).for_each(|byte| *byte = 0);
                (filled, left)
            }
            Some(ContentPart::Data(left)) => {
                let wanted = usize::try_from(room.min(*left)).unwrap_or(0);
                let read = self.input.read(buffer.get_mut(..wanted).unwrap_or_default())?;
                if read == 0 && wanted > 0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is cut off"));
                }
                *self.position += u64::try_from(read).unwrap_or(0);
                (read, left)
            }
        };
        *left -= u64::try_from(read).unwrap_or(0);
        Ok(read)
    }
}
