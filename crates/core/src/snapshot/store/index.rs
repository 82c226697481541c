//! Where every chunk is.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::chunk::ChunkId;
use super::errors::failed;
use super::pack::{Block, HEADER, PackIndex, read_index};
use super::pack_folders::PackFolders;
use crate::Result;

/// A pack, and what is in it.
#[derive(Debug)]
pub(crate) struct KnownPack {
    pub(crate) id: ChunkId,
    pub(crate) blocks: Vec<Block>,
    /// Where each block begins.
    pub(crate) offsets: Vec<u64>,
}

impl KnownPack {
    pub(crate) fn new(id: ChunkId, index: PackIndex) -> Self {
        let mut end = HEADER;
        let mut offsets = Vec::with_capacity(index.blocks.len());
        for block in &index.blocks {
            offsets.push(end);
            end += u64::from(block.stored);
        }
        Self { id, blocks: index.blocks, offsets }
    }
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkLocation {
    pub(crate) pack: u32,
    pub(crate) block: u32,
    /// Where it begins in its block.
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// Where every chunk of a store is.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) packs: Vec<Arc<KnownPack>>,
    chunks: HashMap<ChunkId, ChunkLocation>,
    /// Packs that cannot be read, and why.
    pub(crate) broken: Vec<(ChunkId, String)>,
}

/// The packs in a folder. They come and go unless the store's lock is held.
pub(crate) fn packs_in(folder: &Path) -> Result<Vec<ChunkId>> {
    let reading = |error| failed("read", folder, error);
    let mut packs = Vec::new();
    for entry in fs::read_dir(folder).map_err(reading)? {
        let name = entry.map_err(reading)?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".pack"));
        packs.extend(id.and_then(|id| id.parse::<ChunkId>().ok()));
    }
    Ok(packs)
}

impl Index {
    /// Reads the indexes of packs, but those that are known already.
    pub(crate) fn read(
        packs: &[ChunkId],
        places: &PackFolders,
        known: Option<&Self>,
        damaged_copies: &[(ChunkId, ChunkId)],
    ) -> Result<Self> {
        let mut before: HashMap<ChunkId, Arc<KnownPack>> = known
            .map(|known| known.packs.iter().map(|pack| (pack.id, Arc::clone(pack))).collect())
            .unwrap_or_default();
        let mut index = Self::default();
        for id in packs.iter().copied() {
            let pack = match before.remove(&id) {
                Some(pack) => pack,
                None => match places.find(id, |path| read_index(path, id)) {
                    Ok(read) => Arc::new(KnownPack::new(id, read)),
                    // Somebody who collects garbage removed it: then nobody needs it.
                    Err(error) if error.kind() == crate::ErrorKind::NotFound => continue,
                    Err(error) if error.is_damaged() => {
                        index.broken.push((id, error.message().to_owned()));
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            index.add(pack, damaged_copies);
        }
        Ok(index)
    }

    /// Adds a pack.
    pub(crate) fn add(&mut self, pack: Arc<KnownPack>, damaged_copies: &[(ChunkId, ChunkId)]) {
        let number = u32::try_from(self.packs.len()).unwrap_or(u32::MAX);
        for (block, at) in pack.blocks.iter().zip(0_u32..) {
            let mut start = 0;
            for (id, length) in &block.chunks {
                let place = ChunkLocation { pack: number, block: at, start, length: *length };
                start += length;
                // A copy that is known to be bad does not count.
                if damaged_copies.binary_search(&(pack.id, *id)).is_err() {
                    self.chunks.insert(*id, place);
                }
            }
        }
        self.packs.push(pack);
    }

    /// Where a chunk is.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<ChunkLocation> {
        self.chunks.get(id).copied()
    }

    /// Whether there is such a chunk.
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.chunks.contains_key(id)
    }

    /// The pack a chunk is in.
    pub(crate) fn pack_of(&self, id: &ChunkId) -> Option<&Arc<KnownPack>> {
        self.packs.get(usize::try_from(self.find(id)?.pack).ok()?)
    }
}
