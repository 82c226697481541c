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

use bastide_proto::frame::MAX_DATA;
use bastide_proto::tree::{
    BATCH_CONTENT, Extent, LARGE, Made, MadeKind, Restore, RestoreItem, RestoreWord,
};
use bastide_proto::{End, Request};
use bytes::Bytes;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc;

use super::reader::{Reader, Room};
use super::record::SnapshotInfo;
use super::save::receive;
use super::tree::{Entry, Kind, Piece, TreeReader};
use super::trouble::damaged;
use super::{SILENCE, Store, Tree, blocking, threads};
use crate::fault::{agent_lost, refused};
use crate::link::{Access, Incoming, Receiver, Sender, Stream, Ticket, broken, decode};
use crate::snapshot::Progress;
use crate::{Error, ErrorKind, Result};

/// How many bytes the descriptions in one list may take.
const LIST_BYTES: usize = 40 * 1024;

/// How many lists are ready before they are sent.
const READY: usize = 4;

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The snapshot.
    pub info: SnapshotInfo,
    /// How many entries could not be given their owner, because the session has no such user.
    pub unowned: u64,
    /// How many extended attributes the file system did not take.
    pub unattributed: u64,
    /// Whether what was there before is gone; if not, it lies in a hidden folder beside.
    pub cleared: bool,
}

impl Store {
    /// Puts the tree of a snapshot in the place of what is there.
    ///
    /// Everything is read, checked and written beside what is there; only then does it take its place.
    /// If anything fails before that, what is there stays as it was.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such snapshot, [`ErrorKind::Io`] if it is damaged,
    /// [`ErrorKind::Conflict`] if something is there and must not be replaced; others if the guest
    /// does not answer or files cannot be written.
    pub async fn restore(&self, tree: &Tree<'_>, name: &str) -> Result<RestoreReport> {
        let (store, name) = (self.clone(), name.to_owned());
        let (reader, info) = blocking(move || {
            // In this order: what the record needs stays while the lease is held.
            let reader = store.reader()?;
            let info = store.inspect(&name)?;
            Ok((Arc::new(reader), info))
        })
        .await?;
        let kept = tree.kept.iter().map(|path| ByteBuf::from(path.as_slice())).collect();
        let only_empty = tree.only_empty;
        let request = Request::Restore(Restore { base: tree.root.clone(), kept, only_empty });
        let stream = tree.link.open(request).await?;
        let (ready, coming) = mpsc::channel(READY);
        let (source, list) = (Arc::clone(&reader), info.chunks()?);
        let producing = tokio::task::spawn_blocking(move || {
            let produced = produce(&source, list, &ready);
            if let Err(error) = produced {
                // Whoever listens is gone already if this cannot be told.
                drop(ready.blocking_send(Err(error)));
            }
        });
        let Stream { to_guest, from_guest, .. } = stream;
        let restoring =
            Restoring { tree, reader, to_guest, from_guest, info: &info, sent: 0, bytes: 0 };
        let restored = restoring.run(coming).await;
        // It ends by itself: what it sends to is gone, or it is done.
        drop(producing.await);
        let (unowned, unattributed, cleared) = restored.map_err(|error| refuse(tree, error))?;
        Ok(RestoreReport { info, unowned, unattributed, cleared })
    }
}

/// Says what it means that a folder is not empty.
fn refuse(tree: &Tree<'_>, error: Error) -> Error {
    let errno = error.context().get("errno").and_then(serde_json::Value::as_i64);
    if errno != Some(i64::from(rustix::io::Errno::NOTEMPTY.raw_os_error())) {
        return error;
    }
    let message = format!("{} is not empty", tree.root);
    Error::new(ErrorKind::Conflict, message)
        .hint("a folder of yours is never cleared: empty it, or choose another")
        .because(error)
}

/// What is to be sent.
enum Out {
    /// Entries, and the bytes of the files among them.
    Entries(Vec<Made>, Vec<u8>),
    /// A large file.
    Large { entry: Made, size: u64, pieces: Vec<Piece> },
}

