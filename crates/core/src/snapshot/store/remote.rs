//! Snapshots elsewhere: on storage that keeps objects by name.
//!
//! ```text
//! packs/ID.pack        as in a store
//! packs/ID.index       the index of that pack by itself; it is there when the pack is
//! snapshots/NAME       as in a store
//! ```
//!
//! A push sends only chunks that no pack there has, and the record last. A pull fetches only blocks
//! with chunks that are not here. Whatever comes from there is checked like everything else.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::chunk::ChunkId;
use super::errors::{damaged, failed};
use super::index::{Index, KnownPack};
use super::pack::{PackIndex, pack_name};
use super::reader::ReadBuffers;
use super::record::{self, SnapshotInfo};
use super::use_lock::UseLock;
use super::verify::each_chunk;
use super::writer::Writer;
use super::{Store, blocking};
use crate::{Error, ErrorKind, Result};

/// The most bytes of a record or an index that are taken from elsewhere.
const MAX_SMALL: u64 = 256 << 20;

/// Storage of objects by name. Writing an object replaces it atomically.
#[async_trait]
pub trait Objects: std::fmt::Debug + Send + Sync {
    /// The names of all objects that begin with `prefix`.
    async fn list(&self, prefix: &str) -> Result<Vec<String>>;

    /// The length of an object; `None` if there is none with that name.
    async fn length(&self, name: &str) -> Result<Option<u64>>;

    /// A part of an object.
    async fn read(&self, name: &str, offset: u64, length: u64) -> Result<Bytes>;

    /// Writes an object from a file.
    async fn write(&self, name: &str, file: &std::path::Path) -> Result<()>;

    /// Removes an object; a missing one is no error.
    async fn remove(&self, name: &str) -> Result<()>;
}

/// The result of a push or a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushReport {
    /// The snapshot.
    pub info: SnapshotInfo,
    /// How many chunks were copied.
    pub chunks: u64,
    /// Their total size.
    pub bytes: u64,
}

impl Store {
    /// Copies a snapshot to remote storage. Chunks that are there already are not sent again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such snapshot; others if it is damaged, or the
    /// storage refuses it. A snapshot of the same name is replaced only when the new one is
    /// complete.
    pub async fn push(&self, objects: &dyn Objects, name: &str) -> Result<PushReport> {
        let there = remote_index(objects).await?;
        let (store, wanted) = (self.clone(), name.to_owned());
        let index = Arc::new(there);
        let known = Arc::clone(&index);
        let folder = tempfile::tempdir().map_err(|error| {
            Error::new(ErrorKind::Io, "cannot make a folder for what is sent").with_source(error)
        })?;
        let place = folder.path().to_owned();
        let (info, packs, chunks, bytes) = blocking(move || {
            let (reader, info) = store.reading(|| store.inspect(&wanted))?;
            let use_lock = UseLock::take(&place)?;
            // Packs of its own: what else the packs here hold is nobody's business there.
            let writer = Writer::new(known, use_lock, place.clone(), place);
            let mut needed = HashSet::new();
            each_chunk(&reader, &info, |id| {
                needed.insert(id);
            })?;
            let (mut chunks, mut bytes) = (0, 0);
            let mut room = ReadBuffers::default();
            let mut needed: Vec<ChunkId> =
                needed.into_iter().filter(|id| !writer.index.has(id)).collect();
            // In the order they are in here: so each block is read once.
            needed.sort_by_key(|id| {
                reader.index.find(id).map(|place| (place.pack, place.block, place.start))
            });
            for id in needed {
                reader.with(&id, &mut room, |content| {
                    chunks += 1;
                    bytes += u64::try_from(content.len()).unwrap_or(0);
                    writer.put(content).map(drop)
                })?;
            }
            let (packs, _) = writer.finish()?;
            Ok((info, packs, chunks, bytes))
        })
        .await?;
        for pack in &packs {
            let file = folder.path().join(pack_name(pack.id));
            objects.write(&format!("packs/{}.pack", pack.id), &file).await?;
            let index = folder.path().join("index");
            let described = PackIndex { blocks: pack.blocks.clone() };
            let encoded = described.encode().map_err(|why| Error::new(ErrorKind::Internal, why))?;
            fs::write(&index, encoded).map_err(|error| failed("write", &index, error))?;
            objects.write(&format!("packs/{}.index", pack.id), &index).await?;
        }
        let file = folder.path().join("record");
        fs::write(&file, record::encode(&info)?).map_err(|error| failed("write", &file, error))?;
        objects.write(&format!("snapshots/{name}"), &file).await?;
        Ok(PushReport { info, chunks, bytes })
    }

