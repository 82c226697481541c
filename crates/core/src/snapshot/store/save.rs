//! Saving a tree.

mod content;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bastide_proto::Request;
use bastide_proto::tree::{
    AHEAD, BATCH_CONTENT, Extent, FetchFile, FetchList, LARGE, Scan, ScanMessage, ScannedStat,
    SmallFile,
};
use bytes::BytesMut;
use serde_bytes::ByteBuf;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::assemble::{Assembler, Batch, CachePath, FetchOutcome, WORTH_A_TICKET, check_stat};
use super::chunk::ChunkId;
use super::record::{self, SnapshotInfo};
use super::tree::check_attributes;
use super::writer::Writer;
use super::{Store, Tree, blocking, now_ms, threads};
use crate::link::{Access, FdTicket, Stream, broken};
use crate::snapshot::Progress;
use crate::snapshot::restoring::SILENCE;
use crate::snapshot::scanning::{ScanReply, next};
use crate::{Error, ErrorKind, Result};

use content::{Streamed, passed, small_files};

/// How many pieces of work wait for a thread at most.
const QUEUED: usize = 8;

/// The result of saving a tree, and its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveReport {
    /// The snapshot.
    pub info: SnapshotInfo,
    /// How many entries were left out; the snapshot names the first of them.
    pub left_out: u64,
    /// How many files were read; the others are unchanged since the last save.
    pub files_read: u64,
    /// How many bytes were read.
    pub bytes_read: u64,
    /// How many bytes of content were new to the store.
    pub bytes_added: u64,
    /// How many bytes the new content takes on disk.
    pub bytes_stored: u64,
    /// Files that changed while they were read: the snapshot has what was read.
    pub changed: Vec<String>,
}

/// The options of saving a workspace.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct SaveOptions<'a> {
    /// Whether to read every file, and ignore the cache.
    pub full_read: bool,
    /// Receives the progress.
    pub progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
}

impl<'a> SaveOptions<'a> {
    /// Reads every file, and ignores the cache.
    #[must_use]
    pub fn full_read(mut self) -> Self {
        self.full_read = true;
        self
    }

    /// Sets what receives the progress.
    #[must_use]
    pub fn progress(mut self, on_progress: &'a (dyn Fn(Progress) + Send + Sync)) -> Self {
        self.progress = Some(on_progress);
        self
    }
}

impl fmt::Debug for SaveOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaveOptions").field("full_read", &self.full_read).finish_non_exhaustive()
    }
}

impl Store {
    /// Saves a tree as the snapshot `name`, replacing one of that name. The old one is kept until
    /// the new one is complete and on disk.
    ///
    /// Only files that changed since the session was last saved, or for which that cannot be
    /// determined, are read; only chunks that no snapshot has are written. [`Tree::full_read`]
    /// reads everything.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an invalid name; [`ErrorKind::AgentLost`] if the guest does
    /// not answer or breaks the protocol; others if files cannot be read or the store cannot be
    /// written.
    pub async fn save(&self, tree: &Tree<'_>, name: &str) -> Result<SaveReport> {
        record::check_name(name)?;
        let (writer, scanned) = self.scan(tree).await?;
        let (store, name) = (self.clone(), name.to_owned());
        let session = tree.session.clone();
        blocking(move || {
            let Scanned { assembler, .. } = scanned;
            let (chunks, cache, report, entries, bytes) = assembler.end()?;
            let (packs, written) = writer.finish()?;
            let info = SnapshotInfo {
                name,
                fingerprint: record::fingerprint(&chunks),
                created_at_ms: now_ms(),
                session,
                entries,
                bytes,
                left_out: report.left_out,
                tree: chunks.iter().map(ChunkId::to_string).collect(),
            };
            store.publish(&writer, &packs, &info)?;
            // The snapshot is there; without a cache the next one only takes longer.
            drop(cache.finish());
            Ok(SaveReport {
                info,
                left_out: report.left_out_count,
                files_read: report.files_read,
                bytes_read: report.bytes_read,
                bytes_added: written.added,
                bytes_stored: written.stored,
                changed: report.changed,
            })
        })
        .await
    }

