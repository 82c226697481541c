//! Refs of a repository, read and made by git's own protocol, without git.
//!
//! To make or change a ref, git creates `NAME.lock` exclusively, writes it, and renames it into place;
//! whoever finds the lock taken fails. This does the same, so that it and any git on the machine are one
//! after the other. No hook runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bastide::host::is_same_file;
use bastide::{Error, ErrorKind, Result};

use super::location::{self, GitLocation};
use crate::collect::Oid;

/// How many symbolic refs are followed, as git does.
const MAX_DEPTH: usize = 5;

/// The largest file of packed refs; a million of them have less.
const MAX_PACKED: u64 = 256 << 20;

/// What `HEAD` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// The branch, if it is on one.
    pub(crate) branch: Option<String>,
    /// The commit, if there is one yet.
    pub(crate) commit: Option<Oid>,
}

/// Reads `HEAD` of a work tree.
pub(crate) fn head(place: &GitLocation) -> Result<Head> {
    let failed = |error: io::Error| {
        let path = place.git_dir.join("HEAD");
        let message = format!("cannot read {}: {error}", path.display());
        Error::new(ErrorKind::InvalidInput, message)
    };
    require_files(place)?;
    let text = location::read(&place.git_dir.join("HEAD")).map_err(failed)?;
    let text = text.trim_end();
    match text.strip_prefix("ref: ") {
        Some(name) => {
            let commit = resolve(place, name).map_err(failed)?;
            let branch = name.strip_prefix("refs/heads/").map(str::to_owned);
            Ok(Head { branch, commit })
        }
        None => Ok(Head { branch: None, commit: Oid::from_hex(text) }),
    }
}

fn require_files(place: &GitLocation) -> Result<()> {
    if place.has_ref_files {
        return Ok(());
    }
    let message = "the repository keeps its refs in a table, which is not supported";
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_hint("run in place, or convert it with `git refs migrate --ref-format=files`"))
}

/// The commit a ref leads to; `None` if there is no such ref.
pub(crate) fn resolve(place: &GitLocation, name: &str) -> io::Result<Option<Oid>> {
    let mut name = name.to_owned();
    for _ in 0..MAX_DEPTH {
        if !is_valid(&name) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name:?} is no ref")));
        }
        let text = match place.common(&name).and_then(|path| location::read(&path)) {
            Ok(text) => text,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return packed(place, &name);
            }
            // A folder of refs has this name.
            Err(_) if place.common_dir.join(&name).is_dir() => return packed(place, &name),
            Err(error) => return Err(error),
        };
        match text.trim_end().strip_prefix("ref: ") {
            Some(next) => next.clone_into(&mut name),
            None => return Ok(Oid::from_hex(text.trim_end())),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "refs lead to each other"))
}

/// All names of packed refs with their commits.
fn packed_refs(place: &GitLocation) -> io::Result<Vec<(String, Oid)>> {
    let path = place.common_dir.join("packed-refs");
    let text = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > MAX_PACKED => {
            return Err(io::Error::other("packed-refs is larger than any"));
        }
        Ok(metadata) if metadata.is_file() => fs::read_to_string(&path)?,
        Ok(_) => return Err(io::Error::other("packed-refs is not a regular file")),
    };
    let line = |line: &str| {
        let (oid, name) = line.split_once(' ')?;
        Some((name.to_owned(), Oid::from_hex(oid)?))
    };
    Ok(text.lines().filter(|line| !line.starts_with(['#', '^'])).filter_map(line).collect())
}

fn packed(place: &GitLocation, name: &str) -> io::Result<Option<Oid>> {
    Ok(packed_refs(place)?.into_iter().find(|(known, _)| known == name).map(|(_, oid)| oid))
}

/// Whether git takes this as the name of a ref.
pub(crate) fn is_valid(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock") && part != "@"
    };
    let is_fine = |char: char| {
        !char.is_ascii_control() && !matches!(char, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\')
    };
    name.starts_with("refs/")
        && name.split('/').all(is_part)
        && name.chars().all(is_fine)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
}

/// The full name of a branch.
pub(crate) fn branch(name: &str) -> Result<String> {
    let full = format!("refs/heads/{name}");
    // Git makes neither: the one is not the branch it names, the other means another one.
    let is_odd = name == "HEAD" || name.starts_with("refs/");
    if is_valid(&full) && !name.starts_with('-') && !is_odd {
        return Ok(full);
    }
    Err(Error::new(ErrorKind::InvalidInput, format!("{name:?} cannot be the name of a branch")))
}

