//! Laying out a manifest in a session.

use bastide_model::{Entry, EntryKind, Manifest};
use bastide_proto::frame::MAX_DATA;
use bastide_proto::request::{Entry as PutEntry, EntryKind as PutKind, Put};
use bastide_proto::{End, GuestPath, Request};
use bytes::Bytes;

use crate::fault::{agent_lost, refused};
use crate::link::{Incoming, Link, Stream};
use crate::{Error, ErrorKind, Result};

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
    let mut stream = link.open(Request::Put(Put { base: root.clone() })).await?;
    let sent = send(&mut stream, &items).await;
    // A guest that fails in the middle says why and stops listening: its word is worth more than
    // the broken pipe it leaves behind.
    match stream.from_guest.next().await {
        Ok(Incoming::End(End::Done)) => sent,
        Ok(Incoming::End(End::Failed(fault))) => Err(refused(fault).during("materialize")),
        Ok(_) => Err(agent_lost("the guest broke the protocol: not the end of a tree")),
        Err(error) => Err(sent.err().unwrap_or(error)),
    }
}

async fn send(stream: &mut Stream, items: &[Item<'_>]) -> Result<()> {
    for item in items {
        stream.to_guest.item(&item.entry).await?;
        if item.entry.kind == PutKind::File {
            for piece in item.content.chunks(MAX_DATA) {
                stream.to_guest.input(Bytes::copy_from_slice(piece)).await?;
            }
            stream.to_guest.input_end().await?;
        }
    }
    stream.to_guest.input_end().await
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
    Ok(Item { entry: PutEntry { path: path.to_owned(), kind, mode }, content })
}
