//! The side of a copy that is on this machine.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind, FileReader, Result};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tokio::io::AsyncReadExt;

use super::{CopyEntry, Kind};

/// How much is copied at a time.
const PIECE: usize = 1 << 20;

/// A file or folder of this machine that is copied from.
pub(crate) struct HostSource {
    top: PathBuf,
}

impl HostSource {
    pub(crate) fn new(top: PathBuf) -> Self {
        Self { top }
    }

    pub(super) async fn top(&self) -> Result<CopyEntry> {
        let metadata = fs::metadata(&self.top).map_err(|error| failed("read", &self.top, error))?;
        Ok(node(String::new(), &metadata, None))
    }

    pub(super) async fn children(
        &self,
        path: &str,
        left_out: &mut Vec<String>,
    ) -> Result<Vec<CopyEntry>> {
        let folder = self.at(path);
        let failed = |error: io::Error| failed("read", &folder, error);
        let mut children = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let target = match fs::read_link(entry.path()) {
                Ok(target) => Some(target.into_os_string()),
                Err(_) => None,
            };
            match entry.file_name().into_string() {
                Ok(name) => {
                    children.push(node(name, &entry.metadata().map_err(failed)?, target));
                }
                Err(name) => {
                    left_out.push(format!(
                        "{}: its name is no text",
                        self.at(path).join(name).display()
                    ));
                }
            }
        }
        children.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(children)
    }

    pub(super) async fn open(&self, path: &str) -> Result<tokio::fs::File> {
        let path = self.at(path);
        tokio::fs::File::open(&path).await.map_err(|error| failed("read", &path, error))
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.top.clone() } else { self.top.join(path) }
    }
}

fn node(name: String, metadata: &fs::Metadata, target: Option<OsString>) -> CopyEntry {
    let kind = match target.map(OsString::into_string) {
        Some(Ok(target)) => Kind::Link(target),
        Some(Err(_)) => Kind::Other,
        None if metadata.is_dir() => Kind::Folder,
        None if metadata.is_file() => Kind::File,
        None => Kind::Other,
    };
    CopyEntry { name, kind, mode: metadata.permissions().mode() & 0o777 }
}

/// A file or folder of this machine that is copied to.
///
/// Every name beneath it is opened from the folder it is in, and no link among them is followed: a
/// session that says first that something is a link and then that it is a folder gains nothing.
pub(crate) struct HostSink {
    top: PathBuf,
    /// The folder the copy goes into by its own name, if it does.
    base: Option<(OwnedFd, String)>,
    /// The folders on the way to what was written last, the top one first.
    open: Vec<(String, OwnedFd)>,
}

impl HostSink {
    pub(crate) fn new(top: PathBuf) -> Self {
        Self { top, base: None, open: Vec::new() }
    }

