//! What programs have open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rustix::io::Errno;

use super::blocks::{Object, ReadAhead};
use super::file::FileNode;
use super::listing::FolderStream;
use super::lock;

/// An open file.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) node: u64,
    pub(super) file: Arc<FileNode>,
    /// The version that was opened, where the store has it now; none of a file that was changed here.
    object: Mutex<Option<Arc<Object>>>,
    pub(super) ahead: Mutex<ReadAhead>,
}

impl Handle {
    pub(super) fn new(node: u64, file: Arc<FileNode>, object: Option<Object>) -> Self {
        let (object, ahead) = (Mutex::new(object.map(Arc::new)), Mutex::default());
        Self { node, file, object, ahead }
    }

    /// What is read of it from the store.
    pub(super) fn object(&self) -> Option<Arc<Object>> {
        lock(&self.object).clone()
    }

    /// The store has the same content elsewhere, if it had this version before.
    fn moved(&self, version: &str, to: &Arc<Object>) {
        let mut object = lock(&self.object);
        if object.as_ref().is_some_and(|object| *object.meta.version == *version) {
            *object = Some(Arc::clone(to));
        }
    }
}

/// Everything that is open, by numbers that no process before this one gave out: what was open when
/// that was killed is not known to this one, and whoever uses it hears so.
#[derive(Debug)]
pub(super) struct Handles {
    next: AtomicU64,
    files: Mutex<HashMap<u64, Arc<Handle>>>,
    folders: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<FolderStream>>>>,
}

impl Handles {
    pub(super) fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Nanoseconds pass faster than files are opened.
        let first = u64::try_from(now.as_nanos()).unwrap_or_default();
        Self { next: first.into(), files: Mutex::default(), folders: Mutex::default() }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn open_file(&self, handle: Handle) -> u64 {
        let number = self.number();
        lock(&self.files).insert(number, Arc::new(handle));
        number
    }

    pub(super) fn file(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        lock(&self.files).get(&number).cloned().ok_or(Errno::IO)
    }

    /// What is open of a file is read from elsewhere, where it is the same as this version.
    pub(super) fn moved(&self, node: u64, version: &str, to: Object) {
        let to = Arc::new(to);
        for handle in lock(&self.files).values().filter(|handle| handle.node == node) {
            handle.moved(version, &to);
        }
    }

    pub(super) fn close_file(&self, number: u64) -> Option<Arc<Handle>> {
        lock(&self.files).remove(&number)
    }

    pub(super) fn open_folder(&self, stream: FolderStream) -> u64 {
        let number = self.number();
        lock(&self.folders).insert(number, Arc::new(tokio::sync::Mutex::new(stream)));
        number
    }

    pub(super) fn folder(
        &self,
        number: u64,
    ) -> Result<Arc<tokio::sync::Mutex<FolderStream>>, Errno> {
        lock(&self.folders).get(&number).cloned().ok_or(Errno::IO)
    }

    pub(super) fn close_folder(&self, number: u64) {
        lock(&self.folders).remove(&number);
    }
}
