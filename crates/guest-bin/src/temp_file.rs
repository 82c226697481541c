//! Temporary files, which get their names when they are whole.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a file is on the disk before it has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sync {
    Yes,
    No,
}

/// A file under a name of its own until it is whole, and locked until then: one that nobody has a lock on was
/// left by somebody who was killed. The kernel knows that better than anybody who looks for a process by its number.
#[derive(Debug)]
pub(crate) struct TempFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Apart from what is written through, which is closed before the file has its name.
    pub(crate) lock: File,
}

impl TempFile {
    /// Writes `path` whole: until all of it is written it has another name, and if that fails there is none.
    pub(crate) fn write(path: &Path, mode: u32, bytes: &[u8], sync: Sync) -> io::Result<()> {
        let Self { path: temporary, mut file, lock } = Self::begin(path, mode)?;
        let written = file.write_all(bytes).and_then(|()| match sync {
            Sync::Yes => file.sync_all(),
            Sync::No => Ok(()),
        });
        // A file that is open for writing cannot be executed.
        drop(file);
        let named = written.and_then(|()| fs::rename(&temporary, path));
        if named.is_err() {
            // Nobody else knows of it.
            drop(fs::remove_file(&temporary));
        }
        drop(lock);
        named
    }

    /// Begins what is to become `path`.
    pub(crate) fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}-{number}.tmp", std::process::id()));
            let path = PathBuf::from(name);
            let opened = File::options().write(true).create_new(true).mode(mode).open(&path);
            let file = match opened {
                // Left by a process that had our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            match lock(&path) {
                Ok(Some(lock)) => return Ok(Self { path, file, lock }),
                Ok(None) => {}
                Err(error) => {
                    // Nobody else knows of it.
                    drop(fs::remove_file(&path));
                    return Err(error);
                }
            }
        }
    }
}

/// Locks what was begun; `None` if somebody took it for one that was left behind, before it was locked.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let lock = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match lock.try_lock() {
        Ok(()) => Ok(path.try_exists()?.then_some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_nothing_of_what_could_not_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest-1.checked");
        TempFile::write(&path, 0o600, b"one", Sync::No).unwrap();
        TempFile::write(&path, 0o600, b"other", Sync::Yes).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"other");
        // What is whole cannot get this name.
        let taken = folder.path().join("guest-2.checked");
        fs::create_dir_all(taken.join("folder")).unwrap();
        TempFile::write(&taken, 0o600, b"one", Sync::No).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
