//! Putting the tree of an archive in the place of what is there.
//!
//! The guest makes it beside what is there, and it takes its place as a whole when all of it has come.

use std::time::Duration;

use bastide_model::archive::tar::Ownership;
use bastide_proto::files::FileTime;
use bastide_proto::frame::MAX_DATA;
use bastide_proto::tree::{
    BATCH_CONTENT, Extent, LARGE, Made, MadeKind, Restore, RestoreItem, RestoreWord,
};
use bastide_proto::{End, Request};
use bytes::Bytes;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc;

use super::unpack::{Kind, Unpacked, Unpacking, part};
use crate::fault::{agent_lost, refused};
use crate::link::{Incoming, Receiver, Sender, Stream, broken, decode};
use crate::snapshot::{Progress, Workspace};
use crate::{Error, ErrorKind, Result};

/// How long a guest may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// How many bytes the descriptions in one list may take.
const LIST_BYTES: usize = 40 * 1024;

/// How many pieces are read ahead.
const AHEAD: usize = 8;

/// So many bytes of nothing are not written.
const HOLE: usize = 4096;

/// The error number of a folder that is not empty.
const NOT_EMPTY: i64 = 39;

/// What is sent.
enum Out {
    Entries(Vec<Made>, Vec<u8>),
    Large(Made, u64),
    Data(Bytes),
    Hole(u64),
    LargeEnd,
}

/// Restores a tree.
pub(super) async fn restore(workspace: &Workspace<'_>, unpacked: Unpacked) -> Result<()> {
    let failed = |error: Error| match error.kind() {
        ErrorKind::AgentLost => error,
        _ => Error::workspace_archive_write(workspace.root()).because(error),
    };
    let kept = workspace.kept_paths().iter().map(|path| ByteBuf::from(path.as_str())).collect();
    let only_empty = workspace.must_be_empty();
    let request = Request::Restore(Restore { base: workspace.root().clone(), kept, only_empty });
    let stream = workspace.link().open(request).await.map_err(|error| {
        match error.context().get("errno").and_then(serde_json::Value::as_i64) {
            Some(NOT_EMPTY) => {
                let message = format!("{} is not empty", workspace.root());
                Error::new(ErrorKind::Conflict, message)
                    .hint("a folder of yours is never cleared: empty it, or choose another")
                    .because(error)
            }
            _ => failed(error),
        }
    })?;
    // An archive from elsewhere has somebody else's numbers in it: what is in it is the session's own.
    let own = match unpacked.has_owners {
        true => None,
        false => {
            let root = workspace.files().stat(workspace.root().as_str()).await?;
            Some((root.uid, root.gid))
        }
    };
    let total = unpacked.entries.len() as u64;
    let (sender, pieces) = mpsc::channel(AHEAD);
    // It ends when nobody takes its pieces any more.
    tokio::task::spawn_blocking(move || {
        if let Err(error) = produce(unpacked, own, &sender) {
            drop(sender.blocking_send(Err(error)));
        }
    });
    let Stream { to_guest, from_guest, .. } = stream;
    let restoring = Restoring { workspace, to_guest, from_guest, total };
    restoring.run(pieces).await.map_err(failed)
}

fn produce(
    unpacked: Unpacked,
    own: Option<(u32, u32)>,
    out: &mpsc::Sender<Result<Out>>,
) -> Result<()> {
    let Unpacked { contents, entries, .. } = unpacked;
    let gone = |_| Error::new(ErrorKind::Cancelled, "nobody wants the tree any more");
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Io, error.to_string()).because(error);
    let send = |piece: Out| out.blocking_send(Ok(piece)).map_err(gone);
    let (mut list, mut bytes, mut weight) = (Vec::new(), Vec::new(), 0);
    for (path, entry) in entries {
        let (kind, file) = match &entry.kind {
            Kind::Dir => (MadeKind::Dir, None),
            Kind::Symlink { target } => (MadeKind::Symlink { target: target.clone().into() }, None),
            Kind::Fifo => (MadeKind::Fifo, None),
            Kind::Link { to } => {
                let to = to.iter().map(|name| ByteBuf::from(name.as_slice())).collect();
                (MadeKind::Link { to }, None)
            }
            Kind::File { at, size } => (MadeKind::File { extents: Vec::new() }, Some((*at, *size))),
        };
        let mut made = made(&path, &entry, kind, own);
        weight += 64 + made.name.len() + described(&made);
        match file {
            Some((at, size)) if size >= LARGE => {
                if !list.is_empty() {
                    send(Out::Entries(std::mem::take(&mut list), std::mem::take(&mut bytes)))?;
                }
                weight = 0;
                send(Out::Large(made, size))?;
                let mut done = 0;
                while done < size {
                    let length = usize::try_from(size - done).unwrap_or(MAX_DATA).min(MAX_DATA);
                    let mut piece = vec![0; length];
                    part(&contents, at + done, &mut piece).map_err(failed)?;
                    done += length as u64;
                    // What was never written stays so.
                    match length >= HOLE && piece.iter().all(|byte| *byte == 0) {
                        true => send(Out::Hole(length as u64))?,
                        false => send(Out::Data(piece.into()))?,
                    }
                }
                send(Out::LargeEnd)?;
                continue;
            }
            Some((at, size)) => {
                let start = bytes.len();
                bytes.resize(start + usize::try_from(size).unwrap_or(0), 0);
                part(&contents, at, &mut bytes[start..]).map_err(failed)?;
                made.kind = MadeKind::File { extents: vec![Extent::Data(size)] };
            }
            None => {}
        }
        list.push(made);
        if bytes.len() as u64 + LARGE > BATCH_CONTENT || weight > LIST_BYTES {
            send(Out::Entries(std::mem::take(&mut list), std::mem::take(&mut bytes)))?;
            weight = 0;
        }
    }
    match list.is_empty() {
        true => Ok(()),
        false => send(Out::Entries(list, bytes)),
    }
}

