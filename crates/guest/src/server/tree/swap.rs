//! One tree takes the place of another.
//!
//! By renames only: what is there moves into a folder beside it, then what is new moves in. What must
//! stay is left where it is, and so are the folders that lead to it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bastide_proto::tree::is_hidden;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, chmodat, fchmod, fchown,
    fstat, futimens, mkdirat, openat, renameat, renameat_with,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::server::beneath::{Roots, held_path, reopen};
use crate::server::files::{random_name, some_entries};
use crate::server::modes::allowed;

/// How often something that turns up in the way is moved aside.
const ATTEMPTS: usize = 16;

/// What was moved, so that it can be moved back.
#[derive(Debug, Default)]
pub(super) struct Moves {
    moves: Vec<Move>,
    folders: Vec<OpenedFolder>,
}

/// A folder that stays and is open to its owner meanwhile.
#[derive(Debug)]
struct OpenedFolder {
    folder: Arc<OwnedFd>,
    before: u32,
    after: u32,
}

#[derive(Debug)]
struct Move {
    from: (Arc<OwnedFd>, Vec<u8>),
    to: (Arc<OwnedFd>, Vec<u8>),
}

impl Moves {
    /// Moves everything back, the last one first. What somebody else moved meanwhile stays.
    pub(super) fn undo(self) {
        for Move { from, to } in self.moves.into_iter().rev() {
            let ((from, name), (to, new_name)) = (from, to);
            // There is nothing better to do than to go on with the rest.
            let _ = unlocked(&to, &new_name, || renameat(&to, &new_name, &from, &name));
        }
        for opened in self.folders.iter().rev() {
            let _ = fchmod(&*opened.folder, Mode::from_raw_mode(opened.before));
        }
    }

    /// Everything is in its place: folders that stay get the permissions they are to have.
    pub(super) fn finish(&self) -> Result<(), Errno> {
        self.folders.iter().try_for_each(|opened| fchmod(&*opened.folder, allowed(opened.after)))
    }

    fn aside(
        &mut self,
        from: &Arc<OwnedFd>,
        name: &[u8],
        to: &Arc<OwnedFd>,
        as_name: &[u8],
    ) -> Result<(), Errno> {
        match unlocked(from, name, || renameat(from, name, to, as_name)) {
            Ok(()) => self.note(from, name, to, as_name),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn within(&mut self, from: &Arc<OwnedFd>, name: &[u8], to: &Arc<OwnedFd>) -> Result<(), Errno> {
        unlocked(from, name, || {
            match renameat_with(from, name, to, name, RenameFlags::NOREPLACE) {
                // A file system that cannot promise; nothing is there as far as we know.
                Err(Errno::INVAL | Errno::NOSYS) => renameat(from, name, to, name),
                renamed => renamed,
            }
        })?;
        self.note(from, name, to, name);
        Ok(())
    }

    fn note(&mut self, from: &Arc<OwnedFd>, name: &[u8], to: &Arc<OwnedFd>, as_name: &[u8]) {
        let from = (Arc::clone(from), name.to_vec());
        self.moves.push(Move { from, to: (Arc::clone(to), as_name.to_vec()) });
    }

    /// Moves everything in `base` to `old`, then everything in `new` to `base`; but what is `kept`.
    pub(super) fn swap(
        &mut self,
        roots: &Roots,
        [base, new, old]: [&Arc<OwnedFd>; 3],
        kept: &[&[Vec<u8>]],
        is_top: bool,
    ) -> Result<(), Errno> {
        let kept = by_first_name(kept);
        for name in names(base)? {
            if is_top && is_hidden(&name) {
                continue;
            }
            match inside(&kept, &name) {
                KeptPaths::No => self.aside(base, &name, old, &name)?,
                KeptPaths::All => {}
                KeptPaths::Below(below) => {
                    let (there, stat) = open_up(roots, base, &name)?;
                    let there = Arc::new(there);
                    let aside = Arc::new(make(roots, old, &name)?);
                    // Where there is nothing new, an empty folder stands for it.
                    let made = match open_up(roots, new, &name) {
                        Err(Errno::NOENT) => {
                            let stand_in = random_name(b".tmp")?;
                            drop(make(roots, new, &stand_in)?);
                            open_up(roots, new, &stand_in)
                        }
                        made => made,
                    };
                    // Whatever moves out of it changes its time.
                    let (made, wanted) = made?;
                    let (folder, before) = (Arc::clone(&there), stat.st_mode & 0o7777);
                    self.folders.push(OpenedFolder { folder, before, after: wanted.st_mode });
                    let made = Arc::new(made);
                    self.swap(roots, [&there, &made, &aside], &below, false)?;
                    like(&there, &wanted)?;
                }
            }
        }
        for name in names(new)? {
            if !matches!(inside(&kept, &name), KeptPaths::No) || is_hidden(&name) {
                continue;
            }
            let mut attempts = 0;
            loop {
                match self.within(new, &name, base) {
                    // Somebody was faster.
                    Err(Errno::EXIST) if attempts < ATTEMPTS => {
                        self.aside(base, &name, old, &random_name(b".tmp")?)?;
                        attempts += 1;
                    }
                    moved => break moved?,
                }
            }
        }
        Ok(())
    }
}

enum KeptPaths<'a> {
    /// Nothing of it is.
    No,
    /// It is, with all that is in it.
    All,
    /// Something in it is.
    Below(Vec<&'a [Vec<u8>]>),
}

/// Paths by their first name, each with what follows that. There may be as many as there are files.
fn by_first_name<'a>(kept: &[&'a [Vec<u8>]]) -> HashMap<&'a [u8], Vec<&'a [Vec<u8>]>> {
    let mut by_name: HashMap<&[u8], Vec<&[Vec<u8>]>> = HashMap::new();
    for (first, rest) in kept.iter().filter_map(|path| path.split_first()) {
        by_name.entry(first).or_default().push(rest);
    }
    by_name
}

