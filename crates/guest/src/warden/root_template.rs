//! The template of sandboxes' roots: built once, in a mount namespace of its own, and copied.
//!
//! Every mount costs a sandbox something, when it is made and when it goes. Only the host's root can have
//! a template: what is in it belongs to nobody inside, nobody can write to it, and what a sandbox has for
//! itself lies in file systems of its own on top. Where there cannot be one, each sandbox builds its root
//! for itself, and says why it cannot.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use bastide_proto::boot::{BaseSpec, Ids, Rung};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, chdir, chroot, fchdir, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::BOOT;
use crate::jail::{build_template, can_be_template};
use crate::packet;
use crate::sys::{Fork, exit_now, fork_into};

/// A root to be copied.
#[derive(Debug)]
pub(super) struct RootTemplate {
    base_spec: BaseSpec,
    namespace: OwnedFd,
    root: Identity,
}

/// Which folder a root is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of_root() -> io::Result<Self> {
        let found = fs::metadata("/")?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }
}

/// Why there is no first process.
#[derive(Debug)]
pub(super) enum ForkFailure {
    /// The kernel made none.
    Refused(io::Error),
    /// This process did not find back to where it was, and is of no use any more.
    Lost(io::Error),
}

impl RootTemplate {
    /// Builds what sandboxes with this base have in common.
    pub(super) fn make(base_spec: &BaseSpec) -> Option<Self> {
        let fits = base_spec.rung == Rung::Namespaces
            && matches!(base_spec.ids, Ids::Range { only: None, .. })
            && base_spec.is_common
            && can_be_template(&base_spec.steps)
            && has_plain_proc();
        if !fits {
            return None;
        }
        let (namespace, root) = build(base_spec).ok()?;
        Some(Self { base_spec: base_spec.clone(), namespace, root })
    }

    /// Whether it is the template of sandboxes with this base.
    pub(super) fn matches(&self, base_spec: &BaseSpec) -> bool {
        self.base_spec == *base_spec
    }

    /// Forks this process into new namespaces, if possible with a copy of this for its root: it is said
    /// whether it has one. Such a child has nothing of the host's.
    pub(super) fn fork_into(self, namespaces: libc::c_int) -> Result<(Fork, bool), ForkFailure> {
        let Ok(context) = MountContext::save(&self.base_spec.mount_dir) else {
            return without_template(fork_into(namespaces));
        };
        // Where this process's root is not its namespace's own, the template's is not either.
        let is_there = enter(&self.namespace).is_ok()
            && Identity::of_root().is_ok_and(|root| root == self.root);
        if !is_there {
            context.restore().map_err(ForkFailure::Lost)?;
            return without_template(fork_into(namespaces));
        }
        let forked = match fork_into(namespaces) {
            Ok(Fork::Child) => return Ok((Fork::Child, true)),
            forked => forked,
        };
        if let Err(error) = context.restore() {
            if let Ok(Fork::Parent(child)) = forked {
                // It has nothing to do yet, and is not to begin.
                let _ = kill_process(child, Signal::KILL);
            }
            return Err(ForkFailure::Lost(error));
        }
        forked.map(|fork| (fork, true)).map_err(ForkFailure::Refused)
    }
}

/// What became of a fork that has no copy of a template.
pub(super) fn without_template(forked: io::Result<Fork>) -> Result<(Fork, bool), ForkFailure> {
    forked.map(|fork| (fork, false)).map_err(ForkFailure::Refused)
}

/// Where this process is.
struct MountContext<'a> {
    namespace: File,
    root: OwnedFd,
    folder: &'a Path,
}

impl<'a> MountContext<'a> {
    fn save(folder: &'a Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty())?;
        Ok(Self { namespace: File::open("/proc/self/ns/mnt")?, root, folder })
    }

    fn restore(&self) -> io::Result<()> {
        enter(&self.namespace)?;
        fchdir(&self.root)?;
        // Not every process has its namespace's root for its own.
        chroot(".")?;
        Ok(chdir(self.folder)?)
    }
}

fn enter(namespace: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

/// Builds it in a process of its own, which ends once its namespace is held.
fn build(base_spec: &BaseSpec) -> io::Result<(OwnedFd, Identity)> {
    let (near, mut far) = UnixStream::pair()?;
    // Processes are shown that there are none of: the kernel lets a sandbox mount its own only beside
    // others that can be seen.
    let builder = match fork_into(libc::CLONE_NEWNS | libc::CLONE_NEWPID)? {
        Fork::Child => {
            drop(near);
            if send_base(base_spec, &far).is_ok() {
                // Until the namespace is held, or nobody wants it.
                drop(far.read(&mut [0]));
            }
            exit_now(0)
        }
        Fork::Parent(builder) => builder,
    };
    drop(far);
    let built = take_over(&near);
    if built.is_err() {
        end(builder);
    }
    built
}

fn send_base(base_spec: &BaseSpec, to: &UnixStream) -> io::Result<()> {
    build_template(&base_spec.mount_dir, &base_spec.steps).map_err(io::Error::other)?;
    let namespace = File::open("/proc/self/ns/mnt")?;
    packet::send(to, &Identity::of_root()?, &[namespace.as_fd()])
}

fn take_over(from: &UnixStream) -> io::Result<(OwnedFd, Identity)> {
    from.set_read_timeout(Some(BOOT))?;
    let (root, fds) = packet::receive(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let [namespace] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((namespace, root))
}

/// Ends a builder that does not come to an end: it may wait for a file system that does not answer.
fn end(builder: Pid) {
    // One that has ended already is what is wanted.
    let _ = kill_process(builder, Signal::KILL);
}

/// Whether all of `/proc` is shown to this process. What hides some of it, as engines of containers do,
/// would not hide it in the template.
fn has_plain_proc() -> bool {
    // Nothing can be hidden by what lies on a folder that is always empty.
    const HARMLESS: &str = "/proc/sys/fs/binfmt_misc";
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    let mut tops = 0;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(3);
        let (Some(root), Some(at), Some(options)) = (words.next(), words.next(), words.next())
        else {
            return false;
        };
        match at {
            "/proc" if root == "/" && !options.split(',').any(|one| one == "ro") => tops += 1,
            "/proc" => return false,
            HARMLESS => {}
            below if below.starts_with("/proc/") => return false,
            _ => {}
        }
    }
    tops == 1
}
