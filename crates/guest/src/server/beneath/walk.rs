//! Following a path name by name, from folders that are held.
//!
//! Every name is opened without following it; a link is read through the descriptor that was opened,
//! so what is followed is what was looked at. `..`, which only links can hold, is a walk from the
//! root again: the folder above the one that is held may have changed.
//!
//! A link may lead out of a root and back into one, as an absolute link into the workspace does. On
//! the way between roots nothing is opened; names are only counted.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use super::{
    DirEntryRef, PathError, PathErrorKind, RootAttributes, Roots, TrailingSymlink, absolute, names,
    stat_held,
};

/// How many links may be followed; as many as the kernel would.
const MAX_LINKS: usize = 40;

/// How many names may be walked: what links lead to is longer than a path can be.
const MAX_NAMES: usize = 65_536;

/// A path that is being followed.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    roots: &'a Roots,
    /// The names from the top to where we are.
    at: Vec<Vec<u8>>,
    /// The folder we are in; not there between roots.
    here: Option<CurrentDir>,
    /// Names below where we are that do not exist.
    missing: Vec<Vec<u8>>,
    /// Names that are still to be walked, the next one last.
    open: Vec<Vec<u8>>,
    links: usize,
    walked: usize,
}

/// A folder we are in.
#[derive(Debug)]
struct CurrentDir {
    root: usize,
    folder: OwnedFd,
}

/// Where a path leads.
#[derive(Debug)]
pub(super) struct WalkEnd {
    /// The last folder that exists.
    folder: OwnedFd,
    /// The names below it: none for a root, one for an entry, more where folders are missing.
    names: Vec<Vec<u8>>,
    /// Whether the last name exists.
    exists: bool,
    path: Vec<u8>,
    attributes: RootAttributes,
}

impl<'a> Walk<'a> {
    pub(super) fn new(roots: &'a Roots) -> Self {
        let (at, missing, open) = (Vec::new(), Vec::new(), Vec::new());
        Self { roots, at, here: None, missing, open, links: 0, walked: 0 }
    }

    /// Follows the path of `names` from the top.
    pub(super) fn to(
        mut self,
        names: &[Vec<u8>],
        leaf: TrailingSymlink,
    ) -> Result<WalkEnd, PathError> {
        // From the innermost root on: what is above it is not ours to look at.
        let start = self.roots.find(names).map_or(0, |(_, root)| root.names.len());
        self.at = names[..start].to_vec();
        self.arrive()?;
        self.open = names[start..].iter().rev().cloned().collect();
        while let Some(name) = self.open.pop() {
            self.walked += 1;
            if self.walked > MAX_NAMES {
                return Err(self.failed(Errno::LOOP));
            }
            match name.as_slice() {
                b"." => {}
                b".." => self.up()?,
                _ => {
                    if let Some(walked) = self.down(name, leaf)? {
                        return Ok(walked);
                    }
                }
            }
        }
        self.end()
    }

    /// Goes one name up, as text between roots and among what is missing.
    fn up(&mut self) -> Result<(), PathError> {
        if self.missing.pop().is_some() {
            return Ok(());
        }
        self.at.pop();
        self.arrive()
    }

    /// Holds the folder we say we are in. No link is followed: the names are where we have been.
    fn arrive(&mut self) -> Result<(), PathError> {
        self.here = None;
        let Some((index, root)) = self.roots.find(&self.at) else { return Ok(()) };
        let held = rustix::io::fcntl_dupfd_cloexec(&root.held, 0);
        let mut folder = held.map_err(|errno| self.failed(errno))?;
        for name in &self.at[root.names.len()..] {
            folder =
                self.roots.enter(&folder, name, OFlags::PATH).map_err(|errno| match errno {
                    Errno::XDEV => self.error(PathErrorKind::Outside),
                    errno => self.failed(errno),
                })?;
        }
        self.here = Some(CurrentDir { root: index, folder });
        Ok(())
    }

    /// Goes one name down; says where we are if that was the end of it.
    fn down(&mut self, name: Vec<u8>, leaf: TrailingSymlink) -> Result<Option<WalkEnd>, PathError> {
        if !self.missing.is_empty() {
            self.missing.push(name);
            return Ok(None);
        }
        self.at.push(name.clone());
        if self.roots.list.iter().any(|root| root.names == self.at) {
            self.arrive()?;
            return Ok(None);
        }
        let Some(here) = &self.here else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = match openat(&here.folder, name.as_slice(), flags, Mode::empty()) {
            Ok(entry) => entry,
            Err(Errno::NOENT) => {
                self.at.pop();
                self.missing.push(name);
                return Ok(None);
            }
            Err(errno) => return Err(self.failed(errno)),
        };
        let node = stat_held(&entry).map_err(|errno| self.failed(errno))?;
        if !self.roots.mounts.knows(&node) {
            return Err(self.error(PathErrorKind::Outside));
        }
        let is_last = self.open.is_empty();
        match node.kind {
            FileType::Symlink if !(is_last && leaf == TrailingSymlink::Itself) => {
                self.follow(&entry)?;
                Ok(None)
            }
            _ if is_last => self.entry(name).map(Some),
            FileType::Directory => {
                self.here = Some(CurrentDir { root: here.root, folder: entry });
                Ok(None)
            }
            _ => Err(self.failed(Errno::NOTDIR)),
        }
    }