    /// The fingerprint that a snapshot of this tree would have; nothing is saved.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    pub async fn fingerprint(&self, tree: &Tree<'_>) -> Result<String> {
        let (_writer, scanned) = self.scan(tree).await?;
        blocking(move || {
            let (chunks, ..) = scanned.assembler.end()?;
            Ok(record::fingerprint(&chunks))
        })
        .await
    }

    pub(super) async fn scan(&self, tree: &Tree<'_>) -> Result<(Arc<Writer>, Scanned)> {
        let (store, session) = (self.clone(), tree.session.clone());
        let (root, full_read) = (tree.root.clone(), tree.full_read);
        let (writer, assembler) = blocking(move || {
            let writer = Arc::new(store.writer()?);
            let cache = session.map(|session| {
                let key = ChunkId::of(format!("{session}\n{root}").as_bytes());
                let path = store.folder("cache").join(key.to_string());
                let temporary = format!("{}.cache", writer.use_lock.name());
                let temporary = store.folder("temporary").join(temporary);
                CachePath { path, temporary, full_read }
            });
            let assembler = Assembler::new(Arc::clone(&writer), cache);
            Ok((writer, assembler))
        })
        .await?;
        let left_out = tree.left_out.iter().map(|path| ByteBuf::from(path.as_slice())).collect();
        let request = Request::Scan(Scan { base: tree.root.clone(), left_out });
        let stream = tree.link.open(request).await?;
        let saving = Saving {
            tree,
            stream,
            writer: Arc::clone(&writer),
            assembler: Some(assembler),
            batches: VecDeque::new(),
            tickets: VecDeque::new(),
            jobs: VecDeque::new(),
            token: None,
            permits: Arc::new(Semaphore::new(threads())),
        };
        Ok((writer, saving.run().await?))
    }
}

/// A tree that was looked through.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) assembler: Assembler,
    /// What the guest knows it by, if nothing ran meanwhile.
    pub(super) token: Option<[u8; 16]>,
}

/// Work on some wanted files.
type Job = JoinHandle<Result<Vec<FetchOutcome>>>;

/// A tree that is being saved.
struct Saving<'a> {
    tree: &'a Tree<'a>,
    stream: Stream,
    writer: Arc<Writer>,
    /// There but while a thread has it.
    assembler: Option<Assembler>,
    /// What the guest told, with what has come of what was wanted.
    batches: VecDeque<(Batch, Vec<FetchOutcome>)>,
    /// For every wanted file that has not come yet, how its descriptor comes.
    tickets: VecDeque<Option<FdTicket>>,
    jobs: VecDeque<Job>,
    token: Option<[u8; 16]>,
    permits: Arc<Semaphore>,
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.jobs.iter().for_each(JoinHandle::abort);
    }
}

