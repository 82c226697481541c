//! Putting a tree in the place of another.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::frame::Tag;
use bastide_proto::tree::{
    BATCH_CONTENT, Extent, NewEntry, NewEntryKind, Restore, RestoreItem, RestoreMessage,
    ScannedKind, TreeChecksum, is_hidden,
};
use bastide_proto::{Accepted, End, Fault, FaultKind};
use bytes::{Bytes, BytesMut};
use rustix::fs::{Access, AtFlags, Mode, OFlags, mkdirat, unlinkat};
use rustix::io::Errno;

use super::build::{Builder, OpenFile, UnrestoredCounts};
use super::mode_guard::{self, ModeGuard};
use super::scan::Scanner;
use super::swap::Moves;
use crate::server::Guest;
use crate::server::beneath::{
    DirEntryRef, MissingParents, PathError, RootAttributes, Roots, TrailingSymlink, kind_of, names,
    reopen,
};
use crate::server::blocking::blocking;
use crate::server::call::{Disconnected, Inbox, Outbox, Refusal};
use crate::server::files::{Removal, RemoveProgress, random_name, some_entries};
use crate::server::side_channel::SideChannel;

/// How often the host hears that it is not its turn yet.
pub(super) const WAIT_INTERVAL: Duration = Duration::from_secs(5);

/// How deep folders are that are cleared away after a tree that did not take its place.
const DEEPEST: u32 = 64;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// A tree that is to take the place of another.
#[derive(Debug)]
struct Restoring {
    base: Arc<OwnedFd>,
    path: Vec<u8>,
    attributes: RootAttributes,
    kept: Vec<Vec<Vec<u8>>>,
    replaced: Option<TreeChecksum>,
    /// The folder beside what is there, and its name.
    new: Arc<OwnedFd>,
    new_name: Vec<u8>,
    builder: Builder,
    filling: Option<OpenFile>,
    guest: Arc<Guest>,
    /// The folder itself, if its owner had closed it: until it has what it is to have, or all is cleared away.
    top: Option<ModeGuard>,
    /// There until everything is in its place, or cleared away.
    held: Option<RestoreLock>,
}

/// The right to put a tree in the place of another.
type RestoreLock = tokio::sync::OwnedRwLockWriteGuard<()>;

impl Drop for Restoring {
    /// Clears away what was begun, if whoever asked is gone. The next one waits for that.
    fn drop(&mut self) {
        let Some(turn) = self.held.take() else { return };
        let (Ok(removal), Ok(runtime)) =
            (self.beside(&self.new_name), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (guest, top) = (Arc::clone(&self.guest), self.top.take());
        runtime.spawn(async move {
            // What cannot be removed stays hidden, and is left out of snapshots.
            drop(remove(&guest, removal).await);
            drop((top, turn));
        });
    }
}

impl Restoring {
    fn begin(guest: &Arc<Guest>, asked: &Restore, turn: RestoreLock) -> Result<Self, Fault> {
        let roots = &guest.roots;
        let fault = |error: PathError| error.fault("cannot restore");
        let at = names(asked.base.as_str().as_bytes());
        let place =
            roots.change(&at, TrailingSymlink::Target, MissingParents::Fails).map_err(fault)?;
        let failed = |errno| fault(place.failed(errno));
        let wanted = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        let (base, top) = mode_guard::open_top(roots, &place, wanted).map_err(failed)?;
        let base = Arc::new(base);
        let kept: Vec<Vec<Vec<u8>>> = asked.kept.iter().map(|path| names(path)).collect();
        if kept.iter().any(Vec::is_empty) {
            return Err(Fault::new(FaultKind::Invalid, "a kept path is the folder itself"));
        }
        if asked.only_empty {
            check_empty(&base, &kept).map_err(failed)?;
        }
        let new_name = random_name(b".new").map_err(failed)?;
        let made = mkdirat(&base, new_name.as_slice(), Mode::RWXU);
        let new = made.and_then(|()| roots.enter(&base, &new_name, OFlags::RDONLY));
        let new = Arc::new(new.map_err(failed)?);
        let builder = Builder::new(reopen(&*new, OFlags::PATH).map_err(failed)?);
        let (path, attributes) = (place.path.clone(), place.attributes);
        let (guest, held) = (Arc::clone(guest), Some(turn));
        let (filling, replaced) = (None, asked.replaced);
        Ok(Self {
            guest,
            base,
            path,
            attributes,
            kept,
            replaced,
            new,
            new_name,
            builder,
            filling,
            top,
            held,
        })
    }

