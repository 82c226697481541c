//! Files and folders of the host that a manifest names, read without ever being led elsewhere.
//!
//! A source lies beneath the base folder or a grant, by its name. No link is followed on the way to
//! it or in it: what is opened is opened from a folder that is held, one name at a time.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bastide_model::PosixPath;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::compat::raise;
use crate::{Error, ErrorKind, Result};

/// How deep a folder of the host may be: one descriptor is held for each step.
const MAX_DEPTH: usize = 256;

/// How many entries a folder of the host may have, all of its folders together.
const MAX_ENTRIES: usize = 2_000_000;

/// Where sources may be.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    base: PathBuf,
    grants: Vec<SourceGrant>,
}

/// A grant that sources may lie in.
#[derive(Debug, Clone)]
pub(crate) struct SourceGrant {
    /// Where it is inside, for messages.
    pub(crate) path: String,
    /// Where it is on the host.
    pub(crate) host: PathBuf,
}

/// Something in a folder of the host.
#[derive(Debug)]
pub(super) struct SourceEntry {
    /// Where, below the folder.
    pub(super) path: Vec<u8>,
    pub(super) is_dir: bool,
    pub(super) mode: u32,
}

/// A folder of the host that is held.
#[derive(Debug)]
pub(super) struct HeldDir {
    root: OwnedFd,
    /// What errors call it.
    shown: String,
    /// The folder of the last file that was opened: the next one often is beside it.
    last: Option<(Vec<u8>, OwnedFd)>,
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Nothing that is opened may block: a pipe would.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

impl Sources {
    pub(crate) fn new(base: &Path, grants: Vec<SourceGrant>) -> Self {
        Self { base: base.to_owned(), grants }
    }

    /// The same with another base folder.
    pub(crate) fn based_at(&self, base: &Path) -> Self {
        Self::new(base, self.grants.clone())
    }

    /// Takes hold of a folder.
    pub(super) fn open_dir(&self, src: &PosixPath) -> Result<HeldDir> {
        let shown = self.check(src)?;
        let (start, names) = self.way(src, &shown);
        let failed = |errno: Errno| match errno {
            Errno::NOENT => changed(&shown, None),
            errno => raise::local_dir_read(&shown).with_source(io(errno)),
        };
        let mut folder = openat(CWD, &start, FOLDER, Mode::empty()).map_err(failed)?;
        let mut walked = PathBuf::new();
        for name in names {
            walked.push(&name);
            let next = openat(&folder, &name, FOLDER, Mode::empty());
            folder = next.map_err(|errno| {
                open_error(
                    &shown,
                    &folder,
                    name.as_bytes(),
                    walked.as_os_str().as_bytes(),
                    true,
                    errno,
                )
            })?;
        }
        Ok(HeldDir { root: folder, shown, last: None })
    }

    /// Opens a file.
    pub(super) fn open_file(&self, src: &PosixPath) -> Result<File> {
        let as_file = |error: Error| {
            let shown = lexical(&self.base.join(src.as_str()));
            let mut failure = raise::local_file_read(shown.display());
            for (key, value) in error.context().iter().filter(|(key, _)| *key != "src") {
                failure = failure.with_context(key, value.clone());
            }
            failure.with_source(error)
        };
        let opened = || {
            let (parent, name) = split(src);
            self.open_dir(&parent)?.open(&name)
        };
        opened().map_err(as_file)
    }

    /// Checks by its name that a source is where sources may be, and that no step on the way is a
    /// link. Returns what errors call it.
    fn check(&self, src: &PosixPath) -> Result<String> {
        let input = lexical(&self.base.join(src.as_str()));
        let shown = input.display().to_string();
        let base = lexical(&self.base);
        let granted = |grant: &SourceGrant| {
            // A grant may be spelled through links, as whoever grants it sees it.
            let resolved = std::fs::canonicalize(&grant.host);
            input.starts_with(resolved.unwrap_or_else(|_| lexical(&grant.host)))
        };
        if !input.starts_with(&base) && !self.grants.iter().any(granted) {
            let error = raise::local_dir_read(&shown)
                .with_context("reason", "outside_base_dir")
                .with_context("base_dir", base.display().to_string());
            let grants: Vec<String> = self.grants.iter().map(|grant| grant.path.clone()).collect();
            return Err(match grants.is_empty() {
                true => error,
                false => error.with_context("extra_path_grants", grants),
            });
        }
        let mut step = match src.is_absolute() {
            true => PathBuf::from("/"),
            false => self.base.clone(),
        };
        let names: Vec<&str> = src.names().collect();
        let steps = match names.is_empty() {
            true => vec![step],
            false => names
                .iter()
                .map(|name| {
                    step.push(name);
                    step.clone()
                })
                .collect(),
        };
        for step in steps {
            match std::fs::symlink_metadata(&step) {
                Ok(found) if found.is_symlink() => {
                    let child = step.strip_prefix(&self.base).unwrap_or(&step);
                    return Err(raise::local_dir_read(&shown)
                        .with_context("reason", "symlink_not_supported")
                        .with_context("child", child.display().to_string()));
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(
                        raise::local_dir_read(&shown).with_context("reason", "path_not_found")
                    );
                }
                Err(error) => return Err(raise::local_dir_read(step.display()).with_source(error)),
            }
        }
        Ok(shown)
    }

