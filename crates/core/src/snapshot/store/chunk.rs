//! Chunks: what content is cut into, and what a chunk is called.

use std::fmt;
use std::str::FromStr;

use fastcdc::v2020::{FastCDC, Normalization};
use serde::{Deserialize, Serialize};

use crate::lower_hex;

/// The shortest chunk, but for the last one of a part of a file: its bytes need not be looked at for a place
/// to cut. On average a chunk is a quarter longer.
pub(crate) const MIN_CHUNK: usize = 1 << 20;

/// The longest chunk.
pub(crate) const MAX_CHUNK: usize = 4 << 20;

/// A file is cut in parts of this length first, each by itself, so that several can be worked on at
/// once.
pub(crate) const SEGMENT: u64 = 64 << 20;

/// The name of a chunk: the BLAKE3 hash of its content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ChunkId(pub(crate) [u8; 32]);

impl ChunkId {
    /// The name of some content.
    pub(crate) fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not the name of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoChunkId;

impl FromStr for ChunkId {
    type Err = NoChunkId;

    fn from_str(text: &str) -> Result<Self, NoChunkId> {
        lower_hex::decode(text).map(Self).ok_or(NoChunkId)
    }
}

/// How long chunks are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    min: usize,
    average: usize,
    pub(crate) max: usize,
    /// How strongly chunks that are longer than the average are made to end.
    level: Normalization,
}

/// How files are cut.
pub(crate) const FILES: Sizes =
    Sizes { min: MIN_CHUNK, average: MIN_CHUNK, max: MAX_CHUNK, level: Normalization::Level2 };

/// How lists of files are cut: finer, so that a small change touches little.
pub(crate) const LISTS: Sizes =
    Sizes { min: 16 << 10, average: 64 << 10, max: 256 << 10, level: Normalization::Level1 };

/// Where the first chunk of `content` ends; nothing if that cannot be said before more of it is there.
/// `is_all` says that nothing follows.
pub(crate) fn cut(content: &[u8], sizes: Sizes, is_all: bool) -> Option<usize> {
    let Sizes { min, average, max, level } = sizes;
    // Most chunks end long before the longest one would: more is only waited for if this one does not.
    if content.len() < 2 * average && !is_all {
        return None;
    }
    if content.len() <= min {
        return (!content.is_empty()).then_some(content.len());
    }
    let length = match is_all || content.len() >= max {
        true => content.len().min(max),
        // In pairs of bytes, as they are looked at.
        false => content.len() / 2 * 2,
    };
    let content = &content[..length];
    let cutter = FastCDC::with_level(content, min, average, max, level);
    let (_, end) = cutter.cut(0, length);
    let end = end.clamp(1, length);
    // The end of what is there, but not an end that the content decides.
    let is_end = end < length || length == max || is_all;
    is_end.then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252_u64;
        let step = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        };
        std::iter::repeat_with(step).take(length).collect()
    }

    fn chunk_ids(mut content: &[u8], sizes: Sizes) -> Vec<ChunkId> {
        let mut ids = Vec::new();
        while let Some(end) = cut(content, sizes, true) {
            ids.push(ChunkId::of(&content[..end]));
            content = &content[end..];
        }
        ids
    }

    #[test]
    fn finds_the_same_chunks_behind_an_insertion() {
        let content = noise(4 << 20);
        let before = chunk_ids(&content, LISTS);
        let mut changed = content.clone();
        changed.splice(1000..1000, *b"inserted");
        let after = chunk_ids(&changed, LISTS);
        let shared = after.iter().filter(|id| before.contains(id)).count();
        assert!(shared + 3 >= before.len(), "{shared} of {}", before.len());
    }

    #[test]
    fn cuts_the_same_however_much_is_there() {
        let content = noise(2 << 20);
        for (sizes, content) in [(LISTS, &content[..]), (LISTS, &[0; 1 << 20][..])] {
            let whole = chunk_ids(content, sizes);
            let (mut ids, mut start, mut end) = (Vec::new(), 0, 0);
            while start < content.len() {
                match cut(&content[start..end], sizes, end == content.len()) {
                    Some(length) => {
                        ids.push(ChunkId::of(&content[start..start + length]));
                        start += length;
                    }
                    None => end = (end + 10_007).min(content.len()),
                }
            }
            assert_eq!(ids, whole);
        }
    }

    #[test]
    fn reads_back_the_names_it_writes() {
        let id = ChunkId::of(b"content");
        assert_eq!(id.to_string().parse(), Ok(id));
        let short = &id.to_string()[1..];
        for bad in ["", short, &"g".repeat(64), &"A".repeat(64)] {
            assert_eq!(bad.parse::<ChunkId>(), Err(NoChunkId), "{bad}");
        }
    }
}