impl Saving<'_> {
    async fn run(mut self) -> Result<Scanned> {
        loop {
            match next(&mut self.stream).await? {
                ScanReply::Message(message) => self.take(message).await?,
                ScanReply::Data(_) => return Err(broken("data of no file")),
                ScanReply::Done => break,
            }
        }
        if !self.tickets.is_empty() {
            return Err(broken("files are missing"));
        }
        while !self.jobs.is_empty() {
            self.wait().await?;
        }
        self.settle().await?;
        match (self.assembler.take(), self.batches.is_empty()) {
            (Some(assembler), true) => Ok(Scanned { assembler, token: self.token }),
            _ => Err(broken("the tree has no end")),
        }
    }

    async fn take(&mut self, message: ScanMessage) -> Result<()> {
        match message {
            ScanMessage::Busy => Ok(()),
            ScanMessage::Token(token) => {
                self.token = Some(token);
                Ok(())
            }
            ScanMessage::Clock(clock) => self.with(move |assembler| assembler.clock(clock)).await,
            ScanMessage::Entries(told) => {
                while self.batches.len() >= AHEAD + QUEUED {
                    // All that was wanted has come, or else the guest is too far ahead.
                    if self.jobs.is_empty() {
                        return Err(broken("more lists than may be on their way"));
                    }
                    self.wait().await?;
                    self.settle().await?;
                }
                let batch = self.with(move |assembler| assembler.decide(told)).await?;
                self.ask(&batch).await?;
                self.batches.push_back((batch, Vec::new()));
                self.settle().await
            }
            ScanMessage::Files(files) => self.small(files).await,
            ScanMessage::Large { stat, attributes } => {
                self.due(1)?;
                check_stat(&stat)?;
                check_attributes(&attributes).map_err(broken)?;
                let mut streamed = Streamed::start(&self.writer, &self.permits).await?;
                let end = streamed.receive(&mut self.stream).await?;
                check_stat(&end)?;
                let file_parts = streamed.finish(end.size).await?;
                // What is known of it is what it was, but for its length: that is what came.
                let changed = !same(&stat, &end);
                let stat = ScannedStat { size: end.size, settled: end.settled && !changed, ..stat };
                let got = FetchOutcome::File { stat, attributes, file_parts, changed };
                self.queue(tokio::spawn(async move { Ok(vec![got]) })).await
            }
            ScanMessage::Passed { stat, attributes } => {
                let mut tickets = self.due(1)?;
                check_stat(&stat)?;
                check_attributes(&attributes).map_err(broken)?;
                let Some(Some(mut ticket)) = tickets.pop() else {
                    return Err(broken("a descriptor nobody asked for"));
                };
                let file = ticket.file(self.tree.link, Access::Read, SILENCE).await?;
                let (writer, permits) = (Arc::clone(&self.writer), Arc::clone(&self.permits));
                let job = tokio::spawn(async move {
                    passed(&writer, &permits, file.file(), stat, attributes).await
                });
                self.queue(job).await
            }
            _ => Err(broken("not a word about a tree")),
        }
    }

    /// Does something with the list, on another thread.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Assembler) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let lost = || Error::new(ErrorKind::Internal, "work on a snapshot was lost");
        let mut assembler = self.assembler.take().ok_or_else(lost)?;
        let (assembler, done) = blocking(move || {
            let done = work(&mut assembler);
            Ok((assembler, done))
        })
        .await?;
        self.assembler = Some(assembler);
        done
    }

    /// Tells the guest which files are wanted.
    async fn ask(&mut self, batch: &Batch) -> Result<()> {
        let mut files = Vec::with_capacity(batch.wants.len());
        for (index, size) in &batch.wants {
            let is_large = *size >= WORTH_A_TICKET;
            let side = self.tree.link.side().filter(|_| is_large);
            let ticket = side.and_then(|side| side.expect());
            files.push(FetchFile { index: *index, ticket: ticket.as_ref().map(FdTicket::number) });
            self.tickets.push_back(ticket);
        }
        self.stream.to_guest.item(&FetchList { files }).await
    }

    /// Takes note that so many wanted files have come.
    fn due(&mut self, count: usize) -> Result<Vec<Option<FdTicket>>> {
        if count > self.tickets.len() {
            return Err(broken("a file nobody asked for"));
        }
        Ok(self.tickets.drain(..count).collect())
    }

    async fn small(&mut self, files: Vec<SmallFile>) -> Result<()> {
        self.due(files.len())?;
        let mut expected = 0_u64;
        for file in &files {
            if let SmallFile::Here { stat, attributes, extents } = file {
                check_stat(stat)?;
                check_attributes(attributes).map_err(broken)?;
                let (mut data, mut total) = (0_u64, 0_u64);
                for extent in extents {
                    let (Extent::Data(length) | Extent::Hole(length)) = extent;
                    total = total.checked_add(*length).ok_or_else(|| broken("a long file"))?;
                    data += if matches!(extent, Extent::Data(_)) { *length } else { 0 };
                }
                if total != stat.size || total > LARGE {
                    return Err(broken("a small file that is none"));
                }
                expected += data;
            }
        }
        if expected > BATCH_CONTENT + LARGE {
            return Err(broken("more small files than fit"));
        }
        let expected = usize::try_from(expected).unwrap_or(usize::MAX);
        let mut bytes = BytesMut::with_capacity(expected);
        while bytes.len() < expected {
            match next(&mut self.stream).await? {
                ScanReply::Data(data) if data.len() <= expected - bytes.len() => bytes.extend(data),
                _ => return Err(broken("files without their content")),
            }
        }
        let (writer, permits) = (Arc::clone(&self.writer), Arc::clone(&self.permits));
        let bytes = bytes.freeze();
        let job = tokio::spawn(async move {
            let permit = permits.acquire_owned().await;
            let got = blocking(move || small_files(&writer, files, &bytes)).await;
            drop(permit);
            got
        });
        self.queue(job).await
    }

    async fn queue(&mut self, job: Job) -> Result<()> {
        self.jobs.push_back(job);
        while self.jobs.len() > QUEUED || self.jobs.front().is_some_and(JoinHandle::is_finished) {
            self.wait().await?;
        }
        self.settle().await
    }

    /// Waits for the first piece of work.
    async fn wait(&mut self) -> Result<()> {
        let Some(job) = self.jobs.pop_front() else { return Ok(()) };
        let lost = |error| {
            Error::new(ErrorKind::Internal, "work on a snapshot was lost").with_source(error)
        };
        let mut got = job.await.map_err(lost)??.into_iter().peekable();
        for (batch, have) in &mut self.batches {
            while have.len() < batch.wants.len() {
                match got.next() {
                    Some(file) => have.push(file),
                    None => return Ok(()),
                }
            }
        }
        match got.peek() {
            None => Ok(()),
            Some(_) => Err(broken("files nobody asked for")),
        }
    }

    /// Adds to the list whatever is complete.
    async fn settle(&mut self) -> Result<()> {
        let is_whole = |(batch, got): &(Batch, Vec<FetchOutcome>)| got.len() == batch.wants.len();
        while self.batches.front().is_some_and(is_whole) {
            let Some((batch, got)) = self.batches.pop_front() else { break };
            let (entries, bytes) = self
                .with(move |assembler| {
                    assembler.finish(batch, got)?;
                    Ok(assembler.progress())
                })
                .await?;
            self.tree.report(Progress { entries, bytes, ..Progress::default() });
        }
        Ok(())
    }
}

/// Whether nothing happened to a file between two looks.
fn same(one: &ScannedStat, other: &ScannedStat) -> bool {
    (one.size, one.modified, one.changed) == (other.size, other.modified, other.changed)
}
