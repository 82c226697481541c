//! Opening what its owner has closed.
//!
//! A guest that serves several users may read every file of theirs. One that serves a single user may
//! do what that user may, and no user can read a file without the permission to. But its owner can
//! give it, and take it away again: that is what is done here, through a descriptor that is held, so
//! that it is that very file whatever its name has become.

use std::os::fd::OwnedFd;

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, chmodat, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::server::beneath::{DirEntryRef, Roots, held_path, reopen};
use crate::server::modes::can_come_back;

/// Opens a file in a folder that is held. One that its owner has closed is open for as long as what
/// comes with it is held.
pub(super) fn open(folder: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, Option<ModeGuard>), Errno> {
    let safe_open_flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(folder, name, OFlags::RDONLY | safe_open_flags, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        opened => return opened.map(|file| (file, None)),
    }
    let held =
        openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&held)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_uid != geteuid().as_raw() || !can_come_back(stat.st_mode) {
        return Err(Errno::ACCESS);
    }
    let mode = Mode::from_raw_mode((stat.st_mode | 0o400) & 0o7777);
    chmodat(CWD, held_path(&held), mode, AtFlags::empty())?;
    let unlocked = ModeGuard::of(held, stat.st_mode);
    let file = reopen(&unlocked.held, OFlags::RDONLY)?;
    Ok((file, Some(unlocked)))
}

/// A file or folder that its owner had closed. It is closed again when this is dropped.
#[derive(Debug)]
pub(super) struct ModeGuard {
    held: OwnedFd,
    mode: u32,
    is_over: bool,
}

impl ModeGuard {
    fn of(held: OwnedFd, mode: u32) -> Self {
        Self { held, mode: mode & 0o7777, is_over: false }
    }

    /// It has other permissions for good by now.
    pub(super) fn end(mut self) {
        self.is_over = true;
    }

    /// Its permissions, as its owner meant them.
    pub(super) fn mode(&self) -> u32 {
        self.mode
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mode = Mode::from_raw_mode(self.mode);
        // Its owner may have changed its mind, or it is gone.
        let _ = chmodat(CWD, held_path(&self.held), mode, AtFlags::empty());
    }
}

/// Opens the folder at the top of a tree, for what is wanted of it. One that its owner has closed is opened for as long
/// as what comes with it is held.
pub(super) fn open_top(
    roots: &Roots,
    place: &DirEntryRef,
    wanted: Access,
) -> Result<(OwnedFd, Option<ModeGuard>), Errno> {
    let held = match &place.name {
        None => reopen(&place.folder, OFlags::PATH)?,
        Some(name) => roots.enter(&place.folder, name, OFlags::PATH)?,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let stat = fstat(&held)?;
    let is_closed = accessat(&held, c".", wanted, AtFlags::EACCESS) == Err(Errno::ACCESS);
    if !is_closed || stat.st_uid != geteuid().as_raw() {
        return Ok((reopen(&held, flags)?, None));
    }
    let mode = Mode::from_raw_mode((stat.st_mode | 0o700) & 0o7777);
    chmodat(CWD, held_path(&held), mode, AtFlags::empty())?;
    let unlocked = ModeGuard::of(held, stat.st_mode);
    Ok((reopen(&unlocked.held, flags)?, Some(unlocked)))
}

/// Opens a folder in a folder that is held, so that what is in it can be reached. One that its owner
/// has closed is opened for as long as what comes with it is held.
pub(super) fn enter(
    roots: &Roots,
    folder: &OwnedFd,
    name: &[u8],
) -> Result<(OwnedFd, Option<ModeGuard>), Errno> {
    match roots.enter(folder, name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => {}
        Ok(entered) => match accessat(&entered, c".", Access::EXEC_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS) => {}
            _ => return Ok((entered, None)),
        },
        Err(errno) => return Err(errno),
    }
    let held = roots.enter(folder, name, OFlags::PATH)?;
    let stat = fstat(&held)?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    let mode = Mode::from_raw_mode((stat.st_mode | 0o700) & 0o7777);
    chmodat(CWD, held_path(&held), mode, AtFlags::empty())?;
    let unlocked = ModeGuard::of(held, stat.st_mode);
    let entered = reopen(&unlocked.held, OFlags::RDONLY | OFlags::DIRECTORY)?;
    Ok((entered, Some(unlocked)))
}

/// Opens the folder these names lead to, through folders their owner has closed.
pub(super) fn enter_all(
    roots: &Roots,
    from: &OwnedFd,
    names: &[Vec<u8>],
) -> Result<(OwnedFd, Vec<ModeGuard>), Errno> {
    let mut folder = rustix::io::fcntl_dupfd_cloexec(from, 0)?;
    let mut all = Vec::new();
    for name in names {
        let (entered, unlocked) = enter(roots, &folder, name)?;
        folder = entered;
        all.extend(unlocked);
    }
    Ok((folder, all))
}

/// Lets the owner into a folder of the owner's for good; for one that is about to go away.
pub(in crate::server) fn unlock(folder: &OwnedFd, name: &[u8]) {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(held) = openat(folder, name, flags, Mode::empty())
        && let Ok(stat) = fstat(&held)
        && stat.st_mode & 0o700 != 0o700
    {
        let mode = Mode::from_raw_mode((stat.st_mode | 0o700) & 0o7777);
        // Where it cannot be done, whoever goes in there next says why.
        let _ = chmodat(CWD, held_path(&held), mode, AtFlags::empty());
    }
}
