//! Snapshots as tar archives.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::sync::Arc;

use bastide_model::archive::tar::{TarDetails, TarKind, TarMember, TarReader, TarWriter};
use bastide_proto::files::FileTime;
use bastide_proto::tree::{Attributes, MAX_DEPTH};
use serde_bytes::ByteBuf;

use super::reader::{Reader, Room};
use super::record::{self, SnapshotInfo};
use super::tree::{
    Entry, Kind, Order, Piece, TreeReader, TreeWriter, check_attributes, check_link,
};
use super::trouble::damaged;
use super::writer::segments;
use super::{Store, now_ms};
use crate::{Error, ErrorKind, Result};

/// How many members an archive may have.
const MAX_MEMBERS: usize = 10_000_000;

impl Store {
    /// Writes a snapshot as a tar archive. Everything but holes in files survives: these are zeros then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none of that name; [`ErrorKind::Io`] if it is damaged or
    /// cannot be written. What was written before that is no whole archive.
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
            let (kind, link, pieces) = match entry.kind {
                Kind::Dir => (TarKind::Dir, Vec::new(), Vec::new()),
                Kind::Fifo => (TarKind::Fifo, Vec::new(), Vec::new()),
                Kind::Symlink { target } => (TarKind::Symlink, target.into_vec(), Vec::new()),
                Kind::Link { entry } => {
                    let to = shared.get(&entry).cloned();
                    let to = to.ok_or_else(|| damaged("a link to no file"))?;
                    (TarKind::Hardlink, to, Vec::new())
                }
                Kind::File { shared: is_shared, pieces, .. } => {
                    if is_shared {
                        shared.insert(number, path.clone());
                    }
                    (TarKind::File, Vec::new(), pieces)
                }
            };
            number += 1;
            let mut member = TarMember::new(&path, kind);
            (member.link, member.mode) = (link, entry.mode);
            member.size = pieces.iter().map(Piece::length).sum();
            let plain = |(name, value): (ByteBuf, ByteBuf)| (name.into_vec(), value.into_vec());
            member.set_details(&TarDetails {
                uid: entry.uid,
                gid: entry.gid,
                seconds: entry.modified.seconds,
                nanos: entry.modified.nanos,
                attributes: entry.attributes.into_iter().map(plain).collect(),
            });
            let mut content = PieceReader::new(&reader, pieces);
            let appended = tar.append(&member, &mut content);
            // What the store says is worth more than that a stream ended.
            if let Some(error) = content.failed.take() {
                return Err(error);
            }
            appended?;
        }
        tar.finish()
    }

    /// Makes a snapshot of a tar archive, in the place of one of that name.
    ///
    /// Folders that the archive does not name are made. A later member takes the place of an earlier
    /// one. Nothing is unpacked: names that lead out are refused, links are kept as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the archive cannot be read, or holds what no workspace can hold.
    pub fn import(&self, name: &str, input: impl Read) -> Result<SnapshotInfo> {
        record::check_name(name)?;
        let writer = Arc::new(self.writer()?);
        let mut nodes = Nodes::default();
        let mut tar = TarReader::open(input)?;
        let mut left_out = Vec::new();
        while let Some(member) = tar.next_member()? {
            let names = names_of(&member)?;
            let kind = match member.kind {
                TarKind::Dir => NodeKind::Dir,
                TarKind::Fifo => NodeKind::Fifo,
                TarKind::Symlink => {
                    check_link(&member.link).map_err(|what| refused(&member, what))?;
                    NodeKind::Symlink(member.link.clone())
                }
                TarKind::Hardlink => {
                    let mut to = TarMember::new(&member.link, TarKind::File);
                    to.mode = 0;
                    NodeKind::Link(names_of(&to)?)
                }
                TarKind::File => {
                    let mut content = tar.content();
                    let mut pieces = Vec::new();
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
                        size += writer.put_stream(read, &mut pieces)?;
                    }
                    if size != member.size {
                        return Err(refused(&member, "it is cut off"));
                    }
                    NodeKind::File { size, pieces }
                }
                TarKind::CharDevice | TarKind::BlockDevice | TarKind::Other => {
                    let path = String::from_utf8_lossy(&member.name).into_owned();
                    left_out.push((path, "it is a device, or something unknown".to_owned()));
                    continue;
                }
            };
            nodes.put(&member, names, kind)?;
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
        .with("member", name)
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

/// What an archive holds, in order.
#[derive(Default)]
struct Nodes {
    all: BTreeMap<Vec<Vec<u8>>, Node>,
}

struct Node {
    kind: NodeKind,
    mode: u32,
    details: TarDetails,
}

enum NodeKind {
    Dir,
    Fifo,
    Symlink(Vec<u8>),
    File { size: u64, pieces: Vec<Piece> },
    Link(Vec<Vec<u8>>),
}

impl Nodes {
    fn put(&mut self, member: &TarMember, names: Vec<Vec<u8>>, kind: NodeKind) -> Result<()> {
        if self.all.len() >= MAX_MEMBERS {
            return Err(refused(member, "the archive has too many members"));
        }
        if names.is_empty() && !matches!(kind, NodeKind::Dir) {
            return Err(refused(member, "the top must be a folder"));
        }
        // A folder that something else takes the place of loses what is in it, as it would on a disk.
        let is_dir = matches!(kind, NodeKind::Dir);
        if !is_dir && self.all.get(&names).is_some_and(|node| matches!(node.kind, NodeKind::Dir)) {
            return Err(refused(member, "it takes the place of a folder"));
        }
        for depth in 0..names.len() {
            let above = self.all.entry(names[..depth].to_vec()).or_insert_with(Node::folder);
            if !matches!(above.kind, NodeKind::Dir) {
                return Err(refused(member, "it lies in something that is no folder"));
            }
        }
        if let NodeKind::Link(to) = &kind {
            let is_file =
                |node: &Node| matches!(node.kind, NodeKind::File { .. } | NodeKind::Link(_));
            if to == &names || !self.all.get(to).is_some_and(is_file) {
                return Err(refused(member, "it is another name of no file"));
            }
        }
        let node = Node { kind, mode: member.mode & 0o7777, details: member.details() };
        self.all.insert(names, node);
        Ok(())
    }

    /// The file a link leads to in the end.
    fn target(&self, names: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        let mut at = names.to_vec();
        // A member that was replaced may have left links in a circle.
        for _ in 0..self.all.len() + 1 {
            match &self.all.get(&at)?.kind {
                NodeKind::Link(to) => at.clone_from(to),
                NodeKind::File { .. } => return Some(at),
                _ => return None,
            }
        }
        None
    }

    fn write(mut self, list: &mut TreeWriter) -> Result<()> {
        self.all.entry(Vec::new()).or_insert_with(Node::folder);
        let mut groups: HashMap<Vec<Vec<u8>>, Option<u64>> = HashMap::new();
        for (names, node) in &self.all {
            if let NodeKind::Link(_) = node.kind {
                let target = self.target(names).ok_or_else(|| {
                    let path = String::from_utf8_lossy(&names.join(&b'/')).into_owned();
                    let message = format!("cannot import {path}: it is another name of no file");
                    Error::new(ErrorKind::InvalidInput, message)
                })?;
                groups.insert(target, None);
            }
        }
        let mut order = Order::default();
        for (names, node) in &self.all {
            let name = names.last().map(Vec::as_slice).unwrap_or_default();
            let depth = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let is_dir = matches!(node.kind, NodeKind::Dir);
            let bad = |what: &str| {
                let path = String::from_utf8_lossy(&names.join(&b'/')).into_owned();
                Error::new(ErrorKind::InvalidInput, format!("cannot import {path}: {what}"))
            };
            order.next(depth, name, is_dir).map_err(bad)?;
            let mut source = node;
            let kind = match &node.kind {
                NodeKind::Dir => Kind::Dir,
                NodeKind::Fifo => Kind::Fifo,
                NodeKind::Symlink(target) => {
                    Kind::Symlink { target: ByteBuf::from(target.as_slice()) }
                }
                NodeKind::File { .. } | NodeKind::Link(_) => {
                    let target = self.target(names).unwrap_or_default();
                    let first = groups.get(&target).copied();
                    source = self.all.get(&target).unwrap_or(node);
                    match (first, &source.kind) {
                        (Some(Some(entry)), _) => Kind::Link { entry },
                        (shared, NodeKind::File { size, pieces }) => {
                            if shared.is_some() {
                                groups.insert(target.clone(), Some(list.entries));
                            }
                            let (size, pieces) = (*size, pieces.clone());
                            Kind::File { size, shared: shared.is_some(), pieces }
                        }
                        _ => return Err(bad("it is another name of no file")),
                    }
                }
            };
            let TarDetails { uid, gid, seconds, nanos, attributes } = source.details.clone();
            let attributes: Attributes = match kind {
                Kind::Link { .. } | Kind::Symlink { .. } | Kind::Fifo => Vec::new(),
                Kind::Dir | Kind::File { .. } => attributes
                    .into_iter()
                    .filter(|(name, _)| name.starts_with(b"user."))
                    .map(|(name, value)| (ByteBuf::from(name), ByteBuf::from(value)))
                    .collect(),
            };
            check_attributes(&attributes).map_err(bad)?;
            list.add(Entry {
                depth,
                name: ByteBuf::from(name),
                kind,
                mode: source.mode,
                uid,
                gid,
                modified: FileTime { seconds, nanos },
                attributes,
            })?;
        }
        Ok(())
    }
}

impl Node {
    /// A folder that nobody described.
    fn folder() -> Self {
        Self { kind: NodeKind::Dir, mode: 0o755, details: TarDetails::default() }
    }
}

/// The content of a file, read from the store.
struct PieceReader<'a> {
    reader: &'a Reader,
    pieces: std::vec::IntoIter<Piece>,
    room: Room,
    chunk: Vec<u8>,
    at: usize,
    hole: u64,
    failed: Option<Error>,
}

impl<'a> PieceReader<'a> {
    fn new(reader: &'a Reader, pieces: Vec<Piece>) -> Self {
        let (room, chunk) = (Room::default(), Vec::new());
        Self { reader, pieces: pieces.into_iter(), room, chunk, at: 0, hole: 0, failed: None }
    }
}

impl Read for PieceReader<'_> {
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
            match self.pieces.next() {
                None => return Ok(0),
                Some(Piece::Hole(length)) => self.hole = length,
                Some(Piece::Chunk { id, .. }) => {
                    let Self { reader, room, chunk, .. } = self;
                    let read = reader.with(&id, room, |content| {
                        chunk.clear();
                        chunk.extend_from_slice(content);
                        Ok(())
                    });
                    self.at = 0;
                    if let Err(error) = read {
                        let told = io::Error::other(error.to_string());
                        self.failed = Some(error);
                        return Err(told);
                    }
                }
            }
        }
    }
}
