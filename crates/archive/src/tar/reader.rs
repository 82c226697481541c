//! Reads the members of a tar stream, one after the other.

use std::io::{self, Read, Seek, SeekFrom};

use super::content::{Content, TarContent};
use super::header::{Header, sparse_pairs, trim_slashes, until_nul};
use super::member::{TarKind, TarMember};
use super::pax::{Records, integer};
use super::{BLOCK, padded};
use crate::bounds::{
    ExpansionError, MAX_EXTENSIONS, MAX_GLOBAL_HEADERS, MAX_GLOBALS, MAX_HEADER, MAX_PARTS, Usage,
    tar_read_failure,
};
use crate::compression::Decompressed;
use crate::refusal::unreadable_tar;
use bastide_model::{Error, Result};

/// Reads a tar stream: plain, or compressed with gzip, bzip2, xz or lzma. What it may cost is bounded, see
/// [`bounds`](crate::bounds).
///
/// ```
/// use bastide_archive::tar::{TarKind, TarMember, TarReader, TarWriter};
///
/// let mut tar = Vec::new();
/// let mut writer = TarWriter::new(&mut tar);
/// writer.append(&TarMember::new(b"docs", TarKind::Dir), &mut std::io::empty())?;
/// writer.finish()?;
///
/// let mut reader = TarReader::open(tar.as_slice())?;
/// assert_eq!(reader.next_member()?.unwrap().name, b"docs");
/// assert!(reader.next_member()?.is_none());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug)]
pub struct TarReader<R: Read> {
    input: Decompressed<R>,
    /// How many bytes were read.
    position: u64,
    /// Where the next header starts.
    next: u64,
    /// What extended headers say about all members after them.
    globals: Records,
    /// How many of those headers there were.
    global_headers: usize,
    /// What is left of the last member's content.
    content: Content,
    /// How many bytes of sparse files are not in the archive.
    zeros: u64,
    spent: Usage,
    ended: bool,
}

/// Where an archive stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// At a block of zeros, as it should.
    Zeros,
    /// At the end of the stream.
    Missing,
    /// In the middle of a block.
    Truncated,
    /// At something that is no header.
    Invalid,
}

/// What extended headers in front of a member say about it.
enum Extension {
    Name(Vec<u8>),
    Link(Vec<u8>),
    Records { records: Records, payload: Vec<u8> },
    Globals,
}

impl<R: Read> TarReader<R> {
    /// Opens a stream.
    ///
    /// # Errors
    /// The stream cannot be read or decompressed.
    pub fn open(input: R) -> Result<Self> {
        Self::open_sized(input, None)
    }

    /// Opens a stream that is so long, if that is known: a small one may not unpack to much.
    ///
    /// # Errors
    /// The stream cannot be read or decompressed.
    pub fn open_sized(input: R, length: Option<u64>) -> Result<Self> {
        Ok(Self {
            input: Decompressed::open(input, length).map_err(tar_read_failure)?,
            position: 0,
            next: 0,
            globals: Records::default(),
            global_headers: 0,
            content: Content::default(),
            zeros: 0,
            spent: Usage::default(),
            ended: false,
        })
    }

    /// The next member, or `None` at the end. What is left of the last one's content is skipped.
    ///
    /// # Errors
    /// The stream ends inside a member, is no tar archive at all, or costs more than any may.
    pub fn next_member(&mut self) -> Result<Option<TarMember>> {
        if self.ended {
            return Ok(None);
        }
        self.skip_to_next()?;
        match self.read_member()? {
            Ok(member) => {
                self.spent.add(&member.name, &member.link, member.records.weight())?;
                Ok(Some(member))
            }
            // Anything at the front of the stream must be a header; later, the reference takes
            // whatever is none for the end.
            Err(ending) if self.next == 0 && ending != Ending::Zeros => {
                Err(unreadable_tar(match ending {
                    Ending::Missing | Ending::Zeros => "it is empty",
                    Ending::Truncated => "its first header is cut off",
                    Ending::Invalid => "it does not start with a header",
                }))
            }
            Err(_) => {
                self.ended = true;
                Ok(None)
            }
        }
    }

