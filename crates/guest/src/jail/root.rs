//! The new root: an empty file system in memory, filled step by step, then made the only one.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bastide_proto::boot::{InodeId, RootStep, UserAndGroup};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, ResolveFlags, mkdirat, openat, openat2, statat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{fchdir, pivot_root};

use super::{StepContext, StepError, open_host_file};
use crate::removable_walls::{Wall, is_removed};
use crate::sys::{MountAttributes, set_mount_attributes};

/// Nothing mounted inside grants privileges or makes device nodes work.
pub(super) const CLOSED: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// How paths in the new root are followed: not out of it, and through no symbolic link.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// A mount that takes the place of a folder of the host.
#[derive(Debug)]
pub(crate) struct BindOverride<'a> {
    /// The folder.
    pub(crate) of: &'a Path,
    /// The mount, attached nowhere.
    pub(crate) mount: OwnedFd,
}

/// Says which user namespace shows files of an owner on disk, or of all owners, as whose inside; none
/// where everybody stays who they are.
pub(crate) type Owners<'a> = &'a dyn Fn(Option<UserAndGroup>) -> Result<Option<File>, StepError>;

/// Copies the mounts of every bind step, from outside, where the caller's own rights count.
///
/// Under a range of ids the first process inside may not even look at the caller's folders, and only
/// the host may shift owners, so the warden does this and hands the copies over.
pub(crate) fn clone_binds(
    steps: &[RootStep],
    owners: Owners<'_>,
    mut bind_override: Option<BindOverride<'_>>,
) -> Result<Vec<OwnedFd>, StepError> {
    steps
        .iter()
        .filter_map(|step| match step {
            RootStep::BindOwned { source, .. }
                if bind_override
                    .as_ref()
                    .is_some_and(|bind_override| bind_override.of == source) =>
            {
                bind_override.take().map(|bind_override| Ok(bind_override.mount))
            }
            RootStep::Bind { source, writable, .. } => {
                Some(clone_bind(source, None, attributes(*writable), None))
            }
            RootStep::BindOwned { source, writable, owner, identity, .. } => {
                Some(owners(*owner).and_then(|namespace| {
                    let namespace = namespace.as_ref().map(AsFd::as_fd);
                    clone_bind(source, *identity, attributes(*writable), namespace)
                }))
            }
            _ => None,
        })
        .collect()
}

/// Opens a folder of the host for somebody inside. It is the top of a mount of its own, attached
/// nowhere: a plain descriptor would lead up to the host's root, whatever namespace its holder is in.
pub(crate) fn open_alone(path: &Path) -> Result<OwnedFd, StepError> {
    let step = || format!("open {}", path.display());
    if is_removed(Wall::FoldersAlone) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        return rustix::fs::open(path, flags, Mode::empty()).step(step);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(rustix::fs::CWD, path, flags).step(step)?;
    let closed = CLOSED | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let attributes = MountAttributes { set: u64::from(closed.bits()), user_namespace: None };
    set_mount_attributes(&mount, attributes).step(step)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&mount, ".", flags, Mode::empty()).step(step)
}

fn attributes(writable: bool) -> MountAttrFlags {
    if writable || is_removed(Wall::ReadOnly) {
        closed()
    } else {
        closed() | MountAttrFlags::MOUNT_ATTR_RDONLY
    }
}

fn closed() -> MountAttrFlags {
    if is_removed(Wall::SetUserId) { CLOSED - MountAttrFlags::MOUNT_ATTR_NOSUID } else { CLOSED }
}