    /// Copies a snapshot from remote storage. Chunks that are here already are not fetched again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such snapshot there; [`ErrorKind::Io`] if it is
    /// damaged. A snapshot of the same name is replaced only when the new one is complete.
    pub async fn pull(&self, objects: &dyn Objects, name: &str) -> Result<PushReport> {
        record::check_name(name)?;
        let object = format!("snapshots/{name}");
        let Some(length) = objects.length(&object).await? else {
            return Err(record::missing(name));
        };
        if length > MAX_SMALL {
            return Err(damaged(format!("the record of snapshot {name} is too long")));
        }
        let info = record::decode(&objects.read(&object, 0, length).await?, name)?;
        let there = remote_index(objects).await?;
        let store = self.clone();
        let writer = Arc::new(blocking(move || store.writer()).await?);
        let mut fetching =
            Fetching { objects, there: &there, writer: &writer, chunks: 0, bytes: 0 };
        // First the list, then what it names.
        fetching.fetch(info.chunks()?).await?;
        let (held, described) = (Arc::clone(&writer), info.clone());
        let (packs, needed) = {
            let store = self.clone();
            blocking(move || {
                let (packs, _) = held.finish()?;
                let (reader, ()) = store.reading(|| Ok(()))?;
                let mut needed = Vec::new();
                each_chunk(&reader, &described, |id| needed.push(id))?;
                Ok((packs, needed))
            })
            .await?
        };
        fetching.fetch(needed).await?;
        let (chunks, bytes) = (fetching.chunks, fetching.bytes);
        let (store, published) = (self.clone(), info.clone());
        blocking(move || {
            let (more, _) = writer.finish()?;
            let packs: Vec<Arc<KnownPack>> = packs.into_iter().chain(more).collect();
            store.publish(&writer, &packs, &published)
        })
        .await?;
        Ok(PushReport { info, chunks, bytes })
    }
}

/// Where every chunk is elsewhere. A pack whose index cannot be read does not count.
async fn remote_index(objects: &dyn Objects) -> Result<Index> {
    let mut index = Index::default();
    for name in objects.list("packs/").await? {
        let id = name.strip_prefix("packs/").and_then(|name| name.strip_suffix(".index"));
        let Some(id) = id.and_then(|id| id.parse::<ChunkId>().ok()) else { continue };
        let Some(length) = objects.length(&name).await?.filter(|length| *length <= MAX_SMALL)
        else {
            continue;
        };
        let bytes = objects.read(&name, 0, length).await?;
        if ChunkId::of(&bytes) == id
            && let Ok(described) = PackIndex::decode(&bytes)
        {
            index.add(Arc::new(KnownPack::new(id, described)), &[]);
        }
    }
    Ok(index)
}

/// Fetches chunks.
struct Fetching<'a> {
    objects: &'a dyn Objects,
    there: &'a Index,
    writer: &'a Arc<Writer>,
    chunks: u64,
    bytes: u64,
}

impl Fetching<'_> {
    /// Fetches those of these chunks that are not here, block by block.
    async fn fetch(&mut self, wanted: Vec<ChunkId>) -> Result<()> {
        let mut blocks: Vec<(u32, u32)> = Vec::new();
        let wanted: HashSet<ChunkId> =
            wanted.into_iter().filter(|id| !self.writer.has(id)).collect();
        for id in &wanted {
            let place = self.there.find(id);
            let place = place.ok_or_else(|| damaged(format!("chunk {id} is missing there")))?;
            blocks.push((place.pack, place.block));
        }
        blocks.sort_unstable();
        blocks.dedup();
        for (pack, block) in blocks {
            let missing = || damaged("a pack is missing there");
            let pack = usize::try_from(pack).ok().and_then(|pack| self.there.packs.get(pack));
            let pack = Arc::clone(pack.ok_or_else(missing)?);
            let number = usize::try_from(block).unwrap_or(usize::MAX);
            let described = pack.blocks.get(number).cloned().ok_or_else(missing)?;
            let offset = *pack.offsets.get(number).ok_or_else(missing)?;
            let name = format!("packs/{}.pack", pack.id);
            let stored = self.objects.read(&name, offset, described.stored.into()).await?;
            let (writer, wanted) = (Arc::clone(self.writer), wanted.clone());
            let (chunks, bytes) = blocking(move || {
                let raw = described.unpack(&stored).map_err(damaged)?;
                let mut rest = raw.as_slice();
                let (mut chunks, mut bytes) = (0, 0);
                for (id, length) in &described.chunks {
                    let length = usize::try_from(*length).unwrap_or(usize::MAX);
                    let (content, tail) = rest
                        .split_at_checked(length)
                        .ok_or_else(|| damaged("a block is cut off there"))?;
                    rest = tail;
                    if !wanted.contains(id) {
                        continue;
                    }
                    if ChunkId::of(content) != *id {
                        return Err(damaged(format!("chunk {id} is not what was written there")));
                    }
                    writer.put(content)?;
                    chunks += 1;
                    bytes += u64::try_from(content.len()).unwrap_or(0);
                }
                Ok((chunks, bytes))
            })
            .await?;
            self.chunks += chunks;
            self.bytes += bytes;
        }
        Ok(())
    }
}
