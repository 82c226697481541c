//! Where what is written waits until the store has it, and how much may wait there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The folder of what could not be stored.
pub(crate) const UNSTORED: &str = "unstored";

/// How many such files are kept.
const MAX_KEPT: usize = 32;

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
}

impl Staging {
    pub(super) fn new(folder: PathBuf, most: Option<u64>) -> Self {
        Self {
            folder,
            most,
            used: AtomicU64::new(0),
            kept: Mutex::default(),
            next: AtomicU64::new(0),
        }
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

    /// Keeps what the store did not take, if there is room. Whoever wrote it may not be there any more to be told. Of what
    /// waits, a file that is kept has its `size` bytes on: whether it is.
    pub(super) fn keep(&self, path: String, content: Option<&File>, size: u64) -> bool {
        self.stored(&path);
        let mut kept = super::lock(&self.kept);
        let copy = content.filter(|_| kept.len() < MAX_KEPT);
        let copy = copy.and_then(|content| self.copy(&path, content).ok());
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

    fn copy(&self, path: &str, mut content: &File) -> io::Result<PathBuf> {
        let folder = self.folder.join(UNSTORED);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let name = kept_name(path);
        // A program that was killed may have kept something under the same number.
        let (kept, mut file) = loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let kept = folder.join(format!("{number}-{name}"));
            match File::options().write(true).create_new(true).mode(0o600).open(&kept) {
                Ok(file) => break (kept, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        content.seek(SeekFrom::Start(0))?;
        let copied = io::copy(&mut content, &mut file).and_then(|_| file.sync_all());
        if let Err(error) = copied {
            // A part of it would be taken for all of it.
            drop(fs::remove_file(&kept));
            return Err(error);
        }
        Ok(kept)
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
    fn keeps_files_whole_until_they_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let staging = Staging::new(folder.path().into(), Some(24));
        let file = staging.file().unwrap();
        io::Write::write_all(&mut &file, b"precious").unwrap();
        for name in ["a/b", "b", "b"] {
            staging.resize(0, 8).unwrap();
            assert!(staging.keep(name.into(), Some(&file), 8));
        }
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