fn inside<'a>(kept: &HashMap<&[u8], Vec<&'a [Vec<u8>]>>, name: &[u8]) -> KeptPaths<'a> {
    let below = kept.get(name).cloned().unwrap_or_default();
    if below.is_empty() {
        KeptPaths::No
    } else if below.iter().any(|rest| rest.is_empty()) {
        KeptPaths::All
    } else {
        KeptPaths::Below(below)
    }
}

fn names(folder: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    rustix::fs::seek(folder, rustix::fs::SeekFrom::Start(0))?;
    let mut names = Vec::new();
    while let Some(entries) = some_entries(folder)? {
        names.extend(entries.into_iter().map(|(name, _)| name));
    }
    Ok(names)
}

fn make(roots: &Roots, folder: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match mkdirat(folder, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => roots.enter(folder, name, OFlags::RDONLY),
        Err(errno) => Err(errno),
    }
}

/// Opens a folder to be changed, and says what it was. One that its owner has closed is opened first.
fn open_up(roots: &Roots, folder: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
    let held = roots.enter(folder, name, OFlags::PATH)?;
    let stat = fstat(&held)?;
    if stat.st_mode & 0o700 != 0o700 && stat.st_uid == geteuid().as_raw() {
        let mode = Mode::from_raw_mode((stat.st_mode | 0o700) & 0o7777);
        chmodat(CWD, held_path(&held), mode, AtFlags::empty())?;
    }
    Ok((reopen(&held, OFlags::RDONLY | OFlags::DIRECTORY)?, stat))
}

/// Gives a folder that stays what the one in its place would have had, but for its permissions.
fn like(folder: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
    let uid = rustix::fs::Uid::from_raw(stat.st_uid);
    // As far as may be; the rest is the caller's to see.
    let _ = fchown(folder, Some(uid), Some(rustix::fs::Gid::from_raw(stat.st_gid)));
    let time =
        Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0) };
    futimens(folder, &Timestamps { last_access: time, last_modification: time })
}

/// Does something with an entry. A folder moves only if it may be changed itself; one that its owner
/// has closed is opened for the moment.
fn unlocked(
    folder: &OwnedFd,
    name: &[u8],
    work: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match work() {
        Err(Errno::ACCESS) => {}
        worked => return worked,
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = openat(folder, name, flags, Mode::empty()).map_err(|_| Errno::ACCESS)?;
    let mode = fstat(&held)?.st_mode & 0o7777;
    let set = |mode| chmodat(CWD, held_path(&held), Mode::from_raw_mode(mode), AtFlags::empty());
    set(mode | 0o700)?;
    let worked = work();
    set(mode)?;
    worked
}
