//! Who is who inside. No id inside is ever the host's root.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown, lchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bastide_proto::boot::{HostIds, IdExtent, Ids, UserAndGroup};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Uid, WaitOptions, waitpid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{StepContext, StepError, open_alone};
use crate::sys::{Fork, exit_now, fork_into};

/// How many ids a range has: all that programs expect to exist.
const RANGE: u32 = 65_536;

/// The first id of the first range.
const FIRST: u32 = bastide_proto::boot::FIRST_RANGE_ID;

/// How many ranges there are before ids run out.
const RANGES: u32 = 4096;

/// The ids of one session.
#[derive(Debug)]
pub(crate) enum IdMap {
    /// [`RANGE`] ids from 0 up inside are as many from `base` up outside; or one is `base`.
    Range {
        /// The first id outside.
        base: u32,
        /// What that one looks like inside, where it is the only one.
        only: Option<UserAndGroup>,
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
    /// Ids of the host.
    Host {
        /// Whose; the caller's if none.
        who: Option<UserAndGroup>,
        /// The lock of the range they are out of.
        claim: Option<(File, PathBuf)>,
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
    /// Claims ids for a session. Those of the host are for the session in a folder; `before` is the one
    /// it had before, if any.
    pub(crate) fn claim(
        wanted: &Ids,
        session_dir: Option<&Path>,
        before: Option<u32>,
    ) -> Result<Self, StepError> {
        match wanted {
            // Whoever maps another's id has powers that must not reach a sandbox.
            Ids::Own { outside, .. } if rustix::process::geteuid().as_raw() != outside.uid => {
                Err(StepError::from_errno("be the user of the sandbox", libc::EPERM))
            }
            Ids::Own { outside, inside } => Ok(Self::Own { outside: *outside, inside: *inside }),
            Ids::Subordinate { users, groups, newuidmap, newgidmap } => {
                let writer = |program: &PathBuf, extents: &Vec<IdExtent>| Writer {
                    program: program.clone(),
                    extents: extents.clone(),
                };
                let writers = [writer(newuidmap, users), writer(newgidmap, groups)];
                Ok(Self::Subordinate { writers })
            }
            Ids::Range { locks, only } => {
                let (base, _lock, path) = claim_range(locks, None, None)?;
                Ok(Self::Range { base, only: *only, _lock, path })
            }
            Ids::Host(HostIds::Caller) => Ok(Self::Host { who: None, claim: None }),
            Ids::Host(HostIds::Given(who)) => Ok(Self::Host { who: Some(*who), claim: None }),
            Ids::Host(HostIds::Claimed { locks }) => {
                // What a session left when it was stopped belongs to the id it had then.
                let (base, lock, path) = claim_range(locks, session_dir, before)?;
                let who = UserAndGroup { uid: base, gid: base };
                Ok(Self::Host { who: Some(who), claim: Some((lock, path)) })
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

    /// Gives back ids of the host too, which files of the session have as long as there are any.
    pub(crate) fn forget(&self) {
        self.release();
        if let Self::Host { claim: Some((_, path)), .. } = self {
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
            Self::Range { base, only: None, .. } => {
                write("uid_map", format!("0 {base} {RANGE}\n"))?;
                write("gid_map", format!("0 {base} {RANGE}\n"))
            }
            Self::Range { base, only: Some(one), .. } => {
                write("uid_map", format!("{} {base} 1\n", one.uid))?;
                write("gid_map", format!("{} {base} 1\n", one.gid))
            }
            Self::Host { .. } => Ok(()),
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
        match self {
            Self::Range { base, .. } => {
                chown(path, Some(*base), Some(*base)).step(step)?;
                open_alone(path).map(Some)
            }
            Self::Host { .. } => {
                self.give(path).step(step)?;
                Ok(Some(File::open(path).step(step)?.into()))
            }
            Self::Subordinate { .. } | Self::Own { .. } => Ok(None),
        }
    }

    /// A user namespace through which files of `owner` on disk belong to the only user inside, and files
    /// of anybody else to nobody: what is made through it can have no other owner.
    pub(crate) fn namespace_of(&self, owner: UserAndGroup) -> Result<File, StepError> {
        let Self::Range { base, only: Some(_), .. } = self else {
            return Err(StepError::from_errno("show one owner only", libc::EINVAL));
        };
        let step = || format!("show files of {}:{} as the sandbox's", owner.uid, owner.gid);
        let (near, far) = UnixStream::pair().step(step)?;
        let child = match fork_into(libc::CLONE_NEWUSER).step(step)? {
            Fork::Child => {
                drop(near);
                // Until the namespace is held, or nobody wants it.
                drop((&far).read(&mut [0]));
                exit_now(0)
            }
            Fork::Parent(child) => child,
        };
        drop(far);
        let of_child = format!("/proc/{}", child.as_raw_nonzero());
        let opened = fs::write(format!("{of_child}/uid_map"), format!("{} {base} 1\n", owner.uid))
            .and_then(|()| {
                fs::write(format!("{of_child}/gid_map"), format!("{} {base} 1\n", owner.gid))
            })
            .and_then(|()| File::open(format!("{of_child}/ns/user")));
        drop(near);
        while let Err(Errno::INTR) = waitpid(Some(child), WaitOptions::empty()) {}
        opened.step(step)
    }

    /// Whether there is one user inside, out of a range.
    pub(crate) fn has_one(&self) -> bool {
        matches!(self, Self::Range { only: Some(_), .. })
    }

    /// Whether only the host can show its files inside, because owners are shifted on the way.
    pub(crate) fn are_shifted(&self) -> bool {
        matches!(self, Self::Range { .. })
    }

    /// The user everything inside is to the host, where that was chosen here.
    pub(crate) fn on_host(&self) -> Option<u32> {
        match self {
            Self::Host { who, .. } => who.map(|who| who.uid),
            Self::Range { .. } | Self::Subordinate { .. } | Self::Own { .. } => None,
        }
    }

    /// Gives a file of the host to everybody inside.
    fn give(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Host { who: Some(who), .. } => lchown(path, Some(who.uid), Some(who.gid)),
            _ => Ok(()),
        }
    }

    /// Makes a folder of the host that everybody inside owns. One that is there has to be theirs.
    pub(crate) fn own_folder(&self, path: &Path) -> Result<(), StepError> {
        let step = || format!("make {}", path.display());
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => self.give(path).step(step),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = fs::symlink_metadata(path).step(step)?;
                let owner = match self {
                    Self::Host { who: Some(who), .. } => who.uid,
                    _ => rustix::process::geteuid().as_raw(),
                };
                if found.is_dir() && found.uid() == owner {
                    return Ok(());
                }
                // Made by the caller just now, and empty: it can be given away.
                let is_callers = found.uid() == rustix::process::geteuid().as_raw();
                match found.is_dir() && is_callers && rustix::fs::rmdir(path).is_ok() {
                    true => self.own_folder(path),
                    false => Err(StepError::from_errno(&step(), libc::EEXIST)),
                }
            }
            Err(error) => Err(error).step(step),
        }
    }

    /// Takes the first process's ids inside. Until then it still has the caller's, which under a
    /// range do not exist inside and can create nothing there.
    pub(crate) fn become_inside(&self) -> Result<(), StepError> {
        let Some(UserAndGroup { uid, gid }) = self.inside() else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[]).step(|| "leave the caller's groups".to_owned())?;
        set_thread_res_gid(gid, gid, gid).step(|| "take the sandbox's group".to_owned())?;
        set_thread_res_uid(uid, uid, uid).step(|| "take the sandbox's user".to_owned())
    }

    /// Who everybody is inside, where the caller is nobody there.
    pub(crate) fn inside(&self) -> Option<UserAndGroup> {
        match self {
            Self::Range { only, .. } => Some(only.unwrap_or(UserAndGroup { uid: 0, gid: 0 })),
            Self::Host { who, .. } => *who,
            Self::Subordinate { .. } | Self::Own { .. } => None,
        }
    }
}

/// A number of a range that nobody can foresee; the first, where there is no chance to be had.
fn anywhere() -> u32 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(4) => u32::from_le_bytes(bytes) % RANGES,
        Ok(_) | Err(_) => 0,
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

/// Whether a range belongs to the files of another session that does not run: its lock says where that
/// one is.
fn is_kept(mut lock: &File, own: Option<&Path>) -> io::Result<bool> {
    let mut noted = Vec::new();
    lock.take(4096).read_to_end(&mut noted)?;
    lock.rewind()?;
    let noted = Path::new(OsStr::from_bytes(&noted));
    Ok(!noted.as_os_str().is_empty() && Some(noted) != own && !is_gone(noted))
}

/// Whether a session's folder is known to be gone. Without the folder around it nobody can tell: the home may have been
/// moved, or lie on a disk that is not mounted now.
fn is_gone(session: &Path) -> bool {
    session.parent().is_some_and(Path::is_dir) && matches!(session.try_exists(), Ok(false))
}

/// Claims a range that nobody has: its first id, its lock, and where that is. Where files keep its ids,
/// the lock says whose they are.
fn claim_range(
    locks: &Path,
    owner: Option<&Path>,
    before: Option<u32>,
) -> Result<(u32, File, PathBuf), StepError> {
    let claim = || -> io::Result<_> {
        fs::create_dir_all(locks)?;
        let (first, count) = match before.and_then(|id| id.checked_sub(FIRST)) {
            Some(offset) => (offset / RANGE, 1),
            // Containers on one machine share its ids and not its locks, so everybody begins elsewhere.
            None => (anywhere(), RANGES),
        };
        for number in (0..count).map(|step| (first + step) % RANGES) {
            let path = locks.join(number.to_string());
            let mut options = File::options();
            let options = options.create(true).truncate(false).read(true).write(true);
            let mut lock = options.open(&path)?;
            match lock.try_lock() {
                // Somebody who clears away locks nobody holds may have removed this one just before.
                Ok(()) if !is_in_place(&lock, &path)? || is_kept(&lock, owner)? => {}
                Ok(()) => {
                    lock.set_len(0)?;
                    lock.write_all(owner.map_or(&[][..], |owner| owner.as_os_str().as_bytes()))?;
                    return Ok((FIRST + number * RANGE, lock, path));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    };
    claim().step(|| format!("claim a range of ids in {}", locks.display()))
}
