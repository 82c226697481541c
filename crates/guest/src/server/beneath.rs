//! Files beneath folders that are held open: no path can lead out of them, whatever a command does
//! to the tree meanwhile.
//!
//! A path is followed in one of two ways. The kernel does it in one call, refusing every link and
//! every mount on the way; that is the common case. Where it meets one, or cannot do it at all,
//! [`walk`] goes name by name from held folders and follows links itself, by what the link said
//! when it was held, never by a path that is looked up again. Both see the same files.

mod kernel;
mod mounts;
mod walk;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use bastide_proto::boot::{InodeId, Resolver};
use bastide_proto::{Fault, FaultKind, UnresolvedPath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::jail::{StepContext, StepError, open_host_file};

use mounts::Mounts;

pub(crate) use mounts::{FileIdentity, stat_held};

/// How often an operation starts again because the tree changed under it.
const ATTEMPTS: usize = 64;

/// Nothing that is opened may block us, become our terminal, or reach a program. What is only held
/// is not opened, and the kernel takes no other flags with it.
fn safe_open_flags(flags: OFlags) -> OFlags {
    match flags.contains(OFlags::PATH) {
        true => flags | OFlags::CLOEXEC,
        false => flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
    }
}

/// The folders and files the guest may work with, by where they are inside.
#[derive(Debug)]
pub(crate) struct Roots {
    list: Vec<Root>,
    mounts: Mounts,
    resolver: Resolver,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Root {
    /// The names that lead to it from the top of the sandbox.
    names: Vec<Vec<u8>>,
    held: OwnedFd,
    is_dir: bool,
    attributes: RootAttributes,
}

/// What a root says about everything in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RootAttributes {
    /// Whether files may be changed.
    pub(crate) writable: bool,
    /// The device it is on.
    pub(crate) device: u64,
}

/// Whether a path that ends in a link means the link or what it points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrailingSymlink {
    /// The entry itself.
    Itself,
    /// What it leads to.
    Target,
}

/// What becomes of missing folders on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingParents {
    /// There is no such place.
    Fails,
    /// They are made.
    IsMade,
}

/// Something that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: OwnedFd,
    /// Where it is, links followed.
    pub(crate) path: Vec<u8>,
    /// What its root says.
    pub(crate) attributes: RootAttributes,
}

/// A place for an entry: a folder that is held, and a name in it. The entry need not exist.
#[derive(Debug)]
pub(crate) struct DirEntryRef {
    pub(crate) folder: OwnedFd,
    /// Not there for a root itself, which is what `folder` holds then.
    pub(crate) name: Option<Vec<u8>>,
    /// Where it is, links followed.
    pub(crate) path: Vec<u8>,
    /// What its root says.
    pub(crate) attributes: RootAttributes,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathErrorKind {
    /// Out of the workspace and its grants.
    Outside,
    /// To something that only may be read.
    ReadOnly,
    /// The system says why.
    Os(Errno),
}

/// A path that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathError {
    pub(crate) why: PathErrorKind,
    /// Where it leads, as far as that can be told.
    pub(crate) path: Vec<u8>,
}

impl PathError {
    fn new(why: PathErrorKind, path: impl Into<Vec<u8>>) -> Self {
        Self { why, path: path.into() }
    }

    /// A failure of the system at this place.
    pub(crate) fn os(errno: Errno, path: &[u8]) -> Self {
        Self::new(PathErrorKind::Os(errno), path)
    }

    /// As the host is told.
    pub(crate) fn fault(&self, doing: &str) -> Fault {
        let path = String::from_utf8_lossy(&self.path).into_owned();
        let (kind, message, errno) = match self.why {
            PathErrorKind::Outside => {
                let message = format!("{doing} {path}: it is outside the workspace and its grants");
                (FaultKind::Escape, message, None)
            }
            PathErrorKind::ReadOnly => {
                let message = format!("{doing} {path}: only reading is granted there");
                (FaultKind::ReadOnly, message, Some(Errno::ROFS))
            }
            PathErrorKind::Os(errno) => {
                (kind_of(errno), format!("{doing} {path}: {errno}"), Some(errno))
            }
        };
        Fault { kind, message, errno: errno.map(Errno::raw_os_error), path: Some(path) }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault("cannot use").message)
    }
}

impl std::error::Error for PathError {}