    /// Goes on with what a link says.
    fn follow(&mut self, link: &OwnedFd) -> Result<(), PathError> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(self.failed(Errno::LOOP));
        }
        let target = readlinkat(link, c"", Vec::new()).map_err(|errno| self.failed(errno))?;
        let target = target.into_bytes();
        if target.is_empty() {
            return Err(self.failed(Errno::NOENT));
        }
        self.at.pop();
        self.open.extend(names(&target).into_iter().rev());
        if target.starts_with(b"/") {
            self.at.clear();
            self.arrive()?;
        }
        Ok(())
    }

    /// The entry we are at, which exists.
    fn entry(&mut self, name: Vec<u8>) -> Result<WalkEnd, PathError> {
        let outside = self.error(PathErrorKind::Outside);
        let CurrentDir { root, folder } = self.here.take().ok_or(outside)?;
        let attributes = self.roots.list[root].attributes;
        let path = absolute(&self.at);
        Ok(WalkEnd { folder, names: vec![name], exists: true, path, attributes })
    }

    /// Where we are when there is nothing more to walk.
    fn end(mut self) -> Result<WalkEnd, PathError> {
        let path = absolute(&[self.at.as_slice(), self.missing.as_slice()].concat());
        let outside = PathError::new(PathErrorKind::Outside, path.as_slice());
        let Some(CurrentDir { root, folder }) = self.here.take() else { return Err(outside) };
        let root = &self.roots.list[root];
        let attributes = root.attributes;
        if !self.missing.is_empty() {
            if !root.is_dir {
                return Err(PathError::os(Errno::NOTDIR, &path));
            }
            let names = self.missing;
            return Ok(WalkEnd { folder, names, exists: false, path, attributes });
        }
        if self.at == root.names {
            return Ok(WalkEnd { folder, names: Vec::new(), exists: true, path, attributes });
        }
        // We are in a folder, and what is wanted is its place in the one above.
        let name = self.at.pop();
        self.arrive()?;
        let Some(CurrentDir { folder, .. }) = self.here else { return Err(outside) };
        Ok(WalkEnd { folder, names: name.into_iter().collect(), exists: true, path, attributes })
    }

    fn error(&self, why: PathErrorKind) -> PathError {
        let open = self.open.iter().rev().cloned();
        let all: Vec<_> = self.at.iter().chain(&self.missing).cloned().chain(open).collect();
        PathError::new(why, absolute(&all))
    }

    fn failed(&self, errno: Errno) -> PathError {
        self.error(PathErrorKind::Os(errno))
    }
}

impl WalkEnd {
    /// The place, which must hold something.
    pub(super) fn existing(self) -> Result<DirEntryRef, PathError> {
        if self.exists { self.with_parents() } else { Err(PathError::os(Errno::NOENT, &self.path)) }
    }

    /// The place, whose folder must exist.
    pub(super) fn with_parents(mut self) -> Result<DirEntryRef, PathError> {
        if self.names.len() > 1 {
            return Err(PathError::os(Errno::NOENT, &self.path));
        }
        let name = self.names.pop();
        Ok(DirEntryRef { folder: self.folder, name, path: self.path, attributes: self.attributes })
    }

    /// The place, with its folders made where they are missing.
    pub(super) fn making_parents(mut self, roots: &Roots) -> Result<DirEntryRef, PathError> {
        if self.names.len() > 1 && !self.attributes.writable {
            return Err(PathError::new(PathErrorKind::ReadOnly, self.path));
        }
        let name = self.names.pop();
        for folder in &self.names {
            let failed = |errno| PathError::os(errno, &self.path);
            match mkdirat(&self.folder, folder.as_slice(), Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let made = roots.enter(&self.folder, folder, OFlags::PATH);
            self.folder = made.map_err(|errno| match errno {
                // Somebody put something else there in between; the next attempt sees what.
                Errno::NOTDIR | Errno::NOENT => failed(Errno::LOOP),
                Errno::XDEV => PathError::new(PathErrorKind::Outside, self.path.as_slice()),
                errno => failed(errno),
            })?;
        }
        Ok(DirEntryRef { folder: self.folder, name, path: self.path, attributes: self.attributes })
    }
}
