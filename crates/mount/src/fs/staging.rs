//! Where what is written waits until the store has it, and how much may wait there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// The folder of what could not be stored.
pub(crate) const UNSTORED: &str = "unstored";

/// What writes that wait for the store may hold in memory.
const MAX_WAITING: usize = 8 << 20;

/// How many such files are kept.
const MAX_KEPT: usize = 4096;

/// A folder for files that are being written.
#[derive(Debug)]
pub(super) struct Staging {
    folder: PathBuf,
    /// How many bytes may wait, as long as their files are: all of them have to be stored.
    most: Option<u64>,
    used: AtomicU64,
    /// What could not be stored, by its path: where it is kept, and how long it is, if it is.
    kept: Mutex<BTreeMap<String, Option<(PathBuf, u64)>>>,
    next: AtomicU64,
    /// How many bytes of writes that wait for the store are in memory.
    waiting: Arc<AtomicUsize>,
}

/// What a write carries while it waits: in memory, or on disk where others have the memory.
#[derive(Debug)]
pub(super) enum WaitingWrite {
    Memory(Vec<u8>, Arc<AtomicUsize>),
    Disk(File, usize),
}

impl WaitingWrite {
    /// What it carries.
    pub(super) fn take(mut self) -> io::Result<Vec<u8>> {
        match &mut self {
            Self::Memory(data, waiting) => {
                waiting.fetch_sub(data.len(), Ordering::Relaxed);
                Ok(std::mem::take(data))
            }
            Self::Disk(file, size) => {
                let mut data = vec![0; *size];
                file.read_exact_at(&mut data, 0)?;
                Ok(data)
            }
        }
    }
}

impl Drop for WaitingWrite {
    fn drop(&mut self) {
        if let Self::Memory(data, waiting) = self {
            waiting.fetch_sub(data.len(), Ordering::Relaxed);
        }
    }
}

impl Staging {
    pub(super) fn new(folder: PathBuf, most: Option<u64>) -> Self {
        Self {
            folder,
            most,
            used: AtomicU64::new(0),
            kept: Mutex::default(),
            next: AtomicU64::new(0),
            waiting: Arc::default(),
        }
    }

    /// Holds what a write carries until the store has answered. Commands write with as many threads as they like, so only
    /// so much of it is held in memory.
    pub(super) fn hold(&self, data: Vec<u8>) -> io::Result<WaitingWrite> {
        let fits = |waiting: usize| {
            waiting.checked_add(data.len()).filter(|waiting| *waiting <= MAX_WAITING)
        };
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok() {
            return Ok(WaitingWrite::Memory(data, Arc::clone(&self.waiting)));
        }
        let file = self.file()?;
        file.write_all_at(&data, 0)?;
        Ok(WaitingWrite::Disk(file, data.len()))
    }

    /// A file without a name: it is gone when the process is.
    pub(super) fn file(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.folder, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(fd.into())
    }

    /// Counts a file that is to be `after` bytes long instead of `before`.
    pub(super) fn resize(&self, before: u64, after: u64) -> Result<(), Errno> {
        let most = self.most.unwrap_or(u64::MAX);
        let change = |used: u64| {
            let used = used.saturating_sub(before).saturating_add(after);
            // Whatever gets shorter may.
            (after <= before || used <= most).then_some(used)
        };
        let changed = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        changed.map(drop).map_err(|_| Errno::NOSPC)
    }

    /// Keeps what the store did not take, if there is room; nobody may change it any more. Whoever wrote it may not be
    /// there any more to be told. Of what waits, a file that is kept has its `size` bytes on: whether it is.
    pub(super) fn keep(&self, path: String, content: Option<&File>, size: u64) -> bool {
        self.stored(&path);
        let mut kept = super::lock(&self.kept);
        let copy = content.filter(|_| kept.len() < MAX_KEPT);
        let copy = copy.and_then(|content| {
            self.link(&path, content).or_else(|_| self.copy(&path, content)).ok()
        });
        let is_kept = copy.is_some();
        kept.insert(path, copy.map(|copy| (copy, size)));
        is_kept
    }

    /// Gives up what was kept of a file that the store has now.
    pub(super) fn stored(&self, path: &str) {
        if let Some(Some((copy, size))) = super::lock(&self.kept).remove(path) {
            // It is in the way of nobody, and what gets shorter is always allowed.
            drop(fs::remove_file(copy));
            let _ = self.resize(size, 0);
        }
    }

    /// What is not in the store, and where it is kept, if it is.
    pub(super) fn kept(&self) -> Vec<(String, Option<PathBuf>)> {
        let kept = super::lock(&self.kept);
        let place = |kept: &Option<(PathBuf, u64)>| kept.as_ref().map(|(copy, _)| copy.clone());
        kept.iter().map(|(path, kept)| (path.clone(), place(kept))).collect()
    }

