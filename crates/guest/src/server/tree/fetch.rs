//! The content of files the host wants.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::frame::{MAX_DATA, Tag};
use bastide_proto::tree::{
    Attributes, BATCH_CONTENT, Extent, FetchFile, FetchList, LARGE, ScanMessage, ScannedStat,
    SmallFile,
};
use bastide_proto::{Fault, FaultKind};
use bytes::{Bytes, BytesMut};
use rustix::fs::{FileType, OFlags, SeekFrom, fstat, seek};
use rustix::io::Errno;

use super::restore::WAIT_INTERVAL;
use super::scan::{EntryRef, seen};
use super::stability::Stability;
use super::{attributes, mode_guard};
use crate::server::Guest;
use crate::server::beneath::Roots;
use crate::server::blocking::{blocking, start};
use crate::server::call::{Disconnected, Outbox, Refusal};
use crate::server::side_channel::SideChannel;

/// How often a small file that changes while it is read is read again.
const ATTEMPTS: usize = 3;

/// How many bytes the descriptions in one list of files may take.
const LIST_BYTES: usize = 40 * 1024;

/// How much of a large file is read at a time.
const CHUNK: usize = 4 * MAX_DATA;

/// How long writing what waits to be written may take. A disk that needs longer does not keep anybody from
/// saving: what is read now is only read again the next time.
const PROTECTION: Duration = Duration::from_secs(60);

/// Opens wanted files, and reads them.
#[derive(Debug)]
pub(super) struct Fetcher {
    base: Arc<OwnedFd>,
    /// Not known before the first file is wanted.
    stability: Option<Stability>,
    /// The folder the last file was in: the next one often is there too.
    folder: Option<(Arc<Vec<Vec<u8>>>, OwnedFd)>,
}

/// A file that was opened.
#[derive(Debug)]
struct Open {
    file: OwnedFd,
    stat: ScannedStat,
    /// Whether it has parts that were never written.
    has_holes: bool,
    attributes: Attributes,
}

/// What to send next.
enum Next {
    /// Small files, and their bytes.
    Files(Vec<SmallFile>, Bytes),
    /// One large file.
    Large(Open, Option<u64>),
    /// Nothing more.
    Done,
}

impl Fetcher {
    pub(super) fn new(base: Arc<OwnedFd>) -> Self {
        Self { base, stability: None, folder: None }
    }

    /// Makes sure, before the first file is read, that a later change of one will show.
    pub(super) async fn prepare(&mut self, outbox: &mut Outbox) -> Result<(), Refusal> {
        if self.stability.is_some() {
            return Ok(());
        }
        let base = Arc::clone(&self.base);
        let work = move || match Stability::needs_protection(&base) {
            true => Stability::protect(&base),
            false => Stability::default(),
        };
        let mut work = start(work)?;
        let until = tokio::time::Instant::now() + PROTECTION;
        let stability = loop {
            match tokio::time::timeout(WAIT_INTERVAL, &mut work).await {
                Ok(done) => break done.unwrap_or_default(),
                Err(_) if tokio::time::Instant::now() >= until => break Stability::default(),
                Err(_) => outbox.item(&ScanMessage::Busy).await?,
            }
        };
        self.stability = Some(stability);
        Ok(())
    }

    /// Sends every wanted file.
    pub(super) async fn send(
        mut self,
        guest: &Arc<Guest>,
        entry_refs: Vec<EntryRef>,
        wanted: FetchList,
        side: Option<&SideChannel>,
        outbox: &mut Outbox,
    ) -> Result<Self, Refusal> {
        let mut queue = Queue { entry_refs, wants: wanted.files, next: 0, large: None };
        loop {
            let held = Arc::clone(guest);
            let work = move || {
                let next = self.next(&held.roots, &mut queue);
                (self, queue, next)
            };
            let (back, rest, next) = blocking(work).await?;
            (self, queue) = (back, rest);
            match next? {
                Next::Done => return Ok(self),
                Next::Files(files, bytes) => {
                    outbox.queue_item(&ScanMessage::Files(files)).await?;
                    send_bytes(outbox, bytes).await?;
                }
                Next::Large(open, ticket) => send_large(open, ticket, side, outbox).await?,
            }
        }
    }

