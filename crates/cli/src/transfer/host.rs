//! The side of a copy that is on this machine.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide::{Error, ErrorKind, FileReader, Result};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, fstat, futimens,
    mkdirat, openat, readlinkat, stat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use tokio::io::AsyncReadExt;

use super::new_file::NewFile;
use super::{CopyEntry, CopyProgress, Kind};

/// How much is copied at a time.
const CHUNK: usize = 1 << 20;

/// A file or folder of this machine that is copied from.
pub(crate) struct HostSource {
    top: PathBuf,
}

impl HostSource {
    pub(crate) fn new(top: PathBuf) -> Self {
        Self { top }
    }

    pub(super) fn name(&self) -> String {
        self.top.display().to_string()
    }

    pub(super) async fn top(&self) -> Result<CopyEntry> {
        let stat = stat(&self.top).map_err(|errno| failed("read", &self.top, errno.into()))?;
        Ok(entry(String::new(), &stat, None))
    }

    pub(super) async fn children(
        &self,
        path: &str,
        left_out: &mut Vec<String>,
    ) -> Result<Vec<CopyEntry>> {
        let failed = |errno: Errno| failed("read", &self.at(path), errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = self.open_beneath(path, flags).map_err(failed)?;
        let mut children = Vec::new();
        for found in Dir::read_from(&folder).map_err(failed)? {
            let found = found.map_err(failed)?;
            let name = found.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            let target = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => Some(readlinkat(&folder, name, []).map_err(failed)?),
                _ => None,
            };
            match name.to_str() {
                Ok(name) => children.push(entry(name.to_owned(), &stat, target)),
                Err(_) => {
                    let shown = self.at(path).join(name.to_string_lossy().as_ref());
                    left_out.push(format!("{}: its name is no text", shown.display()));
                }
            }
        }
        children.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(children)
    }

    pub(super) async fn open(&self, path: &str) -> Result<tokio::fs::File> {
        let failed = |error: io::Error| failed("read", &self.at(path), error);
        // A pipe that came in the place of a file would have to wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_beneath(path, flags).map_err(|errno| failed(errno.into()))?;
        let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(fs::File::from(file).into()),
            _ => Err(failed(io::Error::other("it is no file any more"))),
        }
    }

    /// Opens what is copied, or something beneath it, where no link is followed: whoever swaps one in
    /// meanwhile gains nothing.
    fn open_beneath(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        if path.is_empty() {
            return openat(CWD, &self.top, flags, Mode::empty());
        }
        let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = openat(CWD, &self.top, walk, Mode::empty())?;
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in above.split('/').filter(|part| !part.is_empty()) {
            folder = openat(&folder, part, walk | OFlags::NOFOLLOW, Mode::empty())?;
        }
        openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty())
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.top.clone() } else { self.top.join(path) }
    }
}

fn entry(name: String, stat: &Stat, target: Option<CString>) -> CopyEntry {
    let kind = match (FileType::from_raw_mode(stat.st_mode), target.map(CString::into_string)) {
        (_, Some(Ok(target))) => Kind::Link(target),
        (FileType::Directory, None) => Kind::Folder,
        (FileType::RegularFile, None) => Kind::File,
        _ => Kind::Other,
    };
    let modified = moment(stat.st_mtime, stat.st_mtime_nsec);
    CopyEntry { name, kind, mode: stat.st_mode & 0o777, modified }
}

/// A moment that the kernel counts from 1970.
fn moment(seconds: i64, nanos: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(whole),
        false => UNIX_EPOCH.checked_add(whole),
    };
    let moment = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(nanos)));
    moment.unwrap_or(UNIX_EPOCH)
}