fn clone_bind(
    source: &Path,
    identity: Option<InodeId>,
    attributes: MountAttrFlags,
    user_namespace: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, StepError> {
    // From here on nothing follows the path again.
    let file = open_host_file(source, identity)?;
    let mount = open_tree(&file, c"", COPY | OpenTreeFlags::AT_RECURSIVE)
        .step(|| format!("open {} of the host", source.display()))?;
    let attributes = MountAttributes {
        // A device file keeps working only where devices are allowed; commands still cannot make
        // one, and only the few of the allow-list are bound.
        set: u64::from(without_nodev_for_devices(&mount, attributes).bits()),
        user_namespace: user_namespace.map(|fd| fd.as_raw_fd()),
    };
    match (set_mount_attributes(&mount, attributes), user_namespace) {
        (Err(error), Some(shifted)) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(no_shifted_owners(source, &file, shifted))
        }
        (set, _) => {
            set.step(|| format!("restrict the mount of {}", source.display())).map(|()| mount)
        }
    }
}

/// A copy of a mount, attached nowhere, of what is open already.
const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_EMPTY_PATH);

/// The error where the kernel cannot show files of a file system with other owners: of the one that `source` lies on, or
/// of one that is mounted somewhere in it.
fn no_shifted_owners(source: &Path, file: &OwnedFd, shifted: BorrowedFd<'_>) -> StepError {
    let alone = open_tree(file, c"", COPY).map_err(std::io::Error::from).and_then(|alone| {
        let user_namespace = Some(shifted.as_raw_fd());
        set_mount_attributes(alone, MountAttributes { set: 0, user_namespace })
    });
    let what = match alone {
        Ok(()) => "a file system that is mounted in it",
        Err(_) => "the file system it lies on",
    };
    let step =
        format!("show {} to commands of root: {what} has no id-mapped mounts", source.display());
    StepError::from_errno(&step, libc::EINVAL).of_session().with_hint(
        "use a folder of a file system that has them (ext4, XFS, Btrfs, tmpfs), start the session as another user \
         than root, or ask for the rung `landlock`",
    )
}

fn without_nodev_for_devices(mount: &OwnedFd, attributes: MountAttrFlags) -> MountAttrFlags {
    let is_device = rustix::fs::fstat(mount)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice);
    if is_device { attributes - MountAttrFlags::MOUNT_ATTR_NODEV } else { attributes }
}

/// Begins a new root on the current folder, and stays in it. `binds` are the copies of [`clone_binds`],
/// in order; without them they are made here.
pub(crate) fn begin_root(steps: &[RootStep], binds: Option<Vec<OwnedFd>>) -> Result<(), StepError> {
    // Nothing mounted from here on may show up outside.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the sandbox's mounts private".to_owned())?;
    let root = new_tmpfs(0o755, None)?;
    attach(&root, rustix::fs::CWD, "the new root")?;
    fchdir(&root).step(|| "enter the new root".to_owned())?;
    build_all(steps, binds)
}

/// Finishes the root that [`begin_root`] began, or a copy of a template, which is closed already. Nothing
/// can be added to it from here on.
pub(crate) fn finish_root(
    steps: &[RootStep],
    binds: Option<Vec<OwnedFd>>,
    has_template: bool,
) -> Result<(), StepError> {
    // The base was built by the same means, so the machine has them: whatever fails here is the session's.
    build_all(steps, binds).map_err(StepError::of_session)?;
    if has_template || is_removed(Wall::ReadOnly) {
        return Ok(());
    }
    let closed = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount_remount(".", closed, c"").step(|| "close the new root".to_owned())
}

/// Makes the new root the only one of this process's mount namespace. Nothing of the host can be found
/// from here on.
pub(crate) fn leave_host() -> Result<(), StepError> {
    // With the same folder twice, the old root ends up stacked on the new one and can be detached
    // without a folder to keep it in.
    pivot_root(".", ".").step(|| "enter the new root".to_owned())?;
    unmount(".", UnmountFlags::DETACH).step(|| "leave the host's root".to_owned())?;
    rustix::process::chdir("/").step(|| "enter the new root".to_owned())
}

fn build_all(steps: &[RootStep], binds: Option<Vec<OwnedFd>>) -> Result<(), StepError> {
    let mut binds = match binds {
        Some(binds) => binds,
        None => clone_binds(steps, &|_| Ok(None), None)?,
    }
    .into_iter();
    steps.iter().try_for_each(|step| build(step, &mut binds))
}