    fn fault(&self, errno: Errno) -> Fault {
        let path = String::from_utf8_lossy(&self.path).into_owned();
        let message = format!("cannot restore {path}: {errno}");
        let errno_number = Some(errno.raw_os_error());
        Fault { kind: kind_of(errno), message, errno: errno_number, path: Some(path) }
    }

    /// Everything is there: it takes its place. What the folder itself is to have comes back; nothing if what was there
    /// is not what may be replaced. It is where it was then.
    fn commit(&mut self, roots: &Roots) -> Result<Option<NewEntry>, Errno> {
        let root = self.builder.end()?;
        let old_name = random_name(b".old")?;
        mkdirat(&self.base, old_name.as_slice(), Mode::RWXU)?;
        let old = Arc::new(roots.enter(&self.base, &old_name, OFlags::RDONLY)?);
        let kept: Vec<&[Vec<u8>]> = self.kept.iter().map(Vec::as_slice).collect();
        let mut moves = Moves::default();
        let swapped =
            moves.swap(roots, [&self.base, &self.new, &old], &kept, true).and_then(|()| {
                // After it was moved, for nobody finds it by its name any more.
                let is_expected = self.replaced.is_none_or(|it| sum(roots, &old).ok() == Some(it));
                if is_expected {
                    moves.finish()?;
                }
                Ok(is_expected)
            });
        if swapped != Ok(true) {
            moves.undo();
            remove_empty(roots, &self.base, &old_name, DEEPEST);
        }
        swapped.map(|is_expected| is_expected.then_some(root))
    }

    /// Gives the folder itself what it is to have.
    fn give_root(&mut self, root: &NewEntry) -> Result<(), Errno> {
        match self.builder.finish(&*self.base, root, false) {
            // The folder may be somebody else's; what is in it is what matters.
            Err(Errno::PERM | Errno::ACCESS) => {}
            given => given?,
        }
        if let Some(top) = self.top.take() {
            top.end();
        }
        Ok(())
    }

