//! Putting content into a store.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::chunk::{ChunkId, FILES, MAX_CHUNK, MIN_CHUNK, SEGMENT, cut};
use super::index::{Index, KnownPack};
use super::pack::{CompressBuffers, OpenPack};
use super::tree::{FilePart, push_piece};
use super::use_lock::UseLock;
use crate::{Error, ErrorKind, Result};

/// Chunks below this length are gathered, and compressed together.
const SMALL: usize = 64 << 10;

/// How much is gathered.
const GATHERED: usize = 256 << 10;

/// How long a pack grows.
const PACK: u64 = 128 << 20;

/// How much of a file is held at a time.
const WINDOW: usize = 2 * MAX_CHUNK;

/// How much is read at a time: what was just read is still near when it is looked at.
const READ: usize = 2 << 20;

/// Puts content into a store: what is there already is not written again. Nothing of it can be seen
/// before it is [finished](Self::finish). Several threads may use it at once.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) index: Arc<Index>,
    pub(crate) use_lock: UseLock,
    packs: PathBuf,
    temporary: PathBuf,
    state: Mutex<State>,
    scratches: Mutex<Vec<CompressBuffers>>,
}

#[derive(Debug, Default)]
struct State {
    /// What this writer has put there.
    new: HashSet<ChunkId>,
    gathered: Vec<u8>,
    gathered_chunks: Vec<(ChunkId, u32)>,
    /// Packs that grow: as many as are written to at once.
    open: Vec<Arc<OpenPack>>,
    full: Vec<Arc<OpenPack>>,
    packs_made: u64,
    added: u64,
    written: u64,
}

/// What a writer did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WriteStats {
    /// How many bytes of content were new.
    pub(crate) added: u64,
    /// How many bytes of the disk they take.
    pub(crate) stored: u64,
}

impl Writer {
    pub(crate) fn new(
        index: Arc<Index>,
        use_lock: UseLock,
        packs: PathBuf,
        temporary: PathBuf,
    ) -> Self {
        let (state, scratches) = (Mutex::new(State::default()), Mutex::default());
        Self { index, use_lock, packs, temporary, state, scratches }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room to work in, given back with [`return_scratch`](Self::return_scratch).
    fn scratch(&self) -> Result<CompressBuffers> {
        let mut all = self.scratches.lock().unwrap_or_else(PoisonError::into_inner);
        match all.pop() {
            Some(scratch) => Ok(scratch),
            None => CompressBuffers::new(),
        }
    }

    fn return_scratch(&self, scratch: CompressBuffers) {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }

    /// Whether a chunk is in the store, or on its way there.
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.index.has(id) || self.state().new.contains(id)
    }

    /// Puts one chunk.
    pub(crate) fn put(&self, content: &[u8]) -> Result<ChunkId> {
        let id = ChunkId::of(content);
        if self.index.has(&id) {
            return Ok(id);
        }
        let length = u32::try_from(content.len()).map_err(|_| too_long())?;
        let gathered = {
            let mut state = self.state();
            if !state.new.insert(id) {
                return Ok(id);
            }
            state.added += u64::from(length);
            if content.len() >= SMALL {
                None
            } else {
                state.gathered.extend_from_slice(content);
                state.gathered_chunks.push((id, length));
                if state.gathered.len() < GATHERED {
                    return Ok(id);
                }
                let gathered = std::mem::take(&mut state.gathered);
                Some((gathered, std::mem::take(&mut state.gathered_chunks)))
            }
        };
        match gathered {
            Some((gathered, chunks)) => self.block(&gathered, chunks)?,
            None => self.block(content, vec![(id, length)])?,
        }
        Ok(id)
    }

    /// Puts a chunk, though the store has it: whoever calls is about to remove the other copy.
    pub(crate) fn put_again(&self, id: ChunkId, content: &[u8]) -> Result<()> {
        let length = u32::try_from(content.len()).map_err(|_| too_long())?;
        if self.state().new.insert(id) {
            self.block(content, vec![(id, length)])?;
        }
        Ok(())
    }

    fn block(&self, content: &[u8], chunks: Vec<(ChunkId, u32)>) -> Result<()> {
        let mut scratch = self.scratch()?;
        let pack = self.pack(content.len())?;
        let stored = pack.add(content, chunks, &mut scratch)?;
        self.return_scratch(scratch);
        self.state().written += stored;
        Ok(())
    }

