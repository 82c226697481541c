//! What ties machines to this process.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, ErrorKind, Result};

/// The descriptors of every [`KeepAlive`] of this process.
static DESCRIPTORS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// The machines that this process keeps up, by the folders of their sessions: whoever resumes a session here, by whichever
/// client, keeps it up as whoever made it does.
static SHARED: Mutex<BTreeMap<PathBuf, Weak<KeepAlive>>> = Mutex::new(BTreeMap::new());

/// Ties a machine to this process: when this is dropped, or the process ends in any way, the
/// machine ends and is removed, unless it was released before.
pub struct KeepAlive {
    held: Box<dyn KeepAliveHandle>,
}

/// What a [`KeepAlive`] ties a machine to this process with.
pub trait KeepAliveHandle: Send + Sync {
    /// Tells the machine to live on without this process.
    ///
    /// # Errors
    ///
    /// Fails if the machine is gone already.
    fn release(&self) -> std::io::Result<()>;

    /// The descriptor whose last copy keeps the machine up, where it is one.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}

impl KeepAlive {
    /// Wraps the handle that ties the machine to this process.
    pub fn new(held: impl KeepAliveHandle + 'static) -> Self {
        if let Some(descriptor) = held.descriptor() {
            descriptors(|all| all.insert(descriptor));
        }
        Self { held: Box::new(held) }
    }

    /// Releases the machine: it no longer ends with this process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BackendLost`] if the machine has ended already.
    pub fn release(self) -> Result<()> {
        self.release_shared()
    }

    /// As [`release`](Self::release), where somebody else still has this.
    pub(crate) fn release_shared(&self) -> Result<()> {
        self.held.release().map_err(|error| {
            Error::new(ErrorKind::BackendLost, "the machine ended while it was made")
                .with_source(error)
        })
    }

    /// Lets whoever resumes the session of this folder, in this process, keep its machine up, too.
    pub(crate) fn share(self, folder: &Path) -> Arc<Self> {
        let held = Arc::new(self);
        // A folder that cannot be named is found by nobody either.
        if let Ok(folder) = folder.canonicalize() {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            shared.retain(|_, held| held.strong_count() > 0);
            shared.insert(folder, Arc::downgrade(&held));
        }
        held
    }

    /// What this process keeps the machine of a session up with, if it does.
    pub(crate) fn of(folder: &Path) -> Option<Arc<Self>> {
        let folder = folder.canonicalize().ok()?;
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.get(&folder).and_then(Weak::upgrade)
    }

    /// The descriptors that keep machines up as long as any process has a copy. A process that was
    /// forked off a program with sessions closes its copies, or it keeps those sessions up.
    #[must_use]
    pub fn open_descriptors() -> Vec<RawFd> {
        descriptors(|all| all.iter().copied().collect())
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        if let Some(descriptor) = self.held.descriptor() {
            descriptors(|all| all.remove(&descriptor));
        }
    }
}

/// Keeps other threads from making or ending what ties machines to this process.
pub(crate) fn lock_for_fork() -> impl Any {
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors<T>(act: impl FnOnce(&mut BTreeSet<RawFd>) -> T) -> T {
    // Nobody panics while holding it.
    act(&mut DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner))
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAlive").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Socket(UnixStream);

    impl KeepAliveHandle for Socket {
        fn release(&self) -> std::io::Result<()> {
            Ok(())
        }

        fn descriptor(&self) -> Option<RawFd> {
            Some(self.0.as_raw_fd())
        }
    }

    #[test]
    fn is_shared_by_whoever_comes_to_the_same_session_while_somebody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let held = KeepAlive::new(Socket(near)).share(folder.path());
        let detour = folder.path().join("../").join(folder.path().file_name().unwrap());
        let other = KeepAlive::of(&detour).unwrap();
        assert!(Arc::ptr_eq(&held, &other));
        drop((held, other));
        assert!(KeepAlive::of(folder.path()).is_none());
    }

    #[test]
    fn lists_the_descriptors_that_keep_machines_up_until_they_are_closed() {
        let (near, _far) = UnixStream::pair().unwrap();
        let descriptor = near.as_raw_fd();
        let held = KeepAlive::new(Socket(near));
        assert!(KeepAlive::open_descriptors().contains(&descriptor));
        drop(held);
        assert!(!KeepAlive::open_descriptors().contains(&descriptor));
    }
}
