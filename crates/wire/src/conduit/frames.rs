//! What goes over a stream of a conduit.

use super::{MOST, Violation};

/// Data: its length (4 bytes, little endian) and as many bytes.
const DATA: u8 = b'D';
/// How many bytes of the other end were used (8 bytes, little endian).
const USED: u8 = b'U';
/// Nothing, only that this end is there.
const ALIVE: u8 = b'A';
/// The orderly end.
const GOODBYE: u8 = b'G';

const LONGEST_HEADER: usize = 9;

/// Puts the header of data in front of it.
pub(super) fn data(frames: &mut Vec<u8>, length: u32) {
    frames.push(DATA);
    frames.extend_from_slice(&length.to_le_bytes());
}

pub(super) fn used(frames: &mut Vec<u8>, bytes: u64) {
    frames.push(USED);
    frames.extend_from_slice(&bytes.to_le_bytes());
}

pub(super) fn alive(frames: &mut Vec<u8>) {
    frames.push(ALIVE);
}

pub(super) fn goodbye(frames: &mut Vec<u8>) {
    frames.push(GOODBYE);
}

/// What was found on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Data(&'a [u8]),
    Used(u64),
    Goodbye,
}

/// Finds frames in bytes as they come, however they were cut.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; LONGEST_HEADER],
    have: usize,
    /// How much of the current data is still to come.
    data: usize,
}

impl Frames {
    /// The first thing in these bytes, if it is whole, and what comes after it.
    pub(super) fn next<'a>(
        &mut self,
        mut bytes: &'a [u8],
    ) -> Result<(Option<Frame<'a>>, &'a [u8]), Violation> {
        loop {
            if self.data > 0 {
                let (data, rest) = bytes.split_at(self.data.min(bytes.len()));
                self.data -= data.len();
                let found = (!data.is_empty()).then_some(Frame::Data(data));
                return Ok((found, rest));
            }
            let Some((first, rest)) = bytes.split_first() else { return Ok((None, bytes)) };
            bytes = rest;
            *self.header.get_mut(self.have).ok_or(Violation)? = *first;
            self.have += 1;
            if self.have < Self::header_length(self.header[0])? {
                continue;
            }
            self.have = 0;
            let [kind, body @ ..] = self.header;
            let [a, b, c, d, ..] = body;
            match kind {
                DATA => {
                    let length = usize::try_from(u32::from_le_bytes([a, b, c, d]));
                    self.data = length.ok().filter(|length| *length <= MOST).ok_or(Violation)?;
                }
                USED => return Ok((Some(Frame::Used(u64::from_le_bytes(body))), bytes)),
                GOODBYE => return Ok((Some(Frame::Goodbye), bytes)),
                _ => {}
            }
        }
    }

    fn header_length(kind: u8) -> Result<usize, Violation> {
        match kind {
            DATA => Ok(5),
            USED => Ok(9),
            ALIVE | GOODBYE => Ok(1),
            _ => Err(Violation),
        }
    }
}
