//! Blocks of objects: from memory, from the cache on disk, or from the store, each fetched once
//! however many wait for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::sync::{Semaphore, watch};

use super::block_requests::{BlockRequest, BlockStreams};
use super::counters::Counters;
use crate::cache::{BLOCK, BlockId, Cache, object_id};
use crate::store::{ObjectMeta, Store};

/// What may be remembered of blocks that were read, in bytes.
const RECENT: usize = 20 << 20;
/// The most blocks one request asks for.
pub(super) const RUN: u64 = 8;
/// The most requests for blocks at once: each holds a block, and commands read with as many threads as they like.
const REQUESTS: usize = 16;

/// What is known of whoever blocks are fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessPattern {
    /// They may want these blocks alone.
    Random,
    /// They read one block after the other.
    Sequential,
}

/// A version of an object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) meta: ObjectMeta,
    pub(super) id: [u8; 16],
}

impl Object {
    pub(super) fn new(store: &Store, key: String, meta: ObjectMeta) -> Self {
        let id = object_id(store.cache_scope(), &key, &meta.version, meta.size);
        Self { key, meta, id }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.meta.size.div_ceil(BLOCK)
    }

    fn block(&self, index: u64) -> BlockId {
        BlockId { object: self.id, index }
    }

    pub(super) fn block_size(&self, index: u64) -> usize {
        usize::try_from((self.meta.size - index * BLOCK).min(BLOCK)).unwrap_or(0)
    }
}

pub(super) type BlockResult = Option<Result<Bytes, Errno>>;

/// Where blocks come from.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) store: Arc<Store>,
    disk: Option<Arc<Cache>>,
    recent: Mutex<RecentBlocks>,
    in_flight: Mutex<HashMap<BlockId, watch::Receiver<BlockResult>>>,
    counters: Arc<Counters>,
    pub(super) streams: BlockStreams,
    /// Room for requests.
    pub(super) requests: Semaphore,
    /// How long a request may wait for its turn.
    pub(super) time_limit: Duration,
}

impl Blocks {
    pub(super) fn new(
        store: Arc<Store>,
        disk: Option<Arc<Cache>>,
        counters: Arc<Counters>,
        time_limit: Duration,
    ) -> Self {
        let (recent, in_flight) = (Mutex::default(), Mutex::default());
        let (streams, requests) = (BlockStreams::default(), Semaphore::new(REQUESTS));
        Self { store, disk, recent, in_flight, counters, streams, requests, time_limit }
    }

    /// One block of an object.
    pub(super) async fn read(
        self: &Arc<Self>,
        object: &Object,
        index: u64,
    ) -> Result<Bytes, Errno> {
        let id = object.block(index);
        if let Some(block) = self.recent().find(id) {
            self.counters.hit();
            return Ok(block);
        }
        if let Some(pending) = self.pending(id) {
            return received(pending).await;
        }
        if let Some(block) = self.load_from_disk(object, index) {
            self.counters.hit();
            return Ok(block);
        }
        self.fetch(object, index, 1, AccessPattern::Random);
        if let Some(pending) = self.pending(id) {
            return received(pending).await;
        }
        // It landed between the two lines above.
        self.recent().find(id).or_else(|| self.load_from_disk(object, index)).ok_or(Errno::IO)
    }

    fn load_from_disk(&self, object: &Object, index: u64) -> Option<Bytes> {
        let id = object.block(index);
        let block = self.disk.as_ref()?.load(id, object.block_size(index))?;
        self.recent().insert(id, block.clone());
        Some(block)
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, RecentBlocks> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self, id: BlockId) -> Option<watch::Receiver<BlockResult>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Has blocks fetched that are neither here nor on their way. For whoever reads on, a request asks for more than
    /// that, and is read further as more is wanted.
    pub(super) fn fetch(
        self: &Arc<Self>,
        object: &Object,
        first: u64,
        count: u64,
        access: AccessPattern,
    ) {
        let end = object.blocks().min(first.saturating_add(count));
        let mut index = first;
        while index < end {
            let run = self.announce(object, index, end.min(index + RUN));
            if run.is_empty() {
                index += 1;
                continue;
            }
            let next = index + run.len() as u64;
            if let Some(run) = self.streams.join(object, index, run) {
                let wanted = match access {
                    AccessPattern::Sequential => self.streams.open(object, next),
                    AccessPattern::Random => None,
                };
                let request = BlockRequest::new(self, index, run, wanted);
                let object = object.clone();
                tokio::spawn(async move { request.run(&object).await });
            }
            index = next;
        }
    }

    /// Announces blocks from `from` on, up to the first that need not be fetched.
    fn announce(
        &self,
        object: &Object,
        from: u64,
        to: u64,
    ) -> VecDeque<watch::Sender<BlockResult>> {
        let mut senders = VecDeque::new();
        for index in from..to {
            let id = object.block(index);
            let here = self.recent().has(id) || self.disk.as_ref().is_some_and(|disk| disk.has(id));
            let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            if here || in_flight.contains_key(&id) {
                break;
            }
            let (sender, receiver) = watch::channel(None);
            in_flight.insert(id, receiver);
            senders.push_back(sender);
        }
        senders
    }

