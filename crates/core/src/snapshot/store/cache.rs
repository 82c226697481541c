//! What files looked like when they were last saved, so that only what changed is read again.
//!
//! A cache is a list like that of a snapshot, in blocks: a length (u32), the BLAKE3 of what follows,
//! then rows in postcard's form; the first block says which clock the times in it are of. It can be
//! deleted at any time, and so is one that is damaged or of another clock: then everything is read again.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bastide_proto::files::FileTime;
use bastide_proto::tree::{Attributes, Clock, ScannedStat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::chunk::ChunkId;
use super::errors::failed;
use super::tree::{FilePart, Order};
use crate::Result;

/// How long a block may be.
const MAX_BLOCK: usize = 8 << 20;

/// How much is gathered for a block.
const BLOCK: usize = 64 << 10;

/// Files of more pieces than this are read again.
const MAX_PARTS: usize = 65_536;

/// How far a clock may seem to be set without having been: two looks at it take some time. Well below what
/// the guest asks a file to be older than when it is read.
const SAME_CLOCK_NANOS: u64 = 20_000_000;

/// What a cache begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// By which rule files were put into it: one that was made by another is of no use.
    rule: u32,
    clock: Clock,
}

/// The rule of `docs/snapshots.md`.
const RULE: u32 = 2;

impl Header {
    /// Whether times of files that were seen under both can be compared.
    fn is_of(&self, clock: &Clock) -> bool {
        self.rule == RULE
            && self.clock.boot == clock.boot
            && self.clock.offset_nanos.abs_diff(clock.offset_nanos) <= SAME_CLOCK_NANOS
    }
}

/// Something that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    depth: u32,
    name: ByteBuf,
    /// Not there for a folder.
    file: Option<CachedFile>,
}

/// A file that was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedFile {
    inode: u64,
    size: u64,
    modified: FileTime,
    changed: FileTime,
    pub(crate) attributes: Attributes,
    pub(crate) file_parts: Vec<FilePart>,
}

impl CachedFile {
    /// Whether a file still is what it was.
    pub(crate) fn is(&self, stat: &ScannedStat) -> bool {
        (self.inode, self.size, self.modified, self.changed)
            == (stat.inode, stat.size, stat.modified, stat.changed)
    }
}

/// Reads a cache, in step with a tree that is looked through.
#[derive(Debug)]
pub(crate) struct CacheReader {
    input: Option<BufReader<File>>,
    rows: std::vec::IntoIter<Row>,
    order: Order,
    next: Option<Option<CachedFile>>,
}

impl CacheReader {
    /// A cache without anything.
    pub(crate) fn empty() -> Self {
        Self { input: None, rows: Vec::new().into_iter(), order: Order::default(), next: None }
    }

    /// Opens a cache; one that is not there, or of another clock, is empty. Says how the clock was set
    /// when the oldest of its rows was made.
    pub(crate) fn open(path: &Path, clock: &Clock) -> (Self, Option<Clock>) {
        let mut input = File::open(path).ok().map(BufReader::new);
        let header: Option<Header> = input.as_mut().and_then(read_block);
        match header.filter(|header| header.is_of(clock)) {
            Some(header) => (Self { input, ..Self::empty() }, Some(header.clock)),
            None => (Self::empty(), None),
        }
    }

    /// What is known of the file at this path; paths are asked for in order.
    pub(crate) fn find(&mut self, names: &[Vec<u8>]) -> Option<CachedFile> {
        loop {
            if self.next.is_none() {
                self.next = Some(self.advance()?);
            }
            match self.order.names().cmp(names) {
                std::cmp::Ordering::Less => self.next = None,
                std::cmp::Ordering::Equal => return self.next.take().flatten(),
                std::cmp::Ordering::Greater => return None,
            }
        }
    }

