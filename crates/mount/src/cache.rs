//! Blocks that were read, kept on disk for every session of a home.
//!
//! A block has a file of its own, named by what it holds: store and who reads it, key and version. It is written under
//! another name and renamed, so processes need no lock between them, and a process that is killed
//! leaves no half block. After a loss of power a file may be shorter or other than it was written;
//! its checksum tells.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::spec;

/// How large a block is; the last one of an object is smaller.
pub(crate) const BLOCK: u64 = 1 << 20;
const TRAILER: usize = 8;
/// How old a file has to be that nobody renamed, before it is nobody's.
const ABANDONED: Duration = Duration::from_secs(3600);

/// One block of one version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId {
    pub(crate) object: [u8; 16],
    pub(crate) index: u64,
}

/// Names a version of an object of a store, as it is read with one key.
pub(crate) fn object_id(
    cache_scope: &blake3::Hash,
    key: &str,
    version: &str,
    size: u64,
) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(cache_scope.as_bytes());
    for text in [key, version] {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.update(&size.to_le_bytes());
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    id
}

/// The cache of a home.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    limit: u64,
    /// Bytes written since the cache was last measured.
    written: AtomicU64,
    names: AtomicU64,
}

fn private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

impl Cache {
    pub(crate) fn open(settings: &spec::Cache) -> io::Result<Self> {
        private(&settings.folder)?;
        Ok(Self {
            folder: settings.folder.clone(),
            limit: settings.size,
            written: AtomicU64::new(0),
            names: AtomicU64::new(0),
        })
    }

    fn path(&self, id: BlockId) -> PathBuf {
        let name = hex::encode(id.object);
        let folder = self.folder.join(&name[..2]);
        folder.join(format!("{name}-{}", id.index))
    }

    /// A block of this size, if it is here and sound.
    pub(crate) fn load(&self, id: BlockId, size: usize) -> Option<Bytes> {
        let path = self.path(id);
        let mut file = File::open(&path).ok()?;
        let mut content = Vec::with_capacity(size + TRAILER + 1);
        Read::by_ref(&mut file).take((size + TRAILER + 1) as u64).read_to_end(&mut content).ok()?;
        if !is_sound(&content, size) {
            drop(fs::remove_file(&path));
            return None;
        }
        content.truncate(size);
        // What was used last goes last.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: same, last_modification: now };
        let _ = rustix::fs::futimens(&file, &times);
        Some(content.into())
    }

    pub(crate) fn has(&self, id: BlockId) -> bool {
        self.path(id).exists()
    }

    /// Keeps a block. A cache that cannot be written costs time and nothing else.
    pub(crate) fn store(self: &Arc<Self>, id: BlockId, content: &Bytes) {
        if content.len() as u64 > self.limit / 16 || self.write(id, content).is_err() {
            return;
        }
        let size = (content.len() + TRAILER).next_multiple_of(4096) as u64;
        if self.written.fetch_add(size, Ordering::Relaxed) + size >= self.step() {
            self.written.store(0, Ordering::Relaxed);
            let cache = Arc::clone(self);
            tokio::task::spawn_blocking(move || drop(cache.trim()));
        }
    }

    /// How much may be written before the cache is measured again.
    fn step(&self) -> u64 {
        (self.limit / 16).min(64 << 20)
    }

