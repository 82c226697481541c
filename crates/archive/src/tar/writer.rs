//! Writes tar archives.

use std::io::{self, Read, Write};

use super::member::{TarKind, TarMember};
use super::pax::Records;
use super::{BLOCK, padded};
use crate::EntryPath;
use crate::refusal::{os_failure, unreadable_tar};
use bastide_model::{Error, ErrorKind, Result};

/// Archives fill whole records of this many bytes.
const RECORD: u64 = 20 * 512;

impl TarMember {
    /// Gives the member another place.
    pub(super) fn rename(&mut self, path: &EntryPath) {
        self.name = if path.is_root() { b".".to_vec() } else { path.as_bytes().to_vec() };
    }

    /// The records to write: those it came with, as far as nothing else says the same.
    fn records_to_write(&self) -> Records {
        let mut records = self.records.clone();
        records.retain(|keyword| {
            !keyword.starts_with(b"GNU.sparse.")
                && !matches!(keyword, b"path" | b"linkpath" | b"size" | b"hdrcharset")
        });
        records
    }
}

/// Writes a tar archive, plain and in the POSIX format.
#[derive(Debug)]
pub struct TarWriter<W: Write> {
    out: W,
    position: u64,
}

impl<W: Write> TarWriter<W> {
    /// Starts an archive.
    pub fn new(out: W) -> Self {
        Self { out, position: 0 }
    }

    /// Adds a member; of a file, `member.size` bytes of `content`.
    ///
    /// # Errors
    /// The content is too short, or writing fails.
    pub fn append(&mut self, member: &TarMember, content: &mut dyn Read) -> Result<()> {
        let mut records = member.records_to_write();
        let size = if member.kind == TarKind::File { member.size } else { 0 };
        let header = encode(member, size, &mut records)?;
        if !records.is_empty() {
            self.append_records(&records)?;
        }
        self.write(&header)?;
        let copied = io::copy(&mut content.take(size), &mut self.out).map_err(unreadable_tar)?;
        self.position += copied;
        if copied < size {
            return Err(unreadable_tar("it is cut off"));
        }
        self.fill_to(512)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(mut self) -> Result<()> {
        self.write(&[0; 2 * BLOCK])?;
        self.fill_to(RECORD)?;
        self.out.flush().map_err(os_failure)
    }

    fn append_records(&mut self, records: &Records) -> Result<()> {
        let payload = records.encode();
        let mut member = TarMember::new(b"././@PaxHeader", TarKind::Other);
        member.mode = 0;
        let size = u64::try_from(payload.len()).unwrap_or(u64::MAX);
        let header = encode(&member, size, &mut Records::default())?;
        self.write(&header)?;
        self.write(&payload)?;
        self.fill_to(512)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(os_failure)?;
        self.position += u64::try_from(bytes.len()).unwrap_or(0);
        Ok(())
    }

    fn fill_to(&mut self, multiple: u64) -> Result<()> {
        let filled = self.position.next_multiple_of(multiple);
        let missing = usize::try_from(filled - self.position).unwrap_or(0);
        self.write(&vec![0; missing])
    }
}

/// A header, with records for whatever does not fit into it.
fn encode(member: &TarMember, size: u64, records: &mut Records) -> Result<[u8; BLOCK]> {
    let mut name = member.name.clone();
    if member.is_dir() && !name.ends_with(b"/") {
        name.push(b'/');
    }
    if padded(size).is_none() {
        return Err(unreadable_tar("a member is longer than anything"));
    }
    let owner = &member.owner;
    let mut block = [0; BLOCK];
    put_text(&mut block[0..100], &name, b"path", records);
    put_text(&mut block[157..257], &member.link, b"linkpath", records);
    put_text(&mut block[265..297], &owner.user, b"uname", records);
    put_text(&mut block[297..329], &owner.group, b"gname", records);
    put_number(&mut block[100..108], i128::from(member.mode & 0o7777), b"mode", records);
    put_number(&mut block[108..116], owner.uid, b"uid", records);
    put_number(&mut block[116..124], owner.gid, b"gid", records);
    put_number(&mut block[124..136], i128::from(size), b"size", records);
    put_number(&mut block[136..148], owner.mtime, b"mtime", records);
    block[156] = match member.kind {
        TarKind::File => b'0',
        TarKind::Hardlink => b'1',
        TarKind::Symlink => b'2',
        TarKind::CharDevice => b'3',
        TarKind::BlockDevice => b'4',
        TarKind::Dir => b'5',
        TarKind::Fifo => b'6',
        TarKind::Other => b'x',
    };
    block[257..265].copy_from_slice(b"ustar\x0000");
    if records.values().any(|value| std::str::from_utf8(value).is_err()) {
        records.set(b"hdrcharset", b"BINARY");
    }
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let digits = format!("{sum:06o}\0");
    let field = block[148..].get_mut(..digits.len());
    field.ok_or_else(too_large)?.copy_from_slice(digits.as_bytes());
    Ok(block)
}

fn too_large() -> Error {
    Error::new(ErrorKind::Internal, "a checksum does not fit its field")
}

/// Writes text that is plain and short enough; a record says the rest.
fn put_text(field: &mut [u8], text: &[u8], keyword: &[u8], records: &mut Records) {
    if (!text.is_ascii() || text.len() > field.len()) && records.get(keyword).is_none() {
        records.set(keyword, text);
    }
    let plain = text.iter().map(|byte| if byte.is_ascii() { *byte } else { b'?' });
    field.iter_mut().zip(plain).for_each(|(to, from)| *to = from);
}

/// Writes a number that fits; a record says the rest.
fn put_number(field: &mut [u8], number: i128, keyword: &[u8], records: &mut Records) {
    let width = field.len() - 1;
    let digits = format!("{number:0width$o}");
    let fits = number >= 0 && digits.len() == width;
    if !fits && records.get(keyword).is_none() {
        records.set(keyword, number.to_string().as_bytes());
    }
    let digits = if fits { digits } else { "0".repeat(width) };
    field.iter_mut().zip(digits.bytes()).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use super::super::TarReader;
    use super::*;

    #[test]
    fn what_does_not_fit_a_header_survives() {
        let mut member = TarMember::new(&[b'n'; 300], TarKind::Symlink);
        member.link = "né".repeat(80).into_bytes();
        member.owner.uid = 1 << 40;
        member.owner.mtime = -5;
        let mut odd = TarMember::new(b"odd\xff", TarKind::File);
        (odd.size, odd.mode) = (3, 0o4755);
        let mut tar = Vec::new();
        let mut writer = TarWriter::new(&mut tar);
        writer.append(&member, &mut io::empty()).unwrap();
        writer.append(&odd, &mut &b"abc"[..]).unwrap();
        writer.finish().unwrap();
        assert_eq!(tar.len() % 10_240, 0);

        let mut reader = TarReader::open(tar.as_slice()).unwrap();
        let read = reader.next_member().unwrap().unwrap();
        assert_eq!((read.name, read.link), (member.name, member.link));
        assert_eq!(read.records.get(b"uid"), Some(&b"1099511627776"[..]));
        assert_eq!(read.records.get(b"mtime"), Some(&b"-5"[..]));
        let read = reader.next_member().unwrap().unwrap();
        assert_eq!((read.name, read.mode, read.size), (odd.name, 0o4755, 3));
        let mut content = Vec::new();
        reader.content().read_to_end(&mut content).unwrap();
        assert_eq!(content, b"abc");
        assert!(reader.next_member().unwrap().is_none());
    }
}