    /// Goes on by a row; anything odd ends the cache.
    fn advance(&mut self) -> Option<Option<CachedFile>> {
        let row = match self.rows.next() {
            Some(row) => row,
            None => {
                let rows: Option<Vec<Row>> = self.input.as_mut().and_then(read_block);
                if rows.is_none() {
                    self.input = None;
                }
                self.rows = rows?.into_iter();
                self.rows.next()?
            }
        };
        if self.order.next(row.depth, &row.name, row.file.is_none()).is_err() {
            self.input = None;
            self.rows = Vec::new().into_iter();
            return None;
        }
        Some(row.file)
    }
}

fn read_block<T: DeserializeOwned>(input: &mut BufReader<File>) -> Option<T> {
    let mut header = [0; 36];
    input.read_exact(&mut header).ok()?;
    let (length, hash) = header.split_at(4);
    let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
    if length > MAX_BLOCK {
        return None;
    }
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes).ok()?;
    if ChunkId::of(&bytes).0 != hash {
        return None;
    }
    bastide_proto::decode(&bytes).ok()
}

/// Writes a cache, which takes its place when it is finished.
#[derive(Debug)]
pub(crate) struct CacheWriter {
    output: Option<(BufWriter<File>, PathBuf, PathBuf)>,
    rows: Vec<Row>,
    weight: usize,
}

impl CacheWriter {
    /// A cache that is not kept.
    pub(crate) fn nowhere() -> Self {
        Self { output: None, rows: Vec::new(), weight: 0 }
    }

    /// Begins a cache that will be at `path`, with rows of this clock.
    pub(crate) fn create(path: PathBuf, temporary: PathBuf, clock: Clock) -> Result<Self> {
        let file =
            File::create_new(&temporary).map_err(|error| failed("make", &temporary, error))?;
        let output = Some((BufWriter::new(file), temporary, path));
        let mut cache = Self { output, rows: Vec::new(), weight: 0 };
        cache.block(&Header { rule: RULE, clock })?;
        Ok(cache)
    }

    /// Remembers a folder.
    pub(crate) fn dir(&mut self, depth: u32, name: &ByteBuf) -> Result<()> {
        self.add(Row { depth, name: name.clone(), file: None }, 0)
    }

    /// Remembers a file that would show another change.
    pub(crate) fn file(
        &mut self,
        depth: u32,
        name: &ByteBuf,
        stat: &ScannedStat,
        attributes: &Attributes,
        file_parts: &[FilePart],
    ) -> Result<()> {
        if !stat.settled || file_parts.len() > MAX_PARTS {
            return Ok(());
        }
        let ScannedStat { inode, size, modified, changed, .. } = *stat;
        let (attributes, file_parts) = (attributes.clone(), file_parts.to_vec());
        let weight = file_parts.len() * 40;
        let file = CachedFile { inode, size, modified, changed, attributes, file_parts };
        self.add(Row { depth, name: name.clone(), file: Some(file) }, weight)
    }

    fn add(&mut self, row: Row, weight: usize) -> Result<()> {
        if self.output.is_none() {
            return Ok(());
        }
        self.weight += weight + row.name.len() + 40;
        self.rows.push(row);
        if self.weight >= BLOCK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        self.weight = 0;
        self.block(&rows)
    }

    fn block(&mut self, content: &impl Serialize) -> Result<()> {
        let Some((output, path, _)) = &mut self.output else { return Ok(()) };
        let bytes = bastide_proto::encode(content).unwrap_or_default();
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut write = || -> std::io::Result<()> {
            output.write_all(&length.to_le_bytes())?;
            output.write_all(&ChunkId::of(&bytes).0)?;
            output.write_all(&bytes)
        };
        write().map_err(|error| failed("write", path, error))
    }

    /// Puts the cache in its place. It is not worth waiting for the disk: one that is lost or torn is
    /// made again.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()?;
        let Some((mut output, temporary, path)) = self.output.take() else { return Ok(()) };
        output.flush().map_err(|error| failed("write", &temporary, error))?;
        drop(output);
        fs::rename(&temporary, &path).map_err(|error| failed("name", &path, error))
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        if let Some((_, temporary, _)) = &self.output {
            drop(fs::remove_file(temporary));
        }
    }
}
