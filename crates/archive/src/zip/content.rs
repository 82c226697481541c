//! The content of one member, checked against what the directory says about it.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Take};

use bzip2::read::BzDecoder;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use lzma_rust2::{LzmaReader, lzma_get_memory_usage_by_props};

use super::directory::{bytes, is_utf8, not_utf8, take, u16_at, u32_at};
use super::member::ZipMember;
use super::name;
use crate::bounds::Stopwatch;
use crate::compression::DICTIONARY_KIB;
use crate::refusal::unreadable_zip;
use bastide_model::{Error, Result};

/// Reads the content of one member; its last read fails if the content is not what was packed.
pub struct ZipContent<'a, R> {
    packed: Packed<Take<&'a mut R>>,
    left: u64,
    running: Crc,
    checksum: u32,
    checked: bool,
    clock: Clock,
}

/// How long the reading of an archive has taken, and how long that is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) watch: Stopwatch,
    pub(super) archive: u64,
}

enum Packed<R> {
    Stored(R),
    Deflated(Box<DeflateDecoder<R>>),
    Bzip2(Box<BzDecoder<R>>),
    Lzma(Box<LzmaReader<R>>),
}

impl<'a, R: Read + Seek> ZipContent<'a, R> {
    pub(super) fn open(input: &'a mut R, member: Option<&ZipMember>, clock: Clock) -> Result<Self> {
        let member = member.ok_or_else(|| unreadable_zip("there is no such member"))?;
        let at = member.header_at.ok_or_else(damaged)?;
        input.seek(SeekFrom::Start(at)).map_err(unreadable_zip)?;
        check_header(input, member)?;
        let packed = Packed::open(input.take(member.packed_size), member)?;
        Ok(Self {
            packed,
            left: member.size,
            running: Crc::new(),
            checksum: member.checksum,
            checked: false,
            clock,
        })
    }
}

/// Compares the header in front of the content with the directory, and reads past it.
fn check_header(input: &mut impl Read, member: &ZipMember) -> Result<()> {
    const HEADER: &[u8] = b"PK\x03\x04";
    const ENCRYPTED_OR_PATCHED: u16 = 0x1 | 0x20 | 0x40;
    let header: [u8; 30] = bytes(input).ok_or_else(|| unreadable_zip("it is cut off"))?;
    if !header.starts_with(HEADER) {
        return Err(unreadable_zip("a member's header is damaged"));
    }
    let own_name = take(input, u16_at(&header, 26))?;
    take(input, u16_at(&header, 28))?;
    if member.flags & ENCRYPTED_OR_PATCHED != 0 {
        return Err(unreadable_zip("a member is encrypted"));
    }
    let own_name = name::decode(&own_name, is_utf8(u16_at(&header, 6))).ok_or_else(not_utf8)?;
    if own_name != member.full_name {
        return Err(unreadable_zip("a member has two names"));
    }
    Ok(())
}

impl<R: Read> Packed<R> {
    fn open(mut input: R, member: &ZipMember) -> Result<Self> {
        match member.method {
            0 => Ok(Self::Stored(input)),
            8 => Ok(Self::Deflated(Box::new(DeflateDecoder::new(input)))),
            12 => Ok(Self::Bzip2(Box::new(BzDecoder::new(input)))),
            14 => {
                let head: [u8; 9] = bytes(&mut input).ok_or_else(damaged)?;
                let (properties, dictionary) = (head[4], u32_at(&head, 5));
                let needed = lzma_get_memory_usage_by_props(dictionary, properties);
                if u16_at(&head, 2) != 5 || needed.map_err(unreadable_zip)? > DICTIONARY_KIB {
                    return Err(damaged());
                }
                // Where the end is not marked, the size tells it.
                let size = if member.flags & 0x2 == 0 { member.size } else { u64::MAX };
                let reader = LzmaReader::new_with_props(input, size, properties, dictionary, None);
                Ok(Self::Lzma(Box::new(reader.map_err(unreadable_zip)?)))
            }
            method => Err(unreadable_zip(format!("nobody here unpacks method {method}"))),
        }
    }
}

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stored(input) => input.read(buffer),
            Self::Deflated(decoder) => decoder.read(buffer),
            Self::Bzip2(decoder) => decoder.read(buffer),
            Self::Lzma(decoder) => decoder.read(buffer),
        }
    }
}

impl<R: Read> Read for ZipContent<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.clock.watch.check(self.clock.archive)?;
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let room = buffer.get_mut(..room).unwrap_or_default();
        let read = if room.is_empty() { 0 } else { self.packed.read(room)? };
        self.running.update(buffer.get(..read).unwrap_or_default());
        self.left -= u64::try_from(read).unwrap_or(0);
        if read == 0 && !self.checked {
            if self.running.sum() != self.checksum {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong"));
            }
            self.checked = true;
        }
        Ok(read)
    }
}

impl<R> fmt::Debug for ZipContent<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZipContent").field("left", &self.left).finish_non_exhaustive()
    }
}

fn damaged() -> Error {
    unreadable_zip("a member is damaged")
}