    /// Gives what was written a name, at which nobody changes it any more: whatever its length, that takes no time.
    fn link(&self, path: &str, content: &File) -> io::Result<PathBuf> {
        let own = format!("/proc/self/fd/{}", content.as_raw_fd());
        let follow = AtFlags::SYMLINK_FOLLOW;
        let linked = |kept: &Path| Ok(rustix::fs::linkat(CWD, &own, CWD, kept, follow)?);
        let (kept, ()) = self.under_a_free_name(path, linked)?;
        // It has its name, whatever becomes of this.
        content.sync_all()?;
        Ok(kept)
    }

    /// The same where a file without a name cannot get one.
    fn copy(&self, path: &str, mut content: &File) -> io::Result<PathBuf> {
        let create =
            |kept: &Path| File::options().write(true).create_new(true).mode(0o600).open(kept);
        let (kept, mut file) = self.under_a_free_name(path, create)?;
        content.seek(SeekFrom::Start(0))?;
        let copied = io::copy(&mut content, &mut file).and_then(|_| file.sync_all());
        if let Err(error) = copied {
            // A part of it would be taken for all of it.
            drop(fs::remove_file(&kept));
            return Err(error);
        }
        Ok(kept)
    }

    fn under_a_free_name<T>(
        &self,
        path: &str,
        make: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<(PathBuf, T)> {
        let folder = self.folder.join(UNSTORED);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let name = kept_name(path);
        // A program that was killed may have kept something under the same number.
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let kept = folder.join(format!("{number}-{name}"));
            match make(&kept) {
                Ok(made) => return Ok((kept, made)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a file is kept as: commands choose names that are as long as names may be, or that a terminal acts on.
fn kept_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.chars().take(100).map(|c| if is_plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_as_much_as_it_may() {
        let staging = Staging::new("/nowhere".into(), Some(10));
        staging.resize(0, 6).unwrap();
        staging.resize(0, 4).unwrap();
        assert_eq!(staging.resize(4, 5), Err(Errno::NOSPC));
        staging.resize(6, 0).unwrap();
        staging.resize(4, 10).unwrap();
        assert_eq!(staging.resize(0, u64::MAX), Err(Errno::NOSPC));
    }

    #[test]
    fn holds_so_much_in_memory_and_the_rest_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let staging = Staging::new(folder.path().into(), None);
        let hold = |byte: u8| staging.hold(vec![byte; 1 << 20]).unwrap();
        let held: Vec<_> = (0..40).map(hold).collect();
        let in_memory = |held: &&WaitingWrite| matches!(held, WaitingWrite::Memory(..));
        assert_eq!(held.iter().filter(in_memory).count(), MAX_WAITING >> 20);
        for (byte, waiting) in (0..).zip(held) {
            assert!(waiting.take().unwrap() == vec![byte; 1 << 20], "{byte}");
        }
        drop(hold(1));
        assert_eq!(staging.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn keeps_files_whole_until_they_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let staging = Staging::new(folder.path().into(), Some(24));
        let file = staging.file().unwrap();
        io::Write::write_all(&mut &file, b"precious").unwrap();
        for name in ["a/b", "b", "b"] {
            staging.resize(0, 8).unwrap();
            assert!(staging.keep(name.into(), Some(&file), 8));
        }
        let named = file.metadata().unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&named), 2, "it is not copied");
        // What is kept takes its share of what may wait.
        assert_eq!(staging.resize(0, 9), Err(Errno::NOSPC));
        assert!(!staging.keep("lost".into(), None, 0));
        let kept = staging.kept();
        let copies: Vec<_> = kept.iter().filter_map(|(_, copy)| copy.as_ref()).collect();
        assert_eq!((kept.len(), copies.len()), (3, 2));
        assert!(copies.iter().all(|copy| fs::read(copy).unwrap() == b"precious"));
        staging.stored("b");
        let left = fs::read_dir(folder.path().join(UNSTORED)).unwrap();
        assert_eq!((staging.kept().len(), left.count()), (2, 1));
        staging.resize(0, 8).unwrap();
    }

    #[test]
    fn keeps_files_whatever_they_are_called_and_whatever_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let longest = "\u{1b}".repeat(255);
        for name in ["d/x", &longest] {
            // Another program, as after one that was killed.
            for _ in 0..2 {
                let staging = Staging::new(folder.path().into(), None);
                let file = staging.file().unwrap();
                assert!(staging.keep(name.into(), Some(&file), 0), "{name:?}");
            }
        }
        let kept = fs::read_dir(folder.path().join(UNSTORED)).unwrap();
        let mut kept: Vec<_> =
            kept.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        kept.sort();
        let odd = "_".repeat(100);
        assert_eq!(kept, [format!("0-{odd}"), "0-x".into(), format!("1-{odd}"), "1-x".into()]);
    }
}
