//! Who is who inside. No id inside is ever the host's root.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bastide_proto::boot::{IdExtent, Ids, UserAndGroup};
use rustix::process::{Gid, Pid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Step, StepError, open_alone};

/// How many ids a range has: all that programs expect to exist.
const RANGE: u32 = 65_536;

/// The first id of the first range.
const FIRST: u32 = bastide_proto::boot::FIRST_RANGE_ID;

/// How many ranges there are before ids run out.
const RANGES: u32 = 4096;

/// The ids of one session.
#[derive(Debug)]
pub(crate) enum IdMap {
    /// [`RANGE`] ids from 0 up inside are as many from `base` up outside.
    Range {
        /// The first id outside.
        base: u32,
        /// Locked for as long as any process of the session lives: the kernel lets go of it,
        /// whatever happens.
        _lock: File,
        /// Where the lock is.
        path: PathBuf,
    },
    /// The caller's own user and group, and what two programs of the machine add to them.
    Subordinate {
        /// What writes which map.
        writers: [Writer; 2],
    },
    /// One user and one group.
    Own {
        /// Outside.
        outside: UserAndGroup,
        /// Inside.
        inside: UserAndGroup,
    },
}

/// A program that may write a map that we may not.
#[derive(Debug)]
pub(crate) struct Writer {
    program: PathBuf,
    extents: Vec<IdExtent>,
}

impl Writer {
    /// Has the program write the map of `child`. It is the machine's own, and answers at once.
    fn write(&self, child: Pid) -> io::Result<()> {
        let numbers = self.extents.iter().flat_map(|one| [one.inside, one.outside, one.count]);
        let status = Command::new(&self.program)
            .arg(child.as_raw_nonzero().to_string())
            .args(numbers.map(|number| number.to_string()))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if status.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
    }
}

impl IdMap {
    /// Claims the ids a session shall have.
    pub(crate) fn claim(wanted: &Ids) -> Result<Self, StepError> {
        match wanted {
            Ids::Own { outside, inside } => Ok(Self::Own { outside: *outside, inside: *inside }),
            Ids::Subordinate { users, groups, newuidmap, newgidmap } => {
                let writer = |program: &PathBuf, extents: &Vec<IdExtent>| Writer {
                    program: program.clone(),
                    extents: extents.clone(),
                };
                let writers = [writer(newuidmap, users), writer(newgidmap, groups)];
                Ok(Self::Subordinate { writers })
            }
            Ids::Range { locks } => {
                claim_range(locks).step(|| format!("claim a range of ids in {}", locks.display()))
            }
        }
    }

    /// Gives the ids back, once no process has them any more. The lock is still held, so nobody else
    /// can be using it; one that cannot be removed is only a file too many.
    pub(crate) fn release(&self) {
        if let Self::Range { path, .. } = self {
            drop(fs::remove_file(path));
        }
    }

    /// Writes the map into the user namespace of `child`, from outside.
    pub(crate) fn write(&self, child: Pid) -> Result<(), StepError> {
        let write = |file: &str, text: String| {
            let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
            fs::write(&path, text).step(|| format!("write the {file} of the sandbox"))
        };
        match self {
            Self::Range { base, .. } => {
                write("uid_map", format!("0 {base} {RANGE}\n"))?;
                write("gid_map", format!("0 {base} {RANGE}\n"))
            }
            Self::Subordinate { writers } => {
                for writer in writers {
                    let step = || format!("have {} map ids", writer.program.display());
                    writer.write(child).step(step)?;
                }
                Ok(())
            }
            Self::Own { outside, inside } => {
                // The kernel lets an ordinary user map the own group only once nobody inside can
                // leave groups: a group can also be what denies access to a file.
                write("setgroups", "deny\n".to_owned())?;
                write("uid_map", format!("{} {} 1\n", inside.uid, outside.uid))?;
                write("gid_map", format!("{} {} 1\n", inside.gid, outside.gid))
            }
        }
    }

    /// Makes a folder of the host, if it is missing, that only the guest uses. Under a range only the
    /// host can find it, and opens it here; otherwise init does.
    pub(crate) fn guest_folder(&self, path: &Path) -> Result<Option<OwnedFd>, StepError> {
        let step = || format!("make {}", path.display());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.step(step)?;
        if let Self::Range { base, .. } = self {
            chown(path, Some(*base), Some(*base)).step(step)?;
            return open_alone(path).map(Some);
        }
        Ok(None)
    }

    /// Takes the first process's ids inside. Until then it still has the caller's, which under a
    /// range do not exist inside and can create nothing there.
    pub(crate) fn become_inside(&self) -> Result<(), StepError> {
        if !matches!(self, Self::Range { .. }) {
            return Ok(());
        }
        set_thread_groups(&[]).step(|| "leave the caller's groups".to_owned())?;
        let (uid, gid) = (Uid::ROOT, Gid::ROOT);
        set_thread_res_gid(gid, gid, gid).step(|| "take the sandbox's group".to_owned())?;
        set_thread_res_uid(uid, uid, uid).step(|| "take the sandbox's user".to_owned())
    }
}

fn is_in_place(lock: &File, path: &Path) -> io::Result<bool> {
    let held = lock.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((held.dev(), held.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn claim_range(locks: &Path) -> io::Result<IdMap> {
    fs::create_dir_all(locks)?;
    for number in 0..RANGES {
        let path = locks.join(number.to_string());
        let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
        match lock.try_lock() {
            // Somebody who clears away locks nobody holds may have removed this one just before.
            Ok(()) if !is_in_place(&lock, &path)? => {}
            Ok(()) => return Ok(IdMap::Range { base: FIRST + number * RANGE, _lock: lock, path }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}
