//! The folders that are watched, and what a report about one of them means.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use bastide_proto::UnresolvedPath;
use bastide_proto::files::{Change, ChangedPath};
use bastide_proto::tree::HIDDEN_PREFIX;
use rustix::fs::inotify::{ReadFlags, WatchFlags, add_watch, remove_watch};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::{Event, FOLDER_CHANGES};
use crate::server::beneath::{
    FileIdentity, PathError, Roots, TrailingSymlink, held_path, names as names_in, stat_at,
    stat_held,
};
use crate::server::files::some_entries;

/// How many folders are watched at most.
const MAX_WATCHES: usize = 16_384;

/// How many changes are told at once; more are an overflow.
const MAX_CHANGES: usize = 16_384;

/// The longest path that is reported.
const MAX_PATH: usize = 16 * 1024;

/// Nothing is told of a file that has no name any more.
const WANTED: WatchFlags = FOLDER_CHANGES.union(WatchFlags::EXCL_UNLINK);

/// A folder that is watched, with the folders below it.
#[derive(Debug)]
pub(crate) struct Tree {
    queue: OwnedFd,
    /// The watched folder. It is not held: the kernel tells of the end of a folder only when nobody
    /// holds it any more.
    node: FileIdentity,
    path: Vec<u8>,
    recursive: bool,
    /// The names that lead to each watched folder from the base, by the kernel's number for it.
    watches: HashMap<i32, Vec<Vec<u8>>>,
    top: i32,
}

impl Tree {
    /// Starts to watch; says which folders could not be.
    pub(crate) fn begin(
        roots: &Roots,
        queue: OwnedFd,
        path: &UnresolvedPath,
        recursive: bool,
    ) -> Result<(Self, Vec<Change>), PathError> {
        let opened = roots.open_at(path, OFlags::PATH, TrailingSymlink::Target)?;
        let failed = |errno| opened.failed(errno);
        let node = stat_held(&opened.file).map_err(failed)?;
        let top = add_watch(&queue, held_path(&opened.file), WANTED).map_err(failed)?;
        let watches = HashMap::from([(top, Vec::new())]);
        let recursive = recursive && node.kind == FileType::Directory;
        let mut tree = Self { queue, node, path: opened.path, recursive, watches, top };
        let mut changes = Vec::new();
        if recursive {
            tree.descend(roots, Vec::new(), false, &mut changes);
        }
        Ok((tree, changes))
    }

