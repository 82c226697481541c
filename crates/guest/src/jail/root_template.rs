//! A root for many sandboxes, and what each of them adds to a copy of it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bastide_proto::boot::RootStep;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmodat, mknodat, unlinkat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_change, mount_remount};
use rustix::process::{fchdir, umask};

use super::root::{
    CLOSED, attach, attach_at, build, clone_binds, leave_host, new_file_system, new_tmpfs, place,
    write_file,
};
use super::{StepContext, StepError};

/// The largest file of the host that is copied: a mount of its own costs every sandbox more.
const SMALL: u64 = 1 << 20;

/// Whether nothing that sandboxes have in common lies in what each has for itself.
pub(crate) fn can_be_template(steps: &[RootStep]) -> bool {
    // Walls are taken away from single sandboxes.
    !cfg!(bastide_removable_walls)
        && !steps.iter().any(|step| matches!(step, RootStep::Bind { .. }) && is_own(step, steps))
}

/// Whether a sandbox must have it for itself: a file system that it writes to, and what lies in that.
fn is_own(step: &RootStep, steps: &[RootStep]) -> bool {
    let target = match step {
        RootStep::Tmpfs { .. } | RootStep::Proc { .. } | RootStep::Devpts { .. } => return true,
        RootStep::Dir { target, .. }
        | RootStep::File { target, .. }
        | RootStep::Link { target, .. }
        | RootStep::Bind { target, .. }
        | RootStep::MountPoint { target, .. }
        | RootStep::BindOwned { target, .. } => Path::new(target),
        _ => return true,
    };
    let holds = |other: &RootStep| match other {
        RootStep::Tmpfs { target: own, .. } => target != Path::new(own) && target.starts_with(own),
        _ => false,
    };
    steps.iter().any(holds)
}

/// Adds to a copy of the template, which is this process's root, what the sandbox has for itself.
pub(crate) fn add_private(steps: &[RootStep]) -> Result<(), StepError> {
    let mut no_binds = std::iter::empty::<OwnedFd>();
    steps.iter().filter(|step| is_own(step, steps)).try_for_each(|step| build(step, &mut no_binds))
}

/// Makes this process's mount namespace, which must be its own, a template.
pub(crate) fn build_template(mount_dir: &Path, steps: &[RootStep]) -> Result<(), StepError> {
    umask(Mode::from_raw_mode(0o022));
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the pattern's mounts private".to_owned())?;
    rustix::process::chdir(mount_dir).step(|| format!("enter {}", mount_dir.display()))?;
    let root = new_tmpfs(0o755, None)?;
    attach(&root, CWD, "the new root")?;
    fchdir(&root).step(|| "enter the new root".to_owned())?;
    for step in steps.iter().filter(|step| !is_own(step, steps)) {
        add_shared(step)?;
    }
    for step in steps {
        if let RootStep::Proc { target } = step {
            attach_at(&new_file_system(c"proc", &[], CLOSED)?, target)?;
        }
    }
    leave_host()?;
    // Devices work: those in it are the template's own, and nobody inside can make one.
    let closed = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
    mount_remount(".", closed, c"").step(|| "close the pattern".to_owned())
}

/// Carries out a step; what can be copied needs no mount.
fn add_shared(step: &RootStep) -> Result<(), StepError> {
    if let RootStep::Bind { source, target, writable: false, .. } = step {
        let add = || format!("show {}", source.display());
        match CopiedFile::of(source).step(add)? {
            Some(CopiedFile::Device { number, mode }) => {
                let (folder, name) = place(target)?;
                // A file was made for the device to be mounted on.
                unlinkat(&folder, name, AtFlags::empty()).step(add)?;
                mknodat(&folder, name, FileType::CharacterDevice, mode, number).step(add)?;
                // Whatever the mask is.
                return chmodat(&folder, name, mode, AtFlags::empty()).step(add);
            }
            Some(CopiedFile::File { content, mode }) => {
                let file = write_file(target, &content)?;
                return rustix::fs::fchmod(&file, mode).step(add);
            }
            None => {}
        }
    }
    let binds = clone_binds(std::slice::from_ref(step), &|_| Ok(None), None)?;
    build(step, &mut binds.into_iter())
}

/// What of the host needs no mount of its own.
enum CopiedFile {
    Device { number: u64, mode: Mode },
    File { content: Vec<u8>, mode: Mode },
}

impl CopiedFile {
    /// A device, or a small file that everybody may read; `None` for everything else, which keeps
    /// its owner and so its secrets by being mounted.
    fn of(source: &Path) -> io::Result<Option<Self>> {
        let open = |flags: OFlags| {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::open(source, flags, Mode::empty())
        };
        let looked_at = rustix::fs::fstat(&open(OFlags::PATH)?)?;
        let kind = FileType::from_raw_mode(looked_at.st_mode);
        if kind == FileType::CharacterDevice {
            let mode = Mode::from_raw_mode(looked_at.st_mode & 0o666);
            return Ok(Some(Self::Device { number: looked_at.st_rdev, mode }));
        }
        if kind != FileType::RegularFile {
            return Ok(None);
        }
        let file = File::from(open(OFlags::RDONLY)?);
        let found = file.metadata()?;
        if !found.is_file() || found.mode() & 0o004 == 0 || found.size() > SMALL {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(SMALL).read_to_end(&mut content)?;
        Ok(Some(Self::File { content, mode: Mode::from_raw_mode(found.mode() & 0o555) }))
    }
}
