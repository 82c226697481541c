//! Putting the tree of an archive in the place of what is there.

use bastide_archive::tar::Ownership;
use bastide_proto::files::FileTime;
use bastide_proto::frame::MAX_DATA;
use bastide_proto::tree::{Extent, LARGE, NewEntry, NewEntryKind};
use bytes::Bytes;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc;

use super::unpack::{Kind, Unpacked, Unpacking, part};
use crate::compat::raise;
use crate::snapshot::restoring::{List, Restoring};
use crate::snapshot::{Progress, Workspace};
use crate::{Error, ErrorKind, Result};

/// How many pieces are read ahead.
const AHEAD: usize = 8;

/// So many bytes of nothing are not written.
const HOLE: usize = 4096;

/// What is sent.
enum Outgoing {
    List(List),
    Large(NewEntry, u64),
    Data(Bytes),
    Hole(u64),
    LargeEnd,
}

/// Restores a tree.
pub(super) async fn restore(workspace: &Workspace<'_>, unpacked: Unpacked) -> Result<()> {
    let failed = |error: Error| match error.kind() {
        ErrorKind::AgentLost | ErrorKind::Conflict => error,
        _ => raise::workspace_archive_write(workspace.root()).with_source(error),
    };
    // An archive from elsewhere has somebody else's numbers in it: what is in it is the session's own.
    let own = match unpacked.has_owners {
        true => None,
        false => {
            let root = workspace.files().stat(workspace.root().as_str()).await?;
            Some((root.uid, root.gid))
        }
    };
    let kept = workspace.kept_paths().iter().map(|path| ByteBuf::from(path.as_str())).collect();
    let (link, root) = (workspace.link(), workspace.root());
    let guest = Restoring::begin(link, root, kept, workspace.must_be_empty(), None).await;
    let mut guest = guest.map_err(failed)?;
    let total_entries = Some(unpacked.entries.len() as u64);
    let progress = Progress { total_entries, ..Progress::default() };
    let (sender, items) = mpsc::channel(AHEAD);
    // It ends when nobody takes its pieces any more.
    tokio::task::spawn_blocking(move || {
        if let Err(error) = produce(unpacked, own, &sender) {
            drop(sender.blocking_send(Err(error)));
        }
    });
    let sent = send(workspace, &mut guest, progress, items).await;
    guest.finish(sent).await.map(drop).map_err(failed)
}

fn produce(
    unpacked: Unpacked,
    own: Option<(u32, u32)>,
    out: &mpsc::Sender<Result<Outgoing>>,
) -> Result<()> {
    let Unpacked { contents, entries, .. } = unpacked;
    let gone = |_| Error::new(ErrorKind::Cancelled, "nobody wants the tree any more");
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Io, error.to_string()).with_source(error);
    let send = |chunk: Outgoing| out.blocking_send(Ok(chunk)).map_err(gone);
    let mut list = List::default();
    // A folder that the archive does not name.
    let folder = Unpacking { kind: Kind::Dir, mode: 0o755, ownership: Ownership::default() };
    for step in entries.walk() {
        let entry = step.value.unwrap_or(&folder);
        let (kind, file) = match &entry.kind {
            Kind::Dir => (NewEntryKind::Dir, None),
            Kind::Symlink { target } => {
                (NewEntryKind::Symlink { target: target.clone().into() }, None)
            }
            Kind::Fifo => (NewEntryKind::Fifo, None),
            Kind::Link { to } => {
                let to = entries.names(*to).into_iter().map(ByteBuf::from).collect();
                (NewEntryKind::Link { to }, None)
            }
            Kind::File { at, size } => {
                (NewEntryKind::File { extents: Vec::new() }, Some((*at, *size)))
            }
        };
        let mut made = made((step.depth, step.name), entry, kind, own);
        match file {
            Some((at, size)) if size >= LARGE => {
                if !list.entries.is_empty() {
                    send(Outgoing::List(std::mem::take(&mut list)))?;
                }
                send(Outgoing::Large(made, size))?;
                let mut done = 0;
                while done < size {
                    let length = usize::try_from(size - done).unwrap_or(MAX_DATA).min(MAX_DATA);
                    let mut chunk = vec![0; length];
                    part(&contents, at + done, &mut chunk).map_err(failed)?;
                    done += length as u64;
                    // What was never written stays so.
                    match length >= HOLE && chunk.iter().all(|byte| *byte == 0) {
                        true => send(Outgoing::Hole(length as u64))?,
                        false => send(Outgoing::Data(chunk.into()))?,
                    }
                }
                send(Outgoing::LargeEnd)?;
                continue;
            }
            Some((at, size)) => {
                let start = list.bytes.len();
                list.bytes.resize(start + usize::try_from(size).unwrap_or(0), 0);
                part(&contents, at, &mut list.bytes[start..]).map_err(failed)?;
                made.kind = NewEntryKind::File { extents: vec![Extent::Data(size)] };
            }
            None => {}
        }
        list.push(made);
        if list.is_full() {
            send(Outgoing::List(std::mem::take(&mut list)))?;
        }
    }
    match list.entries.is_empty() {
        true => Ok(()),
        false => send(Outgoing::List(list)),
    }
}

fn made(
    (depth, name): (usize, &[u8]),
    entry: &Unpacking,
    kind: NewEntryKind,
    own: Option<(u32, u32)>,
) -> NewEntry {
    let Ownership { uid, gid, seconds, nanos, attributes } = &entry.ownership;
    let (uid, gid) = own.unwrap_or((*uid, *gid));
    let attributes = attributes.iter();
    NewEntry {
        depth: u32::try_from(depth).unwrap_or(u32::MAX),
        name: ByteBuf::from(name),
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

async fn send(
    workspace: &Workspace<'_>,
    guest: &mut Restoring<'_>,
    mut progress: Progress,
    mut items: mpsc::Receiver<Result<Outgoing>>,
) -> Result<()> {
    while let Some(chunk) = items.recv().await {
        match chunk? {
            Outgoing::List(list) => {
                progress.entries += list.entries.len() as u64;
                progress.bytes += list.bytes.len() as u64;
                guest.list(list).await?;
            }
            Outgoing::Large(entry, size) => {
                progress.entries += 1;
                guest.large(entry, size, false).await?;
            }
            Outgoing::Data(data) => {
                progress.bytes += data.len() as u64;
                guest.data(data).await?;
            }
            Outgoing::Hole(length) => guest.hole(length).await?,
            Outgoing::LargeEnd => guest.end_large().await?,
        }
        workspace.report(progress);
    }
    Ok(())
}
