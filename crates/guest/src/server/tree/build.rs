//! Making a tree beside what is there.

use std::os::fd::{AsFd, OwnedFd};

use bastide_proto::files::FileTime;
use bastide_proto::tree::{Extent, MAX_DEPTH, MAX_NAME, NewEntry, NewEntryKind};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, fchmod,
    fchown, ftruncate, futimens, linkat, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::{attributes, mode_guard};
use crate::server::beneath::{FileIdentity, Roots, held_path, stat_at, stat_held};
use crate::server::modes::allowed;

/// How many folders are held at once.
const HELD: usize = 32;

#[derive(Debug)]
struct Level {
    made: NewEntry,
    node: FileIdentity,
    /// Not there while too many below are.
    folder: Option<OwnedFd>,
}

/// What could not be given to what was made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnrestoredCounts {
    pub(super) unowned: u64,
    pub(super) unattributed: u64,
}

/// A tree that is being made.
#[derive(Debug)]
pub(super) struct Builder {
    top: OwnedFd,
    levels: Vec<Level>,
    /// The description of the top itself, once all is made.
    root: Option<NewEntry>,
    own: (u32, u32),
    pub(super) made: u64,
    pub(super) losses: UnrestoredCounts,
}

/// A large file whose content is coming.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: OwnedFd,
    entry: NewEntry,
    size: u64,
    at: u64,
}

impl Builder {
    /// Makes everything in `top`, which must be empty.
    pub(super) fn new(top: OwnedFd) -> Self {
        let own = (geteuid().as_raw(), getegid().as_raw());
        Self {
            top,
            levels: Vec::new(),
            root: None,
            own,
            made: 0,
            losses: UnrestoredCounts::default(),
        }
    }

    /// Makes some entries, with the bytes of the files among them.
    pub(super) fn make(
        &mut self,
        roots: &Roots,
        entries: Vec<NewEntry>,
        mut bytes: &[u8],
    ) -> Result<(), Errno> {
        for entry in entries {
            self.made += 1;
            if self.levels.is_empty() {
                self.begin(entry)?;
                continue;
            }
            self.arrive(&entry)?;
            let folder = self.last()?;
            let name = entry.name.as_slice();
            match &entry.kind {
                NewEntryKind::Dir => {
                    mkdirat(folder, name, Mode::RWXU)?;
                    let inside = roots.enter(folder, name, OFlags::RDONLY)?;
                    self.push(entry, inside)?;
                }
                NewEntryKind::File { extents } => {
                    let (file, is_final) = create(folder, name, entry.mode)?;
                    let mut at = 0;
                    for extent in extents {
                        match extent {
                            Extent::Hole(length) => at += length,
                            Extent::Data(length) => {
                                let count = usize::try_from(*length).map_err(|_| Errno::FBIG)?;
                                let (data, rest) =
                                    bytes.split_at_checked(count).ok_or(Errno::PROTO)?;
                                write_at(&file, at, data)?;
                                (bytes, at) = (rest, at + length);
                            }
                        }
                    }
                    if matches!(extents.last(), Some(Extent::Hole(_))) {
                        ftruncate(&file, at)?;
                    }
                    self.finish(&file, &entry, is_final)?;
                }
                NewEntryKind::Symlink { target } => {
                    symlinkat(target.as_slice(), folder, name)?;
                    let times = times(entry.modified);
                    let (uid, gid) = ids(&entry);
                    let is_lost = (entry.uid, entry.gid) != self.own
                        && chownat(folder, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).is_err();
                    utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
                    self.losses.unowned += u64::from(is_lost);
                }
                NewEntryKind::Fifo => {
                    mknodat(folder, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let held = openat(folder, name, flags, Mode::empty())?;
                    self.finish_held(&held, &entry)?;
                }
                NewEntryKind::Link { to } => {
                    let to: Vec<Vec<u8>> = to.iter().map(|name| name.to_vec()).collect();
                    let (original, parents) = to.split_last().ok_or(Errno::ISDIR)?;
                    let (from, _unlocked) = mode_guard::enter_all(roots, &self.top, parents)?;
                    // Never another name for a folder or a device.
                    let kind = FileType::from_raw_mode(stat_at(&from, original)?.st_mode);
                    if kind != FileType::RegularFile {
                        return Err(Errno::INVAL);
                    }
                    linkat(&from, original.as_slice(), folder, name, AtFlags::empty())?;
                }
                _ => return Err(Errno::OPNOTSUPP),
            }
        }
        if bytes.is_empty() { Ok(()) } else { Err(Errno::PROTO) }
    }

    fn begin(&mut self, entry: NewEntry) -> Result<(), Errno> {
        if entry.depth != 0 || !entry.name.is_empty() || entry.kind != NewEntryKind::Dir {
            return Err(Errno::PROTO);
        }
        let folder = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)?;
        let node = stat_held(&folder)?;
        self.levels.push(Level { made: entry, node, folder: Some(folder) });
        Ok(())
    }

    /// Goes to the folder an entry goes into; those that are done by that get what they are to have.
    fn arrive(&mut self, entry: &NewEntry) -> Result<(), Errno> {
        let name = entry.name.as_slice();
        let is_name = !matches!(name, b"" | b"." | b"..")
            && name.len() <= MAX_NAME
            && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        let depth = usize::try_from(entry.depth).map_err(|_| Errno::PROTO)?;
        if !is_name || depth == 0 || depth > self.levels.len() {
            return Err(Errno::PROTO);
        }
        while self.levels.len() > depth {
            self.leave()?;
        }
        Ok(())
    }

