//! Requests for blocks. One for somebody who reads on asks for much at once, and is read as far as blocks are wanted:
//! every request costs a store something, and the connection holds back what nobody wants yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use tokio::sync::{mpsc, watch};

use super::blocks::{BlockResult, Blocks, Object, RUN};
use crate::cache::BLOCK;
use crate::store::{Body, StoreError};

/// How long such a request waits for its reader.
const IDLE: Duration = Duration::from_secs(2);

/// The most such requests of a mount.
const MAX_STREAMS: usize = 4;

/// How often a request goes on whose answer broke off.
const CONTINUATIONS: u32 = 5;

type BlockSenders = VecDeque<watch::Sender<BlockResult>>;

/// Requests that can be read further.
#[derive(Debug, Default)]
pub(super) struct BlockStreams {
    open: Mutex<Vec<BlockStream>>,
    number: AtomicU64,
}

#[derive(Debug)]
struct BlockStream {
    number: u64,
    object: [u8; 16],
    /// The next block it brings that nobody waits for yet, and the first it does not bring.
    next: u64,
    end: u64,
    wanted: mpsc::UnboundedSender<watch::Sender<BlockResult>>,
}

/// The far end of a stream.
#[derive(Debug)]
pub(super) struct StreamRequests {
    number: u64,
    end: u64,
    more: mpsc::UnboundedReceiver<watch::Sender<BlockResult>>,
}

impl BlockStreams {
    fn open_streams(&self) -> std::sync::MutexGuard<'_, Vec<BlockStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an open request bring these blocks, if one can; gives them back otherwise.
    pub(super) fn join(
        &self,
        object: &Object,
        first: u64,
        run: BlockSenders,
    ) -> Option<BlockSenders> {
        let end = first + run.len() as u64;
        let mut open = self.open_streams();
        let fits = |stream: &&mut BlockStream| {
            stream.object == object.id && stream.next == first && end <= stream.end
        };
        let Some(stream) = open.iter_mut().find(fits) else { return Some(run) };
        stream.next = end;
        let refused: BlockSenders = run
            .into_iter()
            .filter_map(|sender| stream.wanted.send(sender).err())
            .map(|it| it.0)
            .collect();
        // Its end takes it out of the list before it stops listening, so nobody is refused.
        if refused.is_empty() { None } else { Some(refused) }
    }

    /// A request for the rest of an object, to be read further than `next`, if there is enough to read and not too many
    /// are open.
    pub(super) fn open(&self, object: &Object, next: u64) -> Option<StreamRequests> {
        let end = object.blocks();
        let mut open = self.open_streams();
        if end < next + RUN || open.len() >= MAX_STREAMS {
            return None;
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (wanted, more) = mpsc::unbounded_channel();
        open.push(BlockStream { number, object: object.id, next, end, wanted });
        Some(StreamRequests { number, end, more })
    }

    /// Takes a request out, and gives back what it was asked for meanwhile.
    fn close(&self, mut wanted: StreamRequests) -> BlockSenders {
        self.open_streams().retain(|stream| stream.number != wanted.number);
        std::iter::from_fn(|| wanted.more.try_recv().ok()).collect()
    }
}

/// Blocks that one request fetches.
pub(super) struct BlockRequest {
    first: u64,
    senders: BlockSenders,
    /// How it is read further, if it can be.
    wanted: Option<StreamRequests>,
    blocks: Arc<Blocks>,
}

impl BlockRequest {
    pub(super) fn new(
        blocks: &Arc<Blocks>,
        first: u64,
        senders: BlockSenders,
        wanted: Option<StreamRequests>,
    ) -> Self {
        Self { first, senders, wanted, blocks: Arc::clone(blocks) }
    }

    /// The first block that the request does not ask for.
    fn end(&self) -> u64 {
        let asked = self.first + self.senders.len() as u64;
        self.wanted.as_ref().map_or(asked, |wanted| wanted.end)
    }

    /// Fetches everything that is waited for.
    pub(super) async fn run(mut self, object: &Object) {
        let blocks = Arc::clone(&self.blocks);
        let turn = tokio::time::timeout(blocks.time_limit, blocks.requests.acquire()).await;
        if !matches!(turn, Ok(Ok(_))) {
            // All others wait for a store that does not answer.
            self.close();
            while !self.senders.is_empty() {
                self.deliver(object, Err(Errno::IO));
            }
        }
        let mut failures = 0;
        while !self.senders.is_empty() {
            let before = self.first;
            let (fault, broke_off) = match self.request(object).await {
                // What never began has been tried often enough, for as long as anybody waits.
                Err(fault) => (fault, false),
                Ok(body) => match self.receive(object, body).await {
                    Ok(()) => {
                        self.close();
                        continue;
                    }
                    Err(fault) => {
                        let broke_off = matches!(fault, StoreError::Unreachable { .. });
                        (fault, broke_off)
                    }
                },
            };
            // What follows is asked for anew.
            self.close();
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

    /// Stops being read further. What was wanted meanwhile is waited for as the rest is.
    fn close(&mut self) {
        if let Some(wanted) = self.wanted.take() {
            self.senders.extend(self.blocks.streams.close(wanted));
        }
    }

    async fn request(&self, object: &Object) -> Result<Body, StoreError> {
        let to = object.meta.size.min(self.end() * BLOCK);
        self.blocks.store.get(&object.key, &object.meta, self.first * BLOCK, to).await
    }

    /// Whether somebody waits for the next block, or will within a while.
    async fn is_wanted(&mut self) -> bool {
        if !self.senders.is_empty() {
            return true;
        }
        let Some(wanted) = &mut self.wanted else { return false };
        match tokio::time::timeout(IDLE, wanted.more.recv()).await {
            Ok(Some(sender)) => self.senders.push_back(sender),
            Ok(None) | Err(_) => self.close(),
        }
        !self.senders.is_empty()
    }

    /// Delivers each block when it is whole, and the last one when nothing follows it.
    async fn receive(&mut self, object: &Object, mut body: Body) -> Result<(), StoreError> {
        let end = self.end();
        let mut block = BytesMut::with_capacity(object.block_size(self.first));
        loop {
            if !self.is_wanted().await {
                return Ok(());
            }
            let Some(mut chunk) = body.next().await? else { break };
            while !chunk.is_empty() {
                if !self.is_wanted().await {
                    return Ok(());
                }
                let size = object.block_size(self.first);
                if block.len() == size {
                    return Err(StoreError::Inconsistent("more bytes than were asked for".into()));
                }
                let missing = size - block.len();
                block.extend_from_slice(&chunk.split_to(chunk.len().min(missing)));
                if block.len() == size && self.first + 1 < end {
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
        Err(StoreError::Unreachable { message: "the answer is too short".into(), kind })
    }

    fn deliver(&mut self, object: &Object, outcome: Result<Bytes, Errno>) {
        if let Some(sender) = self.senders.pop_front() {
            self.blocks.deliver(object, self.first, &sender, outcome);
        }
        self.first += 1;
    }
}
