//! What a mount has done.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Counts of a mount since its program started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    cache_hits: AtomicU64,
    names_left_out: AtomicU64,
    events_lost: AtomicU64,
}

/// The same, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Reads that programs made.
    pub reads: u64,
    /// Writes that programs made.
    pub writes: u64,
    /// Blocks that did not have to be fetched.
    pub cache_hits: u64,
    /// Keys of the store that cannot be the names of files.
    pub names_left_out: u64,
    /// Events that nobody took in time.
    pub events_lost: u64,
}

fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn read(&self) {
        one_more(&self.reads);
    }

    pub(super) fn write(&self) {
        one_more(&self.writes);
    }

    pub(super) fn hit(&self) {
        one_more(&self.cache_hits);
    }

    pub(super) fn left_out(&self) {
        one_more(&self.names_left_out);
    }

    pub(super) fn lost(&self) {
        one_more(&self.events_lost);
    }

    pub(crate) fn now(&self) -> Counts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            reads: value(&self.reads),
            writes: value(&self.writes),
            cache_hits: value(&self.cache_hits),
            names_left_out: value(&self.names_left_out),
            events_lost: value(&self.events_lost),
        }
    }
}
