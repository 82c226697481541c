//! Which permission bits files get.
//!
//! The guest is not behind the filter of its commands, and does what the host asks, which may repeat what
//! a command said: an archive, a snapshot, a mode. What it leaves in a folder of the host must not give
//! anybody more than the folder's owner had, no more than what commands leave there.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, AtFlags, Mode, accessat};
use rustix::io::Errno;

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Like the mask of a process: set once, before anything is served.
static HAS_SET_ID: AtomicBool = AtomicBool::new(true);

/// From here on no file gets set-id bits.
pub(super) fn forbid_set_id() {
    HAS_SET_ID.store(false, Ordering::Relaxed);
}

/// As above: whether whoever is served writes to files that do not allow it.
static OVERRIDES: AtomicBool = AtomicBool::new(false);

/// From here on files are written to whatever their permissions say.
pub(super) fn override_permissions() {
    OVERRIDES.store(true, Ordering::Relaxed);
}

/// Whether a file that is there may be written to. One that is replaced has to be asked: its folder allows that, whatever
/// the file itself does.
pub(super) fn may_write(folder: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    if OVERRIDES.load(Ordering::Relaxed) {
        return Ok(());
    }
    // By the ids this thread has for files, which are not always its own.
    match accessat(folder, name, Access::WRITE_OK, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(errno),
        // What else is wrong with it is seen by writing.
        _ => Ok(()),
    }
}

/// The permissions a file gets that was to have these.
pub(super) fn allowed(mode: u32) -> Mode {
    let most = if HAS_SET_ID.load(Ordering::Relaxed) { 0o7777 } else { 0o7777 & !SET_ID };
    Mode::from_raw_mode(mode & most)
}

/// Whether a file with these permissions can be given others for a while and then these again. While it
/// has others, somebody may write to it: what was a set-id program would be one with that in it.
pub(super) fn can_come_back(mode: u32) -> bool {
    allowed(mode).as_raw_mode() == mode & 0o7777
}
