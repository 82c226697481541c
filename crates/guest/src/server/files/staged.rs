//! Atomic writes: a file is written under a temporary name and renamed when it is whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bastide_proto::boot::UserAndGroup;
use bastide_proto::files::FileTime;
use bastide_proto::tree::HIDDEN_PREFIX;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, fchmod, fchown,
    futimens, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::linked::{HardLinked, copy_content};
use crate::server::beneath::{reopen, stat_at};
use crate::server::modes::{allowed, may_write};

/// What permissions a new file has where nobody says otherwise.
const USUAL: u32 = 0o644;

/// How often another name is tried.
const ATTEMPTS: usize = 16;

/// A file that is not whole yet. If it is dropped before it is finished, nothing of it stays.
#[derive(Debug)]
pub(crate) struct Staged {
    folder: OwnedFd,
    name: Vec<u8>,
    /// There until the file is finished.
    file: Option<OwnedFd>,
    temporary: Option<Vec<u8>>,
    /// What it takes the place of.
    replaced: Option<Replaced>,
}

#[derive(Debug, Clone, Copy)]
struct Replaced {
    mode: u32,
    owner: UserAndGroup,
    /// Where it has other names, which are to see what is written.
    linked: Option<HardLinked>,
}

/// How a file shall be when it is whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Finish {
    /// Its permissions; those of the file it replaces or the usual ones if none.
    pub(crate) mode: Option<u32>,
    /// Its owner; that of the file it replaces or whoever made it if none.
    pub(crate) owner: Option<UserAndGroup>,
    /// When it was last changed; now if none.
    pub(crate) modified: Option<FileTime>,
    /// Whether something in its place is an error.
    pub(crate) new: bool,
}

