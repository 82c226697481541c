//! Removing entries, a piece at a time.
//!
//! A tree is removed from folders that are held, never by path. Only so many are held at once; the
//! way back up is checked: the folder above must be the one we came from.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide_proto::UnresolvedPath;
use bastide_proto::files::Progress;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, openat, seek, unlinkat};
use rustix::io::Errno;

use super::{at, some_entries};
use crate::server::Guest;
use crate::server::beneath::{
    DirEntryRef, FileIdentity, MissingParents, PathError, PathErrorKind, Roots, TrailingSymlink,
    names_of, reopen, stat_at, stat_held,
};
use crate::server::blocking::blocking;
use crate::server::call::{Inbox, Outbox, Refusal};
use crate::server::tree::unlock;

/// How long one piece of the work takes.
const CHUNK: Duration = Duration::from_millis(200);

/// How many folders are held at once.
const HELD: usize = 32;

/// How deep a tree may be.
const MAX_DEPTH: usize = 1 << 16;

/// How often a folder that fills up again is emptied.
const ROUNDS: usize = 1000;

/// Something that is being removed.
#[derive(Debug)]
pub(crate) struct Removal {
    place: DirEntryRef,
    /// The folders from the top of the tree down to the one being emptied.
    levels: Vec<Level>,
    done: u64,
    rounds: usize,
    /// Whether folders that their owner has closed are opened first.
    unlocks: bool,
}

#[derive(Debug)]
struct Level {
    /// Its name in the folder above.
    name: Vec<u8>,
    node: FileIdentity,
    /// Not there while too many below are.
    folder: Option<OwnedFd>,
}

/// What became of a piece of the work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RemoveProgress {
    More,
    Done,
}

impl Removal {
    /// Finds what is to be removed.
    pub(super) fn begin(roots: &Roots, path: &UnresolvedPath) -> Result<Self, PathError> {
        let place =
            roots.change(&names_of(path), TrailingSymlink::Itself, MissingParents::Fails)?;
        Ok(Self { place, levels: Vec::new(), done: 0, rounds: 0, unlocks: false })
    }

    /// What is to be removed is an entry of a folder that is held, with whatever its owner closed.
    pub(crate) fn of(place: DirEntryRef) -> Self {
        Self { place, levels: Vec::new(), done: 0, rounds: 0, unlocks: true }
    }

    /// Removes one entry, a folder only if it is empty.
    pub(super) fn remove_one(&self) -> Result<(), PathError> {
        let (folder, name) = self.place.entry()?;
        let remove = || {
            let stat = stat_at(folder, name)?;
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            unlinkat(folder, name, flags)
        };
        remove().map_err(|errno| self.place.failed(errno))
    }

    /// Removes some of a tree.
    pub(crate) fn remove_some(&mut self, roots: &Roots) -> Result<RemoveProgress, PathError> {
        let until = Instant::now() + CHUNK;
        loop {
            match self.step(roots) {
                Ok(RemoveProgress::Done) => return Ok(RemoveProgress::Done),
                Ok(RemoveProgress::More) if Instant::now() >= until => {
                    return Ok(RemoveProgress::More);
                }
                Ok(RemoveProgress::More) => {}
                Err(Errno::XDEV) => {
                    return Err(PathError {
                        why: PathErrorKind::Outside,
                        path: self.place.path.clone(),
                    });
                }
                Err(errno) => return Err(self.place.failed(errno)),
            }
        }
    }

