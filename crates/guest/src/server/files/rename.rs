//! Giving a file another name.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bastide_proto::UnresolvedPath;
use bastide_proto::boot::UserAndGroup;
use bastide_proto::files::{FileTime, Progress};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::staged::{Finish, Staged};
use super::{at, resolve_both};
use crate::server::Guest;
use crate::server::beneath::{
    DirEntryRef, MissingParents, PathError, Roots, TrailingSymlink, names_of, stat_at,
};
use crate::server::blocking::blocking;
use crate::server::call::{Inbox, Outbox, Refusal};

/// How much is copied at a time.
const CHUNK: u64 = 8 << 20;

/// An entry and its new place.
#[derive(Debug)]
pub(super) struct Renaming {
    pub(super) from: DirEntryRef,
    pub(super) to: DirEntryRef,
}

/// A file that has to be copied: its new place is in another root.
struct Copying {
    renaming: Renaming,
    source: OwnedFd,
    stat: Stat,
    staged: Staged,
    copied: u64,
}

impl Renaming {
    /// Finds both.
    pub(super) fn begin(
        roots: &Roots,
        from: &UnresolvedPath,
        to: &UnresolvedPath,
    ) -> Result<Self, PathError> {
        let place =
            |path| roots.change(&names_of(path), TrailingSymlink::Itself, MissingParents::Fails);
        Ok(Self { from: place(from)?, to: place(to)? })
    }

    /// Renames; false if the file has to be copied.
    pub(super) fn rename(&self) -> Result<bool, PathError> {
        let (folder, name) = self.from.entry()?;
        let (to_folder, to_name) = self.to.entry()?;
        let stat = stat_at(folder, name).map_err(|errno| self.from.failed(errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Symlink) {
            return Err(self.from.failed(Errno::INVAL));
        }
        match renameat(folder, name, to_folder, to_name) {
            Ok(()) => Ok(true),
            Err(Errno::XDEV) if kind == FileType::Symlink => self.link_again().map(|()| true),
            Err(Errno::XDEV) => Ok(false),
            Err(errno) => Err(self.to.failed(errno)),
        }
    }

    /// Makes a link anew in its new place, and removes the old one.
    fn link_again(&self) -> Result<(), PathError> {
        let (folder, name) = self.from.entry()?;
        let (to_folder, to_name) = self.to.entry()?;
        let target = readlinkat(folder, name, Vec::new());
        let target = target.map_err(|errno| self.from.failed(errno))?;
        let make = || symlinkat(target.as_c_str(), to_folder, to_name);
        let made = match make() {
            Err(Errno::EXIST) => {
                unlinkat(to_folder, to_name, AtFlags::empty()).and_then(|()| make())
            }
            made => made,
        };
        made.map_err(|errno| self.to.failed(errno))?;
        unlinkat(folder, name, AtFlags::empty()).map_err(|errno| self.from.failed(errno))
    }

    fn copy(self) -> Result<Copying, PathError> {
        let (folder, name) = self.from.entry()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let source = openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty());
        let source = source.map_err(|errno| self.from.failed(errno))?;
        let stat = rustix::fs::fstat(&source).map_err(|errno| self.from.failed(errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.from.failed(Errno::INVAL));
        }
        let (to_folder, to_name) = self.to.entry()?;
        let begin = || {
            if let Ok(there) = stat_at(to_folder, to_name)
                && FileType::from_raw_mode(there.st_mode) == FileType::Directory
            {
                return Err(Errno::ISDIR);
            }
            let folder = rustix::io::fcntl_dupfd_cloexec(to_folder, 0)?;
            Staged::replacing(folder, to_name)
        };
        let staged = begin().map_err(|errno| self.to.failed(errno))?;
        Ok(Copying { renaming: self, source, stat, staged, copied: 0 })
    }
}

impl Copying {
    /// Copies some more; false when all is copied.
    fn copy_some(&mut self) -> Result<bool, PathError> {
        let mut buffer = vec![0; 256 * 1024];
        let until = self.copied.saturating_add(CHUNK);
        while self.copied < until {
            match rustix::io::pread(&self.source, &mut buffer[..], self.copied) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    let written = self.staged.write(&buffer[..read]);
                    written.map_err(|errno| self.renaming.to.failed(errno))?;
                    self.copied += u64::try_from(read).unwrap_or(0);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.renaming.from.failed(errno)),
            }
        }
        Ok(true)
    }

    /// Gives the copy its name and removes the original.
    fn end(self) -> Result<(), PathError> {
        let Self { renaming: Renaming { from, to }, stat, staged, .. } = self;
        let finish = Finish {
            mode: Some(stat.st_mode & 0o7777),
            modified: Some(FileTime {
                seconds: stat.st_mtime,
                nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            }),
            ..Finish::default()
        };
        // The owner comes along where this user may give files away.
        let owner = UserAndGroup { uid: stat.st_uid, gid: stat.st_gid };
        staged.keep_owner(owner);
        staged.finish(finish).map_err(|errno| to.failed(errno))?;
        let (folder, name) = from.entry()?;
        // What was copied is what is removed, unless somebody put something else there meanwhile.
        let same = stat_at(folder, name)
            .is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino));
        if !same {
            return Err(from.failed(Errno::BUSY));
        }
        unlinkat(folder, name, AtFlags::empty()).map_err(|errno| from.failed(errno))
    }
}

/// Answers a request to rename.
pub(super) async fn run(
    guest: &Arc<Guest>,
    from: UnresolvedPath,
    to: UnresolvedPath,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let begin = move |roots: &Roots| {
        let (resolved, led) = resolve_both(roots, [&from, &to], TrailingSymlink::Itself, true);
        Ok((resolved, led.and_then(|()| Renaming::begin(roots, &from, &to))))
    };
    let (resolved, renaming) = at(guest, "rename", begin).await?;
    outbox.queue_item(&resolved).await?;
    let renaming = renaming.map_err(|error| error.fault("cannot rename"))?;
    let rename = move |_: &Roots| Ok((renaming.rename()?, renaming));
    let (is_done, renaming) = at(guest, "rename", rename).await?;
    if is_done {
        return Ok(());
    }
    let mut copying = at(guest, "rename", move |_| renaming.copy()).await?;
    loop {
        let (back, more) = blocking(move || {
            let more = copying.copy_some();
            (copying, more)
        })
        .await?;
        copying = back;
        if !more.map_err(|error| error.fault("cannot rename"))? {
            break;
        }
        outbox.item(&Progress { done: copying.copied }).await?;
        if inbox.next_now()?.is_some() {
            return Err(Refusal::Disconnected);
        }
    }
    at(guest, "rename", move |_| copying.end()).await
}
