//! The FUSE protocol of Linux, version 7, as far as this program speaks it.
//!
//! `fuser` cannot be used: it insists on a handshake, and none comes on a descriptor for which
//! another process answered before.

use rustix::io::Errno;

/// The version we were written for; the kernel speaks whatever both know.
const MAJOR: u32 = 7;
const MINOR: u32 = 38;

/// The most a write carries, and a read asks for.
pub(crate) const MAX_TRANSFER: u32 = 1 << 20;
/// What fits every request: the largest write and its headers.
pub(crate) const BUFFER: usize = (1 << 20) + 4096;

/// Requests that were sent to a process which ended before it answered have this bit in their id.
const RESENT: u64 = 1 << 63;
const NOTIFY_RESEND: i32 = 7;

mod flags {
    pub(super) const ASYNC_READ: u32 = 1;
    pub(super) const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub(super) const BIG_WRITES: u32 = 1 << 5;
    pub(super) const DO_READDIRPLUS: u32 = 1 << 13;
    pub(super) const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub(super) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(super) const MAX_PAGES: u32 = 1 << 22;
    pub(super) const INIT_EXT: u32 = 1 << 30;
    /// In the second word.
    pub(super) const HAS_RESEND: u32 = 1 << 7;
}

/// What was opened may keep the pages the kernel has of it.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;

pub(crate) const RENAME_NOREPLACE: u32 = 1;

const SET_SIZE: u32 = 1 << 3;
const SET_MTIME: u32 = 1 << 5;
const SET_HANDLE: u32 = 1 << 6;

/// One request of the kernel.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) op: Op,
}

impl Request {
    /// Whether another process took this request, and nobody knows what it did of it.
    pub(crate) fn was_taken_before(&self) -> bool {
        self.unique & RESENT != 0
    }
}

#[derive(Debug)]
pub(crate) enum Op {
    Init(Handshake),
    Lookup {
        name: Vec<u8>,
    },
    Forget(Vec<(u64, u64)>),
    GetAttr,
    SetAttr {
        size: Option<u64>,
        handle: Option<u64>,
        mtime: Option<(u64, u32)>,
    },
    MakeNode {
        name: Vec<u8>,
        mode: u32,
    },
    MakeFolder {
        name: Vec<u8>,
    },
    Unlink {
        name: Vec<u8>,
    },
    RemoveFolder {
        name: Vec<u8>,
    },
    Rename {
        from: Vec<u8>,
        folder: u64,
        to: Vec<u8>,
        flags: u32,
    },
    Open {
        flags: u32,
    },
    Create {
        name: Vec<u8>,
        flags: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: Vec<u8>,
    },
    Flush {
        handle: u64,
    },
    Sync {
        handle: u64,
    },
    Release {
        handle: u64,
    },
    OpenFolder,
    ReadFolder {
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseFolder {
        handle: u64,
    },
    StatFs,
    Interrupt {
        unique: u64,
    },
    /// Whatever succeeds by doing nothing.
    Nothing,
    /// Answered so that the kernel does not ask again.
    Unknown,
    /// What object storage has no notion of.
    Unsupported,
    Destroy,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Handshake {
    major: u32,
    max_readahead: u32,
    flags: u32,
    flags2: u32,
}

/// Fields of a request, taken one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(size)?;
        self.0 = tail;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    fn name(&mut self) -> Option<Vec<u8>> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = self.take(end)?.to_vec();
        self.take(1)?;
        Some(name)
    }
}

/// Makes a request of what was read; none if it is cut short, which the kernel does not do.
pub(crate) fn parse(bytes: &[u8]) -> Option<Request> {
    let mut fields = Fields(bytes);
    let _len = fields.u32()?;
    let opcode = fields.u32()?;
    let unique = fields.u64()?;
    let node = fields.u64()?;
    fields.take(16)?;
    Some(Request { unique, node, op: parse_op(opcode, node, &mut fields)? })
}

