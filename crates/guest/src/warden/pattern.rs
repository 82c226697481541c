//! The root that sandboxes have in common: built once, in a mount namespace of its own, and copied.
//!
//! Every mount costs a sandbox something, when it is made and when it goes. Only the host's root can have
//! a pattern: what is in it belongs to nobody inside, nobody can write to it, and what a sandbox has for
//! itself lies in file systems of its own on top.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use bastide_proto::boot::{Groundwork, Ids, Rung};
use rustix::fs::{Mode, OFlags};
use rustix::process::{chdir, chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::BOOT;
use crate::jail::{can_be_pattern, make_pattern};
use crate::sys::{Fork, exit_now, fork_into};

/// A root to be copied.
#[derive(Debug)]
pub(super) struct Pattern {
    ground: Groundwork,
    namespace: OwnedFd,
}

impl Pattern {
    /// Builds what sandboxes on this ground have in common. Where there cannot be a pattern, each of them
    /// builds it for itself, and says why it cannot.
    pub(super) fn make(ground: Groundwork) -> Option<Self> {
        let fits = ground.rung == Rung::Namespaces
            && matches!(ground.ids, Ids::Range { .. })
            && ground.is_common
            && can_be_pattern(&ground.steps);
        if !fits {
            return None;
        }
        let namespace = build(&ground).ok()?;
        Some(Self { ground, namespace })
    }

    /// Whether it is the pattern of sandboxes on this ground.
    pub(super) fn is_of(&self, ground: &Groundwork) -> bool {
        self.ground == *ground
    }

    /// Forks this process into new namespaces, with a copy of this for its root. The child has nothing
    /// of the host's.
    pub(super) fn fork_into(self, namespaces: libc::c_int) -> io::Result<Fork> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty())?;
        let own = File::open("/proc/self/ns/mnt")?;
        enter(&self.namespace)?;
        let forked = fork_into(namespaces);
        if matches!(forked, Ok(Fork::Child)) {
            return forked;
        }
        // A child whose parent is lost ends by itself.
        enter(&own)?;
        fchdir(&root)?;
        // Not every process has its namespace's root for its own.
        chroot(".")?;
        chdir(&self.ground.stand)?;
        forked
    }
}

fn enter(namespace: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

/// Builds it in a process of its own, which ends once its namespace is held.
fn build(ground: &Groundwork) -> io::Result<OwnedFd> {
    let (mut near, mut far) = UnixStream::pair()?;
    // Processes are shown that there are none of: the kernel lets a sandbox mount its own only beside
    // others that can be seen.
    let builder = match fork_into(libc::CLONE_NEWNS | libc::CLONE_NEWPID)? {
        Fork::Child => {
            drop(near);
            let made = make_pattern(&ground.stand, &ground.steps).is_ok();
            if made && far.write_all(&[1]).is_ok() {
                // Until the namespace is held, or nobody wants it.
                drop(far.read(&mut [0]));
            }
            exit_now(0)
        }
        Fork::Parent(builder) => builder,
    };
    drop(far);
    near.set_read_timeout(Some(BOOT))?;
    near.read_exact(&mut [0])?;
    let process = Path::new("/proc").join(builder.as_raw_nonzero().to_string());
    Ok(File::open(process.join("ns/mnt"))?.into())
}
