//! The content of files on its way into the store.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bastide_proto::tree::{Attributes, Extent, ScanMessage, ScannedStat, SmallFile};
use bytes::{Buf, Bytes};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::super::assemble::FetchOutcome;
use super::super::blocking;
use super::super::tree::{FilePart, push_piece};
use super::super::writer::{Writer, segments};
use crate::link::{Stream, broken};
use crate::snapshot::scanning::{ScanReply, next};
use crate::{Error, ErrorKind, Result};

/// How slowly a disk may be read before it counts as one that does not answer.
const BYTES_A_SECOND: u64 = 256 << 10;

/// How long the disk may take for whatever is small.
const LEAST: Duration = Duration::from_secs(60);

/// Puts small files into the store.
pub(super) fn small_files(
    writer: &Writer,
    files: Vec<SmallFile>,
    mut bytes: &[u8],
) -> Result<Vec<FetchOutcome>> {
    let mut got = Vec::with_capacity(files.len());
    for file in files {
        let (stat, attributes, extents) = match file {
            SmallFile::Here { stat, attributes, extents } => (stat, attributes, extents),
            SmallFile::Closed { errno } => {
                got.push(FetchOutcome::Closed(errno));
                continue;
            }
            _ => {
                got.push(FetchOutcome::Gone);
                continue;
            }
        };
        let mut file_parts = Vec::new();
        for extent in extents {
            match extent {
                Extent::Hole(length) => push_piece(&mut file_parts, FilePart::Hole(length)),
                Extent::Data(0) => {}
                Extent::Data(length) => {
                    let count = usize::try_from(length).unwrap_or(usize::MAX);
                    let (data, rest) =
                        bytes.split_at_checked(count).ok_or_else(|| broken("a short file"))?;
                    bytes = rest;
                    let length = u32::try_from(length).map_err(|_| broken("a long file"))?;
                    let id = writer.put(data)?;
                    push_piece(&mut file_parts, FilePart::Chunk { id, length });
                }
            }
        }
        got.push(FetchOutcome::File { stat, attributes, file_parts, changed: false });
    }
    Ok(got)
}

/// Puts a file whose descriptor was passed into the store, several parts of it at once.
pub(super) async fn passed(
    writer: &Arc<Writer>,
    permits: &Arc<Semaphore>,
    file: Arc<File>,
    stat: ScannedStat,
    attributes: Attributes,
) -> Result<Vec<FetchOutcome>> {
    let held = Arc::clone(&file);
    let (before, parts) = disk(0, move || {
        let before = times(&held)?;
        Ok((before, data(&held, stat.size)?))
    })
    .await?;
    let mut jobs = Vec::new();
    for part in parts {
        match part {
            Extent::Hole(length) => jobs.push(Part::Hole(length)),
            Extent::Data(_) => {}
        }
        if let Extent::Data(length) = part {
            let start: u64 = jobs.iter().map(Part::length).sum();
            jobs.extend(segments(start, length).into_iter().map(|(at, length)| Part::Data {
                at,
                length,
                work: None,
            }));
        }
    }
    // So many at once as there are permits; the order is that of the file.
    for job in &mut jobs {
        if let Part::Data { at, length, work } = job {
            let permit = Arc::clone(permits).acquire_owned().await;
            let (file, writer) = (Arc::clone(&file), Arc::clone(writer));
            let (at, length) = (*at, *length);
            *work = Some(tokio::spawn(async move {
                let read = disk(length, move || segment(&writer, &file, at, length)).await;
                drop(permit);
                read
            }));
        }
    }
    let mut file_parts = Vec::new();
    let mut size = 0;
    let mut is_cut = false;
    for job in jobs {
        match job {
            Part::Hole(length) if !is_cut => {
                push_piece(&mut file_parts, FilePart::Hole(length));
                size += length;
            }
            Part::Data { length, work: Some(work), .. } => {
                let lost =
                    |error| Error::new(ErrorKind::Internal, "a file was lost").with_source(error);
                let (some, read) = work.await.map_err(lost)??;
                if !is_cut {
                    some.into_iter().for_each(|file_part| push_piece(&mut file_parts, file_part));
                    size += read;
                }
                is_cut |= read < length;
            }
            _ => {}
        }
    }
    let after = disk(0, move || times(&file)).await?;
    let changed = is_cut || before != after;
    let stat = ScannedStat { size, settled: stat.settled && !changed, ..stat };
    Ok(vec![FetchOutcome::File { stat, attributes, file_parts, changed }])
}

/// Work that gives pieces, and how many bytes they have.
type ChunkTask = JoinHandle<Result<(Vec<FilePart>, u64)>>;

enum Part {
    Hole(u64),
    Data { at: u64, length: u64, work: Option<ChunkTask> },
}

impl Part {
    fn length(&self) -> u64 {
        match self {
            Self::Hole(length) | Self::Data { length, .. } => *length,
        }
    }
}

/// Does something with a passed file, under a deadline.
async fn disk<T: Send + 'static>(
    bytes: u64,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let deadline = LEAST + Duration::from_secs(bytes / BYTES_A_SECOND);
    match tokio::time::timeout(deadline, blocking(work)).await {
        Ok(done) => done,
        Err(_) => Err(Error::new(ErrorKind::Timeout, "a file of the session cannot be read")),
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read a file of the session: {error}"))
        .with_source(error)
}

