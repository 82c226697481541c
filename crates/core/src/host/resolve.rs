//! Following a path of the host to what it leads to, and through no link that a command could have made.
//!
//! A folder that commands write to is theirs: a name in it may be a link to anywhere by the next start. So a path is
//! followed one name at a time from held folders, and from such a folder on no link is.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bastide_proto::boot::{InodeId, UserAndGroup};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

use crate::{Error, ErrorKind};

/// How many links are followed at most, as by the kernel.
const MAX_LINKS: usize = 40;

/// What a path led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its path, without links.
    pub path: PathBuf,
    /// Its device and inode.
    pub identity: InodeId,
    /// What kind of file it is.
    pub kind: FileKind,
    /// Whose it is.
    pub owner: UserAndGroup,
}

/// What kind of file a path led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Folder,
    /// A regular file.
    File,
    /// A device, a socket or a FIFO.
    Other,
}

/// Why a path leads nowhere.
#[derive(Debug)]
pub enum ResolveError {
    /// A link in a folder that commands may write to.
    PlantedLink(PathBuf),
    /// It cannot be followed.
    Io(io::Error),
}

impl ResolveError {
    /// Whether there is nothing at the path.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// The refusal of a path of the host; `what` says what it cannot be used for.
    #[must_use]
    pub fn into_refusal(self, what: &str, path: &Path) -> Error {
        let refused = Error::new(ErrorKind::InvalidInput, format!("{what}: {self}"))
            .with_context("path", path.display().to_string());
        match self {
            Self::PlantedLink(link) => refused.with_hint(format!(
                "see what {} leads to; if the link is yours, grant the place it leads to by its own path",
                link.display()
            )),
            Self::Io(error) => refused.with_source(error),
        }
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlantedLink(path) => write!(
                f,
                "{} is a link in a folder that commands of this session may write to, and could lead anywhere",
                path.display()
            ),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<Errno> for ResolveError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Follows an absolute path. `writable` are the folders that commands may write to.
///
/// # Errors
///
/// Fails if a name of it is missing or cannot be looked up, and at a link in one of those folders.
pub fn resolve(path: &Path, writable: &[InodeId]) -> Result<Found, ResolveError> {
    if !path.has_root() {
        return Err(Errno::INVAL.into());
    }
    let mut walk = Walk { writable, steps: Vec::new(), ahead: VecDeque::new(), links: 0 };
    walk.lead(path);
    walk.run()
}

struct Walk<'a> {
    writable: &'a [InodeId],
    /// Where the walk is: what was entered from the root on.
    steps: Vec<WalkedEntry>,
    ahead: VecDeque<OsString>,
    links: usize,
}

struct WalkedEntry {
    name: OsString,
    file: OwnedFd,
    stat: Stat,
}

impl Walk<'_> {
    /// Puts the names of a path before those that are left.
    fn lead(&mut self, path: &Path) {
        if path.has_root() {
            self.steps.clear();
        }
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => self.ahead.push_front(name.to_owned()),
                Component::ParentDir => self.ahead.push_front(OsString::from("..")),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
    }

    fn run(mut self) -> Result<Found, ResolveError> {
        let root = rustix::fs::open("/", folder_flags(), Mode::empty())?;
        while let Some(name) = self.ahead.pop_front() {
            if name == ".." {
                self.steps.pop();
                continue;
            }
            let at = self.steps.last().map_or(&root, |step| &step.file);
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(at, name.as_os_str(), flags, Mode::empty())?;
            let stat = fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                self.follow(&name, &file)?;
                continue;
            }
            self.steps.push(WalkedEntry { name, file, stat });
        }
        let stat = match self.steps.last() {
            Some(step) => step.stat,
            None => fstat(&root)?,
        };
        Ok(Found {
            path: self.path(None),
            identity: identity(&stat),
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => FileKind::Folder,
                FileType::RegularFile => FileKind::File,
                _ => FileKind::Other,
            },
            owner: UserAndGroup { uid: stat.st_uid, gid: stat.st_gid },
        })
    }

    fn follow(&mut self, name: &OsStr, link: &OwnedFd) -> Result<(), ResolveError> {
        let is_writable = |step: &WalkedEntry| self.writable.contains(&identity(&step.stat));
        if self.steps.iter().any(is_writable) {
            return Err(ResolveError::PlantedLink(self.path(Some(name))));
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(link, c"", Vec::new())?;
        self.lead(Path::new(OsStr::from_bytes(target.as_bytes())));
        Ok(())
    }

    /// Where the walk is, or would be with one more name.
    fn path(&self, name: Option<&OsStr>) -> PathBuf {
        let names = self.steps.iter().map(|step| step.name.as_os_str()).chain(name);
        Path::new("/").join(names.collect::<PathBuf>())
    }
}

fn folder_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC
}

fn identity(stat: &Stat) -> InodeId {
    InodeId { device: stat.st_dev, inode: stat.st_ino }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn top() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    #[test]
    fn leads_where_the_kernel_leads() {
        let (_held, top) = top();
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/file"), "").unwrap();
        symlink("a", top.join("to-a")).unwrap();
        symlink("../to-a/b", top.join("a/around")).unwrap();
        symlink(top.join("a"), top.join("absolute")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        symlink("/", top.join("root")).unwrap();
        for name in [
            "a",
            "a/b",
            "a/file",
            "to-a/b",
            "a/around",
            "absolute/around/../file",
            "a/./b/..",
            "root",
            ".",
        ] {
            let found = resolve(&top.join(name), &[]).unwrap();
            assert_eq!(found.path, top.join(name).canonicalize().unwrap(), "{name}");
        }
        for name in ["missing", "a/file/x", "loop", "to-a/missing/x"] {
            let ours = match resolve(&top.join(name), &[]).unwrap_err() {
                ResolveError::Io(error) => error.raw_os_error(),
                error @ ResolveError::PlantedLink(_) => panic!("{error}"),
            };
            let kernels = top.join(name).canonicalize().unwrap_err().raw_os_error();
            assert_eq!(ours, kernels, "{name}");
        }
    }

    #[test]
    fn follows_no_link_in_what_commands_write() {
        let (_held, top) = top();
        fs::create_dir_all(top.join("ws/sub/deep")).unwrap();
        fs::create_dir_all(top.join("secret/deep")).unwrap();
        symlink("ws", top.join("callers")).unwrap();
        let ws = [resolve(&top.join("ws"), &[]).unwrap().identity];
        // By the caller's own link, too, as long as it lies outside.
        for path in ["ws", "ws/sub", "ws/sub/deep", "callers/sub/deep", "callers"] {
            assert!(resolve(&top.join(path), &ws).is_ok(), "{path}");
        }
        fs::rename(top.join("ws/sub"), top.join("ws/old")).unwrap();
        symlink("../secret", top.join("ws/sub")).unwrap();
        symlink("old", top.join("ws/inner")).unwrap();
        for path in ["ws/sub", "ws/sub/deep", "callers/sub/deep", "ws/old/../sub", "ws/inner"] {
            let error = resolve(&top.join(path), &ws).unwrap_err();
            assert!(matches!(error, ResolveError::PlantedLink(_)), "{path}: {error}");
            assert!(resolve(&top.join(path), &[]).is_ok(), "{path} without commands");
        }
    }
}