    /// Reads small files until that is enough, or a large one comes.
    fn next(&mut self, roots: &Roots, queue: &mut Queue) -> Result<Next, Disconnected> {
        if let Some((open, ticket)) = queue.large.take() {
            return Ok(Next::Large(open, ticket));
        }
        let mut files = Vec::new();
        let mut bytes = BytesMut::new();
        let mut listed = 0;
        while let Some(want) = queue.wants.get(queue.next).copied() {
            queue.next += 1;
            let at = usize::try_from(want.index).map_err(|_| Disconnected)?;
            let entry_refs = queue.entry_refs.get(at).ok_or(Disconnected)?;
            let open = match self.open(roots, entry_refs) {
                Ok(open) => open,
                Err(errno) => {
                    files.push(missing(errno));
                    continue;
                }
            };
            if open.stat.size >= LARGE {
                if files.is_empty() {
                    return Ok(Next::Large(open, want.ticket));
                }
                queue.large = Some((open, want.ticket));
                break;
            }
            let small = read_small(open, &mut bytes).unwrap_or_else(missing);
            listed += 64 + weight(&small);
            files.push(small);
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            if length + LARGE > BATCH_CONTENT || listed > LIST_BYTES {
                break;
            }
        }
        if files.is_empty() { Ok(Next::Done) } else { Ok(Next::Files(files, bytes.freeze())) }
    }

    fn open(&mut self, roots: &Roots, (path, name): &EntryRef) -> Result<Open, Errno> {
        let is_there = self.folder.as_ref().is_some_and(|(held, _)| held == path);
        if !is_there {
            // From where we are, if it lies below; else from the top.
            let below = self.folder.as_ref().and_then(|(held, folder)| {
                path.strip_prefix(held.as_slice()).map(|rest| (rest, folder))
            });
            let (rest, from) = below.unwrap_or((path, &self.base));
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let folder = match rest.is_empty() {
                true => rustix::io::fcntl_dupfd_cloexec(from, 0)?,
                false => roots.open_below(from, rest, flags)?,
            };
            self.folder = Some((Arc::clone(path), folder));
        }
        let (_, folder) = self.folder.as_ref().ok_or(Errno::BADF)?;
        let below = std::slice::from_ref(name);
        let (file, unlocked) = match roots.open_below(folder, below, OFlags::RDONLY) {
            Err(Errno::ACCESS) => mode_guard::open(folder, name)?,
            opened => (opened?, None),
        };
        // Attributes can be read only as long as the file may be.
        let attributes = attributes::read(&file);
        drop(unlocked);
        let unknown = Stability::default();
        let (stat, settled) = self.stability.as_ref().unwrap_or(&unknown).look(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let has_holes = stat.st_blocks.saturating_mul(512) < stat.st_size;
        Ok(Open { file, stat: ScannedStat { settled, ..seen(&stat) }, has_holes, attributes })
    }
}

/// What is wanted, and how far we are.
#[derive(Debug)]
struct Queue {
    entry_refs: Vec<EntryRef>,
    wants: Vec<FetchFile>,
    next: usize,
    large: Option<(Open, Option<u64>)>,
}

/// What is said of a file that cannot be had. One that is gone, or something else by now, is no
/// failure: the tree changed.
fn missing(errno: Errno) -> SmallFile {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::XDEV => SmallFile::Gone,
        errno => SmallFile::Closed { errno: errno.raw_os_error() },
    }
}

fn weight(small: &SmallFile) -> usize {
    match small {
        SmallFile::Here { attributes, extents, .. } => {
            let attributes: usize =
                attributes.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
            attributes + extents.len() * 10
        }
        _ => 0,
    }
}

/// The parts of a file up to `size`.
fn extents(file: &OwnedFd, size: u64, has_holes: bool) -> Result<Vec<Extent>, Errno> {
    if !has_holes {
        return Ok(if size == 0 { Vec::new() } else { vec![Extent::Data(size)] });
    }
    let mut parts = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, size),
            Err(Errno::NXIO) => size,
            // Its file system does not tell.
            Err(_) => at,
        };
        if data > at {
            parts.push(Extent::Hole(data - at));
        }
        if data >= size {
            break;
        }
        let end = seek(file, SeekFrom::Hole(data)).unwrap_or(size).min(size);
        let end = if end <= data { size } else { end };
        parts.push(Extent::Data(end - data));
        at = end;
    }
    Ok(parts)
}

