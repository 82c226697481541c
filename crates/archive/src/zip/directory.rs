//! Reads the directory at the end of a zip.

use std::io::{BufReader, Read, Seek, SeekFrom};

use super::member::ZipMember;
use super::name;
use crate::bounds::{ExpansionError, Stopwatch, Usage, expansion};
use crate::refusal::unreadable_zip;
use bastide_model::{Error, Result};

const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const ENTRY: &[u8] = b"PK\x01\x02";

const END_SIZE: usize = 22;
const END_64_SIZE: u16 = 56;
const LOCATOR_64_SIZE: u16 = 20;
const ENTRY_SIZE: usize = 46;

/// The longest comment there can be behind the directory's end.
const MAX_COMMENT: u64 = 1 << 16;

/// The newest version of the format whose members anybody here reads.
const NEWEST_VERSION: u8 = 63;

/// Where the directory lies.
struct DirectoryLocation {
    start: u64,
    size: u64,
    /// How long the archive is.
    length: u64,
    /// How far everything is from where the archive says it is; other data may be in front.
    shift: i128,
}

/// Reads every entry of the directory; says how long the archive is, too.
pub(super) fn read(
    input: &mut (impl Read + Seek),
    watch: Stopwatch,
) -> Result<(Vec<ZipMember>, u64)> {
    let place = find(input)?;
    input.seek(SeekFrom::Start(place.start)).map_err(unreadable_zip)?;
    let mut directory = BufReader::new(input.take(place.size));
    let mut members = Vec::new();
    let mut read: u64 = 0;
    let (mut spent, mut total) = (Usage::default(), 0_u64);
    while read < place.size {
        let fixed: [u8; ENTRY_SIZE] = bytes(&mut directory).ok_or_else(cut_off)?;
        let lengths = [u16_at(&fixed, 28), u16_at(&fixed, 30), u16_at(&fixed, 32)];
        let name = take(&mut directory, lengths[0])?;
        let extra = take(&mut directory, lengths[1])?;
        take(&mut directory, lengths[2])?;
        let member = entry(&fixed, &name, &extra, place.shift)?;
        spent.add(member.name.as_bytes(), &[], 0)?;
        watch.check(place.length).map_err(|slow| slow.error(member.name.as_bytes()))?;
        total = total.saturating_add(member.size);
        let limit = expansion(place.length);
        if total > limit {
            return Err(ExpansionError { limit, actual: total }.error(member.name.as_bytes()));
        }
        members.push(member);
        let variable: u64 = lengths.into_iter().map(u64::from).sum();
        read += 46 + variable;
    }
    Ok((members, place.length))
}

fn entry(fixed: &[u8; ENTRY_SIZE], name: &[u8], extra: &[u8], shift: i128) -> Result<ZipMember> {
    if !fixed.starts_with(ENTRY) {
        return Err(unreadable_zip("its directory is damaged"));
    }
    if fixed[6] > NEWEST_VERSION {
        return Err(unreadable_zip("its format is too new"));
    }
    let flags = u16_at(fixed, 8);
    let full_name = name::decode(name, is_utf8(flags)).ok_or_else(not_utf8)?;
    let mut sizes = Sizes {
        real: u32_at(fixed, 24).into(),
        packed: u32_at(fixed, 20).into(),
        at: u32_at(fixed, 42).into(),
    };
    sizes.widen(extra)?;
    Ok(ZipMember {
        name: full_name.split('\0').next().unwrap_or_default().to_owned(),
        unix_mode: u32_at(fixed, 38) >> 16,
        size: sizes.real,
        full_name,
        packed_size: sizes.packed,
        checksum: u32_at(fixed, 16),
        method: u16_at(fixed, 10),
        flags,
        header_at: u64::try_from(i128::from(sizes.at) + shift).ok(),
    })
}

/// Whether the name is UTF-8.
pub(super) fn is_utf8(flags: u16) -> bool {
    flags & 0x800 != 0
}

struct Sizes {
    real: u64,
    packed: u64,
    at: u64,
}

