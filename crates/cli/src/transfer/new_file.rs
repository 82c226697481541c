//! A file that takes the place of another when it is whole.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, Timestamps, fchmod, fchown, fstat, ftruncate,
    futimens, linkat, openat, renameat, unlinkat,
};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// How many names are tried for what is not whole yet.
const NAMES: u32 = 100;

/// A file that is being written. Until [`finish`](Self::finish) it has no name where the file system
/// allows that, so a process that is killed leaves what was there before.
pub(super) struct NewFile {
    file: File,
    folder: OwnedFd,
    name: String,
    at: Location,
}

/// Where what is written is until the end.
enum Location {
    /// Under no name.
    Unnamed,
    /// Under this one.
    Temporary(String),
    /// Where it belongs: other names of the file have to see it, or nothing can be made beside it.
    InPlace,
}

impl NewFile {
    /// Opens one for `name` in `folder`. Only a regular file is replaced; it keeps its owner and permissions,
    /// but for set-id bits: whatever is written is not what was trusted with those.
    pub(super) fn create(folder: OwnedFd, name: String, mode: Mode) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let before = match openat(&folder, name.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => None,
            opened => Some(opened?),
        };
        let Some(before) = before else {
            let (file, at) = new_file(&folder, &name, mode)?;
            return Ok(Self { file, folder, name, at });
        };
        let stat = fstat(&before)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let (file, at) = match replacement(&folder, &name, &stat) {
            Ok(new) => new,
            Err(Errno::PERM | Errno::ACCESS) => emptied(before, &stat)?,
            Err(errno) => return Err(errno),
        };
        Ok(Self { file, folder, name, at })
    }

    /// Gives what was written its times, and its name.
    pub(super) fn finish_as_of(self, times: &Timestamps) -> Result<()> {
        match futimens(&self.file, times) {
            // One that is written in place may be somebody else's.
            Err(Errno::PERM | Errno::ACCESS) if matches!(self.at, Location::InPlace) => {}
            set => set?,
        }
        self.finish()
    }

    /// Gives what was written its name.
    pub(super) fn finish(mut self) -> Result<()> {
        if matches!(self.at, Location::Unnamed) {
            let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            self.at = Location::Temporary(temporary_name(&self.name, |name| {
                linkat(CWD, from.as_str(), &self.folder, name, AtFlags::SYMLINK_FOLLOW)
            })?);
        }
        if let Location::Temporary(temporary) = &self.at {
            renameat(&self.folder, temporary.as_str(), &self.folder, self.name.as_str())?;
            self.at = Location::InPlace;
        }
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Location::Temporary(name) = &self.at {
            // The failure before this one is the one to tell.
            let _removed = unlinkat(&self.folder, name.as_str(), AtFlags::empty());
        }
    }
}

/// A file beside the one there is, with its owner and permissions.
fn replacement(folder: &OwnedFd, name: &str, before: &Stat) -> Result<(File, Location)> {
    if before.st_nlink > 1 {
        return Err(Errno::PERM);
    }
    let permissions = Mode::from_raw_mode(before.st_mode & 0o777);
    let (file, at) = new_file(folder, name, permissions)?;
    let new = fstat(&file)?;
    if (new.st_uid, new.st_gid) != (before.st_uid, before.st_gid) {
        let owner = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
        if let Err(errno) = fchown(&file, Some(owner.0), Some(owner.1)) {
            if let Location::Temporary(name) = &at {
                unlinkat(folder, name.as_str(), AtFlags::empty())?;
            }
            return Err(errno);
        }
    }
    fchmod(&file, permissions)?;
    Ok((file, at))
}

/// The file there is, with nothing in it.
fn emptied(before: OwnedFd, stat: &Stat) -> Result<(File, Location)> {
    if stat.st_mode & SET_ID != 0 {
        fchmod(&before, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    }
    ftruncate(&before, 0)?;
    Ok((File::from(before), Location::InPlace))
}

fn new_file(folder: &OwnedFd, name: &str, mode: Mode) -> Result<(File, Location)> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(folder, ".", flags | OFlags::TMPFILE, mode) {
        Ok(file) => return Ok((file.into(), Location::Unnamed)),
        // Not every file system has files without names.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    let mut file = None;
    let temporary = temporary_name(name, |name| {
        let made = openat(folder, name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
        file = Some(made);
        Ok(())
    })?;
    let file = file.ok_or(Errno::EXIST)?;
    Ok((file.into(), Location::Temporary(temporary)))
}

/// A name that nothing has, taken by `take`.
fn temporary_name(name: &str, mut take: impl FnMut(&str) -> Result<()>) -> Result<String> {
    // Names have at most 255 bytes.
    let shown: String = name.chars().take(40).collect();
    let process = std::process::id();
    for number in 0..NAMES {
        let temporary = format!(".{shown}.{process}-{number}.part");
        match take(&temporary) {
            Err(Errno::EXIST) => {}
            taken => return taken.map(|()| temporary),
        }
    }
    Err(Errno::EXIST)
}
