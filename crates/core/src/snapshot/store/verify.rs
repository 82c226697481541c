//! Checking that everything in a store is what was written.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::chunk::ChunkId;
use super::errors::failed;
use super::index::{Index, packs_in};
use super::reader::{ReadBuffers, Reader};
use super::record::SnapshotInfo;
use super::tree::{Kind, TreeReader, chunks_of};
use super::{Store, threads};
use crate::snapshot::Progress;
use crate::{Error, ErrorKind, Result};

/// How many damaged files of a snapshot are named.
const MAX_NAMED: usize = 1000;

/// The result of verifying a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Each snapshot that was verified; points of sessions are `SESSION@FINGERPRINT`, a name no snapshot has.
    pub snapshots: Vec<SnapshotHealth>,
    /// How many chunks were read.
    pub chunks: u64,
    /// How many bytes they hold.
    pub bytes: u64,
    /// Damage that affects none of the verified snapshots.
    pub elsewhere: Vec<String>,
}

/// The condition of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotHealth {
    /// Its name.
    pub name: String,
    /// What is wrong with its record or its list, if anything: then nothing of it can be restored.
    pub broken: Option<String>,
    /// Files whose content is damaged or missing. At most a thousand are named.
    pub damaged: Vec<String>,
    /// How many files are damaged.
    pub damaged_count: u64,
}

impl SnapshotHealth {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.broken.is_none() && self.damaged_count == 0
    }
}

impl VerifyReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.elsewhere.is_empty() && self.snapshots.iter().all(SnapshotHealth::is_intact)
    }
}