/// Refuses a name that is taken, or that lies in or around one that is.
pub(crate) fn require_free(place: &GitLocation, name: &str) -> Result<()> {
    require_files(place)?;
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Io, format!("cannot tell whether {name} exists: {error}"))
    };
    let taken = |by: &str| {
        let message = match by == name {
            true => format!("{name} exists already"),
            false => format!("{name} cannot exist beside {by}"),
        };
        Err(Error::new(ErrorKind::Conflict, message).with_hint("choose another branch"))
    };
    if resolve(place, name).map_err(failed)?.is_some() {
        return taken(name);
    }
    for (other, _) in packed_refs(place).map_err(failed)? {
        if is_within(&other, name) || is_within(name, &other) {
            return taken(&other);
        }
    }
    let mut around = Path::new(name).parent();
    while let Some(folder) = around.filter(|folder| *folder != Path::new("refs/heads")) {
        if place.common_dir.join(folder).is_file() {
            return taken(&folder.to_string_lossy());
        }
        around = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    }
    if let Some(inner) = first_file(&place.common_dir.join(name)).map_err(failed)? {
        let inner = inner.strip_prefix(&place.common_dir).unwrap_or(&inner).to_owned();
        return taken(&inner.to_string_lossy());
    }
    Ok(())
}

fn is_within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

/// Some file in a folder, if there is one; git leaves empty folders behind.
fn first_file(folder: &Path) -> io::Result<Option<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(None) };
    for entry in entries {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => {
                if let Some(found) = first_file(&entry.path())? {
                    return Ok(Some(found));
                }
            }
            false => return Ok(Some(entry.path())),
        }
    }
    Ok(None)
}

/// A ref that nobody else can change meanwhile.
///
/// The lock is a hard link to a file whose name says which run it is of. So whoever finds it after that
/// run was killed can tell it from the lock of another git.
#[derive(Debug)]
pub(crate) struct RefLock {
    own: PathBuf,
    lock: PathBuf,
    target: PathBuf,
}

/// The file of a run in a repository whose links are the run's locks.
fn own_file(place: &GitLocation, run: &str) -> PathBuf {
    place.common_dir.join(format!("bastide-{run}.lock"))
}

fn lock_file(target: &Path) -> PathBuf {
    PathBuf::from(format!("{}.lock", target.display()))
}

impl RefLock {
    pub(crate) fn take(place: &GitLocation, name: &str, run: &str) -> Result<Self> {
        let target = place.common(name).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("cannot lock {name}: {error}"))
        })?;
        let (own, lock) = (own_file(place, run), lock_file(&target));
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let message = format!("{name} is being changed by another git");
                Error::new(ErrorKind::Conflict, message)
                    .with_hint(format!("if none runs, remove {}", lock.display()))
            }
            _ => Error::new(ErrorKind::Io, format!("cannot lock {name}: {error}")),
        };
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        OpenOptions::new().write(true).create_new(true).open(&own).map_err(failed)?;
        if let Err(error) = fs::hard_link(&own, &lock) {
            drop(fs::remove_file(&own));
            return Err(failed(error));
        }
        Ok(Self { own, lock, target })
    }

    /// Has the ref lead to a commit.
    pub(crate) fn set(self, oid: &Oid) -> Result<()> {
        let write = || {
            let mut file = File::options().write(true).truncate(true).open(&self.own)?;
            writeln!(file, "{oid}")?;
            file.sync_all()?;
            fs::rename(&self.lock, &self.target)?;
            self.target.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        };
        write().map_err(|error| self.failed(&error))
    }

    /// Removes the ref, which is no packed one.
    pub(crate) fn remove(self) -> Result<()> {
        match fs::remove_file(&self.target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        let message = format!("cannot change {}: {error}", self.target.display());
        Error::new(ErrorKind::Io, message)
    }
}

impl Drop for RefLock {
    fn drop(&mut self) {
        // A lock that stays is named by the next git that meets it, and removed by the next sweep.
        drop(release(&self.own, &self.lock));
    }
}

fn release(own: &Path, lock: &Path) -> io::Result<()> {
    let Ok(ours) = fs::symlink_metadata(own) else { return Ok(()) };
    if let Ok(found) = fs::symlink_metadata(lock)
        && is_same_file(&found, &ours)
    {
        fs::remove_file(lock)?;
    }
    fs::remove_file(own)
}

/// Removes the lock of a run that was killed, and nobody else's.
pub(crate) fn release_left(place: &GitLocation, name: &str, run: &str) -> io::Result<()> {
    release(&own_file(place, run), &lock_file(&place.common_dir.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_which_names_git_takes() {
        for name in ["main", "a/b", "feature-1", "ü", "a.b"] {
            assert!(branch(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "-x",
            "a..b",
            "a b",
            "a~1",
            "x.lock",
            "x.lock/y",
            ".x",
            "a/",
            "/a",
            "a//b",
            "@",
            "a@{b",
            "a.",
            "a\nb",
            "../../config",
            "a:b",
        ] {
            assert!(branch(name).is_err(), "{name}");
        }
    }
}
