//! Whether files can have changed since a tree was looked through.
//!
//! A host that knows a tree need not look through it again if nothing can have changed it. What has to be
//! so: nothing of the session was alive when it was looked through, and nothing was started since; no call
//! changed files; and nobody else did, which the kernel would have told of every folder of the tree
//! (inotify). The last is of no use against what runs inside: stores into mappings are not told. It is there
//! for whoever works in the same folder from outside, and only where all of them use this kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bastide_proto::{Accepted, End, TreeToken};
use rustix::fs::fstatfs;
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::Guest;
use super::beneath::held_path;
use super::call::{Outbox, Refusal};
use super::files::FOLDER_CHANGES;

/// How many folders are watched at most: with more, looking through the tree again is not much more work.
const MAX_FOLDERS: usize = 1024;

/// How long they are. A user has few of the kernel's queues (128), for all sessions and everything else; who waits longer
/// between two commands does not mind a look.
const WATCHED: Duration = Duration::from_secs(30);

/// Of folders only.
const CHANGES: WatchFlags = FOLDER_CHANGES.union(WatchFlags::ONLYDIR);

/// What is known of the last tree that was looked through.
#[derive(Debug, Default)]
pub(crate) struct Unchanged(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Grows with everything that may change files.
    changes: u64,
    /// How many calls that may change files are being answered.
    writers: usize,
    /// Whether nothing is alive and nothing can start.
    is_still: bool,
    seen: Option<SeenTree>,
}

#[derive(Debug)]
struct SeenTree {
    token: [u8; 16],
    queue: OwnedFd,
}

/// The folders of a tree that is being looked through.
#[derive(Debug)]
pub(super) struct FolderWatch {
    queue: OwnedFd,
    folders: usize,
    changes: u64,
}

/// Nothing is alive, and nothing starts, until this is dropped.
#[derive(Debug)]
pub(super) struct StillGuard<'a>(&'a Unchanged);

/// Something may change files until this is dropped.
#[derive(Debug)]
pub(super) struct WriterGuard<'a>(&'a Unchanged);

impl Unchanged {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is alive, and nothing can start for now.
    pub(super) fn still(&self) -> StillGuard<'_> {
        self.lock().is_still = true;
        StillGuard(self)
    }

    /// Something begins that may change files, and ends when nothing can be told of it.
    pub(super) fn forget(&self) {
        self.lock().forget();
    }

    /// Something begins that may change files.
    pub(super) fn writer(&self) -> WriterGuard<'_> {
        let mut state = self.lock();
        state.forget();
        state.writers += 1;
        WriterGuard(self)
    }

    /// Begins to watch a tree that is about to be looked through, if that can come to anything.
    pub(super) fn watch(&self, base: impl AsFd) -> Option<FolderWatch> {
        let changes = {
            let state = self.lock();
            (state.is_still && state.writers == 0).then_some(state.changes)?
        };
        if !tells_of_everybody(base) {
            return None;
        }
        let queue = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
        Some(FolderWatch { queue, folders: 0, changes })
    }

    /// What a tree is known by that was watched while all of it was looked through.
    fn keep(&self, watch: FolderWatch) -> Option<[u8; 16]> {
        let mut token = [0; 16];
        let random = getrandom(&mut token, GetRandomFlags::empty());
        let mut state = self.lock();
        let is_known = state.is_still && state.writers == 0 && state.changes == watch.changes;
        if !is_known || random != Ok(token.len()) {
            return None;
        }
        state.seen = Some(SeenTree { token, queue: watch.queue });
        Some(token)
    }

    /// Gives up what a tree is known by, if that is still so.
    fn release(&self, token: [u8; 16]) {
        let mut state = self.lock();
        if state.seen.as_ref().is_some_and(|seen| seen.token == token) {
            state.seen = None;
        }
    }

    /// What the tree that was looked through is known by, if nothing can have changed it since.
    fn token(&self) -> Option<[u8; 16]> {
        let mut state = self.lock();
        let seen = state.seen.as_ref()?;
        // An event, an overflow or anything odd: that is no proof.
        let is_quiet = rustix::io::read(&seen.queue, &mut [0_u8; 512]) == Err(Errno::AGAIN);
        if !is_quiet {
            state.seen = None;
        }
        state.seen.as_ref().map(|seen| seen.token)
    }
}

impl State {
    fn forget(&mut self) {
        self.changes += 1;
        self.seen = None;
    }
}

impl Drop for StillGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().is_still = false;
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.forget();
        state.writers -= 1;
    }
}

