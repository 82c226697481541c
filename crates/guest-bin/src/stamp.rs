//! Knowing a file again that was compared with the embedded guest before.
//!
//! Reading three megabytes at every start costs more than building a small sandbox does. A file whose
//! inode, size and times are those of the file that was compared is that file: nobody can set the change
//! time (`ctime`), and any write, `chmod` or `utimes` moves it.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::temp_file::{Sync, TempFile};

/// Longer than any stamp is.
const MAX: u64 = 256;

/// How much older than its stamp a file has to be. Two writes within one tick of the clock that file
/// systems stamp with leave the same time; no kernel's tick is nearly that long.
const SETTLED_SECONDS: i64 = 2;

/// Where the stamp of a guest is kept.
pub(crate) fn path_for(guest: &Path) -> PathBuf {
    guest.with_extension("checked")
}

/// Whether this file was compared before, and did not change since.
pub(crate) fn is_known(guest: &Path, file: &Metadata) -> bool {
    let read = || -> io::Result<(String, i64)> {
        let stamp = File::open(path_for(guest))?;
        let written = stamp.metadata()?.mtime();
        let mut text = String::new();
        stamp.take(MAX).read_to_string(&mut text)?;
        Ok((text, written))
    };
    let Ok((text, written)) = read() else { return false };
    text == line(file) && file.ctime().saturating_add(SETTLED_SECONDS) <= written
}

/// Remembers that this file was compared. Where that cannot be written down it is compared again.
pub(crate) fn remember(guest: &Path, file: &Metadata) {
    drop(TempFile::write(&path_for(guest), 0o600, line(file).as_bytes(), Sync::No));
}

fn line(file: &Metadata) -> String {
    format!(
        "{} {} {} {}.{:09} {}.{:09}\n",
        file.dev(),
        file.ino(),
        file.len(),
        file.mtime(),
        file.mtime_nsec(),
        file.ctime(),
        file.ctime_nsec()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn settled(folder: &Path) -> PathBuf {
        let guest = folder.join("guest-1");
        fs::write(&guest, b"program").unwrap();
        remember(&guest, &fs::metadata(&guest).unwrap());
        // As if it had been compared a while after it was written.
        let stamp = File::options().write(true).open(path_for(&guest)).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
        stamp.set_modified(later).unwrap();
        guest
    }

    #[test]
    fn knows_a_file_that_did_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let guest = settled(folder.path());
        assert!(is_known(&guest, &fs::metadata(&guest).unwrap()));
    }

    #[test]
    fn does_not_know_a_file_whose_times_were_set_back_after_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let guest = settled(folder.path());
        let before = fs::metadata(&guest).unwrap();
        let file = File::options().write(true).open(&guest).unwrap();
        (&file).write_all(b"PROGRAM").unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        assert!(!is_known(&guest, &fs::metadata(&guest).unwrap()));
    }

    #[test]
    fn does_not_know_a_file_that_was_compared_when_it_was_just_written() {
        let folder = tempfile::tempdir().unwrap();
        let guest = folder.path().join("guest-1");
        fs::write(&guest, b"program").unwrap();
        let file = fs::metadata(&guest).unwrap();
        remember(&guest, &file);
        assert!(!is_known(&guest, &file));
    }
}