    /// A folder of ours beside what is there.
    fn beside(&self, name: &[u8]) -> Result<Removal, Errno> {
        let folder = rustix::io::fcntl_dupfd_cloexec(&self.base, 0)?;
        let path = [self.path.as_slice(), b"/", name].concat();
        Ok(Removal::of(DirEntryRef {
            folder,
            name: Some(name.to_vec()),
            path,
            attributes: self.attributes,
        }))
    }
}

/// What tells the content of a folder from any other.
fn sum(roots: &Roots, folder: &Arc<OwnedFd>) -> Result<TreeChecksum, Errno> {
    let mut scanner = Scanner::of(Arc::clone(folder));
    let mut sum = TreeChecksum::default();
    loop {
        let (batch, is_end) = scanner.some(roots)?;
        for (entry, (above, name)) in batch.entries.iter().zip(&batch.entry_refs) {
            let path = above.iter().chain([name]).map(Vec::as_slice);
            match entry.kind {
                _ if entry.depth == 0 => {}
                ScannedKind::Dir { .. } => sum.folder(path),
                ScannedKind::File => sum.other(path, Some(entry.stat.size), entry.stat.modified),
                _ => sum.other(path, None, entry.stat.modified),
            }
        }
        if is_end {
            return Ok(sum);
        }
    }
}

/// Removes a folder in which there is nothing but folders; whatever holds more stays, or is deeper than that.
fn remove_empty(roots: &Roots, folder: &OwnedFd, name: &[u8], deepest: u32) {
    if let Ok(inside) = roots.enter(folder, name, OFlags::RDONLY)
        && deepest > 0
    {
        while let Ok(Some(entries)) = some_entries(&inside) {
            entries.iter().for_each(|(name, _)| remove_empty(roots, &inside, name, deepest - 1));
        }
        // One that holds something is not removed.
        let _ = unlinkat(folder, name, AtFlags::REMOVEDIR);
    }
}

/// Refuses a folder that holds anything but what stays.
fn check_empty(base: &OwnedFd, kept: &[Vec<Vec<u8>>]) -> Result<(), Errno> {
    let listed = reopen(base, FOLDER)?;
    while let Some(entries) = some_entries(&listed)? {
        for (name, _) in entries {
            let is_kept = kept.iter().any(|path| path.first() == Some(&name));
            if !is_kept && !is_hidden(&name) {
                return Err(Errno::NOTEMPTY);
            }
        }
    }
    Ok(())
}

/// Answers a request to put a tree in the place of another.
pub(in crate::server) async fn run(
    guest: &Arc<Guest>,
    asked: &Restore,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    outbox.accept(Accepted::default()).await?;
    // One at a time: a call whose host is gone may still be clearing away what it began.
    let turn = loop {
        match tokio::time::timeout(WAIT_INTERVAL, Arc::clone(&guest.restores).write_owned()).await {
            Ok(turn) => break turn,
            Err(_) => outbox.item(&RestoreMessage::Progress { made: 0 }).await?,
        }
    };
    let (request, held) = (asked.clone(), Arc::clone(guest));
    let begun = blocking(move || Restoring::begin(&held, &request, turn)).await;
    let restoring = match begun.and_then(|begun| begun) {
        Ok(restoring) => restoring,
        Err(fault) => return Ok(outbox.end(&End::Failed(fault)).await?),
    };
    let (restoring, received) = receive(guest, restoring, side, inbox, outbox).await;
    let end = match received {
        Ok(()) => End::Done,
        Err(Refusal::Fault(fault)) => {
            discard(guest, restoring).await;
            End::Failed(fault)
        }
        Err(Refusal::Disconnected) => return Err(Refusal::Disconnected),
    };
    Ok(outbox.end(&end).await?)
}

/// The folders of ours in a folder: those of this call, and of others that were interrupted.
fn leftovers(base: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let listed = reopen(base, FOLDER)?;
    let mut left = Vec::new();
    while let Some(entries) = some_entries(&listed)? {
        let names = entries.into_iter().map(|(name, _)| name);
        left.extend(names.filter(|name| is_hidden(name) && !name.ends_with(b".tmp")));
    }
    Ok(left)
}

async fn remove(guest: &Arc<Guest>, mut removal: Removal) -> Result<(), Fault> {
    loop {
        let held = Arc::clone(guest);
        let (back, step) = blocking(move || {
            let step = removal.remove_some(&held.roots);
            (removal, step)
        })
        .await?;
        removal = back;
        if step.map_err(|error| error.fault("cannot remove"))? == RemoveProgress::Done {
            return Ok(());
        }
    }
}

async fn discard(guest: &Arc<Guest>, restoring: Option<Restoring>) {
    let Some(mut restoring) = restoring else { return };
    if let Ok(removal) = restoring.beside(&restoring.new_name) {
        drop(remove(guest, removal).await);
    }
    restoring.held = None;
}

/// Does a piece of the work on another thread.
async fn work<T: Send + 'static>(
    guest: &Arc<Guest>,
    restoring: &mut Option<Restoring>,
    work: impl FnOnce(&mut Restoring, &Roots) -> Result<T, Errno> + Send + 'static,
) -> Result<T, Refusal> {
    let Some(mut taken) = restoring.take() else { return Err(Refusal::Disconnected) };
    let held = Arc::clone(guest);
    let (back, worked) = blocking(move || {
        let worked = work(&mut taken, &held.roots);
        (taken, worked)
    })
    .await?;
    let worked = worked.map_err(|errno| back.fault(errno));
    *restoring = Some(back);
    Ok(worked?)
}

