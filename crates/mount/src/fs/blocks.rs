//! Blocks of objects: from memory, from the cache on disk, or from the store, each fetched once
//! however many wait for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use tokio::sync::watch;

use super::counters::Counters;
use crate::cache::{BLOCK, BlockId, Cache, object_id};
use crate::store::{Body, Fault, Meta, Store};

/// What may be remembered of blocks that were read, in bytes.
const RECENT: usize = 20 << 20;
/// The most blocks one request asks for.
pub(super) const RUN: u64 = 8;
/// How often a request goes on whose answer broke off.
const CONTINUATIONS: u32 = 5;

/// A version of an object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) key: String,
    pub(super) meta: Meta,
    id: [u8; 16],
}

impl Object {
    pub(super) fn new(store: &Store, key: String, meta: Meta) -> Self {
        let id = object_id(store.place(), &key, &meta.version, meta.size);
        Self { key, meta, id }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.meta.size.div_ceil(BLOCK)
    }

    fn block(&self, index: u64) -> BlockId {
        BlockId { object: self.id, index }
    }

    fn block_size(&self, index: u64) -> usize {
        usize::try_from((self.meta.size - index * BLOCK).min(BLOCK)).unwrap_or(0)
    }
}

type Outcome = Option<Result<Bytes, Errno>>;

/// Where blocks come from.
#[derive(Debug)]
pub(super) struct Blocks {
    store: Arc<Store>,
    disk: Option<Arc<Cache>>,
    recent: Mutex<Recent>,
    flights: Mutex<HashMap<BlockId, watch::Receiver<Outcome>>>,
    counters: Arc<Counters>,
}

impl Blocks {
    pub(super) fn new(
        store: Arc<Store>,
        disk: Option<Arc<Cache>>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { store, disk, recent: Mutex::default(), flights: Mutex::default(), counters }
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
        if let Some(flight) = self.flight(id) {
            return land(flight).await;
        }
        if let Some(block) = self.load_from_disk(object, index) {
            self.counters.hit();
            return Ok(block);
        }
        self.fetch(object, index, 1);
        if let Some(flight) = self.flight(id) {
            return land(flight).await;
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

    fn recent(&self) -> std::sync::MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flight(&self, id: BlockId) -> Option<watch::Receiver<Outcome>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Has blocks fetched that are neither here nor on their way.
    pub(super) fn fetch(self: &Arc<Self>, object: &Object, first: u64, count: u64) {
        let end = object.blocks().min(first.saturating_add(count));
        let mut index = first;
        while index < end {
            let run = self.take_off(object, index, end.min(index + RUN));
            if run.is_empty() {
                index += 1;
                continue;
            }
            let flight = Flight { first: index, senders: run, blocks: Arc::clone(self) };
            index += flight.senders.len() as u64;
            let object = object.clone();
            tokio::spawn(async move { flight.fly(&object).await });
        }
    }

    /// Announces blocks from `from` on, up to the first that need not be fetched.
    fn take_off(&self, object: &Object, from: u64, to: u64) -> VecDeque<watch::Sender<Outcome>> {
        let mut senders = VecDeque::new();
        for index in from..to {
            let id = object.block(index);
            let here = self.recent().has(id) || self.disk.as_ref().is_some_and(|disk| disk.has(id));
            let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
            if here || flights.contains_key(&id) {
                break;
            }
            let (sender, receiver) = watch::channel(None);
            flights.insert(id, receiver);
            senders.push_back(sender);
        }
        senders
    }

    /// Remembers content that was just stored, so that nobody has to fetch it.
    pub(super) fn keep(&self, object: &Object, content: &Bytes) {
        if object.blocks() == 1 {
            self.arrived(object.block(0), content);
        }
    }

    fn arrived(&self, id: BlockId, block: &Bytes) {
        self.recent().insert(id, block.clone());
        if let Some(disk) = &self.disk {
            disk.store(id, block);
        }
    }
}

async fn land(mut flight: watch::Receiver<Outcome>) -> Result<Bytes, Errno> {
    match flight.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Err(Errno::IO)),
        Err(_) => Err(Errno::IO),
    }
}

/// Blocks that one request fetches.
struct Flight {
    first: u64,
    senders: VecDeque<watch::Sender<Outcome>>,
    blocks: Arc<Blocks>,
}

impl Flight {
    async fn fly(mut self, object: &Object) {
        let mut failures = 0;
        while !self.senders.is_empty() {
            let before = self.first;
            let (fault, broke_off) = match self.request(object).await {
                // What never began has been tried often enough, for as long as anybody waits.
                Err(fault) => (fault, false),
                Ok(body) => match self.receive(object, body).await {
                    Ok(()) => continue,
                    Err(fault) => {
                        let broke_off = matches!(fault, Fault::Unreachable { .. });
                        (fault, broke_off)
                    }
                },
            };
            failures = if self.first > before { 1 } else { failures + 1 };
            if !broke_off || failures > CONTINUATIONS {
                let errno = fault.errno();
                // An object that is gone, or another, is not what was opened.
                let errno = if errno == Errno::NOENT { Errno::STALE } else { errno };
                while !self.senders.is_empty() {
                    self.deliver(object, Err(errno));
                }
            }
        }
    }

    async fn request(&self, object: &Object) -> Result<Body, Fault> {
        let from = self.first * BLOCK;
        let to = object.meta.size.min((self.first + self.senders.len() as u64) * BLOCK);
        self.blocks.store.get(&object.key, &object.meta, from, to).await
    }

    /// Delivers each block when it is whole, and the last one when nothing follows it.
    async fn receive(&mut self, object: &Object, mut body: Body) -> Result<(), Fault> {
        let mut block = BytesMut::with_capacity(object.block_size(self.first));
        while let Some(mut piece) = body.next().await? {
            while !piece.is_empty() {
                let size = object.block_size(self.first);
                if block.len() == size {
                    return Err(Fault::Lies("more bytes than were asked for".into()));
                }
                let missing = size - block.len();
                block.extend_from_slice(&piece.split_to(piece.len().min(missing)));
                if block.len() == size && self.senders.len() > 1 {
                    self.deliver(object, Ok(std::mem::take(&mut block).freeze()));
                    block.reserve(object.block_size(self.first));
                }
            }
        }
        if block.len() == object.block_size(self.first) {
            self.deliver(object, Ok(block.freeze()));
            return Ok(());
        }
        let kind = crate::store::Unreachable::Other;
        Err(Fault::Unreachable { message: "the answer is too short".into(), kind })
    }

    fn deliver(&mut self, object: &Object, outcome: Result<Bytes, Errno>) {
        let id = object.block(self.first);
        if let Ok(block) = &outcome {
            self.blocks.arrived(id, block);
        }
        self.blocks.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(sender) = self.senders.pop_front() {
            sender.send_replace(Some(outcome));
        }
        self.first += 1;
    }
}

/// The blocks that were used last.
#[derive(Debug, Default)]
struct Recent {
    blocks: HashMap<BlockId, (u64, Bytes)>,
    order: BTreeMap<u64, BlockId>,
    clock: u64,
    size: usize,
}

impl Recent {
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

impl ReadAhead {
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
        let mut recent = Recent::default();
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
