//! Packs: files that hold many chunks.
//!
//! ```text
//! "BSTDPACK" · version, u32 · 0, u32
//! blocks, one behind the other
//! the index: a list of blocks, each with the chunks in it
//! length of the index, u64 · BLAKE3 of the index, 32 bytes · "BSTDPEND"
//! ```
//!
//! Numbers are little-endian; the index is in postcard's form. A block is one large chunk or many
//! small ones, compressed as a whole where that is worth it. Every byte is covered: what is stored as
//! it is by the names of its chunks, what is compressed by a hash of its own, the index by its hash,
//! which is also the pack's name. A pack never changes once it has its name.

mod read;
mod write;

use serde::{Deserialize, Serialize};

use super::chunk::{ChunkId, MAX_CHUNK};

pub(crate) use read::{PackFile, read_index};
pub(crate) use write::{CompressBuffers, OpenPack, pack_name};

const MAGIC: &[u8; 8] = b"BSTDPACK";
const END: &[u8; 8] = b"BSTDPEND";
const VERSION: u32 = 1;
pub(crate) const HEADER: u64 = 16;
const TRAILER: u64 = 48;

/// The most bytes a block holds: the longest chunk, or many small ones.
pub(crate) const MAX_BLOCK: usize = MAX_CHUNK;

/// The longest index that is read.
const MAX_INDEX: u64 = 256 << 20;

/// What is in a pack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackIndex {
    pub(crate) blocks: Vec<Block>,
}

/// Some chunks that are stored together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// How many bytes it takes in the pack.
    pub(crate) stored: u32,
    /// The hash of these bytes, if they are compressed.
    pub(crate) compressed: Option<ChunkId>,
    /// The chunks, in order, each with its length.
    pub(crate) chunks: Vec<(ChunkId, u32)>,
}

impl Block {
    /// How many bytes it holds.
    pub(crate) fn length(&self) -> u64 {
        self.chunks.iter().map(|(_, length)| u64::from(*length)).sum()
    }
}

impl Block {
    /// What a block holds, from its stored bytes; its chunks are the caller's to check.
    pub(crate) fn unpack(&self, stored: &[u8]) -> Result<Vec<u8>, &'static str> {
        let length = usize::try_from(self.length()).unwrap_or(0);
        match self.compressed {
            None if stored.len() == length => Ok(stored.to_vec()),
            Some(check) if ChunkId::of(stored) == check => {
                let raw = zstd::bulk::decompress(stored, length);
                raw.ok().filter(|raw| raw.len() == length).ok_or("a block cannot be decompressed")
            }
            _ => Err("a block is not what was written"),
        }
    }
}

impl PackIndex {
    /// Reads an index, and refuses one that no pack of ours has.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let index: Self = bastide_proto::decode(bytes).map_err(|_| "its index is malformed")?;
        for block in &index.blocks {
            let length = block.length();
            let longest = u64::try_from(MAX_BLOCK).unwrap_or(u64::MAX);
            if block.chunks.is_empty() || length == 0 || length > longest {
                return Err("its index holds a block that cannot be");
            }
            let fits = match block.compressed {
                Some(_) => u64::from(block.stored) < length && block.stored > 0,
                None => u64::from(block.stored) == length,
            };
            if !fits {
                return Err("its index holds a block of the wrong length");
            }
        }
        Ok(index)
    }

    /// The index as it is written.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, &'static str> {
        bastide_proto::encode(self).map_err(|_| "the index of a pack cannot be written")
    }

    /// How many bytes all blocks take.
    pub(crate) fn stored(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.stored)).sum()
    }
}
