//! Snapshots as tar archives.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bastide_archive::tar::{TarDetails, TarKind, TarMember, TarReader, TarWriter};
use bastide_proto::files::FileTime;
use bastide_proto::tree::{Attributes, MAX_DEPTH};
use serde_bytes::ByteBuf;

use super::errors::damaged;
use super::reader::{ReadBuffers, Reader};
use super::record::{self, SnapshotInfo};
use super::tree::{
    Entry, FilePart, Kind, Order, TreeReader, TreeWriter, check_attributes, check_link,
};
use super::writer::segments;
use super::{Store, now_ms};
use crate::snapshot::paths::{NodeId, PathTree, PathVisit};
use crate::{Error, ErrorKind, Result};

/// How many members that are left out are named.
const MAX_LEFT_OUT: usize = 1000;

/// How many names of a file lead to one another. More than one come of files that were replaced by links.
const MAX_HOPS: usize = 40;

impl Store {
    /// Writes a snapshot as a tar archive. Everything is preserved but holes in files, which become
    /// zeros.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none with that name; [`ErrorKind::Io`] if it is damaged
    /// or cannot be written. What was written before the error is not a complete archive.
    pub fn export(&self, name: &str, out: impl Write) -> Result<()> {
        let (reader, info) = self.reading(|| self.inspect(name))?;
        let reader = Arc::new(reader);
        let mut list = TreeReader::new(Arc::clone(&reader), info.chunks()?);
        let mut tar = TarWriter::new(out);
        let mut shared: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut number = 0;
        while let Some(entry) = list.next()? {
            let path = match list.names().is_empty() {
                true => b".".to_vec(),
                false => list.names().join(&b'/'),
            };
            let (kind, link, file_parts) = match entry.kind {
                Kind::Dir => (TarKind::Dir, Vec::new(), Vec::new()),
                Kind::Fifo => (TarKind::Fifo, Vec::new(), Vec::new()),
                Kind::Symlink { target } => (TarKind::Symlink, target.into_vec(), Vec::new()),
                Kind::Link { entry } => {
                    let to = shared.get(&entry).cloned();
                    let to = to.ok_or_else(|| damaged("a link to no file"))?;
                    (TarKind::Hardlink, to, Vec::new())
                }
                Kind::File { shared: is_shared, file_parts, .. } => {
                    if is_shared {
                        shared.insert(number, path.clone());
                    }
                    (TarKind::File, Vec::new(), file_parts)
                }
            };
            number += 1;
            let mut member = TarMember::new(&path, kind);
            (member.link, member.mode) = (link, entry.mode);
            member.size = file_parts.iter().map(FilePart::length).sum();
            let plain = |(name, value): (ByteBuf, ByteBuf)| (name.into_vec(), value.into_vec());
            member.set_details(&TarDetails {
                uid: entry.uid,
                gid: entry.gid,
                seconds: entry.modified.seconds,
                nanos: entry.modified.nanos,
                attributes: entry.attributes.into_iter().map(plain).collect(),
            });
            let mut content = FileReader::new(&reader, file_parts);
            let appended = tar.append(&member, &mut content);
            // What the store says is worth more than that a stream ended.
            if let Some(error) = content.failed.take() {
                return Err(error);
            }
            appended?;
        }
        tar.finish()
    }

    /// Creates a snapshot from a tar archive, replacing one of that name.
    ///
    /// Folders that the archive does not name are added. A later member replaces an earlier one.
    /// Nothing is unpacked: names that lead out of the tree are refused, links are kept as they
    /// are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the archive cannot be read, or holds what no workspace can
    /// hold.
    pub fn import(&self, name: &str, input: impl Read) -> Result<SnapshotInfo> {
        record::check_name(name)?;
        let writer = Arc::new(self.writer()?);
        let mut nodes = Nodes::default();
        let mut tar = TarReader::open(input)?;
        let mut left_out = Vec::new();
        while let Some(member) = tar.next_member()? {
            let names = names_of(&member)?;
            let kind = match member.kind {
                TarKind::Dir => ArchiveNodeKind::Dir,
                TarKind::Fifo => ArchiveNodeKind::Fifo,
                TarKind::Symlink => {
                    check_link(&member.link).map_err(|what| refused(&member, what))?;
                    ArchiveNodeKind::Symlink(member.link.clone())
                }
                TarKind::Hardlink => {
                    let mut to = TarMember::new(&member.link, TarKind::File);
                    to.mode = 0;
                    let to = nodes.file_at(&names_of(&to)?);
                    ArchiveNodeKind::Link(
                        to.ok_or_else(|| refused(&member, "it is another name of no file"))?,
                    )
                }
                TarKind::File => {
                    let mut content = tar.content();
                    let mut file_parts = Vec::new();
                    let mut size = 0;
                    for (_, length) in segments(0, member.size) {
                        let mut left = length;
                        let read = |buffer: &mut [u8]| {
                            let most =
                                usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                            let came = read_some(&mut content, &mut buffer[..most])
                                .map_err(|error| refused(&member, &error.to_string()))?;
                            left -= u64::try_from(came).unwrap_or(0);
                            Ok(came)
                        };
                        size += writer.put_stream(read, &mut file_parts)?;
                    }
                    if size != member.size {
                        return Err(refused(&member, "it is cut off"));
                    }
                    ArchiveNodeKind::File { size, file_parts }
                }
                TarKind::CharDevice | TarKind::BlockDevice | TarKind::Other => {
                    let path = String::from_utf8_lossy(&member.name).into_owned();
                    if left_out.len() < MAX_LEFT_OUT {
                        left_out.push((path, "it is a device, or something unknown".to_owned()));
                    }
                    continue;
                }
            };
            nodes.put(&member, &names, kind)?;
        }
        let mut list = TreeWriter::new(Arc::clone(&writer));
        nodes.write(&mut list)?;
        let (entries, bytes) = (list.entries, list.bytes);
        let chunks = list.finish()?;
        let (packs, _) = writer.finish()?;
        let info = SnapshotInfo {
            name: name.to_owned(),
            fingerprint: record::fingerprint(&chunks),
            created_at_ms: now_ms(),
            session: None,
            entries,
            bytes,
            left_out,
            tree: chunks.iter().map(ToString::to_string).collect(),
        };
        self.publish(&writer, &packs, &info)?;
        Ok(info)
    }
}

fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn refused(member: &TarMember, what: &str) -> Error {
    let name = String::from_utf8_lossy(&member.name).into_owned();
    Error::new(ErrorKind::InvalidInput, format!("cannot import {name}: {what}"))
        .with_context("member", name)
}

/// The names that lead to a member.
fn names_of(member: &TarMember) -> Result<Vec<Vec<u8>>> {
    let path = member.name.as_slice();
    if path.starts_with(b"/") {
        return Err(refused(member, "its name is absolute"));
    }
    let names: Vec<Vec<u8>> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !matches!(*name, b"" | b"."))
        .map(<[u8]>::to_vec)
        .collect();
    if names.iter().any(|name| name == b"..") {
        return Err(refused(member, "its name leads out"));
    }
    if names.len() >= MAX_DEPTH {
        return Err(refused(member, "it is too deep"));
    }
    Ok(names)
}

/// What an archive holds; where nothing is said there is a folder.
#[derive(Default)]
struct Nodes {
    all: PathTree<ArchiveNode>,
}

struct ArchiveNode {
    kind: ArchiveNodeKind,
    mode: u32,
    details: TarDetails,
}

enum ArchiveNodeKind {
    Dir,
    Fifo,
    Symlink(Vec<u8>),
    File { size: u64, file_parts: Vec<FilePart> },
    Link(NodeId),
}

impl Nodes {
    /// What is at a path that another name leads to.
    fn file_at(&self, names: &[Vec<u8>]) -> Option<NodeId> {
        self.target(self.all.find(names)?)
    }

    fn put(&mut self, member: &TarMember, names: &[Vec<u8>], kind: ArchiveNodeKind) -> Result<()> {
        let is_dir = matches!(kind, ArchiveNodeKind::Dir);
        if names.is_empty() && !is_dir {
            return Err(refused(member, "the top must be a folder"));
        }
        let place = self.all.reach(names);
        let place = place.ok_or_else(|| refused(member, "the archive has too many folders"))?;
        // A folder that something else takes the place of would lose what is in it.
        let before = self.all.get(place).map(|node| &node.kind);
        if !is_dir && (matches!(before, Some(ArchiveNodeKind::Dir)) || self.all.is_above(place)) {
            return Err(refused(member, "it takes the place of a folder"));
        }
        let is_dir_at = |place| {
            self.all
                .get(place)
                .is_none_or(|node: &ArchiveNode| matches!(node.kind, ArchiveNodeKind::Dir))
        };
        if !self.all.above(place).all(is_dir_at) {
            return Err(refused(member, "it lies in something that is no folder"));
        }
        if let ArchiveNodeKind::Link(to) = &kind
            && *to == place
        {
            return Err(refused(member, "it is another name of no file"));
        }
        let node = ArchiveNode { kind, mode: member.mode & 0o7777, details: member.details() };
        self.all.put(place, node);
        Ok(())
    }

    /// The file a name leads to in the end.
    fn target(&self, place: NodeId) -> Option<NodeId> {
        let mut at = place;
        for _ in 0..MAX_HOPS {
            match &self.all.get(at)?.kind {
                ArchiveNodeKind::Link(to) => at = *to,
                ArchiveNodeKind::File { .. } => return Some(at),
                _ => return None,
            }
        }
        None
    }

