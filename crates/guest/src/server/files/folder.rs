//! Listing a folder, a piece at a time.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bastide_proto::UnresolvedPath;
use bastide_proto::files::{BATCH_BYTES, DirListing, FileStat};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, statat};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::at;
use super::describe::{describe, link_text};
use crate::accounts::Accounts;
use crate::server::Guest;
use crate::server::beneath::{Opened, PathError, Roots, TrailingSymlink};
use crate::server::blocking::blocking;
use crate::server::call::{Outbox, Refusal};

/// How much of a folder is read at a time.
const CHUNK: usize = 8 * 1024;

/// Opens a folder to be listed.
pub(super) fn open(roots: &Roots, path: &UnresolvedPath) -> Result<Opened, PathError> {
    roots.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, TrailingSymlink::Target)
}

/// Entries of a folder: their names, and what the listing says they are.
pub(crate) type Entries = Vec<(Vec<u8>, FileType)>;

/// The next entries of a folder that is open, but `.` and `..`; `None` when there are no more.
pub(crate) fn some_entries(folder: &OwnedFd) -> Result<Option<Entries>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); CHUNK];
    let mut raw = RawDir::new(folder, &mut buffer);
    let mut entries = Vec::new();
    // All of the buffer: the folder's position is behind it already.
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        // No file system may make us go up, or more than one name down.
        if !matches!(name, b"." | b"..") && !name.contains(&b'/') {
            entries.push((name.to_vec(), entry.file_type()));
        }
        if raw.is_buffer_empty() {
            return Ok(Some(entries));
        }
    }
    Ok(None)
}

/// The next entries of a folder, described.
pub(super) fn some_described(
    folder: &OwnedFd,
    accounts: &Accounts,
) -> Result<Option<Vec<(ByteBuf, FileStat)>>, Errno> {
    let Some(entries) = some_entries(folder)? else { return Ok(None) };
    let mut described = Vec::with_capacity(entries.len());
    for (name, _) in entries {
        let stat = match statat(folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It went away while we were looking.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        let target = link_text(folder, &name, &stat);
        described.push((ByteBuf::from(name), describe(&stat, target, accounts)));
    }
    Ok(Some(described))
}

/// Answers a request to list a folder.
pub(super) async fn run(
    guest: &Arc<Guest>,
    path: UnresolvedPath,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let open = move |roots: &Roots| Ok((open(roots, &path)?, Accounts::read()));
    let (opened, accounts) = at(guest, "list", open).await?;
    let listing = Arc::new((opened, accounts));
    let next = || {
        let held = Arc::clone(&listing);
        blocking(move || some_described(&held.0.file, &held.1))
    };
    // An empty folder is listed, too: the host hears where it is.
    let mut empty = true;
    let mut read = next().await?;
    loop {
        let entries = read.map_err(|errno| listing.0.failed(errno).fault("cannot list"))?;
        let folder = ByteBuf::from(listing.0.path.as_slice());
        let Some(entries) = entries else {
            if empty {
                outbox.queue_item(&DirListing { folder, entries: Vec::new() }).await?;
            }
            return Ok(());
        };
        let send = async {
            for entries in batches(entries) {
                empty = false;
                outbox.queue_item(&DirListing { folder: folder.clone(), entries }).await?;
            }
            Ok::<_, Refusal>(())
        };
        // The next ones are looked at meanwhile.
        let (looked_at, sent) = tokio::join!(next(), send);
        sent?;
        read = looked_at?;
    }
}

/// Cuts entries into pieces that fit into a frame each.
fn batches(entries: Vec<(ByteBuf, FileStat)>) -> Vec<Vec<(ByteBuf, FileStat)>> {
    let weight = |(name, stat): &(ByteBuf, FileStat)| {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let target = stat.target.as_ref().map_or(0, |target| target.len());
        name.len() + target + text(&stat.owner) + text(&stat.group) + 96
    };
    let mut batches: Vec<Vec<_>> = Vec::new();
    let mut room = 0;
    for entry in entries {
        let needs = weight(&entry);
        match batches.last_mut() {
            Some(batch) if needs <= room => batch.push(entry),
            _ => {
                batches.push(vec![entry]);
                room = BATCH_BYTES;
            }
        }
        room = room.saturating_sub(needs);
    }
    batches
}
