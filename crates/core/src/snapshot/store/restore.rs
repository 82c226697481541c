//! Restoring a tree.
//!
//! The tree is made beside what is there and takes its place as a whole, once every byte of it has been
//! read, checked and written.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bastide_proto::tree::{Extent, LARGE, NewEntry, NewEntryKind, TreeChecksum};
use bytes::Bytes;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc;

use super::errors::damaged;
use super::reader::{ReadBuffers, Reader};
use super::record::SnapshotInfo;
use super::tree::{Entry, FilePart, Kind, TreeReader};
use super::{Store, Tree, blocking, threads};
use crate::snapshot::Progress;
use crate::snapshot::restoring::{List, Restored, Restoring};
use crate::{Error, ErrorKind, Result};

/// How many lists are ready before they are sent.
const READY: usize = 4;

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The snapshot.
    pub info: SnapshotInfo,
    /// How many entries did not get their owner, because the session has no such user.
    pub unowned: u64,
    /// How many extended attributes the file system refused.
    pub unattributed: u64,
    /// Whether the previous tree is removed; if not, it is in a hidden folder beside the new one.
    pub cleared: bool,
}

impl Store {
    /// Replaces a tree by that of a snapshot.
    ///
    /// Everything is read, verified and written beside the existing tree, and then swapped in. If
    /// anything fails before that, the existing tree is unchanged.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such snapshot, [`ErrorKind::Io`] if it is damaged,
    /// [`ErrorKind::Conflict`] if there are files that must not be replaced; others if the guest
    /// does not answer or files cannot be written.
    pub async fn restore(&self, tree: &Tree<'_>, name: &str) -> Result<RestoreReport> {
        let (store, name) = (self.clone(), name.to_owned());
        let (reader, info) = blocking(move || {
            let (reader, info) = store.reading(|| store.inspect(&name))?;
            Ok((Arc::new(reader), info))
        })
        .await?;
        let list = TreeReader::new(Arc::clone(&reader), info.chunks()?);
        let total = (info.entries, info.bytes);
        let Restored { unowned, unattributed, cleared } =
            send_tree(tree, reader, list, total, None).await?;
        Ok(RestoreReport { info, unowned, unattributed, cleared })
    }
}

/// Where the entries of a tree come from, in the order of a list.
pub(super) trait EntrySource: Send + 'static {
    /// The next entry, with all its pieces; `None` at the end.
    fn next(&mut self) -> Result<Option<Entry>>;

    /// The names that lead to the last entry from the top.
    fn names(&self) -> &[Vec<u8>];
}

impl EntrySource for TreeReader<Arc<Reader>> {
    fn next(&mut self) -> Result<Option<Entry>> {
        Self::next(self)
    }

    fn names(&self) -> &[Vec<u8>] {
        Self::names(self)
    }
}

/// Replaces a tree by these entries, so many with so many bytes; only if what is replaced is what is said.
pub(super) async fn send_tree(
    tree: &Tree<'_>,
    reader: Arc<Reader>,
    mut entries: impl EntrySource,
    total: (u64, u64),
    replaced: Option<TreeChecksum>,
) -> Result<Restored> {
    let kept = tree.kept.iter().map(|path| ByteBuf::from(path.as_slice())).collect();
    let guest = Restoring::begin(tree.link, tree.root, kept, tree.only_empty, replaced).await?;
    let (ready, coming) = mpsc::channel(READY);
    let source = Arc::clone(&reader);
    let producing = tokio::task::spawn_blocking(move || {
        let produced = produce(&source, &mut entries, &ready);
        if let Err(error) = produced {
            // Whoever listens is gone already if this cannot be told.
            drop(ready.blocking_send(Err(error)));
        }
    });
    let sending = Sending { tree, reader, guest, total, sent: 0, bytes: 0 };
    let restored = sending.run(coming).await;
    // It ends by itself: what it sends to is gone, or it is done.
    drop(producing.await);
    restored
}

/// What is to be sent.
enum Outgoing {
    List(List),
    /// A large file.
    Large {
        entry: NewEntry,
        size: u64,
        file_parts: Vec<FilePart>,
    },
}

