//! Collecting garbage: packs that hold what no snapshot has any more.
//!
//! Packs nobody needs are put aside first, where nobody who comes later finds them. Who was there
//! before may still read them, or save a snapshot that needs them: then they are brought back before
//! that snapshot is published. They are removed when everybody who was there before is gone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunk::ChunkId;
use super::errors::failed;
use super::fail_points::{self, FailPoint};
use super::index::{KnownPack, packs_in};
use super::pack::pack_name;
use super::reader::{ReadBuffers, Reader};
use super::record;
use super::use_lock;
use super::verify::each_chunk;
use super::writer::Writer;
use super::{Store, sync_folder};
use crate::{Condition, Error, Result};

/// Packs of which less than this part is needed are written anew, in percent.
const WORTH_KEEPING: u64 = 60;

/// What says how many packs the last collection left.
const COLLECTED: &str = "collected";

/// How many packs may come beyond as many as the last collection left before they are worth another one.
const MANY: usize = 32;

/// The result of a garbage collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectReport {
    /// How many packs were removed.
    pub packs_removed: u64,
    /// How many bytes they took.
    pub bytes_removed: u64,
    /// How many packs no snapshot needs, but a reader may still have open. The next collection
    /// removes them.
    pub packs_waiting: u64,
    /// How many bytes these take.
    pub bytes_waiting: u64,
    /// How many packs were rewritten without the chunks that no snapshot needs.
    pub packs_rewritten: u64,
}

impl Store {
    /// Removes chunks that no snapshot needs. Other processes may save and restore meanwhile.
    ///
    /// # Errors
    ///
    /// Fails, and removes nothing, if a snapshot cannot be read: what it needs is not known then.
    pub fn collect(&self) -> Result<CollectReport> {
        let mut report = CollectReport::default();
        let writer = self.writer()?;
        self.forget_orphans()?;
        let reader = Reader::new(Arc::clone(&writer.index), None, self.pack_folders());
        // Most of the work is done while others go on.
        let mut seen = HashSet::new();
        let mut needed = HashSet::new();
        self.mark(&reader, &mut seen, &mut needed, None)?;
        let (rewritten, fresh) = rewrite(&writer, &reader, &needed)?;
        report.packs_rewritten = rewritten;
        let fresh: HashSet<ChunkId> = fresh.iter().map(|pack| pack.id).collect();
        fail_points::fail_point(FailPoint::Rewritten);
        {
            let lock = self.lock()?;
            // What was published meanwhile counts, too.
            let places = self.pack_folders().locked();
            let reader = Reader::new(Arc::clone(&writer.index), None, places);
            self.mark(&reader, &mut seen, &mut needed, Some(&lock))?;
            self.put_aside(&writer, &fresh, &needed)?;
        }
        drop(reader);
        let own = writer.use_lock.name();
        fail_points::fail_point(FailPoint::PutAside);
        let before = self.empty(&own, &mut report)?;
        self.clear_temporary(&before, &own)?;
        self.clear_caches()?;
        // Without it the next collection comes sooner.
        let left = packs_in(&self.packs())?.len();
        drop(fs::write(self.home().join(COLLECTED), left.to_string()));
        Ok(report)
    }

    /// Removes chunks that no snapshot needs if there may be many: there are more than twice as many packs as the
    /// last collection left. Says whether it did.
    pub(crate) fn collect_garbage(&self) -> Result<bool> {
        let left = fs::read_to_string(self.home().join(COLLECTED)).unwrap_or_default();
        let left: usize = left.trim().parse().unwrap_or(0);
        let now = packs_in(&self.packs())?.len();
        if now <= left.saturating_mul(2).saturating_add(MANY) {
            return Ok(false);
        }
        let collected = self.collect();
        if collected.is_err() {
            // Where it cannot be done, it is not tried again at once.
            drop(fs::write(self.home().join(COLLECTED), now.to_string()));
        }
        collected.map(|_| true)
    }