    /// The content of the member read last.
    pub fn content(&mut self) -> TarContent<'_, R> {
        TarContent {
            input: &mut self.input,
            position: &mut self.position,
            content: &mut self.content,
        }
    }

    /// Reads headers up to and including the one of a member.
    fn read_member(&mut self) -> Result<Result<TarMember, Ending>> {
        let mut extensions = Vec::new();
        loop {
            let header = match self.read_header()? {
                Ok(header) => header,
                Err(ending) if extensions.is_empty() => return Ok(Err(ending)),
                Err(_) => return Err(unreadable_tar("an extended header leads nowhere")),
            };
            let extension = match header.flag {
                b'L' => Extension::Name(until_nul(&self.read_payload(header.size)?).to_vec()),
                b'K' => Extension::Link(until_nul(&self.read_payload(header.size)?).to_vec()),
                b'x' | b'X' | b'g' => match self.read_records(header.flag, header.size)? {
                    Some(extension) => extension,
                    None if extensions.is_empty() => return Ok(Err(Ending::Invalid)),
                    None => return Err(unreadable_tar("an extended header is invalid")),
                },
                _ => {
                    let mut member = self.start_member(header)?;
                    // The one nearest to the member comes first, so that earlier ones overrule it.
                    for extension in extensions.into_iter().rev() {
                        self.apply(extension, &mut member)?;
                    }
                    return self.start_content(member).map(Ok);
                }
            };
            extensions.push(extension);
            if extensions.len() > MAX_EXTENSIONS {
                return Err(unreadable_tar("too many extended headers in front of a member"));
            }
        }
    }

    fn read_records(&mut self, flag: u8, size: u64) -> Result<Option<Extension>> {
        let payload = self.read_payload(size)?;
        if flag == b'g' {
            let mut globals = self.globals.clone();
            if globals.extend_from(&payload).is_none() {
                return Ok(None);
            }
            self.globals = globals.for_all();
            self.global_headers += 1;
            let is_large = self.globals.shared_weight() > MAX_GLOBALS;
            if is_large || self.global_headers > MAX_GLOBAL_HEADERS {
                let most = format!("{MAX_GLOBALS} bytes in {MAX_GLOBAL_HEADERS} headers");
                return Err(unreadable_tar(format!("headers for all members exceed {most}")));
            }
            return Ok(Some(Extension::Globals));
        }
        let mut records = self.globals.clone();
        let read = records.extend_from(&payload);
        Ok(read.map(|()| Extension::Records { records, payload }))
    }

    /// Takes the member's header and finds out where its content ends.
    fn start_member(&mut self, mut header: Header) -> Result<TarMember> {
        let sparse = header.sparse.take();
        let stored = header.size;
        let mut member = TarMember::of_header(header);
        if let Some(sparse) = sparse {
            let mut map = sparse.map;
            let mut continues = sparse.continues;
            while continues {
                let mut block = [0; BLOCK];
                self.read_exactly(&mut block)?;
                let pairs = sparse_pairs(&block[..504]).into_iter();
                map.extend(pairs.filter(|(offset, length)| *offset != 0 && *length != 0));
                continues = block[504] != 0;
                if map.len() > MAX_PARTS {
                    return Err(too_many_parts());
                }
            }
            member.size = sparse.real_size;
            member.sparse = Some(map);
        } else {
            let globals = self.globals.clone();
            overrule(&mut member, &globals)?;
            member.records = globals;
            if member.is_dir() {
                trim_slashes(&mut member.name);
            }
        }
        self.content = Content::new(stored);
        self.end_content_after(member.kind, stored)?;
        Ok(member)
    }

    fn apply(&mut self, extension: Extension, member: &mut TarMember) -> Result<()> {
        match extension {
            Extension::Globals => {}
            Extension::Name(name) => {
                member.name = name;
                if member.is_dir() && member.name.ends_with(b"/") {
                    member.name.pop();
                }
            }
            Extension::Link(link) => member.link = link,
            Extension::Records { records, payload } => {
                if let Some(map) = self.sparse_map(&records, &payload)? {
                    member.sparse = Some(map);
                }
                overrule(member, &records)?;
                if let Some(size) = records.get(b"size") {
                    let stored = size_of(size)?;
                    self.content.set_stored(stored);
                    self.end_content_after(member.kind, stored)?;
                }
                member.records = records;
            }
        }
        Ok(())
    }

    /// The map of a sparse file, in any of the three ways extended headers have of giving it.
    fn sparse_map(&mut self, records: &Records, payload: &[u8]) -> Result<Option<Vec<(u64, u64)>>> {
        let invalid = || unreadable_tar("the map of a sparse file is invalid");
        if let Some(map) = records.get(b"GNU.sparse.map") {
            let numbers = map.split(|byte| *byte == b',').take(2 * MAX_PARTS + 1).map(size_of);
            let map = pairs(&numbers.collect::<Result<Vec<_>>>()?);
            return if map.len() < MAX_PARTS { Ok(Some(map)) } else { Err(too_many_parts()) };
        }
        if records.get(b"GNU.sparse.size").is_some() {
            // Here one keyword stands in many records, so they are read from the payload itself.
            let values = |keyword: &'static [u8]| {
                let lines = payload.split(|byte| *byte == b'\n');
                let values = lines.filter_map(move |line| {
                    let record = line.splitn(2, |byte| *byte == b' ').nth(1)?;
                    record.strip_prefix(keyword)?.strip_prefix(b"=")
                });
                values.map(size_of)
            };
            let offsets = values(b"GNU.sparse.offset");
            let map = offsets.zip(values(b"GNU.sparse.numbytes"));
            let map = map.take(MAX_PARTS).map(|(offset, length)| Ok((offset?, length?)));
            let map = map.collect::<Result<Vec<_>>>()?;
            return if map.len() < MAX_PARTS { Ok(Some(map)) } else { Err(too_many_parts()) };
        }
        let version = (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor"));
        if version != (Some(b"1"), Some(b"0")) {
            return Ok(None);
        }
        // Here the map is the front of the content: lines of digits, filled up to a block.
        let mut text = Vec::new();
        let mut numbers = Vec::new();
        let mut wanted = 1;
        while numbers.len() < wanted {
            let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
                let mut block = [0; BLOCK];
                self.read_exactly(&mut block)?;
                self.content.drop_block();
                text.extend_from_slice(&block);
                continue;
            };
            let line: Vec<u8> = text.drain(..=end).collect();
            numbers.push(size_of(line.get(..end).unwrap_or_default())?);
            if let (Some(parts), 1) = (numbers.first(), numbers.len()) {
                let parts = usize::try_from(*parts).map_err(|_| invalid())?;
                wanted =
                    parts.checked_mul(2).filter(|_| parts <= MAX_PARTS).ok_or_else(invalid)? + 1;
            }
        }
        Ok(Some(pairs(numbers.get(1..).unwrap_or_default())))
    }

    fn start_content(&mut self, member: TarMember) -> Result<TarMember> {
        if !self.content.start(&member) || self.position > self.next {
            return Err(unreadable_tar("the sizes of a member do not fit together"));
        }
        self.zeros = self.zeros.saturating_add(self.content.zeros());
        let (limit, actual) = (self.input.allowance(), self.zeros);
        match actual > limit {
            true => Err(ExpansionError { limit, actual }.error(&member.name)),
            false => Ok(member),
        }
    }

    fn end_content_after(&mut self, kind: TarKind, stored: u64) -> Result<()> {
        let too_long = || unreadable_tar("a member is longer than anything");
        let content = if kind.has_content() { padded(stored).ok_or_else(too_long)? } else { 0 };
        // For a sparse file, part of the content may have been read already.
        let start = self.position - self.content.dropped();
        self.next = start.checked_add(content).ok_or_else(too_long)?;
        Ok(())
    }

    fn read_header(&mut self) -> Result<Result<Header, Ending>> {
        let mut block = [0; BLOCK];
        let read = self.read_available(&mut block)?;
        Ok(match read {
            0 => Err(Ending::Missing),
            _ if read < BLOCK => Err(Ending::Truncated),
            _ if block == [0; BLOCK] => Err(Ending::Zeros),
            _ => Header::decode(&block).ok_or(Ending::Invalid),
        })
    }

    /// The payload of an extended header, without what fills up its last block.
    fn read_payload(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_HEADER {
            return Err(unreadable_tar("an extended header is too long"));
        }
        let padded = padded(size).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        let mut payload = vec![0; padded];
        let read = self.read_available(&mut payload)?;
        payload.truncate(read);
        Ok(payload)
    }

    fn skip_to_next(&mut self) -> Result<()> {
        let ahead = self.next.saturating_sub(self.position);
        let skipped = io::copy(&mut self.input.by_ref().take(ahead), &mut io::sink());
        let skipped = skipped.map_err(tar_read_failure)?;
        self.position += skipped;
        if skipped < ahead { Err(cut_off()) } else { Ok(()) }
    }

    fn read_exactly(&mut self, buffer: &mut [u8]) -> Result<()> {
        let wanted = buffer.len();
        if self.read_available(buffer)? < wanted { Err(cut_off()) } else { Ok(()) }
    }

    fn read_available(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(tar_read_failure(error)),
            }
        }
        self.position += u64::try_from(filled).unwrap_or_default();
        Ok(filled)
    }
}