/// What kind of failure an error of the system is, where a file is concerned.
pub(crate) fn kind_of(errno: Errno) -> FaultKind {
    match errno {
        Errno::NOENT => FaultKind::NotFound,
        Errno::ACCESS | Errno::PERM => FaultKind::Denied,
        Errno::EXIST => FaultKind::Exists,
        Errno::INVAL | Errno::ISDIR | Errno::NOTDIR | Errno::NAMETOOLONG => FaultKind::Invalid,
        _ => FaultKind::Io,
    }
}

impl Roots {
    /// Opens every root. Meant for before the first command runs: nothing a command does to a path
    /// changes what these name, and only what is mounted by now is ever entered.
    pub(crate) fn open(
        writable: &[String],
        readable: &[String],
        identities: &[(String, InodeId)],
        resolver: Resolver,
    ) -> Result<Self, StepError> {
        let mut list = Vec::new();
        for (paths, writable) in [(writable, true), (readable, false)] {
            for path in paths {
                let step = || format!("open {path}");
                let identity = identities.iter().find(|(known, _)| known == path);
                let held =
                    open_host_file(Path::new(path), identity.map(|(_, identity)| *identity))?;
                let node = stat_held(&held).step(step)?;
                let is_dir = node.kind == FileType::Directory;
                let attributes = RootAttributes { writable, device: node.device };
                list.push(Root { names: names(path.as_bytes()), held, is_dir, attributes });
            }
        }
        let mounts = Mounts::learn(&list).step(|| "look at what is mounted".to_owned())?;
        let works = list.first().is_none_or(|root| kernel::works(&root.held));
        let resolver = if works { resolver } else { Resolver::Walk };
        Ok(Self { list, mounts, resolver })
    }

    /// Lets files be in what is mounted on a folder: the host has mounted something there since.
    pub(crate) fn enter_mount(&self, path: &UnresolvedPath) -> Result<(), PathError> {
        let place = self.locate(&names_of(path), TrailingSymlink::Itself, MissingParents::Fails)?;
        let (folder, name) = place.entry()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entered = openat(folder, name, flags, Mode::empty());
        let node = entered.and_then(stat_held).map_err(|errno| place.failed(errno))?;
        self.mounts.add(&node);
        Ok(())
    }

    /// Whether a file is part of the same tree as the folder it lies in, and not of something mounted there.
    pub(crate) fn continues(&self, node: &FileIdentity, above: &FileIdentity) -> bool {
        self.mounts.continues(node, above)
    }

    /// The root that `path` lies in, by name; of nested ones the innermost.
    fn find(&self, path: &[Vec<u8>]) -> Option<(usize, &Root)> {
        let holds = |root: &Root| path.starts_with(&root.names);
        let roots = self.list.iter().enumerate().filter(|(_, root)| holds(root));
        // Of two with the same name the first was meant for the workspace.
        roots.rev().max_by_key(|(_, root)| root.names.len())
    }

