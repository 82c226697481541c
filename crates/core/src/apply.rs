//! Laying out a manifest in a session.

use bastide_model::{Entry, EntryKind, Manifest};
use bastide_proto::frame::MAX_DATA;
use bastide_proto::request::{Entry as PutEntry, EntryKind as PutKind, Existing, Put, PutItem};
use bastide_proto::{End, GuestPath, Request};
use bytes::Bytes;

use crate::fault::{agent_lost, refused};
use crate::link::{Incoming, Link, Receiver, Sender, Stream};
use crate::{Error, ErrorKind, Result};

/// How long a guest may be silent in the middle of a tree.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Something to make in the workspace.
#[derive(Debug, PartialEq, Eq)]
struct Item<'a> {
    entry: PutEntry,
    content: &'a [u8],
}

/// Lays out every entry of the manifest, as one stream.
pub(crate) async fn apply(link: &dyn Link, root: &GuestPath, manifest: &Manifest) -> Result<()> {
    let items = items(manifest)?;
    if items.is_empty() {
        return Ok(());
    }
    let put = Put {
        user: None,
        base: root.clone(),
        existing: Existing::Overwritten,
        through_links: true,
    };
    let Stream { mut to_guest, mut from_guest, .. } = link.open(Request::Put(put)).await?;
    let sending = send(&mut to_guest, &items);
    let listening = listen(&mut from_guest);
    tokio::pin!(sending, listening);
    // A guest that fails in the middle says why and stops listening: its word is worth more than
    // the broken pipe it leaves behind.
    tokio::select! {
        heard = &mut listening => heard,
        sent = &mut sending => match (sent, listening.await) {
            (Err(lost), Err(error)) if error.kind() == ErrorKind::AgentLost => Err(lost),
            (_, heard) => heard,
        },
    }
}

/// Waits for the end; what comes before it only says how far it is.
async fn listen(from_guest: &mut Receiver) -> Result<()> {
    loop {
        let incoming = tokio::time::timeout(SILENCE, from_guest.next()).await;
        let silent = |_| agent_lost("the guest was silent while it laid out the manifest");
        match incoming.map_err(silent)?? {
            Incoming::Item(_) => {}
            Incoming::End(End::Done) => return Ok(()),
            Incoming::End(End::Failed(fault)) => {
                return Err(refused(fault).during("materialize"));
            }
            _ => return Err(agent_lost("the guest broke the protocol: not the end of a tree")),
        }
    }
}

async fn send(to_guest: &mut Sender, items: &[Item<'_>]) -> Result<()> {
    for item in items {
        to_guest.queue_item(&PutItem::Entry(item.entry.clone())).await?;
        if item.entry.kind == PutKind::File {
            for piece in item.content.chunks(MAX_DATA) {
                to_guest.queue_input(Bytes::copy_from_slice(piece)).await?;
            }
            to_guest.queue_input_end().await?;
        }
    }
    to_guest.input_end().await
}

/// Everything to make, parents before what lies in them.
fn items(manifest: &Manifest) -> Result<Vec<Item<'_>>> {
    let mut items = Vec::new();
    for walked in manifest.walk()? {
        let (path, entry) = walked?;
        items.push(item(&path.to_string(), entry)?);
    }
    Ok(items)
}

fn item<'a>(path: &str, entry: &'a Entry) -> Result<Item<'a>> {
    let (kind, content) = match &entry.kind {
        EntryKind::Dir { .. } => (PutKind::Dir, &[][..]),
        EntryKind::File { content } => (PutKind::File, &content[..]),
        _ => {
            let message = format!("cannot lay out {path}: entries of type `{}`", entry.type_name());
            return Err(Error::new(ErrorKind::Unsupported, message)
                .hint("entries of type `file` and `dir` can be laid out"));
        }
    };
    let mode = u32::try_from(entry.permissions.mode() & 0o7777).unwrap_or(0o700);
    let entry = PutEntry { mode: Some(mode), ..PutEntry::new(path, kind) };
    Ok(Item { entry, content })
}