impl<R: Read + Seek> TarReader<R> {
    /// Starts over; the archive starts where the stream did.
    pub(crate) fn rewound(self) -> Result<Self> {
        let length = self.input.length();
        let mut input = self.input.into_inner();
        input.seek(SeekFrom::Start(0)).map_err(unreadable_tar)?;
        Self::open_sized(input, length)
    }

    /// Opens a stream from its start, and finds out how long it is.
    pub(crate) fn open_whole(mut input: R) -> Result<Self> {
        let length = input.seek(SeekFrom::End(0)).map_err(unreadable_tar)?;
        input.seek(SeekFrom::Start(0)).map_err(unreadable_tar)?;
        Self::open_sized(input, Some(length))
    }
}

/// Lets records overrule a member's fields.
fn overrule(member: &mut TarMember, records: &Records) -> Result<()> {
    if let Some(path) = records.get(b"path") {
        member.name = path.to_vec();
        trim_slashes(&mut member.name);
    }
    if let Some(name) = records.get(b"GNU.sparse.name") {
        member.name = name.to_vec();
    }
    if let Some(link) = records.get(b"linkpath") {
        member.link = link.to_vec();
    }
    if let Some(size) = records.get(b"size") {
        member.size = size_of(size)?;
    }
    for keyword in [&b"GNU.sparse.size"[..], b"GNU.sparse.realsize"] {
        if let Some(size) = records.get(keyword) {
            member.size = size_of(size)?;
        }
    }
    Ok(())
}

fn size_of(value: &[u8]) -> Result<u64> {
    let size = integer(value).and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| unreadable_tar("a size is no number"))
}

fn pairs(numbers: &[u64]) -> Vec<(u64, u64)> {
    numbers.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect()
}

fn too_many_parts() -> Error {
    unreadable_tar(format!("a sparse file has more than {MAX_PARTS} pieces"))
}

fn cut_off() -> Error {
    unreadable_tar("it is cut off")
}
