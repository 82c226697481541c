//! Which home this is: a random number, kept in the home. A path is no answer, because every machine
//! has the same ones; and a copy of a home is another home.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{Timespec, poll};
use serde::{Deserialize, Serialize};

use super::origin::mark;
use crate::host::sync_folder;
use crate::{Error, ErrorKind, Result};

/// The file it is in.
const NAME: &str = "identity.json";

/// The longest such file.
const MOST: u64 = 4096;

/// How often it is looked for while somebody else writes it, and how long to wait between.
const TRIES: usize = 1000;
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

#[derive(Debug, Serialize, Deserialize)]
struct IdentityFile {
    id: String,
    /// What the file says about itself, so that a copy is known as one.
    origin: String,
}

/// What is found where the identity of a home is kept.
enum StoredIdentity {
    Own(String),
    /// Somebody else's, which came with the files of another home.
    Copied(File),
    Nothing,
}

/// The identity of a home. A home without one gets one: homes of earlier versions have none, and a
/// copy of a home must not keep that of the original.
///
/// # Errors
///
/// Fails if it cannot be read or written. Then nothing tells what else belongs to this home.
pub fn home_identity(home: &Path) -> Result<String> {
    let path = home.join(NAME);
    let failed = |error: io::Error| {
        let message = format!("cannot tell which home {} is: {error}", home.display());
        Error::new(ErrorKind::Io, message)
            .with_context("path", path.display().to_string())
            .with_hint(
                "make that file readable; if it is damaged, remove it, and a new one is made",
            )
    };
    for _ in 0..TRIES {
        match find(&path).map_err(failed)? {
            StoredIdentity::Own(id) => return Ok(id),
            StoredIdentity::Copied(file) => replace(home, &path, &file).map_err(failed)?,
            StoredIdentity::Nothing => make(home, &path).map_err(failed)?,
        }
    }
    Err(failed(io::ErrorKind::TimedOut.into()))
}

fn find(path: &Path) -> io::Result<StoredIdentity> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(StoredIdentity::Nothing);
        }
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    (&file).take(MOST).read_to_string(&mut text)?;
    let IdentityFile { id, origin } = serde_json::from_str(&text)?;
    let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (is_name, origin == mark(&file)?) {
        (false, _) => Err(io::ErrorKind::InvalidData.into()),
        (true, true) => Ok(StoredIdentity::Own(id)),
        (true, false) => Ok(StoredIdentity::Copied(file)),
    }
}

/// Gives the home an identity, unless somebody else does at the same time.
fn make(home: &Path, path: &Path) -> io::Result<()> {
    let unfinished = write(home)?;
    let linked = fs::hard_link(&unfinished, path);
    fs::remove_file(&unfinished)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_folder(home),
    }
}

/// Puts a new identity in the place of a copied one. Whoever holds the lock on that does so.
fn replace(home: &Path, path: &Path, copied: &File) -> io::Result<()> {
    match copied.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            // Nothing is waited for but time.
            let _ = poll(&mut [], Some(&PAUSE));
            return Ok(());
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let StoredIdentity::Copied(found) = find(path)? else { return Ok(()) };
    if mark(&found)? != mark(copied)? {
        return Ok(());
    }
    let unfinished = write(home)?;
    fs::rename(&unfinished, path)?;
    sync_folder(home)
}

fn write(home: &Path) -> io::Result<PathBuf> {
    let id = uuid::Uuid::new_v4().simple().to_string();
    let unfinished = home.join(format!("{NAME}.{id}.new"));
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
    let written = IdentityFile { id, origin: mark(&file)? };
    file.write_all(&serde_json::to_vec(&written)?)?;
    file.sync_all()?;
    Ok(unfinished)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_for_everybody_who_asks_and_another_for_a_copy() {
        let home = tempfile::tempdir().unwrap();
        let all: Vec<_> = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| home_identity(home.path()).unwrap());
            let asked: Vec<_> = (0..8).map(|_| ask()).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        let own = home_identity(home.path()).unwrap();
        assert!(all.iter().all(|id| *id == own), "{all:?}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing unfinished is left");

        let copy = tempfile::tempdir().unwrap();
        fs::copy(home.path().join(NAME), copy.path().join(NAME)).unwrap();
        let others: Vec<_> = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| home_identity(copy.path()).unwrap());
            let asked: Vec<_> = (0..8).map(|_| ask()).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert!(others.iter().all(|id| *id == others[0] && *id != own), "{others:?}");

        let moved = tempfile::tempdir().unwrap();
        fs::rename(home.path().join(NAME), moved.path().join(NAME)).unwrap();
        assert_eq!(home_identity(moved.path()).unwrap(), own);
    }

    #[test]
    fn is_not_made_up_where_it_cannot_be_read() {
        let home = tempfile::tempdir().unwrap();
        for text in ["", "{}", "{\"id\":\"../x\",\"origin\":\"\"}"] {
            fs::write(home.path().join(NAME), text).unwrap();
            let error = home_identity(home.path()).unwrap_err();
            assert!(error.to_string().contains("cannot tell which home"), "{error}");
            assert_eq!(fs::read_to_string(home.path().join(NAME)).unwrap(), text);
        }
    }
}