/// The times of what was last changed then. Those before 1970 are kept to the second.
fn timestamps(modified: SystemTime) -> Timestamps {
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    let time = match modified.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Timespec { tv_sec: signed(since.as_secs()), tv_nsec: since.subsec_nanos().into() }
        }
        Err(error) => Timespec { tv_sec: -signed(error.duration().as_secs()), tv_nsec: 0 },
    };
    Timestamps { last_access: time, last_modification: time }
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
        node: &CopyEntry,
        meter: &CopyProgress<'_>,
    ) -> Result<()> {
        let mut to = self.create(path, node.mode)?;
        while let Some(chunk) = from.next().await? {
            to.write_all(&chunk).map_err(|error| failed("write", &self.at(path), error))?;
            meter.bytes(chunk.len());
        }
        to.finish_as_of(&timestamps(node.modified)).map_err(|errno| self.failed(path, errno))
    }

    pub(super) async fn write_from_host(
        &mut self,
        path: &str,
        mut from: tokio::fs::File,
        node: &CopyEntry,
        meter: &CopyProgress<'_>,
    ) -> Result<()> {
        let mut to = self.create(path, node.mode)?;
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            let read = from.read_buf(&mut chunk).await;
            let read = read.map_err(|error| failed("read", &self.at(path), error))?;
            if read == 0 {
                let finished = to.finish_as_of(&timestamps(node.modified));
                return finished.map_err(|errno| self.failed(path, errno));
            }
            to.write_all(&chunk).map_err(|error| failed("write", &self.at(path), error))?;
            meter.bytes(read);
        }
    }

    pub(super) fn link(&mut self, path: &str, target: &str, modified: SystemTime) -> Result<()> {
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
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let made = made.and_then(|()| utimensat(&above, name, &timestamps(modified), flags));
        made.map_err(|errno| self.failed(path, errno))
    }

    /// Sets when a folder was last changed, once nothing is written into it any more.
    pub(super) fn set_folder_time(&mut self, path: &str, modified: SystemTime) -> Result<()> {
        let Some((_, top)) = self.open.first() else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let set = || {
            let mut folder = openat(top, ".", flags, Mode::empty())?;
            for part in path.split('/').filter(|part| !part.is_empty()) {
                folder = openat(&folder, part, flags, Mode::empty())?;
            }
            futimens(&folder, &timestamps(modified))
        };
        match set() {
            // A folder that was there before may be somebody else's.
            Ok(()) | Err(Errno::PERM | Errno::ACCESS) => Ok(()),
            Err(errno) => Err(self.failed(path, errno)),
        }
    }

    /// A file for what comes, in the place of the one there is once it is whole.
    fn create(&mut self, path: &str, mode: u32) -> Result<NewFile> {
        let (folder, name) = match (path, &self.base) {
            ("", Some((base, name))) => {
                (base.try_clone().map_err(|error| failed("write", &self.top, error))?, name.clone())
            }
            // Where the caller says; a link there is the caller's.
            ("", None) => {
                named_by_caller(&self.top).map_err(|error| failed("write", &self.top, error))?
            }
            _ => {
                let (above, name) = self.above(path)?;
                (above, name.to_owned())
            }
        };
        NewFile::create(folder, name, permissions(mode)).map_err(|errno| self.failed(path, errno))
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

/// The folder and name that a path of the caller's means, links followed.
fn named_by_caller(path: &Path) -> io::Result<(OwnedFd, String)> {
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        real => real?,
    };
    let name = real.file_name().and_then(|name| name.to_str());
    let name = name.ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    let folder = real.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((openat(CWD, folder.unwrap_or(Path::new(".")), flags, Mode::empty())?, name))
}

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
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::{Sink, Source, copy};
    use super::*;
    use crate::ui::ProgressLine;

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
        let copied = run(copy(
            &Source::Host(HostSource::new(from)),
            &mut sink,
            &CopyProgress::new(&ProgressLine::unseen()),
        ))
        .unwrap();
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
        for (name, mode) in [("new", 0o6755), ("was", 0o755)] {
            sink.create(name, mode).unwrap().finish().unwrap();
        }
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
        sink.link("trap", "../secret", UNIX_EPOCH).unwrap();
        sink.link("key", "../secret/key", UNIX_EPOCH).unwrap();
        assert!(sink.make_folder("trap", 0o755).is_err());
        assert!(sink.create("key", 0o644).is_err());
        assert!(sink.create("trap/key", 0o644).is_err());
        assert_eq!(fs::read_to_string(secret.join("key")).unwrap(), "secret");
    }
    /// What another process could try while a folder is copied.
    #[test]
    fn follows_no_link_that_is_swapped_in_and_waits_for_no_pipe() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, secret) = (scratch.path().join("from"), scratch.path().join("secret"));
        fs::create_dir_all(from.join("a")).unwrap();
        fs::create_dir(&secret).unwrap();
        for file in [from.join("a/key"), from.join("file"), secret.join("key")] {
            fs::write(file, "content").unwrap();
        }
        let source = HostSource::new(from.clone());
        run(source.open("a/key")).unwrap();
        fs::remove_dir_all(from.join("a")).unwrap();
        symlink("../secret", from.join("a")).unwrap();
        assert!(run(source.open("a/key")).is_err());
        assert!(run(source.children("a", &mut Vec::new())).is_err());
        fs::remove_file(from.join("file")).unwrap();
        symlink("../secret/key", from.join("file")).unwrap();
        assert!(run(source.open("file")).is_err());
        fs::remove_file(from.join("file")).unwrap();
        rustix::fs::mkfifoat(CWD, from.join("file"), Mode::RUSR).unwrap();
        let error = run(source.open("file")).unwrap_err();
        assert!(error.to_string().contains("it is no file any more"), "{error}");
    }

    #[test]
    fn leaves_what_was_there_until_the_copy_is_whole() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", scratch.path().join("link")).unwrap();
        let mut sink = HostSink::new(scratch.path().join("link"));
        let mut part = sink.create("", 0o755).unwrap();
        part.write_all(b"new").unwrap();
        drop(part);
        let names = || fs::read_dir(scratch.path()).unwrap().count();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), names()), ("old", 2));
        let mut whole = sink.create("", 0o755).unwrap();
        whole.write_all(b"new").unwrap();
        whole.finish().unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), names()), ("new", 2));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    }
}