pub(super) fn build(
    step: &RootStep,
    binds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<(), StepError> {
    match step {
        RootStep::Dir { target, mode } => make_dir(target, *mode),
        RootStep::File { target, content } => write_file(target, content.as_bytes()).map(drop),
        RootStep::Link { target, to } => {
            std::os::unix::fs::symlink(to, inside(target)).step(|| format!("link {target}"))
        }
        RootStep::Bind { target, .. } | RootStep::BindOwned { target, .. } => {
            let mount = binds
                .next()
                .ok_or(Errno::BADMSG)
                .step(|| format!("receive the mount of {target}"))?;
            attach_at(&mount, target)
        }
        RootStep::MountPoint { target, is_dir } => make_mount_point(target, *is_dir),
        RootStep::Pin { target } => mount_again(target, None),
        RootStep::ReadOnly { target } => mount_again(target, Some(READ_ONLY)),
        RootStep::Tmpfs { target, mode, size } => attach_at(&new_tmpfs(*mode, *size)?, target),
        RootStep::Proc { target } => attach_at(&new_file_system(c"proc", &[], CLOSED)?, target),
        RootStep::Devpts { target } => {
            let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620")];
            let devices_work = CLOSED - MountAttrFlags::MOUNT_ATTR_NODEV;
            attach_at(&new_file_system(c"devpts", &options, devices_work)?, target)
        }
        _ => Err(Errno::NOSYS).step(|| format!("carry out {step:?}")),
    }
}

/// Where an absolute path inside is while the new root is the current folder.
fn inside(target: &str) -> &str {
    match target.trim_start_matches('/') {
        "" => ".",
        relative => relative,
    }
}

/// Makes a folder. It may lie in one of the host's, whose content the caller does not vouch for, so
/// no symbolic link on the way is followed.
fn make_dir(target: &str, mode: RawMode) -> Result<(), StepError> {
    let (parent, name) = place(target)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) | Ok(()) => Ok(()),
        Err(errno) => Err(errno).step(|| format!("make {target}")).map_err(StepError::of_session),
    }
}

/// Makes something to mount on. What is there already may be somebody's, and is not touched.
fn make_mount_point(target: &str, is_dir: bool) -> Result<(), StepError> {
    let (parent, name) = place(target)?;
    let made = make_exclusively(&parent, name, is_dir).map(drop);
    made.step(|| format!("mount on {target}")).map_err(StepError::of_session)
}

/// Makes an empty file or folder, and says whether it did; one of the same kind may be there already.
pub(crate) fn make_exclusively(
    parent: &OwnedFd,
    name: impl rustix::path::Arg + Copy,
    is_dir: bool,
) -> Result<bool, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = match is_dir {
        true => mkdirat(parent, name, Mode::from_raw_mode(0o755)),
        false => openat(parent, name, flags, Mode::from_raw_mode(0o644)).map(drop),
    };
    let wanted = if is_dir { FileType::Directory } else { FileType::RegularFile };
    match made {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => {
            let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(found.st_mode) {
                kind if kind == wanted => Ok(false),
                _ if is_dir => Err(Errno::NOTDIR),
                _ => Err(Errno::EXIST),
            }
        }
        Err(errno) => Err(errno),
    }
}

/// The folder that a path inside lies in, and its name there. No symbolic link on the way is followed.
pub(super) fn place(target: &str) -> Result<(OwnedFd, &str), StepError> {
    let path = inside(target);
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(rustix::fs::CWD, parent, flags, Mode::empty(), WITHIN)
        .map(|parent| (parent, name))
        .step(|| format!("find the folder of {target}"))
        .map_err(StepError::of_session)
}

/// Writes a file of the new root itself, through no symbolic link.
pub(super) fn write_file(target: &str, content: &[u8]) -> Result<File, StepError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let step = || format!("write {target}");
    let file = openat2(rustix::fs::CWD, inside(target), flags, mode, WITHIN).step(step)?;
    let mut file = File::from(file);
    file.write_all(content).step(step)?;
    Ok(file)
}