fn parse_op(opcode: u32, node: u64, fields: &mut Fields<'_>) -> Option<Op> {
    Some(match opcode {
        1 => Op::Lookup { name: fields.name()? },
        2 => Op::Forget(vec![(node, fields.u64()?)]),
        3 => Op::GetAttr,
        4 => parse_setattr(fields)?,
        8 => {
            let mode = fields.u32()?;
            fields.take(12)?;
            Op::MakeNode { name: fields.name()?, mode }
        }
        9 => {
            fields.take(8)?;
            Op::MakeFolder { name: fields.name()? }
        }
        10 => Op::Unlink { name: fields.name()? },
        11 => Op::RemoveFolder { name: fields.name()? },
        12 => {
            let folder = fields.u64()?;
            Op::Rename { from: fields.name()?, folder, to: fields.name()?, flags: 0 }
        }
        45 => {
            let (folder, flags) = (fields.u64()?, fields.u32()?);
            fields.take(4)?;
            Op::Rename { from: fields.name()?, folder, to: fields.name()?, flags }
        }
        14 => Op::Open { flags: fields.u32()? },
        35 => {
            let flags = fields.u32()?;
            fields.take(12)?;
            Op::Create { name: fields.name()?, flags }
        }
        15 => Op::Read { handle: fields.u64()?, offset: fields.u64()?, size: fields.u32()? },
        16 => {
            let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
            fields.take(20)?;
            Op::Write { handle, offset, data: fields.take(size as usize)?.to_vec() }
        }
        18 => Op::Release { handle: fields.u64()? },
        20 => Op::Sync { handle: fields.u64()? },
        25 => Op::Flush { handle: fields.u64()? },
        27 => Op::OpenFolder,
        28 | 44 => {
            let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
            Op::ReadFolder { handle, offset, size, plus: opcode == 44 }
        }
        29 => Op::ReleaseFolder { handle: fields.u64()? },
        17 => Op::StatFs,
        26 => parse_init(fields)?,
        36 => Op::Interrupt { unique: fields.u64()? },
        // FSYNCDIR: every change of a folder is in the store before it is answered.
        30 => Op::Nothing,
        38 => Op::Destroy,
        42 => {
            let count = fields.u32()?;
            fields.take(4)?;
            let one = |_| Some((fields.u64()?, fields.u64()?));
            Op::Forget((0..count).map(one).collect::<Option<_>>()?)
        }
        // READLINK, SYMLINK and LINK
        5 | 6 | 13 => Op::Unsupported,
        _ => Op::Unknown,
    })
}

fn parse_setattr(fields: &mut Fields<'_>) -> Option<Op> {
    let valid = fields.u32()?;
    fields.take(4)?;
    let (handle, size) = (fields.u64()?, fields.u64()?);
    // lock owner, access time
    fields.take(16)?;
    let seconds = fields.u64()?;
    // change time, nanoseconds of the access time
    fields.take(12)?;
    let nanoseconds = fields.u32()?;
    let given = |flag: u32| valid & flag != 0;
    Some(Op::SetAttr {
        size: given(SET_SIZE).then_some(size),
        handle: given(SET_HANDLE).then_some(handle),
        mtime: given(SET_MTIME).then_some((seconds, nanoseconds)),
    })
}

fn parse_init(fields: &mut Fields<'_>) -> Option<Op> {
    let (major, _minor, max_readahead) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let flags = fields.u32()?;
    let flags2 = if flags & flags::INIT_EXT == 0 { 0 } else { fields.u32()? };
    Some(Op::Init(Handshake { major, max_readahead, flags, flags2 }))
}

/// What the kernel is told of a file or folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) node: u64,
    pub(crate) size: u64,
    pub(crate) seconds: u64,
    pub(crate) nanoseconds: u32,
    /// With the type.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// How long the kernel may believe it.
    pub(crate) valid_ms: u32,
}

/// A successful answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Empty,
    Entry(Attributes),
    Attributes(Attributes),
    Opened { handle: u64, flags: u32 },
    Created { entry: Attributes, handle: u64 },
    Data(Vec<bytes::Bytes>),
    Written(u32),
    Folder(FolderReply),
    StatFs,
    Init(Handshake),
}

/// What is answered, as the bytes that follow the header; data is left where it is.
pub(crate) fn body(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    match reply {
        Reply::Empty | Reply::Data(_) => {}
        Reply::Entry(attributes) => put_entry(&mut out, attributes),
        Reply::Attributes(attributes) => {
            put64(&mut out, u64::from(attributes.valid_ms / 1000));
            put32(&mut out, attributes.valid_ms % 1000 * 1_000_000);
            put32(&mut out, 0);
            put_attributes(&mut out, attributes);
        }
        Reply::Opened { handle, flags } => put_opened(&mut out, *handle, *flags),
        Reply::Created { entry, handle } => {
            put_entry(&mut out, entry);
            put_opened(&mut out, *handle, OPEN_KEEP_CACHE);
        }
        Reply::Written(size) => {
            put32(&mut out, *size);
            put32(&mut out, 0);
        }
        Reply::Folder(folder) => out.extend_from_slice(&folder.bytes),
        Reply::StatFs => put_statfs(&mut out),
        Reply::Init(handshake) => put_init(&mut out, handshake),
    }
    out
}

/// The header of an answer of so many bytes.
pub(crate) fn header(unique: u64, size: usize, error: Option<Errno>) -> [u8; 16] {
    let mut out = [0; 16];
    let size = u32::try_from(16 + size).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&size.to_ne_bytes());
    let error = error.map_or(0, |errno| -errno.raw_os_error());
    out[4..8].copy_from_slice(&error.to_ne_bytes());
    out[8..].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// Asks the kernel for everything again that a process took and did not answer.