    /// Another descriptor of the kernel's queue.
    pub(crate) fn queue(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.queue, 0)
    }

    /// Where the watched folder is.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// What some reports mean.
    pub(crate) fn changes(&mut self, roots: &Roots, events: Vec<Event>) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut events = events.into_iter().peekable();
        while let Some(event) = events.next() {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(Change::Overflow);
                continue;
            }
            // Both halves of a rename within the tree follow each other.
            let partner = events.next_if(|next| {
                event.flags.contains(ReadFlags::MOVED_FROM)
                    && next.flags.contains(ReadFlags::MOVED_TO)
                    && next.cookie == event.cookie
            });
            self.change(roots, event, partner, &mut changes);
        }
        changes
    }

    fn change(
        &mut self,
        roots: &Roots,
        event: Event,
        partner: Option<Event>,
        changes: &mut Vec<Change>,
    ) {
        let Some(folder) = self.watches.get(&event.watch).cloned() else { return };
        let is_dir = event.flags.contains(ReadFlags::ISDIR);
        if event.flags.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            self.watches.remove(&event.watch);
        }
        let of_itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
        if event.flags.intersects(of_itself) {
            if event.watch == self.top {
                changes.push(Change::Gone);
            }
            return;
        }
        let names = match event.name.is_empty() {
            true => folder,
            false => [folder.as_slice(), std::slice::from_ref(&event.name)].concat(),
        };
        let Some(path) = joined(&names) else { return changes.push(Change::Overflow) };
        let is_staged = event.name.starts_with(HIDDEN_PREFIX);
        let changed = || ChangedPath { path: path.clone(), is_dir };
        if let Some(to) = partner {
            self.renamed(roots, &names, is_staged, to, changes);
        } else if is_staged {
            // A file that is not whole yet is nobody's business.
        } else if event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            changes.push(Change::Created(changed()));
            if is_dir && self.recursive {
                self.descend(roots, names, true, changes);
            }
        } else if event.flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            changes.push(Change::Removed(changed()));
            if is_dir {
                self.forget(&names);
            }
        } else if event.flags.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
            let modified = Change::Modified(changed());
            // Many writes in a row are one change.
            if changes.last() != Some(&modified) {
                changes.push(modified);
            }
        } else if event.flags.contains(ReadFlags::ATTRIB) {
            changes.push(Change::Attributes(changed()));
        }
    }

    fn renamed(
        &mut self,
        roots: &Roots,
        from: &[Vec<u8>],
        from_is_staged: bool,
        to: Event,
        changes: &mut Vec<Change>,
    ) {
        let Some(folder) = self.watches.get(&to.watch).cloned() else { return };
        let names = [folder.as_slice(), &[to.name]].concat();
        let is_dir = to.flags.contains(ReadFlags::ISDIR);
        let (Some(path), Some(old)) = (joined(&names), joined(from)) else {
            return changes.push(Change::Overflow);
        };
        let to = ChangedPath { path, is_dir };
        // A file that got its own name when it was whole is a new file to everybody else.
        changes.push(match from_is_staged {
            true => Change::Created(to),
            false => Change::Renamed { from: old, to },
        });
        if !is_dir {
            return;
        }
        for watched in self.watches.values_mut() {
            if watched.starts_with(from) {
                *watched = [names.as_slice(), &watched[from.len()..]].concat();
            }
        }
        if self.recursive {
            self.descend(roots, names, false, changes);
        }
    }

    /// Watches a folder and all below it. In a new one, what is found already is new, too: it came
    /// before anybody watched.
    fn descend(
        &mut self,
        roots: &Roots,
        names: Vec<Vec<u8>>,
        is_new: bool,
        changes: &mut Vec<Change>,
    ) {
        let mut waiting = vec![names];
        let report = |change, changes: &mut Vec<Change>| match changes.len() {
            ..MAX_CHANGES => changes.push(change),
            MAX_CHANGES => changes.push(Change::Overflow),
            _ => {}
        };
        while let Some(names) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            // What is gone again, or is no folder, or not for us, is not watched.
            let Ok(folder) = self.open(roots, &names, flags) else { continue };
            let added = match self.watches.len() < MAX_WATCHES {
                true => add_watch(&self.queue, held_path(&folder), WANTED),
                false => Err(Errno::NOSPC),
            };
            let Ok(watch) = added else {
                report(not_watched(&names), changes);
                // Where there is no room for this one there is none for those below.
                continue;
            };
            self.watches.insert(watch, names.clone());
            while let Ok(Some(entries)) = some_entries(&folder) {
                for (name, kind) in entries {
                    let is_dir = is_dir(&folder, &name, kind);
                    if name.starts_with(HIDDEN_PREFIX) || !(is_dir || is_new) {
                        continue;
                    }
                    let below = [names.as_slice(), &[name]].concat();
                    if is_new && let Some(path) = joined(&below) {
                        report(Change::Created(ChangedPath { path, is_dir }), changes);
                    }
                    match is_dir {
                        true if waiting.len() < MAX_WATCHES => waiting.push(below),
                        true => report(not_watched(&below), changes),
                        false => {}
                    }
                }
            }
        }
    }

    /// Opens a folder below the watched one, if that is still where it was.
    fn open(&self, roots: &Roots, names: &[Vec<u8>], flags: OFlags) -> Result<OwnedFd, Errno> {
        let base = roots.open_found(&names_in(&self.path), OFlags::PATH | OFlags::DIRECTORY)?;
        match stat_held(&base)?.is_same_file(&self.node) {
            true => roots.open_below(&base, names, flags),
            false => Err(Errno::NOENT),
        }
    }

    /// Stops to watch what is below a folder that is gone from here.
    fn forget(&mut self, names: &[Vec<u8>]) {
        let gone = self.watches.iter().filter(|(_, watched)| watched.starts_with(names));
        let gone: Vec<i32> = gone.map(|(watch, _)| *watch).collect();
        for watch in gone {
            self.watches.remove(&watch);
            // It may be gone by itself.
            let _ = remove_watch(&self.queue, watch);
        }
    }
}

fn not_watched(names: &[Vec<u8>]) -> Change {
    let path = joined(names);
    path.map_or(Change::Overflow, |path| Change::NotWatched(ChangedPath { path, is_dir: true }))
}

/// The path of names, if it is not longer than anybody could use.
fn joined(names: &[Vec<u8>]) -> Option<ByteBuf> {
    let path = names.join(&b'/');
    (path.len() <= MAX_PATH).then(|| ByteBuf::from(path))
}

fn is_dir(folder: &OwnedFd, name: &[u8], kind: FileType) -> bool {
    match kind {
        FileType::Unknown => stat_at(folder, name)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        kind => kind == FileType::Directory,
    }
}