    fn last(&self) -> Result<&OwnedFd, Errno> {
        self.levels.last().and_then(|level| level.folder.as_ref()).ok_or(Errno::BADF)
    }

    fn push(&mut self, made: NewEntry, folder: OwnedFd) -> Result<(), Errno> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let node = stat_held(&folder)?;
        self.levels.push(Level { made, node, folder: Some(folder) });
        if let Some(far) = self.levels.len().checked_sub(HELD + 1) {
            self.levels[far].folder = None;
        }
        Ok(())
    }

    /// Goes back up. A folder gets its permissions and times when nothing more goes into it.
    fn leave(&mut self) -> Result<(), Errno> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let folder = level.folder.ok_or(Errno::BADF)?;
        if let Some(above) = self.levels.last_mut() {
            if above.folder.is_none() {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let climbed = openat(&folder, c"..", flags, Mode::empty())?;
                if !stat_held(&climbed)?.is_same_file(&above.node) {
                    return Err(Errno::BUSY);
                }
                above.folder = Some(climbed);
            }
            self.finish(&folder, &level.made, false)
        } else {
            self.root = Some(level.made);
            Ok(())
        }
    }

    /// Begins a large file.
    pub(super) fn begin_large(&mut self, entry: NewEntry, size: u64) -> Result<OpenFile, Errno> {
        if i64::try_from(size).is_err() {
            return Err(Errno::FBIG);
        }
        self.arrive(&entry)?;
        let folder = self.last()?;
        let (file, _) = create(folder, &entry.name, 0o600)?;
        Ok(OpenFile { file, entry, size, at: 0 })
    }

    /// Ends a large file: it is as long as it was said to be.
    pub(super) fn end_large(&mut self, filling: &OpenFile) -> Result<(), Errno> {
        if stat_held(&filling.file)?.size > filling.size {
            return Err(Errno::FBIG);
        }
        ftruncate(&filling.file, filling.size)?;
        self.finish(&filling.file, &filling.entry, false)?;
        self.made += 1;
        Ok(())
    }

    /// Ends the tree; what the top itself is to have comes back.
    pub(super) fn end(&mut self) -> Result<NewEntry, Errno> {
        while !self.levels.is_empty() {
            self.leave()?;
        }
        self.root.take().ok_or(Errno::PROTO)
    }

    /// Gives an open file or folder what its entry says. A change of owner takes special bits away,
    /// a change of anything the times; so the order is this.
    pub(super) fn finish(
        &mut self,
        file: impl AsFd,
        entry: &NewEntry,
        has_mode: bool,
    ) -> Result<(), Errno> {
        if !entry.attributes.is_empty() {
            self.losses.unattributed += attributes::write(&file, &entry.attributes);
        }
        let mut has_mode = has_mode;
        if (entry.uid, entry.gid) != self.own {
            let (uid, gid) = ids(entry);
            match fchown(&file, uid, gid) {
                Ok(()) => has_mode = false,
                Err(_) => self.losses.unowned += 1,
            }
        }
        if !has_mode {
            fchmod(&file, allowed(entry.mode))?;
        }
        futimens(&file, &times(entry.modified))
    }

    /// As [`finish`](Self::finish), for what is held but not open.
    fn finish_held(&mut self, held: &OwnedFd, entry: &NewEntry) -> Result<(), Errno> {
        let (uid, gid) = ids(entry);
        if (entry.uid, entry.gid) != self.own
            && chownat(held, c"", uid, gid, AtFlags::EMPTY_PATH).is_err()
        {
            self.losses.unowned += 1;
        }
        let path = held_path(held);
        chmodat(CWD, &path, allowed(entry.mode), AtFlags::empty())?;
        utimensat(CWD, &path, &times(entry.modified), AtFlags::empty())
    }
}

impl OpenFile {
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Adds bytes.
    pub(super) fn write(&mut self, data: &[u8]) -> Result<(), Errno> {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = self.at.checked_add(length).filter(|end| *end <= self.size);
        let end = end.ok_or(Errno::PROTO)?;
        write_at(&self.file, self.at, data)?;
        self.at = end;
        Ok(())
    }

    /// Leaves out bytes.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), Errno> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.size);
        self.at = end.ok_or(Errno::PROTO)?;
        Ok(())
    }
}

/// Makes a file; says whether it has its permissions already.
fn create(folder: &OwnedFd, name: &[u8], mode: u32) -> Result<(OwnedFd, bool), Errno> {
    // What the mask would take away, and what a later write would.
    let is_plain = mode & !0o755 == 0;
    let at_first = if is_plain { mode } else { 0o600 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::from_raw_mode(at_first))?;
    Ok((file, is_plain))
}

fn write_at(file: &OwnedFd, mut at: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                data = &data[written..];
                at += u64::try_from(written).unwrap_or(u64::MAX);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn ids(entry: &NewEntry) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))
}

fn times(modified: FileTime) -> Timestamps {
    let time = Timespec { tv_sec: modified.seconds, tv_nsec: i64::from(modified.nanos) };
    Timestamps { last_access: time, last_modification: time }
}
