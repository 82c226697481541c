//! A file as this mount has it: what the store has, and what was written since.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use crate::store::ObjectMeta;

/// State that all who have a file open share.
#[derive(Debug, Default)]
pub(crate) struct FileNode {
    state: Mutex<FileState>,
    /// The content on disk once anything of it was changed. Held while it is read, changed or stored;
    /// whoever needs the lock on moving folders too takes that first.
    pub(super) content: tokio::sync::Mutex<Option<File>>,
}

#[derive(Debug, Default)]
pub(super) struct FileState {
    /// What the store has, as far as we know.
    pub(super) stored: Option<ObjectMeta>,
    pub(super) known_since: Option<Instant>,
    /// Size and time of the content on disk, if there is one.
    pub(super) local: Option<(u64, SystemTime)>,
    /// The content on disk is not in the store.
    pub(super) dirty: bool,
    /// Storing it failed, and somebody was told.
    pub(super) failed: bool,
    pub(super) opens: u32,
    pub(super) unlinked: bool,
    /// The version whose pages the kernel may have.
    pub(super) in_kernel: Option<Arc<str>>,
}

impl FileNode {
    pub(super) fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it must not be forgotten.
    pub(super) fn is_in_use(&self) -> bool {
        let state = self.state();
        state.opens > 0 || state.local.is_some()
    }

    /// Whether it exists here whatever the store says.
    pub(super) fn is_local(&self) -> bool {
        self.state().local.is_some()
    }

    /// How long the content on disk is.
    pub(super) fn staged(&self) -> u64 {
        self.state().local.map_or(0, |(size, _)| size)
    }

    /// What is known of it may not be true any more.
    pub(super) fn doubt(&self) {
        self.state().known_since = None;
    }

    /// Takes over what the store said.
    pub(super) fn learn(&self, meta: &ObjectMeta) {
        let mut state = self.state();
        state.stored = Some(meta.clone());
        state.known_since = Some(Instant::now());
    }
}
