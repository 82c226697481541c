//! Taking content out of a store.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use super::chunk::ChunkId;
use super::errors::damaged;
use super::index::{ChunkLocation, Index};
use super::pack::PackFile;
use super::pack_folders::PackFolders;
use super::tree::Content;
use super::use_lock::UseLock;
use crate::{ErrorKind, Result};

/// How many packs are open at once.
const OPEN: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// How many bytes of blocks with many chunks are remembered. What was saved bit by bit lies in many blocks,
/// and a folder of it may need each of them.
const REMEMBERED: usize = 16 << 20;

/// Takes content out of a store. What it gives is what its name says, or an error. Several threads may
/// use it at once.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) index: Arc<Index>,
    _use_lock: Option<UseLock>,
    places: PackFolders,
    files: Mutex<LruCache<u32, Arc<PackFile>>>,
    blocks: Mutex<BlockCache>,
}

/// Blocks that were read, by their pack and their number there, bounded by their size.
#[derive(Debug)]
struct BlockCache {
    known: LruCache<(u32, u32), Arc<Vec<u8>>>,
    bytes: usize,
}

/// Room for one thread to read in.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers {
    stored: Vec<u8>,
    raw: Vec<u8>,
}

impl ReadBuffers {
    /// What was read last.
    pub(crate) fn raw(&self) -> &[u8] {
        &self.raw
    }
}

impl Reader {
    pub(crate) fn new(index: Arc<Index>, use_lock: Option<UseLock>, places: PackFolders) -> Self {
        let files = Mutex::new(LruCache::new(OPEN));
        let blocks = Mutex::new(BlockCache { known: LruCache::unbounded(), bytes: 0 });
        Self { index, _use_lock: use_lock, places, files, blocks }
    }

    fn file(&self, pack: u32) -> Result<Arc<PackFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&pack) {
            return Ok(Arc::clone(file));
        }
        let known = usize::try_from(pack).ok().and_then(|pack| self.index.packs.get(pack));
        let known = known.ok_or_else(|| damaged("a pack is missing"))?;
        let opened = self.places.find(known.id, PackFile::open);
        let file = Arc::new(opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => damaged(format!("pack {} is missing", known.id)),
            _ => error,
        })?);
        files.put(pack, Arc::clone(&file));
        Ok(file)
    }

    /// Reads a block; its chunks are not checked.
    pub(crate) fn block(&self, pack: u32, block: u32, room: &mut ReadBuffers) -> Result<()> {
        let file = self.file(pack)?;
        let missing = || damaged("a block is missing");
        let known = usize::try_from(pack).ok().and_then(|pack| self.index.packs.get(pack));
        let known = known.ok_or_else(missing)?;
        let number = usize::try_from(block).unwrap_or(usize::MAX);
        let described = known.blocks.get(number).ok_or_else(missing)?;
        let offset = *known.offsets.get(number).ok_or_else(missing)?;
        file.read(described, offset, &mut room.stored, &mut room.raw)
    }

    /// Gives the content of a chunk to `take`, which is what its name says.
    pub(crate) fn with<T>(
        &self,
        id: &ChunkId,
        room: &mut ReadBuffers,
        take: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let missing = || damaged(format!("chunk {id} is missing"));
        let ChunkLocation { pack, block, start, length } =
            self.index.find(id).ok_or_else(missing)?;
        let (start, length) = (usize::try_from(start), usize::try_from(length));
        let (start, length) = (start.unwrap_or(usize::MAX), length.unwrap_or(usize::MAX));
        let range = start..start.saturating_add(length);
        let checked = |content: &[u8]| match ChunkId::of(content) == *id {
            true => take(content),
            false => Err(damaged(format!("chunk {id} is not what was written"))),
        };
        if let Some(raw) = self.remembered((pack, block)) {
            return checked(raw.get(range).ok_or_else(missing)?);
        }
        self.block(pack, block, room)?;
        if range.len() == room.raw.len() {
            return checked(&room.raw);
        }
        // Others of this block are likely to be next.
        let raw = Arc::new(std::mem::take(&mut room.raw));
        self.remember((pack, block), Arc::clone(&raw));
        checked(raw.get(range).ok_or_else(missing)?)
    }

    fn remembered(&self, key: (u32, u32)) -> Option<Arc<Vec<u8>>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.known.get(&key).cloned()
    }

    fn remember(&self, key: (u32, u32), raw: Arc<Vec<u8>>) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.bytes += raw.len();
        // Another thread may have read the same.
        if let Some(before) = blocks.known.put(key, raw) {
            blocks.bytes -= before.len();
        }
        while blocks.bytes > REMEMBERED
            && let Some((_, oldest)) = blocks.known.pop_lru()
        {
            blocks.bytes -= oldest.len();
        }
    }
}

impl Content for &Reader {
    fn chunk(&mut self, id: &ChunkId) -> Result<Vec<u8>> {
        self.with(id, &mut ReadBuffers::default(), |content| Ok(content.to_vec()))
    }
}

impl Content for Arc<Reader> {
    fn chunk(&mut self, id: &ChunkId) -> Result<Vec<u8>> {
        (&mut self.as_ref()).chunk(id)
    }
}