impl Staged {
    /// Begins a file that will be `name` in `folder`. What is there must be a regular file.
    pub(crate) fn begin(folder: OwnedFd, name: &[u8]) -> Result<Self, Errno> {
        let replaced = match stat_at(&folder, name) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    may_write(&folder, name)?;
                    let owner = UserAndGroup { uid: stat.st_uid, gid: stat.st_gid };
                    let linked = HardLinked::find(&folder, &stat)?;
                    Some(Replaced { mode: stat.st_mode & 0o7777, owner, linked })
                }
                FileType::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            },
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        Self::create(folder, name, replaced)
    }

    /// Begins a file that will replace whatever is there.
    pub(crate) fn replacing(folder: OwnedFd, name: &[u8]) -> Result<Self, Errno> {
        Self::create(folder, name, None)
    }

    fn create(folder: OwnedFd, name: &[u8], replaced: Option<Replaced>) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        for _ in 0..ATTEMPTS {
            let temporary = random_name(b".tmp")?;
            match openat(&folder, temporary.as_slice(), flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => {
                    let (own_name, temporary) = (name.to_vec(), Some(temporary));
                    let file = Some(file);
                    let mut staged = Self { folder, name: own_name, file, temporary, replaced };
                    return match replaced {
                        Some(replaced) if set_owner(staged.file()?, replaced.owner).is_err() => {
                            staged.discard();
                            let folder = rustix::io::fcntl_dupfd_cloexec(&staged.folder, 0)?;
                            Self::in_place(folder, name, replaced)
                        }
                        _ => Ok(staged),
                    };
                }
                Err(Errno::EXIST) => {}
                // Its folder may not be changed, but the file itself perhaps may.
                Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
                    let Some(replaced) = replaced else { return Err(errno) };
                    return Self::in_place(folder, name, replaced);
                }
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    /// A file whose folder may not be changed, or whose owner only its own file can keep, is written
    /// where it is.
    fn in_place(folder: OwnedFd, name: &[u8], replaced: Replaced) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(&folder, name, flags | OFlags::CLOEXEC, Mode::empty())?;
        Self::over(folder, name, file, replaced)
    }

    /// Writes over a file that is open already.
    pub(crate) fn over_held(held: &OwnedFd, file: OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&file)?;
        let owner = UserAndGroup { uid: stat.st_uid, gid: stat.st_gid };
        let replaced = Replaced { mode: stat.st_mode & 0o7777, owner, linked: None };
        Self::over(rustix::io::fcntl_dupfd_cloexec(held, 0)?, b"", file, replaced)
    }

    fn over(
        folder: OwnedFd,
        name: &[u8],
        file: OwnedFd,
        replaced: Replaced,
    ) -> Result<Self, Errno> {
        // Checked before anything is cut off: it may have become something else.
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        rustix::fs::ftruncate(&file, 0)?;
        let (name, replaced) = (name.to_vec(), Some(replaced));
        Ok(Self { folder, name, file: Some(file), temporary: None, replaced })
    }

    /// The file itself, for whoever writes it.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.file.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Adds to the file.
    pub(crate) fn write(&mut self, mut data: &[u8]) -> Result<(), Errno> {
        while !data.is_empty() {
            match rustix::io::write(self.file()?, data) {
                Ok(written) => data = &data[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives the file to somebody, where this user may.
    pub(crate) fn keep_owner(&self, owner: UserAndGroup) {
        let _ = self.file().and_then(|file| set_owner(file, owner));
    }

    /// Gives the file its name, once it is whole.
    pub(crate) fn finish(mut self, finish: Finish) -> Result<(), Errno> {
        self.overwrite_hard_linked()?;
        if let Some(owner) = finish.owner {
            set_owner(self.file()?, owner)?;
        }
        if self.temporary.is_some() || finish.mode.is_some() {
            let before = self.replaced.map(|replaced| replaced.mode);
            let mode = finish.mode.or(before).unwrap_or(USUAL);
            fchmod(self.file()?, allowed(mode))?;
        }
        if let Some(modified) = finish.modified {
            set_time(self.file()?, modified)?;
        }
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        // Closed under its other name: whoever watches the folder sees a file that is whole.
        let Self { folder, name, file, .. } = &mut self;
        drop(file.take());
        let renamed = match finish.new {
            true => rename_new(folder, &temporary, name),
            false => renameat(&*folder, temporary.as_slice(), &*folder, name.as_slice()),
        };
        if renamed.is_err() {
            self.temporary = Some(temporary);
        }
        renamed
    }
}

impl Staged {
    /// Writes what is whole now over a file with several names. One that has become something else meanwhile, or may not be written
    /// to, is replaced as any other.
    fn overwrite_hard_linked(&mut self) -> Result<(), Errno> {
        let linked = self.replaced.and_then(|replaced| replaced.linked);
        let Some(linked) = linked.filter(|_| self.temporary.is_some()) else { return Ok(()) };
        let Some(there) = linked.open(&self.folder, &self.name) else { return Ok(()) };
        // The host is given no more than writing, so what was written is opened once more.
        let written = reopen(self.file.as_ref().ok_or(Errno::BADF)?, OFlags::RDONLY)?;
        copy_content(&written, &there)?;
        self.discard();
        self.file = Some(there);
        Ok(())
    }

    /// Removes what was written under another name.
    fn discard(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // The call has failed already; a leftover that cannot be removed is not news.
            let _ = unlinkat(&self.folder, temporary.as_slice(), AtFlags::empty());
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.discard();
    }
}

fn set_owner(file: BorrowedFd<'_>, owner: UserAndGroup) -> Result<(), Errno> {
    fchown(file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))
}

/// Renames, unless the name is taken. File systems that cannot do that in one call can link, which
/// never replaces anything.
fn rename_new(folder: &OwnedFd, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(folder, from, folder, to, AtFlags::empty())?;
            unlinkat(folder, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Sets when a file was last changed.
pub(crate) fn set_time(file: impl AsFd, time: FileTime) -> Result<(), Errno> {
    futimens(file, &timestamps(time))
}

/// The times of a file that was last changed then.
pub(crate) fn timestamps(time: FileTime) -> Timestamps {
    let time = Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
    Timestamps { last_access: time, last_modification: time }
}

/// A name nobody can guess, so that nobody can take it first.
pub(crate) fn random_name(ending: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut random = [0_u8; 12];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([HIDDEN_PREFIX, digits.as_bytes(), ending].concat())
}
