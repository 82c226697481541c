//! Following a path in one call of the kernel.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// Beneath the folder, through no link and into no mount: what needs more is walked.
const STRICT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// How often the kernel is asked again when it could not be sure.
const ATTEMPTS: usize = 8;

/// Opens `path` beneath `folder`.
pub(super) fn open(folder: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut attempt = 0;
    loop {
        match openat2(folder.as_fd(), path, flags, Mode::empty(), STRICT) {
            Err(Errno::AGAIN | Errno::INTR) if attempt < ATTEMPTS => attempt += 1,
            opened => return opened,
        }
    }
}

/// Whether this kernel can do it. Old ones do not know the call, and old container engines refuse
/// what they do not know.
pub(super) fn works(folder: impl AsFd) -> bool {
    open(folder, b".", OFlags::PATH | OFlags::CLOEXEC).is_ok()
}
