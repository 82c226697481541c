//! Makes a mount in the namespaces of a session, or takes it away: a short-lived process of its own.
//!
//! The kernel wants whoever opened the device to be in the user namespace of the mount. So this process joins that
//! namespace, opens the device with the rights of its own user, which it keeps, and joins the namespace of mounts. The
//! device is nowhere inside. Everything inside is hostile: paths are followed name by name from the workspace, through
//! no link and no other mount.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use bastide_proto::boot::UserAndGroup;
use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, ResolveFlags, Uid, mkdirat, openat2, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use rustix::thread::{
    LinkNameSpaceType, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::control::Channel;

/// How deep beneath the workspace a mount may be.
pub(crate) const MAX_DEPTH: usize = 32;

/// The step of entering a session.
pub(crate) const JOIN: &str = "join the session's namespace";

/// How names are followed on the way to the place of a mount.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What to do. The namespaces of users and of mounts come along.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AttachRequest {
    /// Make a mount.
    Attach(MountTarget),
    /// Take away what a keeper that was killed left at a place, if it did.
    Clear(MountTarget),
    /// Take one away. The folders of what was made come along: first that of the mount itself.
    Detach {
        /// Whom to become.
        inside: Option<UserAndGroup>,
        /// What the mount lies on, in the first folder.
        name: String,
        /// What was made for it, in the other folders in their order.
        made: Vec<String>,
    },
}

/// Where to make a mount.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MountTarget {
    /// The FUSE device.
    pub(crate) device: PathBuf,
    /// The workspace.
    pub(crate) workspace: String,
    /// The names from there to the mount.
    pub(crate) names: Vec<String>,
    /// Whether it can only be read.
    pub(crate) read_only: bool,
    /// Whom to become.
    pub(crate) inside: Option<UserAndGroup>,
    /// Whose the mount is; of whoever this process is inside, if none.
    pub(crate) owner: Option<UserAndGroup>,
}

/// What became of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AttachOutcome {
    /// It is mounted. The device comes along, the folder that the mount lies in, and those of what was made.
    Attached {
        /// Whose the mount is.
        owner: UserAndGroup,
        /// What was made, outermost first.
        made: Vec<String>,
    },
    /// It is not there any more.
    Detached {
        /// Whether somebody still uses it.
        is_busy: bool,
    },
    /// It could not be done, and nothing was changed.
    Failed {
        /// What was being done, as in "cannot {step}".
        step: String,
        /// The system's error number.
        errno: i32,
    },
}

/// What could not be done.
struct StepError {
    step: String,
    errno: Errno,
}

/// Names the step an error belongs to.
trait StepContext<T> {
    fn step(self, name: impl FnOnce() -> String) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn step(self, name: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error.into()).unwrap_or(Errno::IO);
            StepError { step: name(), errno }
        })
    }
}

/// Answers one request and says what became of it.
///
/// # Errors
/// If whoever gave it is gone.
pub fn attach(channel: &Channel) -> io::Result<()> {
    let Some((attach_request, fds)) = channel.receive::<AttachRequest>()? else { return Ok(()) };
    let done = match attach_request {
        AttachRequest::Attach(mount_target) => mount(&mount_target, fds),
        AttachRequest::Clear(mount_target) => clear(&mount_target, fds),
        AttachRequest::Detach { inside, name, made } => detach(inside, &name, &made, fds),
    };
    let (done, fds) = done.unwrap_or_else(|StepError { step, errno }| {
        (AttachOutcome::Failed { step, errno: errno.raw_os_error() }, Vec::new())
    });
    channel.send_with(&done, &fds)
}

