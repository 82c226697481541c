//! A tree that is being laid out.

use std::os::fd::{AsFd, OwnedFd};

use bastide_proto::boot::UserAndGroup;
use bastide_proto::frame::Tag;
use bastide_proto::request::{PutObstacle, PutObstacleKind};
use bastide_proto::{Entry, EntryKind, Fault, FaultKind, Frame, OnConflict, Put, PutItem};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, linkat, mkdirat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use serde_bytes::ByteBuf;

use crate::server::beneath::{
    DirEntryRef, MissingParents, PathError, PathErrorKind, Roots, TrailingSymlink, held_path,
    names, reopen, stat_at,
};
use crate::server::files::{Finish, Staged, timestamps};
use crate::server::modes::allowed;

/// Why a tree cannot be laid out any further.
#[derive(Debug)]
pub(crate) enum LayoutFailure {
    /// Something is in the way of an entry.
    Obstacle(PutObstacle, Fault),
    /// Something else.
    Fault(Fault),
    /// The host does not keep to the protocol.
    Protocol,
}

/// What keeps one entry from being made.
#[derive(Debug)]
enum EntryFailure {
    /// A link, so many names down the entry's path.
    Link(usize),
    Folder,
    Parents(Errno),
    Place(Errno),
    Outside(PathErrorKind),
}

type EntryResult<T = ()> = Result<T, EntryFailure>;

/// A tree that is being laid out.
#[derive(Debug)]
pub(crate) struct Layout {
    base: OwnedFd,
    /// Where the base is, links followed.
    base_names: Vec<Vec<u8>>,
    existing: OnConflict,
    through_links: bool,
    /// How many entries are made.
    made: u64,
    /// The file whose content is coming.
    writing: Option<(Staged, Entry)>,
    /// The folder the last entry went into: the next one often goes there too.
    folder: Option<(Vec<Vec<u8>>, OwnedFd)>,
}

impl Layout {
    /// Opens the folder everything lies beneath, making it where it is missing.
    pub(crate) fn begin(roots: &Roots, put: &Put) -> Result<Self, PathError> {
        let base = names(put.base.as_str().as_bytes());
        let place = roots.change(&base, TrailingSymlink::Target, MissingParents::IsMade)?;
        let base = make_folder(roots, &place).map_err(|errno| place.failed(errno))?;
        Ok(Self {
            base,
            base_names: names(&place.path),
            existing: put.existing,
            through_links: put.through_links,
            made: 0,
            writing: None,
            folder: None,
        })
    }

    /// How many entries are made.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// Works on what has come; true if that was the end of the tree.
    pub(crate) fn take(
        &mut self,
        roots: &Roots,
        frames: Vec<Frame>,
    ) -> Result<bool, LayoutFailure> {
        for frame in frames {
            let (entry, done) = match (frame.tag, self.writing.take()) {
                (Tag::Item, None) => match decode(&frame)? {
                    PutItem::Entry(entry) => {
                        let made = self.make(roots, &entry);
                        (entry, made)
                    }
                    _ => return Err(LayoutFailure::Protocol),
                },
                (Tag::Item, Some(_)) => match decode(&frame)? {
                    PutItem::Abort => return Ok(true),
                    _ => return Err(LayoutFailure::Protocol),
                },
                (Tag::Input, Some((mut staged, entry))) => {
                    let written = staged.write(&frame.body).map_err(EntryFailure::Place);
                    if written.is_ok() {
                        self.writing = Some((staged, entry));
                        continue;
                    }
                    (entry, written)
                }
                (Tag::InputEnd, Some((staged, entry))) => {
                    let finished = self.finish_file(staged, &entry);
                    (entry, finished)
                }
                (Tag::InputEnd, None) => return Ok(true),
                _ => return Err(LayoutFailure::Protocol),
            };
            done.map_err(|hindrance| self.layout_failure(roots, &entry, hindrance))?;
        }
        Ok(false)
    }

    fn make(&mut self, roots: &Roots, entry: &Entry) -> EntryResult {
        let below = names(&entry.path);
        let Some((name, parents)) = below.split_last() else {
            if entry.kind != EntryKind::Dir {
                return Err(EntryFailure::Place(Errno::ISDIR));
            }
            set_attributes(&self.base, entry).map_err(EntryFailure::Place)?;
            self.made += 1;
            return Ok(());
        };
        let (folder, name) = self.place(roots, parents, name, &entry.kind)?;
        match &entry.kind {
            EntryKind::Dir => self.make_dir(roots, &folder, &name, &below, entry)?,
            EntryKind::File => {
                let staged = self.begin_file(&folder, &name, &below)?;
                self.writing = Some((staged, entry.clone()));
            }
            EntryKind::Symlink { target } => {
                self.make_room(&folder, &name, &below)?;
                let made = symlinkat(target.as_slice(), &folder, name.as_slice());
                made.and_then(|()| set_link_attributes(&folder, &name, entry))
                    .map_err(EntryFailure::Place)?;
            }
            EntryKind::Hardlink { to } => {
                self.make_room(&folder, &name, &below)?;
                self.link(roots, &names(to), &folder, &name)?;
            }
            _ => return Err(EntryFailure::Place(Errno::OPNOTSUPP)),
        }
        if !self.through_links {
            self.folder = Some((parents.to_vec(), folder));
        }
        // A file is made when all its content is there.
        self.made += u64::from(self.writing.is_none());
        Ok(())
    }