    /// A pack to add so many bytes to. The kernel lets one thread at a time write to a file: where another
    /// is at it, much content goes to a pack of its own.
    fn pack(&self, length: usize) -> Result<Arc<OpenPack>> {
        let mut state = self.state();
        let all = state.open.drain(..);
        let (open, full): (Vec<_>, Vec<_>) = all.partition(|open| open.length() < PACK);
        state.open = open;
        state.full.extend(full);
        let is_free = |open: &&Arc<OpenPack>| Arc::strong_count(open) == 1;
        let free = state.open.iter().find(is_free);
        let shared = state.open.first().filter(|_| length < MIN_CHUNK);
        if let Some(open) = free.or(shared) {
            return Ok(Arc::clone(open));
        }
        let name = format!("{}.{}", self.use_lock.name(), state.packs_made);
        state.packs_made += 1;
        let pack = Arc::new(OpenPack::create(self.temporary.join(name))?);
        state.open.push(Arc::clone(&pack));
        Ok(pack)
    }

    /// Puts content that is read bit by bit: `read` fills a buffer as far as it can, and says how far.
    pub(crate) fn put_stream(
        &self,
        mut read: impl FnMut(&mut [u8]) -> Result<usize>,
        file_parts: &mut Vec<FilePart>,
    ) -> Result<u64> {
        let mut scratch = self.scratch()?;
        let mut window = std::mem::take(&mut scratch.input);
        self.return_scratch(scratch);
        let put = self.put_window(&mut read, &mut window, file_parts);
        let mut scratch = self.scratch()?;
        scratch.input = window;
        self.return_scratch(scratch);
        put
    }

    fn put_window(
        &self,
        read: &mut impl FnMut(&mut [u8]) -> Result<usize>,
        window: &mut Vec<u8>,
        file_parts: &mut Vec<FilePart>,
    ) -> Result<u64> {
        let (mut total, mut start, mut end, mut is_all) = (0_u64, 0, 0, false);
        loop {
            let Some(length) = cut(&window[start..end], FILES, is_all) else {
                if is_all {
                    return Ok(total);
                }
                if end + READ > WINDOW {
                    window.copy_within(start..end, 0);
                    (start, end) = (0, end - start);
                }
                // Small content needs no large window.
                let room = if end == 0 { MIN_CHUNK / 2 } else { READ };
                window.resize(window.len().max(end + room), 0);
                let came = read(&mut window[end..end + room])?;
                is_all = came == 0;
                end += came;
                continue;
            };
            let chunk = &window[start..start + length];
            let id = self.put(chunk)?;
            let length_told = u32::try_from(length).map_err(|_| too_long())?;
            push_piece(file_parts, FilePart::Chunk { id, length: length_told });
            total += u64::from(length_told);
            start += length;
        }
    }

    /// Writes everything to the disk and gives it its names. What is new comes back.
    pub(crate) fn finish(&self) -> Result<(Vec<Arc<KnownPack>>, WriteStats)> {
        let (gathered, chunks) = {
            let mut state = self.state();
            let gathered = std::mem::take(&mut state.gathered);
            (gathered, std::mem::take(&mut state.gathered_chunks))
        };
        if !chunks.is_empty() {
            self.block(&gathered, chunks)?;
        }
        let (packs, written) = {
            let mut state = self.state();
            let mut packs = std::mem::take(&mut state.full);
            packs.append(&mut state.open);
            (packs, WriteStats { added: state.added, stored: state.written })
        };
        let mut named = Vec::with_capacity(packs.len());
        for pack in packs {
            let pack = Arc::into_inner(pack).ok_or_else(|| {
                Error::new(ErrorKind::Internal, "somebody still writes into a pack")
            })?;
            let (id, index) = pack.finish(&self.packs)?;
            named.push(Arc::new(KnownPack::new(id, index)));
        }
        if !named.is_empty() {
            super::sync_folder(&self.packs)?;
        }
        Ok((named, written))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.state();
        let mut packs = std::mem::take(&mut state.full);
        packs.append(&mut state.open);
        packs.into_iter().filter_map(Arc::into_inner).for_each(OpenPack::discard);
    }
}

/// The parts a file of this length is cut into first.
pub(crate) fn segments(start: u64, length: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < length {
        let part = SEGMENT.min(length - at);
        parts.push((start + at, part));
        at += part;
    }
    parts
}

fn too_long() -> Error {
    Error::new(ErrorKind::Internal, "a chunk is longer than one can be")
}