async fn receive(
    guest: &Arc<Guest>,
    restoring: Restoring,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> (Option<Restoring>, Result<(), Refusal>) {
    let mut held = Some(restoring);
    let received = take_all(guest, &mut held, side, inbox, outbox).await;
    (held, received)
}

async fn take_all(
    guest: &Arc<Guest>,
    restoring: &mut Option<Restoring>,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    loop {
        let frame = inbox.next().await?;
        if frame.tag == Tag::Input {
            let data = frame.body;
            work(guest, restoring, move |it, _| fill(it, |filling| filling.write(&data))).await?;
            continue;
        }
        if frame.tag != Tag::Item {
            return Err(Refusal::Disconnected);
        }
        match bastide_proto::decode(&frame.body).map_err(|_| Disconnected)? {
            RestoreItem::Entries(entries) => {
                let bytes = content(inbox, expected(&entries)?).await?;
                let made = work(guest, restoring, move |it, roots| {
                    it.builder.make(roots, entries, &bytes)?;
                    Ok(it.builder.made)
                });
                outbox.item(&RestoreMessage::Progress { made: made.await? }).await?;
            }
            RestoreItem::Large { entry, size, ticket } => {
                let file = work(guest, restoring, move |it, _| {
                    let filling = it.builder.begin_large(entry, size)?;
                    let file = rustix::io::fcntl_dupfd_cloexec(filling.file(), 0)?;
                    it.filling = Some(filling);
                    Ok(file)
                });
                let file = file.await?;
                let passed = match (ticket, side) {
                    (Some(ticket), Some(side)) => side.pass(ticket, file.as_fd()).await.is_ok(),
                    _ => false,
                };
                outbox.item(&RestoreMessage::Ready { passed }).await?;
            }
            RestoreItem::Hole(length) => {
                work(guest, restoring, move |it, _| fill(it, |filling| filling.skip(length)))
                    .await?;
            }
            RestoreItem::LargeEnd => {
                let made = work(guest, restoring, |it, _| {
                    let filling = it.filling.take().ok_or(Errno::PROTO)?;
                    it.builder.end_large(&filling)?;
                    Ok(it.builder.made)
                });
                outbox.item(&RestoreMessage::Progress { made: made.await? }).await?;
            }
            RestoreItem::Commit => return commit(guest, restoring, outbox).await,
            RestoreItem::Abandon => {
                return Err(Fault::new(FaultKind::Invalid, "the host gave the tree up").into());
            }
            _ => return Err(Refusal::Disconnected),
        }
    }
}

fn fill(
    restoring: &mut Restoring,
    work: impl FnOnce(&mut OpenFile) -> Result<(), Errno>,
) -> Result<(), Errno> {
    work(restoring.filling.as_mut().ok_or(Errno::PROTO)?)
}

/// Puts the tree in its place, and clears away what was there. Once begun, this comes to its end even if
/// nobody waits for it any more.
async fn commit(
    guest: &Arc<Guest>,
    restoring: &mut Option<Restoring>,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let taken = restoring.take();
    let guest = Arc::clone(guest);
    let committing = tokio::spawn(async move {
        let mut restoring = taken;
        let committed = put_in_place(&guest, &mut restoring).await;
        match (&committed, &mut restoring) {
            (Ok(_), Some(done)) => done.held = None,
            _ => discard(&guest, restoring).await,
        }
        committed
    });
    let committed = committing.await.map_err(|_| {
        Refusal::Fault(Fault::new(FaultKind::Internal, "the guest failed at a tree"))
    })?;
    let (losses, cleared) = committed?;
    let (unowned, unattributed) = (losses.unowned, losses.unattributed);
    Ok(outbox.item(&RestoreMessage::Restored { unowned, unattributed, cleared }).await?)
}

async fn put_in_place(
    guest: &Arc<Guest>,
    restoring: &mut Option<Restoring>,
) -> Result<(UnrestoredCounts, bool), Refusal> {
    let Some(root) = work(guest, restoring, |it, roots| it.commit(roots)).await? else {
        let message = "somebody else changed files that were to be replaced, so nothing was";
        return Err(Refusal::Fault(Fault::new(FaultKind::Exists, message)));
    };
    // Whatever lies beside the new tree now has been replaced by it.
    let left = work(guest, restoring, |it, _| leftovers(&it.base)).await?;
    let mut cleared = true;
    for name in left {
        let removal = restoring.as_ref().and_then(|it| it.beside(&name).ok());
        cleared &= match removal {
            Some(removal) => remove(guest, removal).await.is_ok(),
            None => false,
        };
    }
    // Last, for all that was removed from the folder has changed its times.
    let given = work(guest, restoring, move |it, _| {
        it.give_root(&root)?;
        Ok(it.builder.losses)
    });
    Ok((given.await?, cleared))
}

/// How many bytes follow a list of entries.
fn expected(entries: &[NewEntry]) -> Result<u64, Disconnected> {
    let mut total = 0_u64;
    for entry in entries {
        if let NewEntryKind::File { extents } = &entry.kind {
            for extent in extents {
                if let Extent::Data(length) = extent {
                    total = total.checked_add(*length).ok_or(Disconnected)?;
                }
            }
        }
    }
    if total <= BATCH_CONTENT { Ok(total) } else { Err(Disconnected) }
}

async fn content(inbox: &mut Inbox, expected: u64) -> Result<Bytes, Disconnected> {
    let expected = usize::try_from(expected).map_err(|_| Disconnected)?;
    let mut bytes = BytesMut::with_capacity(expected);
    while bytes.len() < expected {
        let frame = inbox.next().await?;
        if frame.tag != Tag::Input || frame.body.len() > expected - bytes.len() {
            return Err(Disconnected);
        }
        bytes.extend_from_slice(&frame.body);
    }
    Ok(bytes.freeze())
}