impl Sizes {
    /// Takes what does not fit into 32 bits from the entry's extra fields.
    fn widen(&mut self, extra: &[u8]) -> Result<()> {
        const WIDE: u16 = 1;
        let damaged = || unreadable_zip("a member's extra fields are damaged");
        let mut rest = extra;
        while rest.len() >= 4 {
            let (tag, length) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
            let mut field = rest.get(4..4 + length).ok_or_else(damaged)?;
            if tag == WIDE {
                for value in [&mut self.real, &mut self.packed, &mut self.at] {
                    if *value == u64::from(u32::MAX) {
                        let (wide, left) = field.split_at_checked(8).ok_or_else(damaged)?;
                        *value = u64_at(wide, 0);
                        field = left;
                    }
                }
            }
            rest = rest.get(4 + length..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Finds the directory from the archive's end.
fn find(input: &mut (impl Read + Seek)) -> Result<DirectoryLocation> {
    let no_zip = || unreadable_zip("it has no directory");
    let length = input.seek(SeekFrom::End(0)).map_err(unreadable_zip)?;
    let tail_at = length.saturating_sub(MAX_COMMENT + 22);
    input.seek(SeekFrom::Start(tail_at)).map_err(unreadable_zip)?;
    let mut tail = Vec::new();
    input.take(MAX_COMMENT + 22).read_to_end(&mut tail).map_err(unreadable_zip)?;
    let last = tail.len().checked_sub(END_SIZE).ok_or_else(no_zip)?;
    let without_comment =
        tail.get(last..).filter(|end| end.starts_with(END) && end.ends_with(b"\0\0"));
    let at = match without_comment {
        Some(_) => last,
        None => tail.windows(END.len()).rposition(|window| window == END).ok_or_else(no_zip)?,
    };
    let end = tail.get(at..at + END_SIZE).ok_or_else(no_zip)?;
    let end_at = tail_at + u64::try_from(at).unwrap_or(0);
    let (mut size, mut offset) = (u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)));
    let mut directory_end = i128::from(end_at);
    if let Some((wide_size, wide_offset)) = find_wide(input, end_at)? {
        (size, offset) = (wide_size, wide_offset);
        directory_end -= i128::from(LOCATOR_64_SIZE + END_64_SIZE);
    }
    let shift = directory_end - i128::from(size) - i128::from(offset);
    let start = u64::try_from(i128::from(offset) + shift);
    Ok(DirectoryLocation { start: start.map_err(|_| cut_off())?, size, length, shift })
}

/// Size and offset of a directory that does not fit into 32 bits.
fn find_wide(input: &mut (impl Read + Seek), end_at: u64) -> Result<Option<(u64, u64)>> {
    let mut record_at = |before: u16| {
        let at = end_at.checked_sub(u64::from(before))?;
        input.seek(SeekFrom::Start(at)).ok()?;
        take(input, before).ok()
    };
    let Some(locator) = record_at(LOCATOR_64_SIZE) else { return Ok(None) };
    if !locator.starts_with(LOCATOR_64) {
        return Ok(None);
    }
    if u32_at(&locator, 4) != 0 || u32_at(&locator, 16) > 1 {
        return Err(unreadable_zip("it spans several disks"));
    }
    let Some(end) = record_at(LOCATOR_64_SIZE + END_64_SIZE) else { return Ok(None) };
    Ok(end.starts_with(END_64).then(|| (u64_at(&end, 40), u64_at(&end, 48))))
}

/// Up to `length` bytes.
pub(super) fn take(input: &mut impl Read, length: u16) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(u64::from(length)).read_to_end(&mut bytes).map_err(unreadable_zip)?;
    Ok(bytes)
}

/// Exactly as many bytes as fit, if there are as many.
pub(super) fn bytes<const N: usize>(input: &mut impl Read) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).ok().map(|()| bytes)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// Bytes beyond the end read as zero.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
    array
}

fn cut_off() -> Error {
    unreadable_zip("it is cut off")
}

pub(super) fn not_utf8() -> Error {
    unreadable_zip("a name is not UTF-8")
}
