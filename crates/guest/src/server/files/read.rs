//! Reading a file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bastide_proto::UnresolvedPath;
use bastide_proto::files::{Opened as OpenedItem, Read};
use bastide_proto::frame::{MAX_DATA, Tag};
use bytes::{Bytes, BytesMut};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::at;
use crate::server::Guest;
use crate::server::beneath::{FileIdentity, Opened, PathError, Roots, TrailingSymlink};
use crate::server::blocking::blocking;
use crate::server::call::{Outbox, Refusal};
use crate::server::side_channel::SideChannel;

/// How much is read at a time.
const CHUNK: usize = 4 * MAX_DATA;

/// Opens a regular file to be read.
pub(super) fn open(
    roots: &Roots,
    path: &UnresolvedPath,
) -> Result<(Opened, FileIdentity), PathError> {
    let opened = roots.open_at(path, OFlags::RDONLY, TrailingSymlink::Target)?;
    let node = opened.regular()?;
    Ok((opened, node))
}

/// The next piece of a file; empty at its end.
fn read_chunk(file: &OwnedFd, offset: u64, most: u64) -> Result<Bytes, Errno> {
    let most = usize::try_from(most).unwrap_or(CHUNK).min(CHUNK);
    let mut chunk = BytesMut::zeroed(most);
    let mut length = 0;
    while length < most {
        let at = offset.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        match rustix::io::pread(file, &mut chunk[length..], at) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            // What was read counts; the next call meets the failure again.
            Err(_) if length > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    chunk.truncate(length);
    Ok(chunk.freeze())
}

/// Answers a request to read a file.
pub(super) async fn run(
    guest: &Arc<Guest>,
    read: Read,
    side: Option<&SideChannel>,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let Read { path, mut offset, max, pass } = read;
    let mut left = max.unwrap_or(u64::MAX);
    // The first piece comes along: most files have no other.
    let (opened, node, first) = at(guest, "read", move |roots| {
        let (opened, node) = open(roots, &path)?;
        let at_stake = node.size.saturating_sub(offset).min(left);
        let passed = pass.is_some_and(|pass| at_stake >= pass.at_least);
        let first = match passed && opened.attributes.device == node.device {
            true => None,
            false => {
                let first = read_chunk(&opened.file, offset, left);
                Some(first.map_err(|errno| opened.failed(errno))?)
            }
        };
        Ok((opened, node, first))
    })
    .await?;
    let size = node.size;
    if let (None, Some(pass), Some(side)) = (&first, pass, side)
        && side.pass(pass.ticket, opened.file.as_fd()).await.is_ok()
    {
        return Ok(outbox.queue_item(&OpenedItem { size, passed: true }).await?);
    }
    outbox.queue_item(&OpenedItem { size, passed: false }).await?;
    let opened = Arc::new(opened);
    let mut chunk = first;
    loop {
        let data = match chunk.take() {
            Some(data) => data,
            None => {
                let held = Arc::clone(&opened);
                let read = blocking(move || read_chunk(&held.file, offset, left)).await?;
                read.map_err(|errno| opened.failed(errno).fault("cannot read"))?
            }
        };
        if data.is_empty() {
            return Ok(());
        }
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        offset = offset.saturating_add(length);
        left = left.saturating_sub(length);
        send(outbox, data).await?;
        if left == 0 {
            return Ok(());
        }
    }
}

async fn send(outbox: &mut Outbox, mut data: Bytes) -> Result<(), Refusal> {
    while data.len() > MAX_DATA {
        outbox.queue_data(Tag::Stdout, data.split_to(MAX_DATA)).await?;
    }
    Ok(outbox.queue_data(Tag::Stdout, data).await?)
}