    /// A copy in a folder, under its own name. No link of that name is followed.
    pub(crate) fn beneath(folder: &Path, name: &str) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, folder, flags, Mode::empty())
            .map_err(|errno| failed("open", folder, errno.into()))?;
        let base = Some((base, name.to_owned()));
        Ok(Self { top: folder.join(name), base, open: Vec::new() })
    }

    pub(super) fn make_folder(&mut self, path: &str, mode: u32) -> Result<()> {
        let place = self.at(path);
        let fails = |errno: Errno| failed("make", &place, errno.into());
        if path.is_empty() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let everybody = Mode::from_raw_mode(0o777);
            let (made, opened) = match &self.base {
                Some((base, name)) => (
                    mkdirat(base, name.as_str(), everybody),
                    openat(base, name.as_str(), flags | OFlags::NOFOLLOW, Mode::empty()),
                ),
                None => (
                    mkdirat(CWD, &self.top, everybody),
                    openat(CWD, &self.top, flags, Mode::empty()),
                ),
            };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(fails(errno)),
            }
            let folder = opened.map_err(fails)?;
            self.open = vec![(String::new(), folder)];
            return Ok(());
        }
        let (above, name) = self.above(path)?;
        // Its owner has to be able to go on writing into it.
        match mkdirat(&above, name, permissions(mode | 0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fails(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&above, name, flags, Mode::empty()).map_err(fails)?;
        self.open.push((path.to_owned(), folder));
        Ok(())
    }

    pub(super) async fn write_from_session(
        &mut self,
        path: &str,
        mut from: FileReader,
        mode: u32,
    ) -> Result<()> {
        let mut to = self.create(path, mode)?;
        while let Some(piece) = from.next().await? {
            to.write_all(&piece).map_err(|error| failed("write", &self.at(path), error))?;
        }
        Ok(())
    }

    pub(super) async fn write_from_host(
        &mut self,
        path: &str,
        mut from: tokio::fs::File,
        mode: u32,
    ) -> Result<()> {
        let mut to = self.create(path, mode)?;
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            piece.clear();
            let read = from.read_buf(&mut piece).await;
            let read = read.map_err(|error| failed("read", &self.at(path), error))?;
            if read == 0 {
                return Ok(());
            }
            to.write_all(&piece).map_err(|error| failed("write", &self.at(path), error))?;
        }
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        if path.is_empty() {
            return Err(self.failed(path, Errno::EXIST));
        }
        let (above, name) = self.above(path)?;
        let made = match symlinkat(target, &above, name) {
            // A link that was there before makes room; a folder does not.
            Err(Errno::EXIST) => unlinkat(&above, name, AtFlags::empty())
                .and_then(|()| symlinkat(target, &above, name)),
            made => made,
        };
        made.map_err(|errno| self.failed(path, errno))
    }

    /// Makes a file, or empties the one there is. Nothing but a regular file is written to.
    fn create(&mut self, path: &str, mode: u32) -> Result<fs::File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = permissions(mode);
        let opened = if path.is_empty() {
            match &self.base {
                Some((base, name)) => openat(base, name.as_str(), flags | OFlags::NOFOLLOW, mode),
                // Where the caller says; a link there is the caller's.
                None => openat(CWD, &self.top, flags, mode),
            }
        } else {
            let (above, name) = self.above(path)?;
            openat(&above, name, flags | OFlags::NOFOLLOW, mode)
        };
        let file = opened.map_err(|errno| self.failed(path, errno))?;
        let stat = fstat(&file).map_err(|errno| self.failed(path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.failed(path, Errno::INVAL));
        }
        if stat.st_mode & SET_ID != 0 {
            // Whatever is written to it is not what was trusted with that.
            fchmod(&file, permissions(stat.st_mode)).map_err(|errno| self.failed(path, errno))?;
        }
        let file = fs::File::from(file);
        file.set_len(0).map_err(|error| failed("write", &self.at(path), error))?;
        Ok(file)
    }

    /// The folder a path lies in, and its name there. Folders are made before what lies in them, so the
    /// one that is needed is open, or was left for good.
    fn above<'p>(&mut self, path: &'p str) -> Result<(OwnedFd, &'p str)> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        while self.open.last().is_some_and(|(open, _)| open != folder) {
            self.open.pop();
        }
        let found = self.open.last().map(|(_, folder)| folder.as_fd().try_clone_to_owned());
        match found {
            Some(Ok(above)) => Ok((above, name)),
            Some(Err(error)) => Err(failed("write", &self.at(path), error)),
            None => Err(self.failed(path, Errno::NOENT)),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.top.clone() } else { self.top.join(path) }
    }

    fn failed(&self, path: &str, errno: Errno) -> Error {
        failed("write", &self.at(path), errno.into())
    }
}

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// What a file of this machine may get of the permissions a session says: nothing that makes it more than
/// what its owner runs.
fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o777)
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    };
    let message = format!("cannot {what} {}: {error}", path.display());
    Error::new(kind, message).with_context("path", path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::{Sink, Source, copy};
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn copies_a_tree_and_says_what_it_left_out() {
        let scratch = tempfile::tempdir().unwrap();
        let from = scratch.path().join("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/file"), "content").unwrap();
        fs::set_permissions(from.join("a/b/file"), fs::Permissions::from_mode(0o750)).unwrap();
        fs::create_dir(from.join("z")).unwrap();
        fs::write(from.join("z/last"), "").unwrap();
        symlink("a/b/file", from.join("inside")).unwrap();
        symlink("/etc/passwd", from.join("outside")).unwrap();
        let to = scratch.path().join("to");
        let mut sink = Sink::Host(HostSink::new(to.clone()));
        let copied = run(copy(&Source::Host(HostSource::new(from)), &mut sink)).unwrap();
        assert_eq!((copied.files, copied.folders, copied.links), (2, 4, 1));
        assert_eq!(copied.left_out, ["outside: the link leads out, to /etc/passwd"]);
        assert_eq!(fs::read_to_string(to.join("inside")).unwrap(), "content");
        let mode = fs::metadata(to.join("a/b/file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        assert!(fs::symlink_metadata(to.join("outside")).is_err());
    }

    /// Nor what a session that lies could say of permissions.
    #[test]
    fn leaves_no_set_id_file_behind() {
        let scratch = tempfile::tempdir().unwrap();
        let mut sink = HostSink::new(scratch.path().join("to"));
        sink.make_folder("", 0o755).unwrap();
        sink.make_folder("folder", 0o6755).unwrap();
        let was = scratch.path().join("to/was");
        fs::write(&was, "trusted").unwrap();
        fs::set_permissions(&was, fs::Permissions::from_mode(0o4755)).unwrap();
        sink.create("new", 0o6755).unwrap();
        sink.create("was", 0o755).unwrap();
        for name in ["folder", "new", "was"] {
            let found = fs::metadata(scratch.path().join("to").join(name)).unwrap();
            assert_eq!(found.permissions().mode() & 0o6000, 0, "{name}");
        }
    }

    /// What a session that lies could try: a link where a folder or a file is to be written.
    #[test]
    fn follows_no_link_on_the_way_in() {
        let scratch = tempfile::tempdir().unwrap();
        let (to, secret) = (scratch.path().join("to"), scratch.path().join("secret"));
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("key"), "secret").unwrap();
        let mut sink = HostSink::new(to.clone());
        sink.make_folder("", 0o755).unwrap();
        sink.link("trap", "../secret").unwrap();
        sink.link("key", "../secret/key").unwrap();
        assert!(sink.make_folder("trap", 0o755).is_err());
        assert!(sink.create("key", 0o644).is_err());
        assert!(sink.create("trap/key", 0o644).is_err());
        assert_eq!(fs::read_to_string(secret.join("key")).unwrap(), "secret");
    }
}