/// The fewest files of a file system in memory whose size is limited.
const LEAST_INODES: u64 = 1024;

pub(super) fn new_tmpfs(mode: u32, size: Option<u64>) -> Result<OwnedFd, StepError> {
    let text = |text: String| std::ffi::CString::new(text).unwrap_or_default();
    let mode = text(format!("{mode:o}"));
    let bounds = size.map(|size| {
        // An empty file takes memory, too: as many as there are pages in the limit, but room to work with.
        let inodes = (size / 4096).max(LEAST_INODES);
        (text(size.to_string()), text(inodes.to_string()))
    });
    let mut options = vec![(c"mode", mode.as_c_str())];
    if let Some((size, inodes)) = &bounds {
        options.extend([(c"size", size.as_c_str()), (c"nr_inodes", inodes.as_c_str())]);
    }
    new_file_system(c"tmpfs", &options, CLOSED)
}

/// Mounts a file system that nothing is known to lie behind but a device, attached nowhere, so that
/// nothing in it grants privileges or is a device.
pub(crate) fn file_system(
    kind: &std::ffi::CStr,
    options: &[(&std::ffi::CStr, &std::ffi::CStr)],
) -> Result<OwnedFd, StepError> {
    new_file_system(kind, options, closed())
}

/// Shows the owners of a mount's files as a user namespace has them.
pub(crate) fn shift(mount: &OwnedFd, user_namespace: BorrowedFd<'_>) -> Result<(), StepError> {
    let user_namespace = Some(user_namespace.as_raw_fd());
    set_mount_attributes(mount, MountAttributes { set: 0, user_namespace })
        .step(|| "shift the owners of a mount".to_owned())
}

pub(super) fn new_file_system(
    kind: &std::ffi::CStr,
    options: &[(&std::ffi::CStr, &std::ffi::CStr)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, StepError> {
    let name = || format!("make a {} file system", kind.to_string_lossy());
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step(name)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value).step(name)?;
    }
    fsconfig_create(context.as_fd()).step(name)?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(name)
}

/// Attaches a mount at a path inside. A target may lie in a folder whose content the caller does
/// not vouch for, so no symbolic link on the way is followed.
pub(super) fn attach_at(mount: &OwnedFd, target: &str) -> Result<(), StepError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let at = openat2(rustix::fs::CWD, inside(target), flags, Mode::empty(), WITHIN)
        .step(|| format!("find {target} in the new root"))
        .map_err(StepError::of_session)?;
    attach(mount, &at, target)
}

/// What is set on something of the kernel's that nobody may write to.
const READ_ONLY: MountAttrFlags =
    CLOSED.union(MountAttrFlags::MOUNT_ATTR_NOEXEC).union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Mounts something of the new root on itself, as it is or closed.
fn mount_again(target: &str, closed: Option<MountAttrFlags>) -> Result<(), StepError> {
    let step = || format!("mount {target} on itself");
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let at = match openat2(rustix::fs::CWD, inside(target), flags, Mode::empty(), WITHIN) {
        // The kernel was built without it.
        Err(Errno::NOENT) if closed.is_some() => return Ok(()),
        at => at.step(step)?,
    };
    let mount = open_tree(&at, c"", COPY | OpenTreeFlags::AT_RECURSIVE).step(step)?;
    if let Some(closed) = closed.filter(|_| !is_removed(Wall::ReadOnly)) {
        let attributes = MountAttributes { set: u64::from(closed.bits()), user_namespace: None };
        set_mount_attributes(&mount, attributes).step(step)?;
    }
    attach(&mount, &at, target)
}

pub(super) fn attach(mount: &OwnedFd, at: impl AsFd, name: &str) -> Result<(), StepError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", at, c"", flags).step(|| format!("mount {name}"))
}
