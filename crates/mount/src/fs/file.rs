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
    /// When the store was last given it from here.
    pub(super) given: Option<Instant>,
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

    /// Whether whoever opens it has to ask the store: the first one, and all who come before that one was answered.
    pub(super) fn needs_asking(&self) -> bool {
        let state = self.state();
        state.opens == 1 || (state.stored.is_none() && state.local.is_none())
    }

    /// One opener less, unless it is the last and the store has not got everything yet; whether it is. Decided and done
    /// at once, so that of two who close together one is the last. What the store refused is not waited for.
    pub(super) fn close_one(&self, was_refused: bool) -> bool {
        let mut state = self.state();
        let is_unsaved = state.dirty && !state.failed && !state.unlinked && !was_refused;
        let may_close = state.opens > 1 || !is_unsaved;
        if may_close {
            state.opens = state.opens.saturating_sub(1);
        }
        may_close
    }

    /// How long the content on disk is.
    pub(super) fn staged(&self) -> u64 {
        self.state().local.map_or(0, |(size, _)| size)
    }

    /// What is known of it may not be true any more.
    pub(super) fn invalidate(&self) {
        self.state().known_since = None;
    }

    /// Takes over what the store said to whoever asked at `requested_at`. What it was given since then it may not have had yet:
    /// a page of a folder can be read long after it was fetched, and whoever believed it would add to a file of before.
    pub(super) fn learn(&self, meta: &ObjectMeta, requested_at: Instant) {
        let mut state = self.state();
        if state.given.is_some_and(|given| given >= requested_at) {
            return;
        }
        state.stored = Some(meta.clone());
        state.known_since = Some(Instant::now());
    }

    /// Takes over what the store made of what it was just given.
    pub(super) fn was_given(&self, meta: &ObjectMeta) {
        let mut state = self.state();
        let now = Instant::now();
        state.stored = Some(meta.clone());
        (state.known_since, state.given) = (Some(now), Some(now));
    }

    /// Takes over that the store has a copy of it elsewhere; of this version, which may not be the one that is known.
    pub(super) fn was_moved(&self, version: &str, copy: &ObjectMeta) {
        let mut state = self.state();
        let is_same = state.stored.as_ref().is_some_and(|stored| *stored.version == *version);
        if !is_same {
            state.known_since = None;
            return;
        }
        if state.in_kernel.as_deref() == Some(version) {
            state.in_kernel = Some(Arc::clone(&copy.version));
        }
        state.stored = Some(copy.clone());
        state.known_since = None;
        state.given = Some(Instant::now());
    }

    /// What the store has, if that was heard since `requested_at`.
    pub(super) fn meta_since(&self, requested_at: Instant) -> Option<ObjectMeta> {
        let state = self.state();
        let is_later = state.known_since.is_some_and(|known| known >= requested_at);
        state.stored.clone().filter(|_| is_later || state.local.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(size: u64) -> ObjectMeta {
        ObjectMeta { size, mtime: SystemTime::UNIX_EPOCH, version: size.to_string().into() }
    }

    #[test]
    fn believes_nothing_that_is_older_than_what_it_stored() {
        let file = FileNode::default();
        let requested_at = Instant::now();
        file.learn(&meta(1), requested_at);
        assert_eq!(file.meta_since(requested_at), Some(meta(1)));
        file.was_given(&meta(2));
        file.learn(&meta(1), requested_at);
        assert_eq!(file.meta_since(requested_at), Some(meta(2)));
        file.learn(&meta(3), Instant::now() + std::time::Duration::from_secs(1));
        assert_eq!(file.meta_since(requested_at), Some(meta(3)));
        assert_eq!(file.meta_since(Instant::now() + std::time::Duration::from_secs(1)), None);
    }
}