fn mount(
    mount_target: &MountTarget,
    fds: Vec<OwnedFd>,
) -> Result<(AttachOutcome, Vec<OwnedFd>), StepError> {
    let (users, mounts, _) = namespaces(fds)?;
    join_users(&users)?;
    let device = &mount_target.device;
    let device = File::options()
        .read(true)
        .write(true)
        .open(device)
        .step(|| format!("open {}", device.display()))?;
    join(&mounts, LinkNameSpaceType::Mount)?;
    become_inside(mount_target.inside)?;
    let own = UserAndGroup {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    };
    let owner = mount_target.owner.unwrap_or(own);
    let mut made = MadeFolders::default();
    let mounted = made.reach(mount_target).and_then(|(parent, target)| {
        let mount = new_mount(&device, owner, mount_target.read_only)?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&mount, "", &target, "", flags).step(|| "attach the mount".to_owned())?;
        Ok(parent)
    });
    match mounted {
        Ok(parent) => {
            let (folders, made) = made.0.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
            let mut fds = vec![device.into(), parent];
            fds.extend(folders);
            Ok((AttachOutcome::Attached { owner, made }, fds))
        }
        Err(error) => {
            made.remove();
            Err(error)
        }
    }
}

/// The namespaces that come with every request, and whatever comes after them.
fn namespaces(fds: Vec<OwnedFd>) -> Result<(OwnedFd, OwnedFd, Vec<OwnedFd>), StepError> {
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next()) {
        (Some(users), Some(mounts)) => Ok((users, mounts, fds.collect())),
        _ => Err(Errno::BADMSG).step(|| "find the session's namespaces".to_owned()),
    }
}

fn join(namespace: &OwnedFd, kind: LinkNameSpaceType) -> Result<(), StepError> {
    move_into_link_name_space(namespace.as_fd(), Some(kind)).step(|| format!("{JOIN} ({kind:?})"))
}

/// Joins the namespace of users, unless this process is in it: containers of most engines have none of their own, and
/// the kernel lets nobody join twice.
fn join_users(users: &OwnedFd) -> Result<(), StepError> {
    let is_own = || -> Result<bool, Errno> {
        let own = rustix::fs::stat("/proc/self/ns/user")?;
        let theirs = rustix::fs::fstat(users)?;
        Ok((own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino))
    };
    if is_own().step(|| "compare namespaces of users".to_owned())? {
        return Ok(());
    }
    join(users, LinkNameSpaceType::User)
}

/// Takes an id that exists inside, so that what is made there has an owner.
fn become_inside(inside: Option<UserAndGroup>) -> Result<(), StepError> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let Some(UserAndGroup { uid, gid }) = inside else { return Ok(()) };
    let step = || "become the session's user".to_owned();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).step(step)?;
    set_thread_res_gid(gid, gid, gid).step(step)?;
    set_thread_res_uid(uid, uid, uid).step(step)
}

/// Folders that were made on the way, each with the one it lies in.
#[derive(Default)]
struct MadeFolders(Vec<(OwnedFd, String)>);

impl MadeFolders {
    /// The place of the mount, an empty folder, and the folder it lies in.
    fn reach(&mut self, mount_target: &MountTarget) -> Result<(OwnedFd, OwnedFd), StepError> {
        let MountTarget { workspace, names, .. } = mount_target;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = |depth: usize| format!("{workspace}/{}", names[..=depth].join("/"));
        let mut parent = None;
        let mut folder =
            openat2(CWD, workspace.as_str(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
                .step(|| format!("find {workspace}"))?;
        for (depth, name) in names.iter().enumerate() {
            match mkdirat(&folder, name.as_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    let above = folder.try_clone().step(|| format!("make {}", path(depth)))?;
                    self.0.push((above, name.clone()));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).step(|| format!("make {}", path(depth))),
            }
            let step = || format!("mount on {}", path(depth));
            let next = match openat2(&folder, name.as_str(), flags, Mode::empty(), WITHIN) {
                Err(Errno::XDEV) if is_dead(&folder, name) => {
                    take_away(&folder, name, UnmountFlags::DETACH).step(step)?;
                    openat2(&folder, name.as_str(), flags, Mode::empty(), WITHIN)
                }
                opened => opened,
            };
            let next = next.step(step)?;
            parent = Some(std::mem::replace(&mut folder, next));
        }
        let step = || format!("mount on {workspace}/{}", names.join("/"));
        let parent = parent.ok_or(Errno::INVAL).step(step)?;
        if !is_empty(&folder).step(step)? {
            return Err(Errno::NOTEMPTY).step(step);
        }
        Ok((parent, folder))
    }

    /// Removes them again, as far as they are empty.
    fn remove(self) {
        for (folder, name) in self.0.into_iter().rev() {
            // Whatever somebody put there meanwhile stays.
            let _ = unlinkat(&folder, name.as_str(), AtFlags::REMOVEDIR);
        }
    }
}

/// Whether a name is a FUSE mount that nobody answers for any more, as a keeper leaves that was killed.
fn is_dead(folder: &OwnedFd, name: &str) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let crossing = WITHIN - ResolveFlags::NO_XDEV;
    let found = openat2(folder, name, flags, Mode::empty(), crossing);
    found.is_ok_and(|found| matches!(rustix::fs::fstatfs(&found), Err(Errno::NOTCONN)))
}