/// Reads the list and the content of small files; on a thread of its own.
fn produce(
    reader: &Arc<Reader>,
    list: Vec<super::chunk::ChunkId>,
    ready: &mpsc::Sender<Result<Out>>,
) -> Result<()> {
    let gone = |_| Error::new(ErrorKind::Cancelled, "nobody wants the tree any more");
    let mut list = TreeReader::new(Arc::clone(reader), list);
    let mut room = Room::default();
    // Where files that have other names are.
    let mut shared: HashMap<u64, Vec<ByteBuf>> = HashMap::new();
    let (mut entries, mut bytes, mut weight) = (Vec::new(), Vec::new(), 0);
    let mut number = 0;
    while let Some(entry) = list.next()? {
        let names = || list.names().iter().map(|name| ByteBuf::from(name.as_slice())).collect();
        if matches!(entry.kind, Kind::File { shared: true, .. }) {
            shared.insert(number, names());
        }
        number += 1;
        let mut large = None;
        let kind = match &entry.kind {
            Kind::Dir => MadeKind::Dir,
            Kind::Symlink { target } => MadeKind::Symlink { target: target.clone() },
            Kind::Fifo => MadeKind::Fifo,
            Kind::Link { entry } => {
                let to = shared.get(entry).cloned();
                MadeKind::Link { to: to.ok_or_else(|| damaged("a link to no file"))? }
            }
            Kind::File { size, pieces, .. } if *size >= LARGE => {
                large = Some((*size, pieces.clone()));
                MadeKind::File { extents: Vec::new() }
            }
            Kind::File { pieces, .. } => {
                let mut extents = Vec::with_capacity(pieces.len());
                for piece in pieces {
                    extents.push(match piece {
                        Piece::Hole(length) => Extent::Hole(*length),
                        Piece::Chunk { id, length } => {
                            reader.with(id, &mut room, |content| {
                                check_length(content, *length)?;
                                bytes.extend_from_slice(content);
                                Ok(())
                            })?;
                            Extent::Data(u64::from(*length))
                        }
                    });
                }
                MadeKind::File { extents }
            }
        };
        let made = made(entry, kind);
        weight += weigh(&made);
        if let Some((size, pieces)) = large {
            if !entries.is_empty() {
                let out = Out::Entries(std::mem::take(&mut entries), std::mem::take(&mut bytes));
                ready.blocking_send(Ok(out)).map_err(gone)?;
            }
            weight = 0;
            ready.blocking_send(Ok(Out::Large { entry: made, size, pieces })).map_err(gone)?;
            continue;
        }
        entries.push(made);
        let full = u64::try_from(bytes.len()).unwrap_or(u64::MAX) + LARGE > BATCH_CONTENT;
        if full || weight > LIST_BYTES {
            let out = Out::Entries(std::mem::take(&mut entries), std::mem::take(&mut bytes));
            ready.blocking_send(Ok(out)).map_err(gone)?;
            weight = 0;
        }
    }
    if !entries.is_empty() {
        ready.blocking_send(Ok(Out::Entries(entries, bytes))).map_err(gone)?;
    }
    Ok(())
}

fn check_length(content: &[u8], length: u32) -> Result<()> {
    match u32::try_from(content.len()) == Ok(length) {
        true => Ok(()),
        false => Err(damaged("a chunk is not as long as its list says")),
    }
}

fn made(entry: Entry, kind: MadeKind) -> Made {
    let Entry { depth, name, mode, uid, gid, modified, attributes, .. } = entry;
    Made { depth, name, kind, mode, uid, gid, modified, attributes }
}

/// How many bytes the description of an entry takes, about.
fn weigh(made: &Made) -> usize {
    let attributes: usize =
        made.attributes.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    let kind = match &made.kind {
        MadeKind::File { extents } => extents.len() * 10,
        MadeKind::Symlink { target } => target.len(),
        MadeKind::Link { to } => to.iter().map(|name| name.len() + 2).sum(),
        _ => 0,
    };
    made.name.len() + attributes + kind + 40
}

/// A tree that is being restored.
struct Restoring<'a> {
    tree: &'a Tree<'a>,
    reader: Arc<Reader>,
    to_guest: Sender,
    from_guest: Receiver,
    info: &'a SnapshotInfo,
    sent: u64,
    bytes: u64,
}