    /// Finds what the snapshots need that were not looked at before.
    fn mark(
        &self,
        reader: &Reader,
        seen: &mut HashSet<(PathBuf, String)>,
        needed: &mut HashSet<ChunkId>,
        lock: Option<&File>,
    ) -> Result<()> {
        for (folder, name) in self.all_records()? {
            let info = match record::read(&folder, &name) {
                Ok(info) => info,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(unreadable(&name, error)),
            };
            if !seen.insert((folder.join(&name), info.fingerprint.clone())) {
                continue;
            }
            let marked = each_chunk(reader, &info, |id| {
                needed.insert(id);
            });
            // Saved after we looked at what there is: what it needs may be in packs we do not know.
            match marked {
                Ok(()) => {}
                Err(_) if self.is_newer(reader, &info)? => {
                    let (fresh, places) = match lock {
                        Some(_) => {
                            let places = self.pack_folders().locked();
                            (self.index_of(&packs_in(&self.packs())?, &places)?, places)
                        }
                        None => (self.index()?, self.pack_folders()),
                    };
                    let reader = Reader::new(fresh, None, places);
                    let marked = each_chunk(&reader, &info, |id| {
                        needed.insert(id);
                    });
                    match marked {
                        Err(error) if is_still_there(&folder, &info)? => {
                            return Err(unreadable(&name, error));
                        }
                        // Somebody removed it meanwhile, and somebody else what it needed.
                        _ => {}
                    }
                }
                Err(error) => return Err(unreadable(&name, error)),
            }
        }
        Ok(())
    }

    /// Puts aside what nobody needs of the packs that were there at the beginning. The store's lock is held.
    ///
    /// Others may have saved and collected since then, and need or have put aside what was rewritten. So what is in its
    /// place now counts: a pack goes only if every chunk that is needed of it is in another one. What was just
    /// written is used before anything else.
    fn put_aside(
        &self,
        writer: &Writer,
        fresh: &HashSet<ChunkId>,
        needed: &HashSet<ChunkId>,
    ) -> Result<()> {
        let (packs, aside) = (self.packs(), self.folder("aside"));
        let mut present = packs_in(&packs)?;
        // Of two copies the later one is used.
        present.sort_by_key(|id| fresh.contains(id));
        let now = self.index_of(&present, &self.pack_folders().locked())?;
        let before: HashSet<ChunkId> = writer.index.packs.iter().map(|pack| pack.id).collect();
        for pack in now.packs.iter().filter(|pack| before.contains(&pack.id)) {
            let is_used = |(id, _): &(ChunkId, u32)| {
                needed.contains(id) && now.pack_of(id).is_some_and(|used| used.id == pack.id)
            };
            if !pack.blocks.iter().flat_map(|block| &block.chunks).any(is_used) {
                put_aside(&packs, &aside, pack.id)?;
            }
        }
        sync_folder(&packs)
    }

    /// Whether a snapshot needs chunks that were not there when the reader looked.
    fn is_newer(&self, reader: &Reader, info: &record::SnapshotInfo) -> Result<bool> {
        Ok(info.chunks()?.iter().any(|id| !reader.index.has(id)))
    }

    /// Removes what was put aside, unless somebody is there who was there before that; says who is there.
    ///
    /// Whoever comes takes a use lock first, and then looks at the packs under the lock. So use locks are looked at under
    /// the same lock: who has none by now finds nothing of what is removed, and nobody puts more aside meanwhile that
    /// somebody who came since still reads.
    fn empty(&self, own: &str, report: &mut CollectReport) -> Result<Vec<String>> {
        let aside = self.folder("aside");
        let reading = |error| failed("read", &aside, error);
        let _lock = self.lock()?;
        let mut before = use_lock::held(&self.folder("leases"))?;
        before.retain(|name| name != own);
        for entry in fs::read_dir(&aside).map_err(reading)? {
            let entry = entry.map_err(reading)?;
            let length = entry.metadata().map_or(0, |metadata| metadata.len());
            if before.is_empty() {
                let path = entry.path();
                fs::remove_file(&path).map_err(|error| failed("remove", &path, error))?;
                report.packs_removed += 1;
                report.bytes_removed += length;
            } else {
                report.packs_waiting += 1;
                report.bytes_waiting += length;
            }
        }
        Ok(before)
    }

