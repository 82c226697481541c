//! Opening what is in a workspace: beneath a held folder, through no link, and nothing that blocks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Holds a folder that the caller named; links on the way are the caller's own.
pub(crate) fn open_root(folder: &Path) -> io::Result<OwnedFd> {
    Ok(open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A folder beneath another one.
pub(crate) fn open_folder(root: impl AsFd, beneath: &[u8]) -> io::Result<OwnedFd> {
    let beneath = if beneath.is_empty() { b"." } else { beneath };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(&root, beneath, FOLDER, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => {}
        opened => return Ok(opened?),
    }
    let mut held = openat(&root, ".", FOLDER, Mode::empty())?;
    for name in beneath.split(|byte| *byte == b'/') {
        if name == b".." {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        held = openat(&held, name, FOLDER, Mode::empty())?;
    }
    Ok(held)
}

/// A regular file by its name in a folder, for reading.
pub(crate) fn open_regular(folder: impl AsFd, name: &[u8]) -> io::Result<File> {
    // A pipe is not waited for, a device does nothing, a terminal does not become ours.
    let flags =
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(&folder, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(File::from(file))
}

/// A regular file of at most `limit` bytes beneath a folder, whole.
pub(crate) fn read_small(root: impl AsFd, beneath: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    use io::Read;
    let (folder, name) = split(beneath);
    let file = open_regular(open_folder(root, folder)?, name)?;
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}

/// Whether something could not be opened although it may be there as it was: what happened says something of this machine
/// or of whoever asks, not of the workspace. Taken for gone, it would be in a change as deleted.
pub(crate) fn may_be_there(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        matches!(
            errno,
            Errno::ACCESS
                | Errno::AGAIN
                | Errno::INTR
                | Errno::IO
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::PERM
                | Errno::STALE
                | Errno::TIMEDOUT
        )
    })
}

/// The folder and the name of a relative path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_went_from_what_cannot_be_looked_at() {
        for (errno, wanted) in [
            (Errno::NOENT, false),
            (Errno::NOTDIR, false),
            (Errno::LOOP, false),
            (Errno::NXIO, false),
            (Errno::INVAL, false),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::IO, true),
            (Errno::NOMEM, true),
            (Errno::ACCESS, true),
        ] {
            assert_eq!(may_be_there(&errno.into()), wanted, "{errno:?}");
        }
        assert!(!may_be_there(&io::Error::other("it is not a regular file")));
    }
}