/// Reads a small file whole, again if it changed meanwhile.
fn read_small(mut open: Open, bytes: &mut BytesMut) -> Result<SmallFile, Errno> {
    let start = bytes.len();
    for attempt in 1..=ATTEMPTS {
        bytes.truncate(start);
        let mut parts = extents(&open.file, open.stat.size.min(LARGE), open.has_holes)?;
        let mut at = 0;
        let mut is_cut = false;
        for part in &mut parts {
            match part {
                Extent::Hole(length) => at += *length,
                Extent::Data(length) => {
                    let read = read_into(&open.file, at, *length, bytes)?;
                    is_cut |= read < *length;
                    *length = read;
                    at += read;
                }
            }
        }
        let now = fstat(&open.file)?;
        let after = seen(&now);
        let is_same = same(&after, &open.stat) && !is_cut;
        if is_same || attempt == ATTEMPTS || after.size >= LARGE {
            let stat = ScannedStat { settled: open.stat.settled && is_same, size: at, ..open.stat };
            return Ok(SmallFile::Here { stat, attributes: open.attributes, extents: parts });
        }
        open.has_holes = now.st_blocks.saturating_mul(512) < now.st_size;
        open.stat = after;
    }
    Ok(SmallFile::Gone)
}

/// Whether nothing happened to a file between two looks.
fn same(one: &ScannedStat, other: &ScannedStat) -> bool {
    (one.size, one.modified, one.changed) == (other.size, other.modified, other.changed)
}

/// Adds a part of a file; says how much there was.
fn read_into(file: &OwnedFd, at: u64, length: u64, bytes: &mut BytesMut) -> Result<u64, Errno> {
    let start = bytes.len();
    let length = usize::try_from(length).unwrap_or(0);
    bytes.resize(start + length, 0);
    let mut done = 0;
    while done < length {
        let offset = at.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
        match rustix::io::pread(file, &mut bytes[start + done..], offset) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(start + done);
    Ok(u64::try_from(done).unwrap_or(u64::MAX))
}

async fn send_bytes(outbox: &mut Outbox, mut bytes: Bytes) -> Result<(), Refusal> {
    while !bytes.is_empty() {
        let chunk = bytes.split_to(bytes.len().min(MAX_DATA));
        outbox.queue_data(Tag::Stdout, chunk).await?;
    }
    Ok(())
}

fn unreadable(errno: Errno) -> Fault {
    let message = format!("cannot read a file of the tree: {errno}");
    Fault { errno: Some(errno.raw_os_error()), ..Fault::new(FaultKind::Io, message) }
}

/// Passes a large file, or sends it piece by piece.
async fn send_large(
    open: Open,
    ticket: Option<u64>,
    side: Option<&SideChannel>,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let Open { file, stat, has_holes, attributes } = open;
    if let (Some(ticket), Some(side)) = (ticket, side)
        && side.pass(ticket, file.as_fd()).await.is_ok()
    {
        return Ok(outbox.item(&ScanMessage::Passed { stat, attributes }).await?);
    }
    outbox.queue_item(&ScanMessage::Large { stat, attributes }).await?;
    let file = Arc::new(file);
    let held = Arc::clone(&file);
    let parts = blocking(move || extents(&held, stat.size, has_holes)).await?;
    let mut at = 0;
    'parts: for part in parts.map_err(unreadable)? {
        let mut left = match part {
            Extent::Hole(length) => {
                outbox.queue_item(&ScanMessage::Hole(length)).await?;
                at += length;
                continue;
            }
            Extent::Data(length) => length,
        };
        while left > 0 {
            let held = Arc::clone(&file);
            let most = left.min(u64::try_from(CHUNK).unwrap_or(u64::MAX));
            let read = blocking(move || {
                let mut chunk = BytesMut::new();
                read_into(&held, at, most, &mut chunk).map(|_| chunk.freeze())
            });
            let chunk = read.await?.map_err(unreadable)?;
            let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            // It was cut off meanwhile.
            if length == 0 {
                break 'parts;
            }
            (at, left) = (at + length, left.saturating_sub(length));
            send_bytes(outbox, chunk).await?;
        }
    }
    let after = blocking(move || fstat(&file)).await?;
    let after = after.map_or(ScannedStat { settled: false, ..stat }, |after| seen(&after));
    let is_same = same(&after, &stat);
    let stat = ScannedStat { settled: stat.settled && is_same, size: at, ..after };
    Ok(outbox.item(&ScanMessage::LargeEnd { stat }).await?)
}