    fn write(&self, id: BlockId, content: &Bytes) -> io::Result<()> {
        let path = self.path(id);
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("new-{}-{number}", std::process::id()));
        let written = (|| {
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(content)?;
            file.write_all(&trailer(content))?;
            if fs::rename(&temporary, &path).is_err() {
                path.parent().map_or(Ok(()), private)?;
                fs::rename(&temporary, &path)?;
            }
            Ok(())
        })();
        if written.is_err() {
            drop(fs::remove_file(&temporary));
        }
        written
    }

    /// Removes what was not used for the longest, if there is too much. One process at a time does.
    pub(crate) fn trim(&self) -> io::Result<()> {
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.folder.join("lock"))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        // Two measures, so that a million names need not be remembered.
        let mut ages = Vec::new();
        let mut total = 0;
        self.each(|_, age, size| {
            total += size;
            ages.push((age, size));
        })?;
        if total <= self.limit.saturating_sub(2 * self.step()) {
            return Ok(());
        }
        let mut surplus = total - self.limit / 4 * 3;
        ages.sort_unstable();
        let mut oldest_kept = SystemTime::UNIX_EPOCH;
        for (age, size) in ages {
            oldest_kept = age;
            if surplus == 0 {
                break;
            }
            surplus = surplus.saturating_sub(size);
        }
        self.each(|path, age, _| {
            if age < oldest_kept {
                drop(fs::remove_file(path));
            }
        })
    }

    /// Calls `visit` with each block, when it was last used and the disk it takes.
    fn each(&self, mut visit: impl FnMut(&Path, SystemTime, u64)) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(kind) = entry.file_type() else { continue };
            if !kind.is_dir() {
                self.clear_away(&entry);
                continue;
            }
            for block in fs::read_dir(entry.path())? {
                let block = block?;
                // It may be gone: other processes read, replace and find fault with blocks meanwhile.
                let Ok(meta) = block.metadata() else { continue };
                visit(&block.path(), meta.modified()?, meta.blocks() * 512);
            }
        }
        Ok(())
    }

    /// Removes what a process that was killed did not come to rename.
    fn clear_away(&self, entry: &fs::DirEntry) {
        let ours = entry.file_name().to_string_lossy().starts_with("new-");
        let age = entry.metadata().and_then(|meta| meta.modified()).ok();
        let old = age.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > ABANDONED);
        if ours && old {
            drop(fs::remove_file(entry.path()));
        }
    }
}

fn trailer(content: &[u8]) -> [u8; TRAILER] {
    let mut out = [0; TRAILER];
    out[..4].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    out[4..].copy_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
    out
}

fn is_sound(file: &[u8], size: usize) -> bool {
    file.len() == size + TRAILER && file[size..] == trailer(&file[..size])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, Arc<Cache>) {
        let folder = tempfile::tempdir().unwrap();
        let settings = spec::Cache { folder: folder.path().join("blocks"), size: limit };
        let cache = Cache::open(&settings).unwrap();
        (folder, Arc::new(cache))
    }

    fn id(index: u64) -> BlockId {
        BlockId { object: object_id(&blake3::hash(b"p"), "k", "v", 3), index }
    }

    #[test]
    fn another_version_is_another_object() {
        let of = |cache_scope: &str, key, version, size| {
            object_id(&blake3::hash(cache_scope.as_bytes()), key, version, size)
        };
        let first = of("p", "k", "v", 3);
        let others = [
            ("q", "k", "v", 3),
            ("p", "l", "v", 3),
            ("p", "k", "w", 3),
            ("p", "k", "v", 4),
            ("p", "", "kv", 3),
        ];
        for (cache_scope, key, version, size) in others {
            assert_ne!(of(cache_scope, key, version, size), first);
        }
    }

    #[test]
    fn gives_back_what_was_stored_and_nothing_damaged() {
        let (_folder, cache) = cache(1 << 30);
        let content = Bytes::from_static(b"abc");
        cache.write(id(0), &content).unwrap();
        assert_eq!(cache.load(id(0), 3), Some(content));
        assert_eq!(cache.load(id(0), 2), None, "another size is not it");
        cache.write(id(1), &Bytes::from_static(b"abc")).unwrap();
        let mut damaged = fs::read(cache.path(id(1))).unwrap();
        damaged[1] ^= 1;
        fs::write(cache.path(id(1)), damaged).unwrap();
        assert_eq!(cache.load(id(1), 3), None);
        assert!(!cache.has(id(1)), "a damaged block is removed");
        cache.write(id(2), &Bytes::from_static(b"abc")).unwrap();
        fs::write(cache.path(id(2)), b"").unwrap();
        assert_eq!(cache.load(id(2), 3), None);
    }

    #[test]
    fn keeps_within_its_size_and_keeps_what_was_used_last() {
        let (_folder, cache) = cache(64 << 12);
        let block = Bytes::from(vec![7; 4000]);
        for index in 0..100 {
            cache.write(id(index), &block).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(index);
            File::open(cache.path(id(index))).unwrap().set_modified(time).unwrap();
        }
        assert!(cache.load(id(3), 4000).is_some());
        cache.trim().unwrap();
        let mut total = 0;
        cache.each(|_, _, size| total += size).unwrap();
        assert!(total <= 48 << 12, "{total}");
        assert!(cache.has(id(3)) && cache.has(id(99)) && !cache.has(id(4)));
    }
}
