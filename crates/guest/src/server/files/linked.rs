//! Files with several names, which are written in place: their other names are to see what is written.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    FallocateFlags, FileType, Mode, OFlags, Stat, fallocate, fstat, ftruncate, openat,
};
use rustix::io::{Errno, pread, pwrite};

/// How much is copied at a time.
const CHUNK: usize = 256 * 1024;

/// A file with other names, known by its inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct HardLinked {
    device: u64,
    inode: u64,
}

impl HardLinked {
    /// Whether a file of `folder` has other names that shall see what is written. Only where nobody but the file's owner could have put
    /// this name here: otherwise it may be a trap for whoever may write to more than the one who made it.
    pub(super) fn find(folder: &OwnedFd, file: &Stat) -> Result<Option<Self>, Errno> {
        if file.st_nlink < 2 {
            return Ok(None);
        }
        let folder = fstat(folder)?;
        let by_group = folder.st_mode & 0o020 != 0 && folder.st_gid != file.st_gid;
        let by_others = folder.st_mode & 0o002 != 0;
        let is_owners = folder.st_uid == file.st_uid && !by_group && !by_others;
        Ok(is_owners.then_some(Self { device: file.st_dev, inode: file.st_ino }))
    }

    /// Opens the file for writing, if `name` is still it and it may be written to.
    pub(super) fn open(self, folder: &OwnedFd, name: &[u8]) -> Option<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let is_it = stat.st_dev == self.device && stat.st_ino == self.inode;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        (is_it && is_file).then_some(file)
    }
}

/// Gives `to` the content of `from`. Room for all of it is found first, so that a full disk leaves what was there.
pub(super) fn copy_content(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let size = u64::try_from(fstat(from)?.st_size).unwrap_or(0);
    if size > 0 {
        match fallocate(to, FallocateFlags::KEEP_SIZE, 0, size) {
            // Not every file system can say beforehand.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        match pread(from, &mut buffer[..], at) {
            Ok(0) => break,
            Ok(read) => at += write_at(to, &buffer[..read], at)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    ftruncate(to, at)
}

fn write_at(to: &OwnedFd, data: &[u8], at: u64) -> Result<u64, Errno> {
    let mut written = 0;
    while written < data.len() {
        match pwrite(to.as_fd(), &data[written..], at + written as u64) {
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(written as u64)
}