    /// The folder an entry goes into, made where it is missing, and its name there.
    fn place(
        &mut self,
        roots: &Roots,
        parents: &[Vec<u8>],
        name: &[u8],
        kind: &EntryKind,
    ) -> EntryResult<(OwnedFd, Vec<u8>)> {
        if !self.through_links {
            return Ok((self.folder_of(roots, parents)?, name.to_vec()));
        }
        let full = [self.base_names.as_slice(), parents, &[name.to_vec()]].concat();
        let leaf = match kind {
            EntryKind::Dir | EntryKind::File => TrailingSymlink::Target,
            _ => TrailingSymlink::Itself,
        };
        let placed = roots.change(&full, leaf, MissingParents::IsMade);
        let placed = placed.map_err(|error| match error.why {
            PathErrorKind::Os(errno) => EntryFailure::Parents(errno),
            why => EntryFailure::Outside(why),
        })?;
        let DirEntryRef { folder, name, .. } = placed;
        Ok((folder, name.ok_or(EntryFailure::Place(Errno::BUSY))?))
    }

    /// A folder below the base, reached through no link, made where it is missing.
    fn folder_of(&mut self, roots: &Roots, parents: &[Vec<u8>]) -> EntryResult<OwnedFd> {
        if let Some((last, folder)) = self.folder.take()
            && last == parents
        {
            return Ok(folder);
        }
        let mut folder = fcntl_dupfd_cloexec(&self.base, 0).map_err(EntryFailure::Parents)?;
        for (index, name) in parents.iter().enumerate() {
            let entered = match roots.enter(&folder, name, OFlags::PATH) {
                Err(Errno::NOENT) => {
                    match mkdirat(&folder, name.as_slice(), Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => roots.enter(&folder, name, OFlags::PATH),
                        Err(errno) => Err(errno),
                    }
                }
                entered => entered,
            };
            folder = entered.map_err(|errno| match kind_at(&folder, name) {
                Some(FileType::Symlink) => EntryFailure::Link(index + 1),
                _ => EntryFailure::Parents(errno),
            })?;
        }
        Ok(folder)
    }

    fn make_dir(
        &mut self,
        roots: &Roots,
        folder: &OwnedFd,
        name: &[u8],
        below: &[Vec<u8>],
        entry: &Entry,
    ) -> EntryResult {
        match (kind_at(folder, name), self.existing) {
            (None | Some(FileType::Directory), _) => {}
            (Some(_), OnConflict::Replaced) => {
                unlinkat(folder, name, AtFlags::empty()).map_err(EntryFailure::Place)?;
            }
            (Some(FileType::Symlink), OnConflict::Overwritten) => {
                return Err(EntryFailure::Link(below.len()));
            }
            (Some(_), OnConflict::Overwritten) => return Err(EntryFailure::Place(Errno::EXIST)),
        }
        let made = match mkdirat(folder, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => roots.enter(folder, name, OFlags::PATH),
            Err(errno) => Err(errno),
        };
        made.and_then(|folder| set_attributes(&folder, entry)).map_err(EntryFailure::Place)
    }

    fn begin_file(&self, folder: &OwnedFd, name: &[u8], below: &[Vec<u8>]) -> EntryResult<Staged> {
        let held = fcntl_dupfd_cloexec(folder, 0).map_err(EntryFailure::Place)?;
        let begun = match (kind_at(folder, name), self.existing) {
            (Some(FileType::Directory), OnConflict::Replaced) => return Err(EntryFailure::Folder),
            (Some(FileType::Symlink), OnConflict::Overwritten) => {
                return Err(EntryFailure::Link(below.len()));
            }
            (_, OnConflict::Replaced) => Staged::replacing(held, name),
            (_, OnConflict::Overwritten) => Staged::begin(held, name),
        };
        begun.map_err(EntryFailure::Place)
    }

    fn finish_file(&mut self, staged: Staged, entry: &Entry) -> EntryResult {
        let Entry { mode, owner, modified, .. } = *entry;
        let finish = Finish { mode, owner, modified, new: false };
        staged.finish(finish).map_err(EntryFailure::Place)?;
        self.made += 1;
        Ok(())
    }

    /// Removes what is in the place of a link.
    fn make_room(&self, folder: &OwnedFd, name: &[u8], below: &[Vec<u8>]) -> EntryResult {
        match (kind_at(folder, name), self.existing) {
            (None, _) => Ok(()),
            (Some(FileType::Directory), _) => Err(EntryFailure::Folder),
            (Some(_), OnConflict::Replaced) => {
                unlinkat(folder, name, AtFlags::empty()).map_err(EntryFailure::Place)
            }
            (Some(FileType::Symlink), OnConflict::Overwritten) => {
                Err(EntryFailure::Link(below.len()))
            }
            (Some(_), OnConflict::Overwritten) => Err(EntryFailure::Place(Errno::EXIST)),
        }
    }

