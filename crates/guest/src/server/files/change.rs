//! Changes that are one call each: folders, links, permissions, owners, times.

use bastide_proto::files::FileTime;
use bastide_proto::{Fault, FaultKind, UnresolvedPath};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, mkdirat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::staged::timestamps;
use crate::accounts::Accounts;
use crate::server::beneath::{
    MissingParents, Opened, PathError, PathErrorKind, Roots, TrailingSymlink, held_path, names_of,
    stat_at, stat_held,
};
use crate::server::modes::allowed;

/// Makes a folder; one that is there already is fine.
pub(super) fn make_dir(
    roots: &Roots,
    path: &UnresolvedPath,
    parents: bool,
) -> Result<(), PathError> {
    let missing = if parents { MissingParents::IsMade } else { MissingParents::Fails };
    let place = roots.change(&names_of(path), TrailingSymlink::Target, missing)?;
    let Some(name) = &place.name else {
        let node = stat_held(&place.folder).map_err(|errno| place.failed(errno))?;
        let is_dir = node.kind == FileType::Directory;
        return if is_dir { Ok(()) } else { Err(place.failed(Errno::EXIST)) };
    };
    match mkdirat(&place.folder, name.as_slice(), Mode::from_raw_mode(0o777)) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if is_dir(&place.folder, name) => Ok(()),
        Err(errno) => Err(place.failed(errno)),
    }
}

fn is_dir(folder: &std::os::fd::OwnedFd, name: &[u8]) -> bool {
    let seen = stat_at(folder, name);
    seen.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Makes a symbolic link.
pub(super) fn symlink(
    roots: &Roots,
    path: &UnresolvedPath,
    target: &[u8],
) -> Result<(), PathError> {
    let place = roots.change(&names_of(path), TrailingSymlink::Itself, MissingParents::Fails)?;
    let (folder, name) = place.entry()?;
    symlinkat(target, folder, name).map_err(|errno| place.failed(errno))
}

/// Sets permission bits.
pub(super) fn set_mode(roots: &Roots, path: &UnresolvedPath, mode: u32) -> Result<(), PathError> {
    let opened = roots.open_at(path, OFlags::PATH, TrailingSymlink::Target)?.changeable()?;
    // Held without any right to it, so that it need not be readable; by a path that leads to the
    // held file itself.
    let set = chmodat(CWD, held_path(&opened.file), allowed(mode), AtFlags::empty());
    set.map_err(|errno| opened.failed(errno))
}

/// Sets when something was last changed.
pub(super) fn set_time(
    roots: &Roots,
    path: &UnresolvedPath,
    modified: FileTime,
) -> Result<(), PathError> {
    let opened = roots.open_at(path, OFlags::PATH, TrailingSymlink::Itself)?.changeable()?;
    let set = utimensat(&opened.file, c"", &timestamps(modified), AtFlags::EMPTY_PATH);
    set.map_err(|errno| opened.failed(errno))
}

/// Numbers of an owner and a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ids {
    owner: Option<u32>,
    group: Option<u32>,
}

impl Ids {
    /// Looks names up in the sandbox's own accounts.
    pub(super) fn of(owner: Option<&str>, group: Option<&str>) -> Result<Self, Fault> {
        let accounts = Accounts::read();
        let unknown = |what: &str, name: &str| {
            Fault::new(FaultKind::Invalid, format!("there is no {what} {name}"))
        };
        let find = |name: &str| accounts.user(name).ok_or_else(|| unknown("user", name));
        let owner = owner.map(find).transpose()?;
        let find = |name: &str| accounts.group(name).ok_or_else(|| unknown("group", name));
        Ok(Self { owner, group: group.map(find).transpose()? })
    }
}

/// Sets owner and group.
pub(super) fn set_owner(
    roots: &Roots,
    path: &UnresolvedPath,
    ids: Ids,
    follow: bool,
) -> Result<(), PathError> {
    let leaf = if follow { TrailingSymlink::Target } else { TrailingSymlink::Itself };
    let opened = roots.open_at(path, OFlags::PATH, leaf)?.changeable()?;
    let (owner, group) = (ids.owner.map(Uid::from_raw), ids.group.map(Gid::from_raw));
    let set = chownat(&opened.file, c"", owner, group, AtFlags::EMPTY_PATH);
    set.map_err(|errno| opened.failed(errno))
}

/// Whether two paths name the same file; one that does not exist is the same as nothing.
pub(super) fn same_file(
    roots: &Roots,
    left: &UnresolvedPath,
    right: &UnresolvedPath,
    leaf: TrailingSymlink,
) -> Result<bool, PathError> {
    // A folder that is missing on the way to the first decides before the second is looked at.
    let unplaced = roots.locate(&names_of(left), leaf, MissingParents::Fails).err();
    if unplaced.is_some_and(|error| error.why == PathErrorKind::Os(Errno::NOENT)) {
        return Ok(false);
    }
    let open = |path: &UnresolvedPath| match roots.open_at(path, OFlags::PATH, leaf) {
        Err(missing) if missing.why == PathErrorKind::Os(Errno::NOENT) => Ok(None),
        opened => opened.map(Some),
    };
    let (Some(left), Some(right)) = (open(left)?, open(right)?) else { return Ok(false) };
    let node = |opened: &Opened| stat_held(&opened.file).map_err(|errno| opened.failed(errno));
    let (left, right) = (node(&left)?, node(&right)?);
    // Only held themselves, links are told apart from what they point to.
    let is_link = [left.kind, right.kind].contains(&FileType::Symlink);
    Ok(!is_link && left.is_same_file(&right))
}