    /// The root a path lies in and the names below it, if the kernel may be asked about them: what
    /// leads up again depends on links, which only a walk follows.
    fn straight<'a>(&self, names: &'a [Vec<u8>]) -> Option<(&Root, &'a [Vec<u8>])> {
        let climbs = names.iter().any(|name| name == b"..");
        let (_, root) = self.find(names).filter(|(_, root)| root.is_dir && !climbs)?;
        let may_ask = self.resolver == Resolver::Kernel;
        may_ask.then(|| (root, &names[root.names.len()..]))
    }

    /// Opens something that exists.
    pub(crate) fn open_at(
        &self,
        path: &UnresolvedPath,
        flags: OFlags,
        leaf: TrailingSymlink,
    ) -> Result<Opened, PathError> {
        let names = names_of(path);
        let given = path.as_str().as_bytes();
        let mut flags = safe_open_flags(flags);
        if leaf == TrailingSymlink::Itself {
            flags |= OFlags::NOFOLLOW;
        }
        if let Some((root, rest)) = self.straight(&names) {
            match kernel::open(&root.held, &join(rest), flags) {
                Ok(file) => {
                    return Ok(Opened { file, path: given.to_vec(), attributes: root.attributes });
                }
                // A link or a mount is on the way, or the tree keeps changing.
                Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {}
                Err(errno) => return Err(PathError::os(errno, given)),
            }
        }
        for _ in 0..ATTEMPTS {
            let place = walk::Walk::new(self).to(&names, leaf)?.existing()?;
            match self.open_entry(&place, flags) {
                // What was a file a moment ago is a link now.
                Err(PathError { why: PathErrorKind::Os(Errno::LOOP), .. }) => {}
                opened => return opened,
            }
        }
        Err(PathError::os(Errno::BUSY, given))
    }

    /// Opens what is in a place, unless it is a link and links are to be followed.
    fn open_entry(&self, place: &DirEntryRef, flags: OFlags) -> Result<Opened, PathError> {
        let failed = |errno| PathError::os(errno, &place.path);
        let file = match &place.name {
            None => reopen(&place.folder, flags).map_err(failed)?,
            Some(name) => {
                let follows = !flags.contains(OFlags::NOFOLLOW);
                let opened =
                    openat(&place.folder, name.as_slice(), flags | OFlags::NOFOLLOW, Mode::empty());
                let opened = opened.map_err(|errno| match errno {
                    // The kernel's word for a link where a folder is wanted.
                    Errno::NOTDIR if follows && is_link(&place.folder, name) => failed(Errno::LOOP),
                    errno => failed(errno),
                })?;
                let node = stat_held(&opened).map_err(failed)?;
                if follows && node.kind == FileType::Symlink {
                    return Err(failed(Errno::LOOP));
                }
                if !self.mounts.knows(&node) {
                    return Err(PathError::new(PathErrorKind::Outside, place.path.as_slice()));
                }
                opened
            }
        };
        Ok(Opened { file, path: place.path.clone(), attributes: place.attributes })
    }

    /// Finds the place of an entry, which need not exist, by the names that lead to it.
    pub(crate) fn locate(
        &self,
        names: &[Vec<u8>],
        leaf: TrailingSymlink,
        missing: MissingParents,
    ) -> Result<DirEntryRef, PathError> {
        let given = absolute(names);
        if let Some((root, rest)) = self.straight(names)
            && let Some((name, folders)) = rest.split_last()
        {
            let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match kernel::open(&root.held, &join(folders), folder) {
                Ok(folder) if leaf == TrailingSymlink::Itself || !is_link(&folder, name) => {
                    let (name, path) = (Some(name.clone()), given.clone());
                    return Ok(DirEntryRef { folder, name, path, attributes: root.attributes });
                }
                Ok(_) | Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {}
                Err(Errno::NOENT) if missing == MissingParents::IsMade => {}
                Err(errno) => return Err(PathError::os(errno, &given)),
            }
        }
        for _ in 0..ATTEMPTS {
            let walked = walk::Walk::new(self).to(names, leaf)?;
            let placed = match missing {
                MissingParents::Fails => walked.with_parents(),
                MissingParents::IsMade => walked.making_parents(self),
            };
            match placed {
                // What was made a moment ago is a link now.
                Err(PathError { why: PathErrorKind::Os(Errno::LOOP), .. }) => {}
                placed => return placed,
            }
        }
        Err(PathError::os(Errno::BUSY, &given))
    }

    /// Finds the place of an entry that is to be changed. Where only reading is granted that is what
    /// is said, whether the place exists or not.
    pub(crate) fn change(
        &self,
        names: &[Vec<u8>],
        leaf: TrailingSymlink,
        missing: MissingParents,
    ) -> Result<DirEntryRef, PathError> {
        match self.locate(names, leaf, missing) {
            Ok(place) => place.changeable(),
            Err(error @ PathError { why: PathErrorKind::Os(_), .. }) => {
                let at = crate::server::beneath::names(&error.path);
                let is_read_only =
                    self.find(&at).is_some_and(|(_, root)| !root.attributes.writable);
                Err(if is_read_only {
                    PathError { why: PathErrorKind::ReadOnly, ..error }
                } else {
                    error
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Opens something by names that hold no link, as they were found before.
    pub(crate) fn open_found(&self, names: &[Vec<u8>], flags: OFlags) -> Result<OwnedFd, Errno> {
        let (_, root) = self.find(names).ok_or(Errno::XDEV)?;
        self.open_below(&root.held, &names[root.names.len()..], flags)
    }

    /// Opens what is below a folder that is held, following no link.
    pub(crate) fn open_below(
        &self,
        folder: &OwnedFd,
        names: &[Vec<u8>],
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        if self.resolver == Resolver::Kernel {
            match kernel::open(folder, &join(names), safe_open_flags(flags)) {
                // A mount that is known is fine, and so is a path too long for one call.
                Err(Errno::XDEV | Errno::AGAIN | Errno::NAMETOOLONG) => {}
                opened => return opened,
            }
        }
        let Some((last, folders)) = names.split_last() else { return reopen(folder, flags) };
        let mut held = rustix::io::fcntl_dupfd_cloexec(folder, 0)?;
        for name in folders {
            held = self.enter(&held, name, OFlags::PATH)?;
        }
        let opened = openat(
            &held,
            last.as_slice(),
            safe_open_flags(flags | OFlags::NOFOLLOW),
            Mode::empty(),
        )?;
        if self.mounts.knows(&stat_held(&opened)?) { Ok(opened) } else { Err(Errno::XDEV) }
    }

    /// Opens a folder in a folder that is held, unless it is a link or a mount nobody knew.
    pub(crate) fn enter(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let flags = safe_open_flags(flags | OFlags::DIRECTORY | OFlags::NOFOLLOW);
        let entered = openat(folder, name, flags, Mode::empty())?;
        if self.mounts.knows(&stat_held(&entered)?) { Ok(entered) } else { Err(Errno::XDEV) }
    }
}

impl DirEntryRef {
    /// The folder and the name, for what cannot be done with a root itself.
    pub(crate) fn entry(&self) -> Result<(&OwnedFd, &[u8]), PathError> {
        match &self.name {
            Some(name) => Ok((&self.folder, name)),
            None => Err(PathError::os(Errno::BUSY, &self.path)),
        }
    }

    /// Refuses a place where nothing may be changed.
    pub(crate) fn changeable(self) -> Result<Self, PathError> {
        if self.attributes.writable {
            Ok(self)
        } else {
            Err(PathError::new(PathErrorKind::ReadOnly, self.path))
        }
    }

    /// A failure of the system here.
    pub(crate) fn failed(&self, errno: Errno) -> PathError {
        PathError::os(errno, &self.path)
    }
}

impl Opened {
    /// Refuses what may not be changed.
    pub(crate) fn changeable(self) -> Result<Self, PathError> {
        if self.attributes.writable {
            Ok(self)
        } else {
            Err(PathError::new(PathErrorKind::ReadOnly, self.path))
        }
    }

    /// A failure of the system here.
    pub(crate) fn failed(&self, errno: Errno) -> PathError {
        PathError::os(errno, &self.path)
    }

    /// What it is; anything but a regular file is refused: a pipe could block us, a device never end.
    pub(crate) fn regular(&self) -> Result<FileIdentity, PathError> {
        let node = stat_held(&self.file).map_err(|errno| self.failed(errno))?;
        match node.kind {
            FileType::RegularFile => Ok(node),
            FileType::Directory => Err(self.failed(Errno::ISDIR)),
            _ => Err(self.failed(Errno::INVAL)),
        }
    }
}

/// Opens a held file again, with other rights. The path leads to the descriptor itself, so what is
/// opened is what is held.
pub(crate) fn reopen(held: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    if flags.contains(OFlags::PATH) {
        return rustix::io::fcntl_dupfd_cloexec(held, 0);
    }
    rustix::fs::open(held_path(held), safe_open_flags(flags), Mode::empty())
}

/// A path that leads to a held file, for calls that take nothing else.
pub(crate) fn held_path(held: impl AsFd) -> String {
    format!("/proc/self/fd/{}", held.as_fd().as_raw_fd())
}

/// The names that lead to a path from the top.
pub(crate) fn names_of(path: &UnresolvedPath) -> Vec<Vec<u8>> {
    names(path.as_str().as_bytes())
}

/// The names of a path.
pub(crate) fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The path of names beneath a folder; the folder itself where there are none.
fn join(names: &[Vec<u8>]) -> Vec<u8> {
    if names.is_empty() { b".".to_vec() } else { names.join(&b'/') }
}

/// The path of names from the top.
fn absolute(names: &[Vec<u8>]) -> Vec<u8> {
    [b"/", names.join(&b'/').as_slice()].concat()
}

fn is_link(folder: &OwnedFd, name: &[u8]) -> bool {
    readlinkat(folder, name, Vec::new()).is_ok()
}

/// What is in a place, not followed.
pub(crate) fn stat_at(folder: &OwnedFd, name: &[u8]) -> Result<rustix::fs::Stat, Errno> {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
mod tests;