    /// Remembers content that was just stored, so that nobody has to fetch it. Whoever stored it does not wait for that.
    pub(super) fn keep(&self, object: &Object, content: &Bytes) {
        if object.blocks() != 1 {
            return;
        }
        let (id, content) = (object.block(0), content.clone());
        self.recent().insert(id, content.clone());
        if let Some(disk) = self.disk.clone() {
            tokio::task::spawn_blocking(move || disk.store(id, &content));
        }
    }

    /// Answers whoever waits for a block.
    pub(super) fn deliver(
        &self,
        object: &Object,
        index: u64,
        sender: &watch::Sender<BlockResult>,
        outcome: Result<Bytes, Errno>,
    ) {
        let id = object.block(index);
        let block = outcome.as_ref().ok().cloned();
        if let Some(block) = &block {
            self.recent().insert(id, block.clone());
        }
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        sender.send_replace(Some(outcome));
        // Whoever waited for it goes on meanwhile.
        if let (Some(disk), Some(block)) = (&self.disk, block) {
            disk.store(id, &block);
        }
    }
}

async fn received(mut pending: watch::Receiver<BlockResult>) -> Result<Bytes, Errno> {
    match pending.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Err(Errno::IO)),
        Err(_) => Err(Errno::IO),
    }
}

/// The blocks that were used last.
#[derive(Debug, Default)]
struct RecentBlocks {
    blocks: HashMap<BlockId, (u64, Bytes)>,
    order: BTreeMap<u64, BlockId>,
    clock: u64,
    size: usize,
}

impl RecentBlocks {
    fn has(&self, id: BlockId) -> bool {
        self.blocks.contains_key(&id)
    }

    fn find(&mut self, id: BlockId) -> Option<Bytes> {
        let (time, block) = self.blocks.get_mut(&id)?;
        self.clock += 1;
        self.order.remove(time);
        *time = self.clock;
        self.order.insert(self.clock, id);
        Some(block.clone())
    }

    fn insert(&mut self, id: BlockId, block: Bytes) {
        if self.has(id) {
            return;
        }
        self.clock += 1;
        self.size += block.len();
        self.order.insert(self.clock, id);
        self.blocks.insert(id, (self.clock, block));
        while self.size > RECENT {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            if let Some((_, block)) = self.blocks.remove(&oldest) {
                self.size -= block.len();
            }
        }
    }
}

/// How far ahead of its reader a file is fetched.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Where the last read ended.
    end: u64,
    window: u64,
    /// The first block that was not asked for ahead of need.
    reached: u64,
}

/// Reads that the kernel makes side by side come in any order.
const SLACK: u64 = 2 * BLOCK;
const MAX_WINDOW: u64 = 12;
/// From this window on somebody reads on and on: with their second read.
const STEADY: u64 = 2;

impl ReadAhead {
    /// What is known of the reader by now.
    pub(super) fn access(&self) -> AccessPattern {
        if self.window >= STEADY { AccessPattern::Sequential } else { AccessPattern::Random }
    }

    /// Takes note of a read; which blocks to fetch now, and how many.
    pub(super) fn note(&mut self, offset: u64, size: u64) -> Option<(u64, u64)> {
        let sequential = offset <= self.end + SLACK && offset + SLACK >= self.end;
        let block = (offset + size.max(1) - 1) / BLOCK;
        self.end = if sequential { self.end.max(offset + size) } else { offset + size };
        if !sequential {
            self.window = 0;
            self.reached = block + 1;
            return None;
        }
        self.window = (self.window * 2).clamp(1, MAX_WINDOW);
        let target = block + 1 + self.window;
        let from = self.reached.max(block + 1);
        // Few large requests instead of many small ones.
        if target < from + self.window.div_ceil(2) {
            return None;
        }
        self.reached = target;
        Some((from, target - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_was_used_last() {
        let mut recent = RecentBlocks::default();
        let id = |index| BlockId { object: [0; 16], index };
        let block = Bytes::from(vec![0; 1 << 20]);
        for index in 0..20 {
            recent.insert(id(index), block.clone());
        }
        assert!(recent.find(id(0)).is_some());
        recent.insert(id(20), block);
        assert!(recent.has(id(0)) && !recent.has(id(1)) && recent.size <= RECENT);
    }

    #[test]
    fn reads_ahead_of_who_reads_on_and_not_of_who_jumps() {
        let mut ahead = ReadAhead::default();
        let mut fetched = 0;
        for read in 0..200 {
            if let Some((from, count)) = ahead.note(read * (128 << 10), 128 << 10) {
                assert!(from >= fetched, "nothing is asked for twice");
                fetched = from + count;
            }
        }
        assert!(fetched >= 30, "{fetched}");
        let mut ahead = ReadAhead::default();
        assert!(ahead.note(500 << 20, 4096).is_none());
        assert!(ahead.note(100 << 20, 4096).is_none());
    }
}