fn described(made: &Made) -> usize {
    let kind = match &made.kind {
        MadeKind::Symlink { target } => target.len(),
        MadeKind::Link { to } => to.iter().map(|name| name.len() + 2).sum(),
        _ => 0,
    };
    kind + made.attributes.iter().map(|(name, value)| name.len() + value.len() + 8).sum::<usize>()
}

fn made(path: &[Vec<u8>], entry: &Unpacking, kind: MadeKind, own: Option<(u32, u32)>) -> Made {
    let Ownership { uid, gid, seconds, nanos, attributes } = &entry.ownership;
    let (uid, gid) = own.unwrap_or((*uid, *gid));
    let attributes = attributes.iter();
    Made {
        depth: u32::try_from(path.len()).unwrap_or(u32::MAX),
        name: path.last().map(|name| ByteBuf::from(name.as_slice())).unwrap_or_default(),
        kind,
        mode: entry.mode,
        uid,
        gid,
        modified: FileTime { seconds: *seconds, nanos: *nanos },
        attributes: attributes
            .map(|(name, value)| (ByteBuf::from(name.as_slice()), ByteBuf::from(value.as_slice())))
            .collect(),
    }
}

struct Restoring<'a> {
    workspace: &'a Workspace<'a>,
    to_guest: Sender,
    from_guest: Receiver,
    total: u64,
}

impl Restoring<'_> {
    async fn run(mut self, mut pieces: mpsc::Receiver<Result<Out>>) -> Result<()> {
        let mut progress = Progress { total_entries: Some(self.total), ..Progress::default() };
        while let Some(piece) = pieces.recv().await {
            match piece? {
                Out::Entries(entries, bytes) => {
                    progress.entries += entries.len() as u64;
                    progress.bytes += bytes.len() as u64;
                    self.send_entries(entries, bytes).await?;
                    self.workspace.report(progress);
                }
                Out::Large(entry, size) => {
                    progress.entries += 1;
                    self.send_item(&RestoreItem::Large { entry, size, ticket: None }).await?;
                    loop {
                        match word(&mut self.from_guest).await? {
                            Some(RestoreWord::Progress { .. }) => {}
                            Some(RestoreWord::Ready { passed: false }) => break,
                            _ => return Err(broken("not a file that is ready")),
                        }
                    }
                }
                Out::Data(data) => {
                    progress.bytes += data.len() as u64;
                    let Self { to_guest, from_guest, .. } = &mut self;
                    send(to_guest.input(data), from_guest).await?;
                    self.workspace.report(progress);
                }
                Out::Hole(length) => self.send_item(&RestoreItem::Hole(length)).await?,
                Out::LargeEnd => self.send_item(&RestoreItem::LargeEnd).await?,
            }
        }
        self.send_item(&RestoreItem::Commit).await?;
        loop {
            match word(&mut self.from_guest).await? {
                Some(RestoreWord::Progress { .. } | RestoreWord::Restored { .. }) => {}
                Some(_) => return Err(broken("not the end of a tree")),
                None => return Ok(()),
            }
        }
    }

    async fn send_item(&mut self, item: &RestoreItem) -> Result<()> {
        let Self { to_guest, from_guest, .. } = self;
        send(to_guest.item(item), from_guest).await
    }

    async fn send_entries(&mut self, entries: Vec<Made>, bytes: Vec<u8>) -> Result<()> {
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
}

/// Sends something, and hears meanwhile what the guest says: one that fails says why and stops
/// listening.
async fn send(sending: impl Future<Output = Result<()>>, from_guest: &mut Receiver) -> Result<()> {
    tokio::pin!(sending);
    loop {
        tokio::select! {
            biased;
            sent = &mut sending => return match sent {
                Err(lost) if lost.kind() == ErrorKind::AgentLost => {
                    // Its word is worth more than the broken pipe it leaves behind.
                    loop {
                        match word(from_guest).await {
                            Ok(Some(_)) => {}
                            Ok(None) => return Err(lost),
                            Err(error) if error.kind() == ErrorKind::AgentLost => return Err(lost),
                            Err(error) => return Err(error),
                        }
                    }
                }
                sent => sent,
            },
            heard = word(from_guest) => match heard? {
                Some(RestoreWord::Progress { .. }) => {}
                _ => return Err(broken("not how far a tree is")),
            },
        }
    }
}

/// What the guest says; nothing at the end.
async fn word(from_guest: &mut Receiver) -> Result<Option<RestoreWord>> {
    let incoming = tokio::time::timeout(SILENCE, from_guest.next()).await;
    let silent = |_| agent_lost("the guest was silent while it restored a tree");
    match incoming.map_err(silent)?? {
        Incoming::Item(item) => Ok(Some(decode(&item)?)),
        Incoming::End(End::Done) => Ok(None),
        Incoming::End(End::Failed(fault)) => Err(refused(fault)),
        _ => Err(broken("not the answer to a call about a tree")),
    }
}