impl FolderWatch {
    /// Watches one more folder, before anything of it is read; false if it cannot be.
    pub(super) fn add(&mut self, folder: impl AsFd) -> bool {
        self.folders += 1;
        self.folders <= MAX_FOLDERS && add_watch(&self.queue, held_path(folder), CHANGES).is_ok()
    }
}

/// Whether the kernel tells of whatever anybody does in a file system: others, such as those of a network, or
/// layers over one, change without its knowing.
fn tells_of_everybody(base: impl AsFd) -> bool {
    const EXT: u64 = 0xEF53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683E;
    const TMPFS: u64 = 0x0102_1994;
    let system = fstatfs(base).map(|system| system.f_type.cast_unsigned() & 0xFFFF_FFFF);
    matches!(system, Ok(EXT | XFS | BTRFS | TMPFS))
}

/// What a tree is known by that was watched while all of it was looked through, for a while.
pub(super) fn keep(guest: &Arc<Guest>, watch: FolderWatch) -> Option<[u8; 16]> {
    let token = guest.unchanged.keep(watch)?;
    let held = Arc::clone(guest);
    tokio::spawn(async move {
        tokio::time::sleep(WATCHED).await;
        held.unchanged.release(token);
    });
    Some(token)
}

/// Answers a request for what the last tree is known by.
pub(super) async fn run(guest: &Guest, outbox: &mut Outbox) -> Result<(), Refusal> {
    outbox.accept(Accepted::default()).await?;
    outbox.item(&TreeToken { token: guest.unchanged.token() }).await?;
    Ok(outbox.end(&End::Done).await?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::*;

    /// Watches a folder as one that is looked through.
    fn watched(unchanged: &Unchanged, folder: &Path) -> Option<FolderWatch> {
        let held: OwnedFd = File::open(folder).unwrap().into();
        let mut watch = unchanged.watch(&held)?;
        assert!(watch.add(&held));
        Some(watch)
    }

    #[test]
    fn knows_a_tree_until_anything_may_have_changed_it() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "one").unwrap();
        let unchanged = Unchanged::default();
        assert!(watched(&unchanged, folder.path()).is_none(), "something may run");
        let seen = || {
            let _still = unchanged.still();
            unchanged.keep(watched(&unchanged, folder.path()).unwrap())
        };
        let token = seen().unwrap();
        assert_eq!(unchanged.token(), Some(token));
        assert_eq!(fs::read(&file).unwrap(), b"one");
        assert_eq!(unchanged.token(), Some(token), "it was read only");
        unchanged.release([0; 16]);
        assert_eq!(unchanged.token(), Some(token), "that was another tree");
        unchanged.forget();
        assert_eq!(unchanged.token(), None, "a command may have begun");
        unchanged.release(seen().unwrap());
        assert_eq!(unchanged.token(), None, "nobody is watching any more");
        let by_others: [&dyn Fn(); 5] = [
            &|| fs::write(&file, "two").unwrap(),
            &|| fs::write(folder.path().join("other"), "new").unwrap(),
            &|| fs::rename(folder.path().join("other"), &file).unwrap(),
            &|| File::open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap(),
            &|| fs::remove_file(&file).unwrap(),
        ];
        for (number, change) in by_others.iter().enumerate() {
            let other = seen().unwrap();
            assert_ne!(other, token, "{number}");
            assert_eq!(unchanged.token(), Some(other), "{number}");
            change();
            assert_eq!(unchanged.token(), None, "{number}");
            assert_eq!(unchanged.token(), None, "{number}: nor later");
        }
    }

    #[test]
    fn knows_no_tree_of_which_something_changed_while_it_was_looked_through() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let unchanged = Unchanged::default();
        let still = unchanged.still();
        let watch = watched(&unchanged, folder.path()).unwrap();
        fs::write(folder.path().join("file"), "one").unwrap();
        assert!(unchanged.keep(watch).is_some());
        assert_eq!(unchanged.token(), None, "somebody else changed it");
        let watch = watched(&unchanged, folder.path()).unwrap();
        drop(unchanged.writer());
        assert_eq!(unchanged.keep(watch), None, "a call may have changed it");
        let writer = unchanged.writer();
        assert!(watched(&unchanged, folder.path()).is_none(), "a call may change it");
        drop(writer);
        let watch = watched(&unchanged, folder.path()).unwrap();
        drop(still);
        assert_eq!(unchanged.keep(watch), None, "commands may run again");
    }
}
