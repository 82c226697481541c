//! Reporting changes below a folder.
//!
//! The kernel keeps a bounded queue of what happened. While the host does not read, we do not
//! either, so it is that queue that overflows, and the kernel says so.

mod tree;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bastide_proto::files::{BATCH_BYTES, Change, ChangedPath};
use bastide_proto::{Fault, UnresolvedPath};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;

use super::at;
use crate::server::Guest;
use crate::server::beneath::{PathError, Roots};
use crate::server::blocking::blocking;
use crate::server::call::{Inbox, Outbox, Refusal};
use crate::sys::async_fd;

pub(super) use tree::Tree;

/// Whatever happens in a folder but reading.
pub(in crate::server) const FOLDER_CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVE_SELF);

/// How many changes are told at a time.
const AT_ONCE: usize = 256;

/// How often the second half of a rename is looked for.
const HALVES: usize = 3;

/// One thing the kernel reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

/// Answers a request to watch.
pub(super) async fn run(
    guest: &Arc<Guest>,
    path: UnresolvedPath,
    recursive: bool,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let begin = move |roots: &Roots| {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let queue = queue.map_err(|errno| PathError::os(errno, path.as_str().as_bytes()))?;
        Tree::begin(roots, queue, &path, recursive)
    };
    let (mut tree, unwatched) = at(guest, "watch", begin).await?;
    let queue = tree.queue().map_err(|errno| tree.failed(errno))?;
    let queue = async_fd(queue, Interest::READABLE);
    let queue =
        queue.map_err(|error| tree.failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    // From here on nothing is missed.
    outbox.item(&unwatched).await?;
    loop {
        tokio::select! {
            // The host sends nothing; a frame is a mistake, the end is the end.
            _ = inbox.next() => return Err(Refusal::Disconnected),
            ready = queue.readable() => {
                let mut ready = ready.map_err(|_| tree.failed(Errno::IO))?;
                let events = match read_whole(queue.get_ref()) {
                    Ok(events) => events,
                    Err(Errno::AGAIN) => {
                        ready.clear_ready();
                        continue;
                    }
                    Err(errno) => return Err(tree.failed(errno).into()),
                };
                let guest = Arc::clone(guest);
                let (back, changes) = blocking(move || {
                    let changes = tree.changes(&guest.roots, events);
                    (tree, changes)
                }).await?;
                tree = back;
                let is_gone = changes.contains(&Change::Gone);
                for batch in batches(changes) {
                    outbox.item(&batch).await?;
                }
                if is_gone {
                    return Ok(());
                }
            }
        }
    }
}

impl Tree {
    fn failed(&self, errno: Errno) -> Fault {
        PathError::os(errno, self.path()).fault("cannot watch")
    }
}

/// What the kernel has in its queue, some of it, but both halves of a rename: the second one follows
/// at once.
fn read_whole(queue: &OwnedFd) -> Result<Vec<Event>, Errno> {
    let mut events = read(queue)?;
    let is_half = |events: &[Event]| {
        events.last().is_some_and(|event| event.flags.contains(ReadFlags::MOVED_FROM))
    };
    let mut attempts = 0;
    while is_half(&events) && attempts < HALVES {
        attempts += 1;
        match read(queue) {
            Ok(more) => events.extend(more),
            // What is moved out of the tree has no second half.
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => return Err(errno),
        }
    }
    Ok(events)
}

/// What the kernel has in its queue, some of it.
fn read(queue: &OwnedFd) -> Result<Vec<Event>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut reader = Reader::new(queue, &mut buffer);
    let mut events = Vec::new();
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) if !events.is_empty() => return Ok(events),
            Err(errno) => return Err(errno),
        };
        let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
        let (watch, flags, cookie) = (event.wd(), event.events(), event.cookie());
        events.push(Event { watch, flags, cookie, name });
        if reader.is_buffer_empty() {
            return Ok(events);
        }
    }
}

/// Cuts changes into pieces that fit into a frame each.
fn batches(changes: Vec<Change>) -> Vec<Vec<Change>> {
    let path = |changed: &ChangedPath| changed.path.len();
    let weight = |change: &Change| match change {
        Change::Renamed { from, to } => from.len() + path(to) + 32,
        Change::Created(changed)
        | Change::Modified(changed)
        | Change::Attributes(changed)
        | Change::Removed(changed)
        | Change::NotWatched(changed) => path(changed) + 32,
        _ => 32,
    };
    let mut batches: Vec<Vec<Change>> = Vec::new();
    let mut room = 0;
    for change in changes {
        let needs = weight(&change);
        match batches.last_mut() {
            Some(batch) if needs <= room && batch.len() < AT_ONCE => batch.push(change),
            _ => {
                batches.push(vec![change]);
                room = BATCH_BYTES;
            }
        }
        room = room.saturating_sub(needs);
    }
    batches
}