/// Unmounts what lies on a name in a folder that is held.
fn take_away(folder: &OwnedFd, name: &str, flags: UnmountFlags) -> Result<(), Errno> {
    rustix::process::fchdir(folder)?;
    unmount(name, UnmountFlags::NOFOLLOW | flags)
}

fn is_empty(folder: &OwnedFd) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(folder, ".", flags, Mode::empty())?;
    for entry in Dir::new(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A mount that is attached nowhere yet.
fn new_mount(device: &File, owner: UserAndGroup, read_only: bool) -> Result<OwnedFd, StepError> {
    let step = || "make a FUSE file system".to_owned();
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
    let options = [
        ("source", "bastide".to_owned()),
        ("subtype", "bastide".to_owned()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", owner.uid.to_string()),
        ("group_id", owner.gid.to_string()),
    ];
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), key, value).step(step)?;
    }
    for flag in ["default_permissions", "allow_other"] {
        fsconfig_set_flag(context.as_fd(), flag).step(step)?;
    }
    fsconfig_create(context.as_fd()).step(step)?;
    let closed = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let closed = if read_only { closed | MountAttrFlags::MOUNT_ATTR_RDONLY } else { closed };
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, closed).step(step)
}

/// Takes a mount away that nobody answers for any more. Whatever else is there stays.
fn clear(
    mount_target: &MountTarget,
    fds: Vec<OwnedFd>,
) -> Result<(AttachOutcome, Vec<OwnedFd>), StepError> {
    let (users, mounts, _) = namespaces(fds)?;
    join_users(&users)?;
    join(&mounts, LinkNameSpaceType::Mount)?;
    become_inside(mount_target.inside)?;
    let MountTarget { workspace, names, .. } = mount_target;
    let done = || Ok((AttachOutcome::Detached { is_busy: false }, Vec::new()));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder =
        openat2(CWD, workspace.as_str(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .step(|| format!("find {workspace}"))?;
    let Some((name, above)) = names.split_last() else { return done() };
    for above in above {
        match openat2(&folder, above.as_str(), flags, Mode::empty(), WITHIN) {
            Ok(next) => folder = next,
            // A command put something else there; the mount is not at its place any more.
            Err(_) => return done(),
        }
    }
    if is_dead(&folder, name) {
        take_away(&folder, name, UnmountFlags::DETACH).step(|| "unmount".to_owned())?;
    }
    done()
}

fn detach(
    inside: Option<UserAndGroup>,
    name: &str,
    made: &[String],
    fds: Vec<OwnedFd>,
) -> Result<(AttachOutcome, Vec<OwnedFd>), StepError> {
    let (users, mounts, folders) = namespaces(fds)?;
    let mut folders = folders.into_iter();
    let step = || "unmount".to_owned();
    let parent = folders.next().ok_or(Errno::BADMSG).step(step)?;
    join_users(&users)?;
    join(&mounts, LinkNameSpaceType::Mount)?;
    become_inside(inside)?;
    // By the folder that is held: whatever a command renamed above it, the mount is there.
    let is_busy = match take_away(&parent, name, UnmountFlags::empty()) {
        Ok(()) => false,
        // It is not there any more.
        Err(Errno::INVAL | Errno::NOENT) => false,
        Err(Errno::BUSY) => {
            take_away(&parent, name, UnmountFlags::DETACH).step(step)?;
            true
        }
        Err(errno) => return Err(errno).step(step),
    };
    MadeFolders(folders.zip(made.iter().cloned()).collect()).remove();
    Ok((AttachOutcome::Detached { is_busy }, Vec::new()))
}
