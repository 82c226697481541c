//! Reading packs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Block, END, HEADER, MAGIC, MAX_INDEX, PackIndex, TRAILER, VERSION};
use crate::snapshot::store::chunk::ChunkId;
use crate::snapshot::store::errors::{damaged, failed};
use crate::{Error, Result};

/// Reads the index of a pack that is called `id`.
pub(crate) fn read_index(path: &Path, id: ChunkId) -> Result<PackIndex> {
    let broken = |what: &str| damaged(format!("pack {id}: {what}"));
    let reading = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => broken("it is cut off"),
        _ => failed("read", path, error),
    };
    let file = File::open(path).map_err(reading)?;
    let length = file.metadata().map_err(reading)?.len();
    let mut header = [0; 16];
    file.read_exact_at(&mut header, 0).map_err(reading)?;
    let mut expected = [0; 16];
    expected[..8].copy_from_slice(MAGIC);
    expected[8..12].copy_from_slice(&VERSION.to_le_bytes());
    if header != expected {
        return Err(broken("it does not begin like a pack"));
    }
    let end = length.checked_sub(TRAILER).filter(|end| *end >= HEADER);
    let end = end.ok_or_else(|| broken("it is cut off"))?;
    let mut trailer = [0; 48];
    file.read_exact_at(&mut trailer, end).map_err(reading)?;
    let (size, rest) = trailer.split_at(8);
    let (hash, magic) = rest.split_at(32);
    let size = u64::from_le_bytes(size.try_into().unwrap_or_default());
    let start = end.checked_sub(size).filter(|start| *start >= HEADER && size <= MAX_INDEX);
    let start = start.ok_or_else(|| broken("its index is not where it says"))?;
    if magic != END || hash != id.0 {
        return Err(broken("it does not end as its name says"));
    }
    let mut index = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut index, start).map_err(reading)?;
    if ChunkId::of(&index) != id {
        return Err(broken("its index is not what its name says"));
    }
    let index = PackIndex::decode(&index).map_err(broken)?;
    if HEADER + index.stored() != start {
        return Err(broken("its blocks do not reach to its index"));
    }
    Ok(index)
}

/// A pack that is being read.
#[derive(Debug)]
pub(crate) struct PackFile {
    file: File,
    path: PathBuf,
}

impl PackFile {
    /// Opens a pack. That there is none at this place is `NotFound`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| failed("open", path, error))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Reads a block into `raw`. What is compressed is checked before it is taken apart; the chunks in
    /// it are the caller's to check.
    pub(crate) fn read(
        &self,
        block: &Block,
        offset: u64,
        stored: &mut Vec<u8>,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let length = usize::try_from(block.length()).unwrap_or(0);
        match block.compressed {
            None => {
                raw.resize(length, 0);
                self.fill(raw, offset)
            }
            Some(check) => {
                stored.resize(usize::try_from(block.stored).unwrap_or(0), 0);
                self.fill(stored, offset)?;
                if ChunkId::of(stored) != check {
                    return Err(self.broken("a block is not what was written"));
                }
                raw.resize(length, 0);
                let written =
                    zstd::bulk::decompress_to_buffer(stored.as_slice(), raw.as_mut_slice());
                match written {
                    Ok(written) if written == length => Ok(()),
                    _ => Err(self.broken("a block cannot be decompressed")),
                }
            }
        }
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.broken("it is cut off"),
            _ => failed("read", &self.path, error),
        })
    }

    fn broken(&self, what: &str) -> Error {
        damaged(format!("pack {}: {what}", self.path.display()))
    }
}
