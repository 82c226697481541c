//! Files beneath folders that are held open: no path can lead out of them, whatever a command does
//! to the tree meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bastide_proto::GuestPath;
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

/// The folders the guest may work in, by where they are inside.
#[derive(Debug)]
pub(crate) struct Roots(Vec<(String, OwnedFd)>);

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Roots {
    /// Opens every root.
    pub(crate) fn open(paths: &[String]) -> io::Result<Self> {
        let open = |path: &String| {
            let folder = rustix::fs::open(path, FOLDER, Mode::empty())?;
            Ok((path.clone(), folder))
        };
        Ok(Self(paths.iter().map(open).collect::<io::Result<_>>()?))
    }

    /// The root that `path` lies in, and where beneath it.
    pub(crate) fn find<'a>(&self, path: &'a GuestPath) -> Option<(&OwnedFd, &'a str)> {
        let path = path.as_str();
        self.0
            .iter()
            .filter_map(|(root, folder)| {
                let rest = path.strip_prefix(root.as_str())?;
                let beneath = rest.is_empty() || rest.starts_with('/') || root == "/";
                beneath.then_some((root.len(), folder, rest.trim_start_matches('/')))
            })
            // Of nested roots the innermost is meant.
            .max_by_key(|(length, ..)| *length)
            .map(|(_, folder, rest)| (folder, rest))
    }
}

/// Opens the folder `path` beneath `root`, making it and its parents where they are missing.
pub(crate) fn make_folder(root: BorrowedFd<'_>, path: &str, mode: u32) -> io::Result<OwnedFd> {
    match open_folder(root, path) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let (parent, name) = split(path);
    let parent = make_folder(root, parent, 0o755)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(open_folder(parent.as_fd(), name)?)
}

/// The folder and the name of a path beneath a root.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn open_folder(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, FOLDER, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_innermost_root() {
        let roots = Roots(vec![
            ("/work".to_owned(), rustix::fs::open("/", FOLDER, Mode::empty()).unwrap()),
            ("/work/cache".to_owned(), rustix::fs::open("/proc", FOLDER, Mode::empty()).unwrap()),
        ]);
        let find = |path: &str| {
            let path: GuestPath = path.parse().unwrap();
            roots.find(&path).map(|(_, rest)| rest.to_owned())
        };
        assert_eq!(find("/work"), Some(String::new()));
        assert_eq!(find("/work/a/b"), Some("a/b".to_owned()));
        assert_eq!(find("/work/cache/x"), Some("x".to_owned()));
        assert_eq!(find("/works"), None);
        assert_eq!(find("/etc"), None);
    }
}