pub(crate) fn resend() -> [u8; 16] {
    let mut out = header(0, 0, None);
    out[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    out
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_ne_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_ne_bytes());
}

fn put_attributes(out: &mut Vec<u8>, a: &Attributes) {
    for value in [a.node, a.size, a.size.div_ceil(512), a.seconds, a.seconds, a.seconds] {
        put64(out, value);
    }
    let links = 1;
    let nanoseconds = a.nanoseconds;
    for value in [nanoseconds, nanoseconds, nanoseconds, a.mode, links, a.uid, a.gid, 0, 1 << 20, 0]
    {
        put32(out, value);
    }
}

fn put_entry(out: &mut Vec<u8>, a: &Attributes) {
    let generation = 0;
    let seconds = u64::from(a.valid_ms / 1000);
    for value in [a.node, generation, seconds, seconds] {
        put64(out, value);
    }
    let nanoseconds = a.valid_ms % 1000 * 1_000_000;
    put32(out, nanoseconds);
    put32(out, nanoseconds);
    put_attributes(out, a);
}

fn put_opened(out: &mut Vec<u8>, handle: u64, flags: u32) {
    put64(out, handle);
    put32(out, flags);
    put32(out, 0);
}

/// Nobody knows how much a store has left. Programs that ask want to hear that it is enough.
fn put_statfs(out: &mut Vec<u8>) {
    let (blocks, files) = (1 << 38, 1 << 32);
    for value in [blocks, blocks, blocks, files, files] {
        put64(out, value);
    }
    let (block, name) = (4096, 255);
    for value in [block, name, block, 0] {
        put32(out, value);
    }
    out.extend_from_slice(&[0; 24]);
}

fn put_init(out: &mut Vec<u8>, kernel: &Handshake) {
    let wanted = flags::ASYNC_READ
        | flags::ATOMIC_O_TRUNC
        | flags::BIG_WRITES
        | flags::DO_READDIRPLUS
        | flags::READDIRPLUS_AUTO
        | flags::PARALLEL_DIROPS
        | flags::MAX_PAGES
        | flags::INIT_EXT;
    for value in [MAJOR, MINOR, kernel.max_readahead.max(MAX_TRANSFER), kernel.flags & wanted] {
        put32(out, value);
    }
    let (max_background, congestion): (u16, u16) = (64, 48);
    out.extend_from_slice(&max_background.to_ne_bytes());
    out.extend_from_slice(&congestion.to_ne_bytes());
    put32(out, MAX_TRANSFER);
    let time_granularity = 1;
    put32(out, time_granularity);
    let max_pages: u16 = 256;
    out.extend_from_slice(&max_pages.to_ne_bytes());
    out.extend_from_slice(&[0; 2]);
    put32(out, kernel.flags2 & flags::HAS_RESEND);
    out.extend_from_slice(&[0; 28]);
}

impl Handshake {
    /// Whether the kernel speaks a protocol this program can answer.
    pub(crate) fn is_understood(&self) -> bool {
        self.major == MAJOR
    }
}

/// Entries of a folder, as many as the kernel has room for.
#[derive(Debug)]
pub(crate) struct FolderReply {
    bytes: Vec<u8>,
    limit: usize,
    plus: bool,
}

impl FolderReply {
    pub(crate) fn new(limit: u32, plus: bool) -> Self {
        Self { bytes: Vec::new(), limit: limit as usize, plus }
    }

    /// Whether an entry of this name still has room.
    pub(crate) fn fits(&self, name: &[u8]) -> bool {
        let head = if self.plus { 128 } else { 0 };
        self.bytes.len() + head + (24 + name.len()).next_multiple_of(8) <= self.limit
    }

    /// Adds an entry; `next` is where reading goes on after it. Node 0 tells no attributes.
    pub(crate) fn push(
        &mut self,
        name: &[u8],
        next: u64,
        folder: bool,
        entry: Option<&Attributes>,
    ) {
        if self.plus {
            match entry {
                Some(attributes) => put_entry(&mut self.bytes, attributes),
                None => self.bytes.extend_from_slice(&[0; 128]),
            }
        }
        put64(&mut self.bytes, entry.map_or(u64::MAX, |attributes| attributes.node));
        put64(&mut self.bytes, next);
        put32(&mut self.bytes, u32::try_from(name.len()).unwrap_or(0));
        put32(&mut self.bytes, if folder { 4 } else { 8 });
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    pub(crate) fn plus(&self) -> bool {
        self.plus
    }
}

#[cfg(test)]
mod tests;
