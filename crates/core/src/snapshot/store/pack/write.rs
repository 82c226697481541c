//! Writing packs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Block, END, HEADER, MAGIC, PackIndex, VERSION, read_index};
use crate::snapshot::store::chunk::ChunkId;
use crate::snapshot::store::errors::failed;
use crate::{Error, ErrorKind, Result};

/// How hard blocks are compressed: as hard as can be without becoming what everything waits for.
const LEVEL: i32 = 1;

/// How much of a large chunk is tried in three places before all of it is. If that does not shrink to half,
/// the chunk is kept as it is: compressing and taking apart would take longer than everything else.
const SAMPLE: usize = 4 << 10;

/// A pack that is being written, by several threads.
#[derive(Debug)]
pub(crate) struct OpenPack {
    file: File,
    path: PathBuf,
    written: Mutex<PackState>,
}

#[derive(Debug)]
struct PackState {
    end: u64,
    index: PackIndex,
}

/// What a thread needs to compress.
pub(crate) struct CompressBuffers {
    compressor: zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
    check: Vec<u8>,
    /// Room for whoever reads.
    pub(crate) input: Vec<u8>,
}

impl std::fmt::Debug for CompressBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl CompressBuffers {
    pub(crate) fn new() -> Result<Self> {
        let compressor = zstd::bulk::Compressor::new(LEVEL).map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot compress anything").with_source(error)
        })?;
        Ok(Self { compressor, compressed: Vec::new(), check: Vec::new(), input: Vec::new() })
    }

    /// Compresses a block; nothing if it is not worth it.
    fn compress(&mut self, raw: &[u8], is_large: bool) -> Option<&[u8]> {
        let mut sample = [0; 2 * SAMPLE];
        if is_large && raw.len() >= 8 * SAMPLE {
            let mut tried = 0;
            for start in [0, raw.len() / 2, raw.len() - SAMPLE] {
                let part = &raw[start..start + SAMPLE];
                tried += self.compressor.compress_to_buffer(part, &mut sample[..]).ok()?;
            }
            if tried * 2 > 3 * SAMPLE {
                return None;
            }
        }
        // What does not fit into less than it was is not worth it.
        let most = raw.len() - raw.len() / 16;
        self.compressed.resize(self.compressed.len().max(most), 0);
        let room = &mut self.compressed[..most];
        let length = self.compressor.compress_to_buffer(raw, room).ok()?;
        // What is written must be what can be read: a chunk that is lost here is lost for good.
        self.check.resize(raw.len(), 0);
        let back =
            zstd::bulk::decompress_to_buffer(&self.compressed[..length], &mut self.check[..]);
        (back.ok() == Some(raw.len()) && self.check == raw).then(|| &self.compressed[..length])
    }
}

impl OpenPack {
    /// Begins a pack, which has no name yet.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let made = || -> io::Result<File> {
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            let mut header = [0; 16];
            header[..8].copy_from_slice(MAGIC);
            header[8..12].copy_from_slice(&VERSION.to_le_bytes());
            file.write_all_at(&header, 0)?;
            Ok(file)
        };
        let file = made().map_err(|error| failed("make", &path, error))?;
        let written = Mutex::new(PackState { end: HEADER, index: PackIndex::default() });
        Ok(Self { file, path, written })
    }

    /// Adds a block.
    pub(crate) fn add(
        &self,
        raw: &[u8],
        chunks: Vec<(ChunkId, u32)>,
        scratch: &mut CompressBuffers,
    ) -> Result<u64> {
        let compressed = scratch.compress(raw, chunks.len() == 1);
        let bytes = compressed.unwrap_or(raw);
        let stored = u32::try_from(bytes.len()).map_err(|_| {
            Error::new(ErrorKind::Internal, "a block of a pack is longer than one can be")
        })?;
        let block = Block { stored, compressed: compressed.map(ChunkId::of), chunks };
        let offset = {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            let offset = written.end;
            written.end += u64::from(stored);
            written.index.blocks.push(block);
            offset
        };
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| failed("write", &self.path, error))?;
        Ok(u64::from(stored))
    }

    /// How long it is by now.
    pub(crate) fn length(&self) -> u64 {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).end
    }

    /// Ends the pack: when this returns it is on the disk, and has its name in `folder`. What was
    /// written is read again before that.
    pub(crate) fn finish(self, folder: &Path) -> Result<(ChunkId, PackIndex)> {
        let Self { file, path, written } = self;
        let PackState { end, index } = written.into_inner().unwrap_or_else(PoisonError::into_inner);
        let bytes = index.encode().map_err(|why| Error::new(ErrorKind::Internal, why))?;
        let id = ChunkId::of(&bytes);
        let ending = || -> io::Result<()> {
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            file.write_all_at(&bytes, end)?;
            let mut trailer = Vec::with_capacity(48);
            trailer.extend(length.to_le_bytes());
            trailer.extend(id.0);
            trailer.extend(END);
            file.write_all_at(&trailer, end + length)?;
            file.sync_data()
        };
        ending().map_err(|error| failed("write", &path, error))?;
        if read_index(&path, id)? != index {
            return Err(Error::new(ErrorKind::Io, "a pack is not what was written into it"));
        }
        let place = folder.join(pack_name(id));
        std::fs::rename(&path, &place).map_err(|error| failed("name", &place, error))?;
        Ok((id, index))
    }

    /// Gives up a pack.
    pub(crate) fn discard(self) {
        // What stays is found by whoever collects garbage.
        drop(std::fs::remove_file(&self.path));
    }
}

/// What the file of a pack is called.
pub(crate) fn pack_name(id: ChunkId) -> String {
    format!("{id}.pack")
}