fn times(file: &File) -> Result<(u64, i64, i64, i64, i64)> {
    let seen = file.metadata().map_err(unreadable)?;
    Ok((seen.len(), seen.mtime(), seen.mtime_nsec(), seen.ctime(), seen.ctime_nsec()))
}

/// The parts of a file that were written, and those that were not.
fn data(file: &File, size: u64) -> Result<Vec<Extent>> {
    let seen = file.metadata().map_err(unreadable)?;
    if seen.blocks().saturating_mul(512) >= size {
        return Ok(vec![Extent::Data(size)]);
    }
    let mut parts = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.clamp(at, size),
            Err(Errno::NXIO) => size,
            Err(_) => at,
        };
        if start > at {
            parts.push(Extent::Hole(start - at));
        }
        if start >= size {
            break;
        }
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        let end = if end <= start { size } else { end };
        parts.push(Extent::Data(end - start));
        at = end;
    }
    Ok(parts)
}

/// Puts one part of a file into the store.
fn segment(writer: &Writer, file: &File, at: u64, length: u64) -> Result<(Vec<FilePart>, u64)> {
    let mut file_parts = Vec::new();
    let mut done = 0_u64;
    let read = |buffer: &mut [u8]| {
        let most = usize::try_from(length - done).unwrap_or(usize::MAX).min(buffer.len());
        loop {
            match file.read_at(&mut buffer[..most], at + done) {
                Ok(read) => {
                    done += u64::try_from(read).unwrap_or(0);
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
    };
    let total = writer.put_stream(read, &mut file_parts)?;
    Ok((file_parts, total))
}

/// A large file that comes over the link.
pub(super) struct Streamed {
    feed: Option<mpsc::SyncSender<ContentItem>>,
    work: ChunkTask,
}

enum ContentItem {
    Data(Bytes),
    Hole(u64),
}

impl Streamed {
    /// Gets ready to take the content.
    pub(super) async fn start(writer: &Arc<Writer>, permits: &Arc<Semaphore>) -> Result<Self> {
        let permit = Arc::clone(permits).acquire_owned().await;
        let (feed, fed) = mpsc::sync_channel(16);
        let writer = Arc::clone(writer);
        let work = tokio::task::spawn_blocking(move || take(&writer, &fed, permit.ok()));
        Ok(Self { feed: Some(feed), work })
    }

    /// Takes what comes until the end of the file; says how the file was then.
    pub(super) async fn receive(&mut self, stream: &mut Stream) -> Result<ScannedStat> {
        loop {
            let feed = match next(stream).await? {
                ScanReply::Data(data) => ContentItem::Data(data),
                ScanReply::Message(ScanMessage::Hole(length)) => ContentItem::Hole(length),
                ScanReply::Message(ScanMessage::LargeEnd { stat }) => return Ok(stat),
                ScanReply::Message(_) | ScanReply::Done => {
                    return Err(broken("a file without an end"));
                }
            };
            let Some(sender) = self.feed.clone() else { return Err(broken("a file too many")) };
            // The store takes it as fast as it can; the guest waits that long.
            let fed = blocking(move || Ok(sender.send(feed).is_ok())).await?;
            if !fed {
                break;
            }
        }
        // The work ended early: what it says is why.
        self.feed = None;
        let failed = (&mut self.work).await;
        match failed {
            Ok(Err(error)) => Err(error),
            _ => Err(Error::new(ErrorKind::Internal, "a file was lost")),
        }
    }

    /// Waits until everything is in the store.
    pub(super) async fn finish(mut self, size: u64) -> Result<Vec<FilePart>> {
        self.feed = None;
        let lost = |error| Error::new(ErrorKind::Internal, "a file was lost").with_source(error);
        let (file_parts, total) = self.work.await.map_err(lost)??;
        if total != size {
            return Err(broken("a file that is not as long as it is"));
        }
        Ok(file_parts)
    }
}

/// Puts what is fed into the store. A hole ends a part of the file, as it does for one that is read
/// from the disk.
fn take(
    writer: &Writer,
    fed: &mpsc::Receiver<ContentItem>,
    _permit: Option<OwnedSemaphorePermit>,
) -> Result<(Vec<FilePart>, u64)> {
    let mut file_parts = Vec::new();
    let mut total = 0_u64;
    let mut rest = Bytes::new();
    let mut hole = None;
    let mut is_end = false;
    while !is_end {
        let mut left = super::super::chunk::SEGMENT;
        let read = |buffer: &mut [u8]| {
            let mut filled = 0;
            while filled < buffer.len() && left > 0 && hole.is_none() {
                if rest.is_empty() {
                    match fed.recv() {
                        Ok(ContentItem::Data(data)) => rest = data,
                        Ok(ContentItem::Hole(length)) => hole = Some(length),
                        Err(_) => {
                            is_end = true;
                            break;
                        }
                    }
                    continue;
                }
                let most = usize::try_from(left).unwrap_or(usize::MAX);
                let count = rest.len().min(buffer.len() - filled).min(most);
                rest.copy_to_slice(&mut buffer[filled..filled + count]);
                filled += count;
                left -= u64::try_from(count).unwrap_or(0);
            }
            Ok(filled)
        };
        total += writer.put_stream(read, &mut file_parts)?;
        if let Some(length) = hole.take() {
            push_piece(&mut file_parts, FilePart::Hole(length));
            let sum = total.checked_add(length).filter(|sum| i64::try_from(*sum).is_ok());
            total = sum.ok_or_else(|| broken("a file longer than any"))?;
        }
    }
    Ok((file_parts, total))
}