    /// Gives a file of the tree another name.
    fn link(
        &mut self,
        roots: &Roots,
        to: &[Vec<u8>],
        folder: &OwnedFd,
        name: &[u8],
    ) -> EntryResult {
        let Some((original, parents)) = to.split_last() else {
            return Err(EntryFailure::Place(Errno::ISDIR));
        };
        let (from, original) = self.place(roots, parents, original, &EntryKind::File)?;
        // Never through a link, and never another name for a folder or a device.
        if kind_at(&from, &original) != Some(FileType::RegularFile) {
            return Err(EntryFailure::Place(Errno::INVAL));
        }
        let linked = linkat(&from, original.as_slice(), folder, name, AtFlags::empty());
        linked.map_err(EntryFailure::Place)
    }

    /// What the host is told about a hindrance.
    fn layout_failure(
        &self,
        roots: &Roots,
        entry: &Entry,
        hindrance: EntryFailure,
    ) -> LayoutFailure {
        let full = [self.base_names.as_slice(), &names(&entry.path)].concat();
        let path = [b"/", full.join(&b'/').as_slice()].concat();
        let (what, errno) = match hindrance {
            // It is the entry that is wrong, wherever its links lead.
            EntryFailure::Outside(why) => {
                return LayoutFailure::Fault(PathError { why, path }.fault("cannot make"));
            }
            EntryFailure::Link(depth) => {
                let at = ByteBuf::from(names(&entry.path)[..depth].join(&b'/'));
                (PutObstacleKind::Link { at, leaves: self.leaves(roots, &entry.path) }, Errno::LOOP)
            }
            EntryFailure::Folder => (PutObstacleKind::Folder, Errno::ISDIR),
            EntryFailure::Parents(errno) => {
                (PutObstacleKind::Parents { errno: errno.raw_os_error() }, errno)
            }
            EntryFailure::Place(errno) => {
                (PutObstacleKind::Place { errno: errno.raw_os_error() }, errno)
            }
        };
        let fault = PathError::os(errno, &path).fault("cannot make");
        LayoutFailure::Obstacle(PutObstacle { entry: self.made, what }, fault)
    }

    /// Whether the folder an entry goes into turns out to be outside the base.
    fn leaves(&self, roots: &Roots, path: &[u8]) -> bool {
        let below = names(path);
        let parents = below.split_last().map_or(&[][..], |(_, parents)| parents);
        let full = [self.base_names.as_slice(), parents].concat();
        let at = roots
            .locate(&full, TrailingSymlink::Target, MissingParents::Fails)
            .map(|place| place.path);
        let at = at.unwrap_or_else(|error| error.path);
        !names(&at).starts_with(&self.base_names)
    }
}

fn decode(frame: &Frame) -> Result<PutItem, LayoutFailure> {
    let item = bastide_proto::decode(&frame.body).map_err(|_| LayoutFailure::Protocol)?;
    let is_good = match &item {
        PutItem::Entry(entry) => match &entry.kind {
            EntryKind::Hardlink { to } => is_normalized(&entry.path) && is_normalized(to),
            _ => is_normalized(&entry.path),
        },
        _ => true,
    };
    if is_good {
        return Ok(item);
    }
    let message = "a path of the tree is not a normalized relative path";
    Err(LayoutFailure::Fault(Fault::new(FaultKind::Invalid, message)))
}

/// Whether a path is relative and every name in it is one; the empty path is the base itself.
fn is_normalized(path: &[u8]) -> bool {
    let bad = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.contains(&0);
    path.is_empty() || !path.split(|byte| *byte == b'/').any(bad)
}

/// Opens the folder in a place, making it if it is missing.
fn make_folder(roots: &Roots, place: &DirEntryRef) -> Result<OwnedFd, Errno> {
    let Some(name) = &place.name else { return reopen(&place.folder, OFlags::PATH) };
    match mkdirat(&place.folder, name.as_slice(), Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => roots.enter(&place.folder, name, OFlags::PATH),
        Err(errno) => Err(errno),
    }
}

fn kind_at(folder: &OwnedFd, name: &[u8]) -> Option<FileType> {
    stat_at(folder, name).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

fn ids(owner: UserAndGroup) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))
}

/// Gives a folder that is held what its entry says.
fn set_attributes(folder: impl AsFd, entry: &Entry) -> Result<(), Errno> {
    if let Some(owner) = entry.owner {
        let (uid, gid) = ids(owner);
        chownat(&folder, c"", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = entry.mode {
        chmodat(CWD, held_path(&folder), allowed(mode), AtFlags::empty())?;
    }
    if let Some(modified) = entry.modified {
        utimensat(CWD, held_path(&folder), &timestamps(modified), AtFlags::empty())?;
    }
    Ok(())
}

/// Gives a link what its entry says; links have no permissions.
fn set_link_attributes(folder: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Errno> {
    if let Some(owner) = entry.owner {
        let (uid, gid) = ids(owner);
        chownat(folder, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if let Some(modified) = entry.modified {
        utimensat(folder, name, &timestamps(modified), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