/// Reads the list and the content of small files; on a thread of its own.
fn produce(
    reader: &Arc<Reader>,
    list: &mut impl EntrySource,
    ready: &mpsc::Sender<Result<Outgoing>>,
) -> Result<()> {
    let gone = |_| Error::new(ErrorKind::Cancelled, "nobody wants the tree any more");
    let mut room = ReadBuffers::default();
    // Where files that have other names are.
    let mut shared: HashMap<u64, Vec<ByteBuf>> = HashMap::new();
    let mut some = List::default();
    let mut number = 0;
    while let Some(entry) = list.next()? {
        let names = || list.names().iter().map(|name| ByteBuf::from(name.as_slice())).collect();
        if matches!(entry.kind, Kind::File { shared: true, .. }) {
            shared.insert(number, names());
        }
        number += 1;
        let mut large = None;
        let kind = match &entry.kind {
            Kind::Dir => NewEntryKind::Dir,
            Kind::Symlink { target } => NewEntryKind::Symlink { target: target.clone() },
            Kind::Fifo => NewEntryKind::Fifo,
            Kind::Link { entry } => {
                let to = shared.get(entry).cloned();
                NewEntryKind::Link { to: to.ok_or_else(|| damaged("a link to no file"))? }
            }
            Kind::File { size, file_parts, .. } if *size >= LARGE => {
                large = Some((*size, file_parts.clone()));
                NewEntryKind::File { extents: Vec::new() }
            }
            Kind::File { file_parts, .. } => {
                let mut extents = Vec::with_capacity(file_parts.len());
                for file_part in file_parts {
                    extents.push(match file_part {
                        FilePart::Hole(length) => Extent::Hole(*length),
                        FilePart::Chunk { id, length } => {
                            reader.with(id, &mut room, |content| {
                                check_length(content, *length)?;
                                some.bytes.extend_from_slice(content);
                                Ok(())
                            })?;
                            Extent::Data(u64::from(*length))
                        }
                    });
                }
                NewEntryKind::File { extents }
            }
        };
        let made = made(entry, kind);
        if let Some((size, file_parts)) = large {
            if !some.entries.is_empty() {
                ready.blocking_send(Ok(Outgoing::List(std::mem::take(&mut some)))).map_err(gone)?;
            }
            ready
                .blocking_send(Ok(Outgoing::Large { entry: made, size, file_parts }))
                .map_err(gone)?;
            continue;
        }
        some.push(made);
        if some.is_full() {
            ready.blocking_send(Ok(Outgoing::List(std::mem::take(&mut some)))).map_err(gone)?;
        }
    }
    if !some.entries.is_empty() {
        ready.blocking_send(Ok(Outgoing::List(some))).map_err(gone)?;
    }
    Ok(())
}

fn check_length(content: &[u8], length: u32) -> Result<()> {
    match u32::try_from(content.len()) == Ok(length) {
        true => Ok(()),
        false => Err(damaged("a chunk is not as long as its list says")),
    }
}

fn made(entry: Entry, kind: NewEntryKind) -> NewEntry {
    let Entry { depth, name, mode, uid, gid, modified, attributes, .. } = entry;
    NewEntry { depth, name, kind, mode, uid, gid, modified, attributes }
}

/// A tree that is being restored.
struct Sending<'a> {
    tree: &'a Tree<'a>,
    reader: Arc<Reader>,
    guest: Restoring<'a>,
    /// How many entries there are, and how many bytes.
    total: (u64, u64),
    sent: u64,
    bytes: u64,
}

impl Sending<'_> {
    async fn run(mut self, coming: mpsc::Receiver<Result<Outgoing>>) -> Result<Restored> {
        let sent = self.send(coming).await;
        self.guest.finish(sent).await
    }

    async fn send(&mut self, mut coming: mpsc::Receiver<Result<Outgoing>>) -> Result<()> {
        while let Some(out) = coming.recv().await {
            match out? {
                Outgoing::List(list) => {
                    self.sent += u64::try_from(list.entries.len()).unwrap_or(0);
                    self.bytes += u64::try_from(list.bytes.len()).unwrap_or(0);
                    self.guest.list(list).await?;
                }
                Outgoing::Large { entry, size, file_parts } => {
                    self.large(entry, size, file_parts).await?;
                }
            }
            self.tree.report(Progress {
                entries: self.sent,
                bytes: self.bytes,
                total_entries: Some(self.total.0),
                total_bytes: Some(self.total.1),
            });
        }
        if self.sent != self.total.0 {
            return Err(damaged("a list is not as long as its record says"));
        }
        Ok(())
    }

    async fn large(&mut self, entry: NewEntry, size: u64, file_parts: Vec<FilePart>) -> Result<()> {
        self.sent += 1;
        self.bytes += size;
        match self.guest.large(entry, size, true).await? {
            Some(file) => {
                let reader = Arc::clone(&self.reader);
                blocking(move || fill(&reader, &file, &file_parts)).await?;
            }
            None => self.stream(file_parts).await?,
        }
        self.guest.end_large().await
    }

    /// Sends a large file over the link.
    async fn stream(&mut self, file_parts: Vec<FilePart>) -> Result<()> {
        for file_part in file_parts {
            let (id, length) = match file_part {
                FilePart::Hole(length) => {
                    self.guest.hole(length).await?;
                    continue;
                }
                FilePart::Chunk { id, length } => (id, length),
            };
            let reader = Arc::clone(&self.reader);
            let content = blocking(move || {
                reader.with(&id, &mut ReadBuffers::default(), |content| {
                    check_length(content, length)?;
                    Ok(Bytes::copy_from_slice(content))
                })
            });
            self.guest.data(content.await?).await?;
        }
        Ok(())
    }
}

/// Writes the content of a large file, several pieces at once.
fn fill(reader: &Reader, file: &File, file_parts: &[FilePart]) -> Result<()> {
    let mut places = Vec::with_capacity(file_parts.len());
    let mut at = 0_u64;
    for file_part in file_parts {
        if let FilePart::Chunk { id, length } = file_part {
            places.push((*id, *length, at));
        }
        at += file_part.length();
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut room = ReadBuffers::default();
        while let Some((id, length, at)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            reader.with(id, &mut room, |content| {
                check_length(content, *length)?;
                file.write_all_at(content, *at).map_err(unwritable)
            })?;
        }
        Ok(())
    };
    let count = threads().min(places.len());
    if count <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count).map(|_| scope.spawn(work)).collect();
        let own = work();
        let lost = |_| Err(Error::new(ErrorKind::Internal, "a file was lost"));
        others.into_iter().map(|other| other.join().unwrap_or_else(lost)).fold(own, Result::and)
    })
}

fn unwritable(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot write a file of the session: {error}"))
        .with_source(error)
}
