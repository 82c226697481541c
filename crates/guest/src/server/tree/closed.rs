//! Opening what its owner has closed.
//!
//! A guest that serves several users may read every file of theirs. One that serves a single user may
//! do what that user may, and no user can read a file without the permission to. But its owner can
//! give it, and take it away again: that is what is done here, through a descriptor that is held, so
//! that it is that very file whatever its name has become.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmodat, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::server::beneath::{held_path, reopen};

/// Opens an entry of a folder that is held. One that is closed is opened for a moment, if it is ours.
pub(super) fn open(folder: &OwnedFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(folder, name, flags | careful, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        opened => return opened,
    }
    let held =
        openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&held)?;
    let needed = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => 0o700,
        FileType::RegularFile => 0o400,
        _ => return Err(Errno::ACCESS),
    };
    if stat.st_uid != geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    let set = |mode: u32| {
        chmodat(CWD, held_path(&held), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
    };
    set(stat.st_mode | needed)?;
    let opened = reopen(&held, flags);
    let closed = set(stat.st_mode);
    opened.and_then(|file| closed.map(|()| file))
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