    /// Removes what those left behind who did not come to an end.
    fn clear_temporary(&self, before: &[String], own: &str) -> Result<()> {
        let folder = self.folder("temporary");
        let reading = |error| failed("read", &folder, error);
        let mut old = Vec::new();
        for entry in fs::read_dir(&folder).map_err(reading)? {
            let name = entry.map_err(reading)?.file_name().to_string_lossy().into_owned();
            let owner = name.split('.').next().unwrap_or_default().to_owned();
            if owner != own && !before.contains(&owner) {
                old.push((name, owner));
            }
        }
        // Whoever came since holds a use lock by now: its files are not old.
        let now = use_lock::held(&self.folder("leases"))?;
        for (name, _) in old.into_iter().filter(|(_, owner)| !now.contains(owner)) {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("remove", &path, error)),
            }
        }
        Ok(())
    }

    /// Removes caches nobody has used for long; the next snapshot reads everything again.
    fn clear_caches(&self) -> Result<()> {
        const OLD: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 60 * 60);
        let folder = self.folder("cache");
        let reading = |error| failed("read", &folder, error);
        for entry in fs::read_dir(&folder).map_err(reading)? {
            let entry = entry.map_err(reading)?;
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|modified| modified.elapsed().ok());
            if age.is_some_and(|age| age > OLD) {
                // One that stays is only a file too many.
                drop(fs::remove_file(entry.path()));
            }
        }
        Ok(())
    }
}

/// Whether a snapshot is what it was when it was looked at.
fn is_still_there(folder: &Path, info: &record::SnapshotInfo) -> Result<bool> {
    match record::read(folder, &info.name) {
        Ok(now) => Ok(now.fingerprint == info.fingerprint),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn unreadable(name: &str, error: Error) -> Error {
    let message = format!("cannot tell what snapshot {name} needs: {error}");
    Error::new(error.kind(), message)
        .with_condition(Condition::SnapshotUnreadable)
        .with_source(error)
}

/// Writes anew what is needed of packs of which little is; says how many packs are replaced by that.
fn rewrite(
    writer: &Writer,
    reader: &Reader,
    needed: &HashSet<ChunkId>,
) -> Result<(u64, Vec<Arc<KnownPack>>)> {
    let mut replaced = 0;
    let mut room = ReadBuffers::default();
    for pack in &reader.index.packs {
        let (mut all, mut live) = (0_u64, 0_u64);
        let used = |id: &ChunkId| {
            needed.contains(id) && reader.index.pack_of(id).is_some_and(|used| used.id == pack.id)
        };
        for (id, length) in pack.blocks.iter().flat_map(|block| &block.chunks) {
            all += u64::from(*length);
            live += if used(id) { u64::from(*length) } else { 0 };
        }
        if live == 0 || live * 100 >= all * WORTH_KEEPING {
            continue;
        }
        let mut is_intact = true;
        for (id, _) in pack.blocks.iter().flat_map(|block| &block.chunks).filter(|(id, _)| used(id))
        {
            let copied = reader.with(id, &mut room, |content| writer.put_again(*id, content));
            // What is damaged stays where it is: somebody may bring it again.
            is_intact &= copied.is_ok();
        }
        replaced += u64::from(is_intact);
    }
    let (fresh, _) = writer.finish()?;
    Ok((replaced, fresh))
}

fn put_aside(packs: &Path, aside: &Path, id: ChunkId) -> Result<()> {
    let name = pack_name(id);
    let place = packs.join(&name);
    match fs::rename(&place, aside.join(&name)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("put aside", &place, error)),
    }
}