impl Store {
    /// Reads the whole store, points of sessions included, or all of one snapshot, and compares every chunk with its hash.
    ///
    /// Damaged chunks are recorded, so that the next snapshot with the same content writes them
    /// again, which repairs the others.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no snapshot with that name; others if the store cannot
    /// be read at all. Damage is not an error: the report lists it.
    pub fn verify(
        &self,
        name: Option<&str>,
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<VerifyReport> {
        let use_lock = self.use_lock()?;
        let (packs, listed) = {
            // Snapshots and packs of one moment: under the lock every snapshot that is listed has its packs
            // in their place. They may be put aside after that, but stay while the use lock is held.
            let _lock = self.lock()?;
            (packs_in(&self.packs())?, self.to_verify(name)?)
        };
        // What was read before says nothing about what is there now.
        let places = self.pack_folders();
        let index = Index::read(&packs, &places, None, &self.damaged_copies()?)?;
        let reader = Reader::new(Arc::new(index), Some(use_lock), places);
        let wanted = name.map(|_| self.needed(&reader, &listed));
        let mut report = VerifyReport::default();
        let bad = check_packs(&reader, wanted.as_ref(), progress, &mut report)?;
        self.mark_damaged(&bad)?;
        let bad_ids: HashSet<ChunkId> = bad.iter().map(|(_, id)| *id).collect();
        let mut touched = HashSet::new();
        for (name, read) in listed {
            let mut health =
                SnapshotHealth { name, broken: None, damaged: Vec::new(), damaged_count: 0 };
            let looked =
                read.and_then(|info| look(&reader, &info, &bad_ids, &mut health, &mut touched));
            if let Err(error) = looked {
                if !error.is_damaged() {
                    return Err(error);
                }
                health.broken = Some(error.message().to_owned());
            }
            report.snapshots.push(health);
        }
        if name.is_none() {
            report.elsewhere.extend(reader.index.broken.iter().map(|(_, why)| why.clone()));
            let untouched = bad_ids.difference(&touched).count();
            if untouched > 0 {
                let what = format!("{untouched} damaged chunks that no snapshot has");
                report.elsewhere.push(what);
            }
        }
        Ok(report)
    }

    fn to_verify(&self, name: Option<&str>) -> Result<Vec<(String, Result<SnapshotInfo>)>> {
        match name {
            None => {
                let mut all = self.list()?;
                all.extend(self.list_points()?);
                Ok(all)
            }
            Some(name) => match self.inspect(name) {
                Err(error) if error.is_not_found() => Err(error),
                read => Ok(vec![(name.to_owned(), read)]),
            },
        }
    }

    /// The chunks these snapshots need, as far as that can be read.
    fn needed(
        &self,
        reader: &Reader,
        listed: &[(String, Result<SnapshotInfo>)],
    ) -> HashSet<ChunkId> {
        let mut needed = HashSet::new();
        for info in listed.iter().filter_map(|(_, read)| read.as_ref().ok()) {
            // What cannot be read is found again, and told, when the list is looked at.
            drop(each_chunk(reader, info, |id| {
                needed.insert(id);
            }));
        }
        needed
    }

    /// Notes which copies of chunks are damaged.
    fn mark_damaged(&self, bad: &[(ChunkId, ChunkId)]) -> Result<()> {
        if bad.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let known = self.damaged_copies()?;
        let path = self.folder("damaged");
        let mut text = String::new();
        for pair in bad.iter().filter(|pair| known.binary_search(pair).is_err()) {
            text.push_str(&format!("{} {}\n", pair.0, pair.1));
        }
        let noted = File::options().create(true).append(true).open(&path);
        let noted = noted.and_then(|mut file| file.write_all(text.as_bytes()));
        noted.map_err(|error| failed("write", &path, error))
    }
}

/// Calls `take` with every chunk a snapshot needs.
pub(super) fn each_chunk(
    reader: &Reader,
    info: &SnapshotInfo,
    mut take: impl FnMut(ChunkId),
) -> Result<()> {
    let list = info.chunks()?;
    list.iter().copied().for_each(&mut take);
    let mut list = TreeReader::new(reader, list);
    while let Some(entry) = list.next()? {
        if let Kind::File { file_parts, .. } = &entry.kind {
            chunks_of(file_parts).for_each(&mut take);
        }
    }
    Ok(())
}

/// Finds the files of a snapshot that are damaged.
fn look(
    reader: &Reader,
    info: &SnapshotInfo,
    bad: &HashSet<ChunkId>,
    health: &mut SnapshotHealth,
    touched: &mut HashSet<ChunkId>,
) -> Result<()> {
    let list = info.chunks()?;
    touched.extend(list.iter().filter(|id| bad.contains(id)));
    let mut list = TreeReader::new(reader, list);
    let mut entries = 0;
    while let Some(entry) = list.next()? {
        entries += 1;
        let Kind::File { file_parts, .. } = &entry.kind else { continue };
        let mut is_damaged = false;
        for id in chunks_of(file_parts) {
            if bad.contains(&id) {
                touched.insert(id);
            }
            // Another copy may be whole.
            is_damaged |= !reader.index.has(&id) || bad.contains(&id);
        }
        if is_damaged {
            health.damaged_count += 1;
            if health.damaged.len() < MAX_NAMED {
                health.damaged.push(list.path());
            }
        }
    }
    match entries == info.entries {
        true => Ok(()),
        false => Err(super::errors::damaged(format!("the list of snapshot {}", info.name))),
    }
}

/// Reads blocks and checks every chunk in them; says which copies of chunks are damaged. Chunks that
/// the reader does not trust are read as well: they may have been noted by mistake.
fn check_packs(
    reader: &Reader,
    wanted: Option<&HashSet<ChunkId>>,
    progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    report: &mut VerifyReport,
) -> Result<Vec<(ChunkId, ChunkId)>> {
    let mut blocks = Vec::new();
    let mut total_bytes = 0;
    for (pack, number) in reader.index.packs.iter().zip(0_u32..) {
        for (block, at) in pack.blocks.iter().zip(0_u32..) {
            let is_wanted =
                |wanted: &HashSet<ChunkId>| block.chunks.iter().any(|(id, _)| wanted.contains(id));
            if wanted.is_none_or(is_wanted) {
                total_bytes += block.length();
                blocks.push((number, at));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Vec::new(), 0_u64, 0_u64));
    let work = || -> Result<()> {
        let mut room = ReadBuffers::default();
        while let Some((number, at)) = blocks.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let pack = usize::try_from(number).ok().and_then(|pack| reader.index.packs.get(pack));
            let block = pack
                .zip(usize::try_from(at).ok())
                .and_then(|(pack, at)| pack.blocks.get(at).map(|block| (pack.id, block)));
            let Some((pack, block)) = block else { continue };
            let read = match reader.block(number, at, &mut room) {
                Ok(()) => true,
                Err(error) if error.is_damaged() => false,
                Err(error) => return Err(error),
            };
            let mut bad = Vec::new();
            let mut rest = room.raw();
            for (id, length) in &block.chunks {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let (chunk, tail) = rest.split_at_checked(length).unwrap_or((&[], &[]));
                rest = tail;
                if !read || ChunkId::of(chunk) != *id {
                    bad.push((pack, *id));
                }
            }
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.0.extend(bad);
            found.1 += u64::try_from(block.chunks.len()).unwrap_or(0);
            found.2 += block.length();
            if let Some(on_progress) = progress {
                let (entries, bytes) = (found.1, found.2);
                on_progress(Progress {
                    entries,
                    bytes,
                    total_bytes: Some(total_bytes),
                    ..Progress::default()
                });
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads()).map(|_| scope.spawn(work)).collect();
        let own = work();
        let lost = |_| Err(Error::new(ErrorKind::Internal, "work on a snapshot was lost"));
        others.into_iter().map(|other| other.join().unwrap_or_else(lost)).fold(own, Result::and)
    })?;
    let (bad, chunks, bytes) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    (report.chunks, report.bytes) = (chunks, bytes);
    // A chunk of which there is a whole copy elsewhere is not lost, whichever copy is used.
    Ok(only_lost(reader, bad))
}

/// Of the damaged copies, those whose chunk has no whole copy that is used instead.
fn only_lost(reader: &Reader, bad: Vec<(ChunkId, ChunkId)>) -> Vec<(ChunkId, ChunkId)> {
    let mut packs: HashMap<ChunkId, Vec<ChunkId>> = HashMap::new();
    for (pack, id) in &bad {
        packs.entry(*id).or_default().push(*pack);
    }
    bad.into_iter()
        .filter(|(pack, id)| match reader.index.pack_of(id) {
            // The copy that is used is one of the damaged ones, or there is none.
            Some(used) => {
                packs.get(id).is_some_and(|packs| packs.contains(&used.id)) || used.id == *pack
            }
            None => true,
        })
        .collect()
}
