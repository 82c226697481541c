//! How much of laying out a manifest goes on at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Result;
use crate::compat::raise;

/// How much of laying out a manifest goes on at once, in a session as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyLimits {
    /// Entries: streams of files and repositories that are fetched; any number if none.
    pub manifest_entries: Option<usize>,
    /// Files of a folder of the host; any number if none. They go over one after the other as one
    /// stream, so that every limit holds.
    pub local_dir_files: Option<usize>,
}

impl ConcurrencyLimits {
    /// Bounds how many entries are laid out at once; `None` is no bound.
    #[must_use]
    pub fn manifest_entries(mut self, manifest_entries: Option<usize>) -> Self {
        self.manifest_entries = manifest_entries;
        self
    }

    /// Bounds how many files of a folder are copied at once; `None` is no bound.
    #[must_use]
    pub fn local_dir_files(mut self, local_dir_files: Option<usize>) -> Self {
        self.local_dir_files = local_dir_files;
        self
    }
}

impl Default for ConcurrencyLimits {
    fn default() -> Self {
        Self { manifest_entries: Some(4), local_dir_files: Some(4) }
    }
}

impl ConcurrencyLimits {
    /// Checks that every limit lets something through.
    ///
    /// # Errors
    ///
    /// `ValueError` for a limit of nothing.
    pub fn validate(&self) -> Result<()> {
        let fields = [
            ("manifest_entries", self.manifest_entries),
            ("local_dir_files", self.local_dir_files),
        ];
        for (name, limit) in fields {
            if limit == Some(0) {
                let message = format!("concurrency_limits.{name} must be at least 1");
                return Err(raise::value_error(message));
            }
        }
        Ok(())
    }
}

/// The limits of one session, as they are held.
#[derive(Debug)]
pub(crate) struct Limits {
    entries: Option<Arc<Semaphore>>,
}

impl Limits {
    pub(crate) fn new(limits: ConcurrencyLimits) -> Result<Self> {
        limits.validate()?;
        let most = |limit: usize| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Ok(Self { entries: limits.manifest_entries.map(most) })
    }

    /// Waits for the turn of an entry.
    pub(crate) async fn entry(&self) -> Option<OwnedSemaphorePermit> {
        match &self.entries {
            // It is never closed.
            Some(entries) => Arc::clone(entries).acquire_owned().await.ok(),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_limit_of_nothing() {
        let limits = |entries, files| ConcurrencyLimits {
            manifest_entries: entries,
            local_dir_files: files,
        };
        assert!(ConcurrencyLimits::default().validate().is_ok());
        assert!(limits(None, None).validate().is_ok());
        let refused = limits(Some(0), None).validate().unwrap_err();
        assert_eq!(refused.message(), "concurrency_limits.manifest_entries must be at least 1");
        let refused = Limits::new(limits(Some(1), Some(0))).unwrap_err();
        assert_eq!(refused.message(), "concurrency_limits.local_dir_files must be at least 1");
    }

    #[tokio::test]
    async fn lets_so_many_entries_through_at_once() {
        let only = ConcurrencyLimits { manifest_entries: Some(2), local_dir_files: None };
        let limits = Limits::new(only).unwrap();
        let held = (limits.entry().await, limits.entry().await);
        assert!(held.0.is_some() && held.1.is_some());
        let mut third = std::pin::pin!(limits.entry());
        assert!(futures::poll!(&mut third).is_pending(), "two have their turn");
        drop(held.0);
        assert!(third.await.is_some(), "one of them is done");
        let free = Limits::new(ConcurrencyLimits { manifest_entries: None, ..only }).unwrap();
        assert!(free.entry().await.is_none(), "there is nothing to wait for");
    }
}