    fn write(&self, list: &mut TreeWriter) -> Result<()> {
        let bad = |place: NodeId, what: &str| {
            let path = String::from_utf8_lossy(&self.all.names(place).join(&b'/')).into_owned();
            Error::new(ErrorKind::InvalidInput, format!("cannot import {path}: {what}"))
        };
        let no_file = |place| bad(place, "it is another name of no file");
        let mut groups: HashMap<NodeId, Option<u64>> = HashMap::new();
        for step in self.all.walk() {
            if let Some(ArchiveNode { kind: ArchiveNodeKind::Link(_), .. }) = step.value {
                let target = self.target(step.place).ok_or_else(|| no_file(step.place))?;
                groups.insert(target, None);
            }
        }
        let folder = ArchiveNode::folder();
        let mut order = Order::default();
        for PathVisit { depth, name, place, value, .. } in self.all.walk() {
            let node = value.unwrap_or(&folder);
            let depth = u32::try_from(depth).unwrap_or(u32::MAX);
            let is_dir = matches!(node.kind, ArchiveNodeKind::Dir);
            order.next(depth, name, is_dir).map_err(|what| bad(place, what))?;
            let mut source = node;
            let kind = match &node.kind {
                ArchiveNodeKind::Dir => Kind::Dir,
                ArchiveNodeKind::Fifo => Kind::Fifo,
                ArchiveNodeKind::Symlink(target) => {
                    Kind::Symlink { target: ByteBuf::from(target.as_slice()) }
                }
                ArchiveNodeKind::File { .. } | ArchiveNodeKind::Link(_) => {
                    let target = self.target(place).ok_or_else(|| no_file(place))?;
                    let first = groups.get(&target).copied();
                    source = self.all.get(target).unwrap_or(node);
                    match (first, &source.kind) {
                        (Some(Some(entry)), _) => Kind::Link { entry },
                        (shared, ArchiveNodeKind::File { size, file_parts }) => {
                            if shared.is_some() {
                                groups.insert(target, Some(list.entries));
                            }
                            let (size, file_parts) = (*size, file_parts.clone());
                            Kind::File { size, shared: shared.is_some(), file_parts }
                        }
                        _ => return Err(no_file(place)),
                    }
                }
            };
            let entry = entry_of(depth, name, kind, source);
            check_attributes(&entry.attributes).map_err(|what| bad(place, what))?;
            list.add(entry)?;
        }
        Ok(())
    }
}

fn entry_of(depth: u32, name: &[u8], kind: Kind, source: &ArchiveNode) -> Entry {
    let TarDetails { uid, gid, seconds, nanos, attributes } = source.details.clone();
    let attributes: Attributes = match kind {
        Kind::Link { .. } | Kind::Symlink { .. } | Kind::Fifo => Vec::new(),
        Kind::Dir | Kind::File { .. } => attributes
            .into_iter()
            .filter(|(name, _)| name.starts_with(b"user."))
            .map(|(name, value)| (ByteBuf::from(name), ByteBuf::from(value)))
            .collect(),
    };
    let (mode, modified) = (source.mode, FileTime { seconds, nanos });
    Entry { depth, name: ByteBuf::from(name), kind, mode, uid, gid, modified, attributes }
}

impl ArchiveNode {
    /// A folder that nobody described.
    fn folder() -> Self {
        Self { kind: ArchiveNodeKind::Dir, mode: 0o755, details: TarDetails::default() }
    }
}

/// The content of a file, read from the store.
struct FileReader<'a> {
    reader: &'a Reader,
    file_parts: std::vec::IntoIter<FilePart>,
    room: ReadBuffers,
    chunk: Vec<u8>,
    at: usize,
    hole: u64,
    failed: Option<Error>,
}

impl<'a> FileReader<'a> {
    fn new(reader: &'a Reader, file_parts: Vec<FilePart>) -> Self {
        let (room, chunk) = (ReadBuffers::default(), Vec::new());
        Self {
            reader,
            file_parts: file_parts.into_iter(),
            room,
            chunk,
            at: 0,
            hole: 0,
            failed: None,
        }
    }
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.hole > 0 {
                let most = usize::try_from(self.hole).unwrap_or(usize::MAX).min(buffer.len());
                buffer[..most].fill(0);
                self.hole -= u64::try_from(most).unwrap_or(0);
                return Ok(most);
            }
            if self.at < self.chunk.len() {
                let most = (self.chunk.len() - self.at).min(buffer.len());
                buffer[..most].copy_from_slice(&self.chunk[self.at..self.at + most]);
                self.at += most;
                return Ok(most);
            }
            match self.file_parts.next() {
                None => return Ok(0),
                Some(FilePart::Hole(length)) => self.hole = length,
                Some(FilePart::Chunk { id, .. }) => {
                    let Self { reader, room, chunk, .. } = self;
                    let read = reader.with(&id, room, |content| {
                        chunk.clear();
                        chunk.extend_from_slice(content);
                        Ok(())
                    });
                    self.at = 0;
                    if let Err(error) = read {
                        let failure = io::Error::other(error.to_string());
                        self.failed = Some(error);
                        return Err(failure);
                    }
                }
            }
        }
    }
}