    /// Where to start, and the names to go by. A name that goes up again was taken back as text: what
    /// is held must never be left upwards.
    fn way(&self, src: &PosixPath, input: &str) -> (PathBuf, Vec<OsString>) {
        let (input, base) = (Path::new(input), lexical(&self.base));
        let (start, below) = match input.strip_prefix(&base) {
            Ok(below) if !src.is_absolute() => (self.base.clone(), below),
            _ => (PathBuf::from("/"), input.strip_prefix("/").unwrap_or(input)),
        };
        (start, below.iter().map(ToOwned::to_owned).collect())
    }
}

impl HeldDir {
    /// Everything in the folder, sorted, folders before what is in them; pipes, sockets and devices
    /// are left out. A link anywhere is an error.
    pub(super) fn list(&self) -> Result<Vec<SourceEntry>> {
        let mut all = Vec::new();
        let root =
            openat(&self.root, c".", FOLDER, Mode::empty()).map_err(|errno| self.failed(errno))?;
        self.list_below(root, &[], 0, &mut all)?;
        Ok(all)
    }

    fn list_below(
        &self,
        folder: OwnedFd,
        at: &[u8],
        depth: usize,
        all: &mut Vec<SourceEntry>,
    ) -> Result<()> {
        if depth > MAX_DEPTH || all.len() > MAX_ENTRIES {
            let message = format!("{} is too deep or holds too much", self.shown);
            return Err(Error::new(ErrorKind::LimitExceeded, message)
                .with_context("src", self.shown.as_str()));
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(&folder).map_err(|errno| self.failed(errno))? {
            let entry = entry.map_err(|errno| self.failed(errno))?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        for name in names {
            let path = join(at, &name);
            let stat = statat(&folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.map_err(|errno| match errno {
                Errno::NOENT => changed(&self.shown, Some(&path)),
                errno => self.failed(errno),
            })?;
            let is_dir = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => return Err(link(&self.shown, &path)),
                FileType::RegularFile => false,
                FileType::Directory => true,
                _ => continue,
            };
            all.push(SourceEntry { path: path.clone(), is_dir, mode: stat.st_mode & 0o777 });
            if is_dir {
                let below = openat(&folder, name.as_slice(), FOLDER, Mode::empty());
                let below = below
                    .map_err(|errno| open_error(&self.shown, &folder, &name, &path, true, errno))?;
                self.list_below(below, &path, depth + 1, all)?;
            }
        }
        Ok(())
    }

    /// Opens a regular file in the folder.
    pub(super) fn open(&mut self, path: &[u8]) -> Result<File> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            let held = self.enter(parent)?;
            self.last = Some((parent.to_vec(), held));
        }
        let folder = self.last.as_ref().map_or(&self.root, |(_, folder)| folder);
        let file = openat(folder, name, FILE, Mode::empty())
            .map_err(|errno| open_error(&self.shown, folder, name, path, false, errno))?;
        let stat = fstat(&file).map_err(|errno| self.failed(errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(changed(&self.shown, Some(path)));
        }
        Ok(File::from(file))
    }

    fn enter(&self, path: &[u8]) -> Result<OwnedFd> {
        let mut folder =
            openat(&self.root, c".", FOLDER, Mode::empty()).map_err(|errno| self.failed(errno))?;
        let mut walked = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            walked = join(&walked, name);
            let next = openat(&folder, name, FOLDER, Mode::empty());
            folder =
                next.map_err(|errno| open_error(&self.shown, &folder, name, &walked, true, errno))?;
        }
        Ok(folder)
    }

    /// What errors call a file in it.
    pub(super) fn shown(&self, path: &[u8]) -> String {
        let path = Path::new(&self.shown).join(OsString::from_vec(path.to_vec()));
        path.display().to_string()
    }

    fn failed(&self, errno: Errno) -> Error {
        raise::local_dir_read(&self.shown).with_source(io(errno))
    }
}

fn join(at: &[u8], name: &[u8]) -> Vec<u8> {
    match at.is_empty() {
        true => name.to_vec(),
        false => [at, b"/", name].concat(),
    }
}

/// The folder and the last name of a source.
fn split(src: &PosixPath) -> (PosixPath, Vec<u8>) {
    let names: Vec<&str> = src.names().collect();
    let (name, parents) =
        names.split_last().map_or(("", &[][..]), |(name, parents)| (*name, parents));
    let top = if src.is_absolute() { "/" } else { "" };
    (PosixPath::new(&format!("{top}{}", parents.join("/"))), name.as_bytes().to_vec())
}

/// An absolute path with every `..` taken back as text.
fn lexical(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut out = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => drop(out.pop()),
            Component::Normal(name) => out.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out
}

fn io(errno: Errno) -> std::io::Error {
    errno.into()
}

fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn changed(shown: &str, child: Option<&[u8]>) -> Error {
    let error = raise::local_dir_read(shown).with_context("reason", "path_changed_during_copy");
    match child {
        Some(b"") => error.with_context("child", "."),
        Some(child) => error.with_context("child", lossy(child)),
        None => error,
    }
}

fn link(shown: &str, child: &[u8]) -> Error {
    let child = if child.is_empty() { ".".to_owned() } else { lossy(child) };
    raise::local_dir_read(shown)
        .with_context("reason", "symlink_not_supported")
        .with_context("child", child)
}

/// What it means that a name cannot be opened.
fn open_error(
    shown: &str,
    folder: &OwnedFd,
    name: &[u8],
    child: &[u8],
    is_dir: bool,
    errno: Errno,
) -> Error {
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Err(Errno::NOENT) => changed(shown, Some(child)),
        Ok(FileType::Symlink) => link(shown, child),
        Ok(kind) if is_dir != (kind == FileType::Directory) => changed(shown, Some(child)),
        Ok(kind) if !is_dir && kind != FileType::RegularFile => changed(shown, Some(child)),
        _ if errno == Errno::LOOP => link(shown, child),
        _ => raise::local_dir_read(shown).with_source(io(errno)),
    }
}

#[cfg(test)]
mod tests;