impl Restoring<'_> {
    async fn run(mut self, mut coming: mpsc::Receiver<Result<Out>>) -> Result<(u64, u64, bool)> {
        while let Some(out) = coming.recv().await {
            match out? {
                Out::Entries(entries, bytes) => self.entries(entries, bytes).await?,
                Out::Large { entry, size, pieces } => self.large(entry, size, pieces).await?,
            }
            self.tree.report(Progress {
                entries: self.sent,
                bytes: self.bytes,
                total_entries: Some(self.info.entries),
                total_bytes: Some(self.info.bytes),
            });
        }
        if self.sent != self.info.entries {
            return Err(damaged(format!("the list of snapshot {}", self.info.name)));
        }
        self.to_guest.item(&RestoreItem::Commit).await?;
        loop {
            match self.word().await? {
                RestoreWord::Progress { .. } => {}
                RestoreWord::Restored { unowned, unattributed, cleared } => {
                    return match next(&mut self.from_guest).await? {
                        None => Ok((unowned, unattributed, cleared)),
                        Some(_) => Err(broken("more than was due")),
                    };
                }
                _ => return Err(broken("not the end of a tree")),
            }
        }
    }

    async fn entries(&mut self, entries: Vec<Made>, bytes: Vec<u8>) -> Result<()> {
        self.sent += u64::try_from(entries.len()).unwrap_or(0);
        self.bytes += u64::try_from(bytes.len()).unwrap_or(0);
        let Self { to_guest, from_guest, .. } = self;
        let sending = async {
            to_guest.queue_item(&RestoreItem::Entries(entries)).await?;
            let mut bytes = Bytes::from(bytes);
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(MAX_DATA));
                to_guest.queue_input(piece).await?;
            }
            to_guest.flush().await
        };
        send(sending, from_guest).await
    }

    /// The next word, which must not be the end.
    async fn word(&mut self) -> Result<RestoreWord> {
        match next(&mut self.from_guest).await? {
            Some(word) => Ok(word),
            None => Err(broken("the end of a tree before its end")),
        }
    }

    async fn large(&mut self, entry: Made, size: u64, pieces: Vec<Piece>) -> Result<()> {
        self.sent += 1;
        self.bytes += size;
        let mut ticket = self.tree.link.side().and_then(|side| side.expect());
        let number = ticket.as_ref().map(Ticket::number);
        self.to_guest.item(&RestoreItem::Large { entry, size, ticket: number }).await?;
        let is_passed = loop {
            match self.word().await? {
                RestoreWord::Progress { .. } => {}
                RestoreWord::Ready { passed } => break passed,
                _ => return Err(broken("not a file that is ready")),
            }
        };
        match (is_passed, &mut ticket) {
            (true, Some(ticket)) => {
                let file = receive(self.tree.link, ticket, Access::Write).await?.file();
                let reader = Arc::clone(&self.reader);
                blocking(move || fill(&reader, &file, &pieces)).await?;
            }
            (true, None) => return Err(broken("a descriptor nobody asked for")),
            (false, _) => self.stream(pieces).await?,
        }
        self.to_guest.item(&RestoreItem::LargeEnd).await
    }

    /// Sends a large file over the link.
    async fn stream(&mut self, pieces: Vec<Piece>) -> Result<()> {
        for piece in pieces {
            let (id, length) = match piece {
                Piece::Hole(length) => {
                    self.to_guest.queue_item(&RestoreItem::Hole(length)).await?;
                    continue;
                }
                Piece::Chunk { id, length } => (id, length),
            };
            let reader = Arc::clone(&self.reader);
            let content = blocking(move || {
                reader.with(&id, &mut Room::default(), |content| {
                    check_length(content, length)?;
                    Ok(Bytes::copy_from_slice(content))
                })
            });
            let mut content = content.await?;
            let Self { to_guest, from_guest, .. } = self;
            let sending = async {
                while !content.is_empty() {
                    let piece = content.split_to(content.len().min(MAX_DATA));
                    to_guest.queue_input(piece).await?;
                }
                to_guest.flush().await
            };
            send(sending, from_guest).await?;
        }
        Ok(())
    }
}

/// Sends something, and hears meanwhile what the guest says: one that fails says why and stops
/// listening, and one that says how far it is must be heard.
async fn send(sending: impl Future<Output = Result<()>>, from_guest: &mut Receiver) -> Result<()> {
    tokio::pin!(sending);
    loop {
        tokio::select! {
            biased;
            sent = &mut sending => return match sent {
                Err(lost) if lost.kind() == ErrorKind::AgentLost => Err(said(from_guest, lost).await),
                sent => sent,
            },
            heard = next(from_guest) => match heard? {
                Some(RestoreWord::Progress { .. }) => {}
                _ => return Err(broken("not how far a tree is")),
            },
        }
    }
}

/// What a guest that stopped listening said before; else that it is lost.
async fn said(from_guest: &mut Receiver, lost: Error) -> Error {
    loop {
        match next(from_guest).await {
            Ok(Some(_)) => {}
            Ok(None) => return lost,
            Err(error) if error.kind() == ErrorKind::AgentLost => return lost,
            Err(error) => return error,
        }
    }
}

/// What the guest says; nothing at the end.
async fn next(from_guest: &mut Receiver) -> Result<Option<RestoreWord>> {
    let incoming = tokio::time::timeout(SILENCE, from_guest.next()).await;
    let silent = |_| agent_lost("the guest was silent while it restored a tree");
    match incoming.map_err(silent)?? {
        Incoming::Item(item) => Ok(Some(decode(&item)?)),
        Incoming::End(End::Done) => Ok(None),
        Incoming::End(End::Failed(fault)) => Err(refused(fault)),
        _ => Err(broken("not the answer to a call about a tree")),
    }
}

/// Writes the content of a large file, several pieces at once.
fn fill(reader: &Reader, file: &File, pieces: &[Piece]) -> Result<()> {
    let mut places = Vec::with_capacity(pieces.len());
    let mut at = 0_u64;
    for piece in pieces {
        if let Piece::Chunk { id, length } = piece {
            places.push((*id, *length, at));
        }
        at += piece.length();
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut room = Room::default();
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
    Error::new(ErrorKind::Io, format!("cannot write a file of the session: {error}")).because(error)
}