    /// Empties the innermost folder a little, or removes it if it is empty.
    fn step(&mut self, roots: &Roots) -> Result<RemoveProgress, Errno> {
        let Some(level) = self.levels.last_mut() else { return self.start(roots) };
        let folder = level.folder.as_ref().ok_or(Errno::BADF)?;
        // From the start each time: what was there is gone.
        seek(folder, SeekFrom::Start(0))?;
        let mut entries = some_entries(folder)?;
        while entries.as_ref().is_some_and(Vec::is_empty) {
            entries = some_entries(folder)?;
        }
        let Some(entries) = entries else { return self.leave() };
        for (name, kind) in entries {
            if kind == FileType::Directory {
                return self.enter(roots, name);
            }
            let folder = self.levels.last().and_then(|level| level.folder.as_ref());
            match unlinkat(folder.ok_or(Errno::BADF)?, name.as_slice(), AtFlags::empty()) {
                Ok(()) => self.done += 1,
                Err(Errno::NOENT) => {}
                // It became a folder, or its file system does not tell kinds.
                Err(Errno::ISDIR | Errno::PERM) if kind != FileType::Directory => {
                    return self.enter(roots, name);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(RemoveProgress::More)
    }

    fn start(&mut self, roots: &Roots) -> Result<RemoveProgress, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Some(name) = self.place.name.clone() else {
            let folder = reopen(&self.place.folder, flags)?;
            self.push(Vec::new(), folder)?;
            return Ok(RemoveProgress::More);
        };
        match unlinkat(&self.place.folder, name.as_slice(), AtFlags::empty()) {
            Ok(()) => {
                self.done += 1;
                return Ok(RemoveProgress::Done);
            }
            Err(Errno::NOENT) => return Ok(RemoveProgress::Done),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        if self.unlocks {
            unlock(&self.place.folder, &name);
        }
        let folder = roots.enter(&self.place.folder, &name, flags)?;
        self.push(name, folder)?;
        Ok(RemoveProgress::More)
    }

    fn enter(&mut self, roots: &Roots, name: Vec<u8>) -> Result<RemoveProgress, Errno> {
        let above = self.levels.last().and_then(|level| level.folder.as_ref());
        let above = above.ok_or(Errno::BADF)?;
        if self.unlocks {
            unlock(above, &name);
        }
        let entered = roots.enter(above, &name, OFlags::RDONLY);
        match entered {
            Ok(folder) => self.push(name, folder)?,
            // Gone, or no folder any more: the next look at the folder above tells.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.again()?,
            Err(errno) => return Err(errno),
        }
        Ok(RemoveProgress::More)
    }

    fn push(&mut self, name: Vec<u8>, folder: OwnedFd) -> Result<(), Errno> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let node = stat_held(&folder)?;
        let above = match self.levels.last() {
            Some(above) => above.node,
            None => stat_held(&self.place.folder)?,
        };
        // A mount below is not ours to empty, even one that may be entered.
        if !node.is_in_mount_of(&above) {
            return Err(Errno::BUSY);
        }
        self.levels.push(Level { name, node, folder: Some(folder) });
        if let Some(far) = self.levels.len().checked_sub(HELD + 1) {
            self.levels[far].folder = None;
        }
        Ok(())
    }

    /// Goes back up from a folder that is empty, and removes it.
    fn leave(&mut self) -> Result<RemoveProgress, Errno> {
        let Some(level) = self.levels.pop() else { return Ok(RemoveProgress::Done) };
        let folder = level.folder.ok_or(Errno::BADF)?;
        if let Some(above) = self.levels.last_mut()
            && above.folder.is_none()
        {
            above.folder = Some(climb(&folder, &above.node)?);
        }
        drop(folder);
        let above = match self.levels.last() {
            Some(above) => above.folder.as_ref().ok_or(Errno::BADF)?,
            // The root of the session itself stays.
            None if self.place.name.is_none() => return Ok(RemoveProgress::Done),
            None => &self.place.folder,
        };
        match unlinkat(above, level.name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) => self.done += 1,
            Err(Errno::NOENT) => {}
            // Somebody put something there since; or it is no folder any more.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => self.again()?,
            Err(errno) => return Err(errno),
        }
        // Without a level above, the top of the tree is looked at once more, and is gone.
        Ok(RemoveProgress::More)
    }

    /// Counts what has to be done over; somebody who fills a folder as fast as we empty it wins.
    fn again(&mut self) -> Result<(), Errno> {
        self.rounds += 1;
        if self.rounds > ROUNDS { Err(Errno::NOTEMPTY) } else { Ok(()) }
    }
}

/// The folder above, which must be the one we came from.
fn climb(from: &OwnedFd, expected: &FileIdentity) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let above = openat(from, c"..", flags, Mode::empty())?;
    if stat_held(&above)?.is_same_file(expected) { Ok(above) } else { Err(Errno::BUSY) }
}

/// Answers a request to remove something.
pub(super) async fn run(
    guest: &Arc<Guest>,
    path: UnresolvedPath,
    recursive: bool,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let begin = move |roots: &Roots| match Removal::begin(roots, &path) {
        // Nothing there is what was wanted.
        Err(error) if recursive && error.why == PathErrorKind::Os(Errno::NOENT) => Ok(None),
        begun => Ok(Some(begun?)),
    };
    let Some(mut removal) = at(guest, "remove", begin).await? else { return Ok(()) };
    if !recursive {
        return at(guest, "remove", move |_| removal.remove_one()).await;
    }
    loop {
        let guest = Arc::clone(guest);
        let work = blocking(move || {
            let step = removal.remove_some(&guest.roots);
            (removal, step)
        });
        let (back, step) = work.await?;
        removal = back;
        if step.map_err(|error| error.fault("cannot remove"))? == RemoveProgress::Done {
            return Ok(());
        }
        // The host hears that it goes on, and we whether it still wants it to.
        outbox.item(&Progress { done: removal.done }).await?;
        if inbox.next_now()?.is_some() {
            return Err(Refusal::Disconnected);
        }
    }
}
