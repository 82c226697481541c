//! Files of a workspace, put there and fetched from outside while an agent may be at work in it.
//!
//! A path that was checked and is then opened by name can lead elsewhere by then. So nothing is checked
//! first: the kernel resolves each path beneath the held folder (`openat2` with `RESOLVE_BENEATH`), and
//! what would lead out of it fails there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bastide::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2, unlinkat,
};
use rustix::io::Errno;

use crate::collect::{glob_matches, open_root};

/// The largest file that is fetched into memory.
const MAX_FILE: u64 = 256 << 20;

/// The most files of a listing.
const MAX_LISTED: usize = 1_000_000;

/// How often the kernel is asked again when it could not be sure.
const ATTEMPTS: usize = 256;

/// How often a folder is made that somebody removes again.
const TRIES: usize = 100;

/// The files of a workspace: the reference's `put_file`, `get_file`, `put_bytes`, `get_bytes`,
/// `list_files` and `delete_file`.
///
/// ```
/// use bastide_runs::WorkspaceFiles;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let files = WorkspaceFiles::open(folder.path())?;
/// files.put("notes/a.txt", b"hello")?;
/// assert_eq!(files.get_text("notes/a.txt")?, "hello");
/// assert_eq!(files.list("**/*.txt")?, [std::path::Path::new("notes/a.txt")]);
/// assert!(files.put("../out.txt", b"x").unwrap_err().to_string().contains("escapes workspace"));
/// # Ok::<(), bastide::Error>(())
/// ```
#[derive(Debug)]
pub struct WorkspaceFiles {
    root: OwnedFd,
    path: PathBuf,
}

impl WorkspaceFiles {
    /// The files of this folder, whatever its path leads to later.
    ///
    /// # Errors
    ///
    /// If it is no folder.
    pub fn open(workspace: impl AsRef<Path>) -> Result<Self> {
        let workspace = workspace.as_ref();
        let open = || {
            let path = workspace.canonicalize()?;
            Ok(Self { root: open_root(&path)?, path })
        };
        open().map_err(|error| failed("use the workspace", workspace, &error))
    }

    /// Writes a file, over one that is there, and makes the folders it is in: where it is.
    ///
    /// # Errors
    ///
    /// If the path leads out of the workspace, or to what is no file.
    pub fn put(&self, path: impl AsRef<Path>, content: &[u8]) -> Result<PathBuf> {
        let path = path.as_ref();
        let beneath = self.beneath(path)?;
        let write = || {
            self.make_around(&beneath)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            self.open_file(&beneath, flags)?.write_all(content)
        };
        write().map_err(|error| failed("write", path, &error))?;
        Ok(self.path.join(beneath))
    }

    /// What is in a file.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put), if there is none, and for one that is too large to be held.
    pub fn get(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let beneath = self.beneath(path)?;
        let read = || {
            let mut content = Vec::new();
            let file = self.open_file(&beneath, OFlags::RDONLY)?;
            file.take(MAX_FILE + 1).read_to_end(&mut content)?;
            match content.len() as u64 > MAX_FILE {
                true => Err(io::ErrorKind::FileTooLarge.into()),
                false => Ok(content),
            }
        };
        read().map_err(|error| failed("read", path, &error))
    }

    /// What is in a file of text.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), and if it is not UTF-8.
    pub fn get_text(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.get(path)?).map_err(|_| {
            let message = format!("{} is not UTF-8", path.display());
            Error::new(ErrorKind::InvalidInput, message).with_hint("`get` reads any bytes")
        })
    }

    /// The files that a pattern matches, relative to the workspace and in order; `**/*` is all of them. A
    /// link counts if it leads to a file of the workspace; no folder is entered through one.
    ///
    /// # Errors
    ///
    /// If the pattern is absolute, or a folder cannot be read.
    pub fn list(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        if pattern.starts_with('/') {
            let message = format!("the pattern {pattern:?} is absolute");
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("patterns are relative to the workspace"));
        }
        // At the end of a pattern that is every folder, and no file.
        if pattern == "**" || pattern.ends_with("/**") {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        self.look(pattern.as_bytes(), &mut found)
            .map_err(|error| failed("list", &self.path, &error))?;
        found.sort();
        Ok(found)
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    ///
    /// If there is none, it is a folder, or the path leads out of the workspace.
    pub fn delete(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let beneath = self.beneath(path)?;
        let remove = || {
            let Some(name) = beneath.file_name() else { return Err(Errno::ISDIR.into()) };
            let around = beneath.parent().unwrap_or(Path::new(""));
            unlinkat(self.open_folder(around)?, name, AtFlags::empty())?;
            Ok::<_, io::Error>(())
        };
        remove().map_err(|error| failed("delete", path, &error))
    }

    /// A path relative to the workspace, without `.` and `..`.
    fn beneath(&self, path: &Path) -> Result<PathBuf> {
        let relative = match path.is_absolute() {
            true => path.strip_prefix(&self.path).map_err(|_| escapes(path))?,
            false => path,
        };
        let mut beneath = PathBuf::new();
        for part in relative.components() {
            match part {
                Component::Normal(name) => beneath.push(name),
                Component::CurDir => {}
                Component::ParentDir if beneath.pop() => {}
                _ => return Err(escapes(path)),
            }
        }
        Ok(beneath)
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let mode = match flags.contains(OFlags::CREATE) {
            true => Mode::from_raw_mode(0o644),
            false => Mode::empty(),
        };
        let flags = flags | OFlags::CLOEXEC;
        let mut attempt = 0;
        loop {
            // Where a link goes up while anything on the machine is renamed, the kernel cannot be sure, and says so.
            match openat2(&self.root, path, flags, mode, ResolveFlags::BENEATH) {
                Err(Errno::AGAIN | Errno::INTR) if attempt < ATTEMPTS => attempt += 1,
                opened => return Ok(opened?),
            }
        }
    }

    fn open_folder(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A regular file. A pipe is not waited for, and a terminal does not become ours.
    fn open_file(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let file = self.open_beneath(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(io::Error::other("it is not a regular file")),
        }
    }

    /// Makes the folders around a path that are missing.
    fn make_around(&self, path: &Path) -> io::Result<()> {
        let Some(around) = path.parent() else { return Ok(()) };
        let mut made = PathBuf::new();
        for name in around.components() {
            let outer = made.clone();
            made.push(name);
            for _ in 0..TRIES {
                match self.open_folder(&made) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    opened => {
                        opened?;
                        break;
                    }
                }
                let mode = Mode::from_raw_mode(0o755);
                match mkdirat(self.open_folder(&outer)?, name.as_os_str(), mode) {
                    // A link to nowhere is there, and no folder can be made behind it.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn look(&self, pattern: &[u8], found: &mut Vec<PathBuf>) -> io::Result<()> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(folder) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            // It went, or became something else, meanwhile.
            let Ok(held) = self.open_beneath(&folder, flags) else { continue };
            for entry in Dir::read_from(&held)? {
                let entry = match entry {
                    Err(Errno::NOENT) => break,
                    entry => entry?,
                };
                let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
                if name == Path::new(".") || name == Path::new("..") {
                    continue;
                }
                let path = folder.join(name);
                match entry.file_type() {
                    FileType::Directory => waiting.push(path),
                    kind if self.is_file(&path, kind)
                        && glob_matches(pattern, path.as_os_str().as_bytes()) =>
                    {
                        found.push(path);
                    }
                    _ => {}
                }
                if found.len() > MAX_LISTED {
                    return Err(io::Error::other("there are too many files to list"));
                }
            }
        }
        Ok(())
    }

    /// Whether a path is a regular file, or leads to one of the workspace.
    fn is_file(&self, path: &Path, kind: FileType) -> bool {
        let is_regular = |file: OwnedFd| {
            let stat = fstat(&file);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        };
        match kind {
            FileType::RegularFile => true,
            FileType::Symlink | FileType::Unknown => {
                self.open_beneath(path, OFlags::PATH).is_ok_and(is_regular)
            }
            _ => false,
        }
    }
}

fn escapes(path: &Path) -> Error {
    let message = format!("{} escapes workspace", path.display());
    Error::new(ErrorKind::InvalidInput, message)
        .with_context("path", path.display().to_string())
        .with_hint("name a file of the workspace")
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let raw = error.raw_os_error();
    if raw == Some(Errno::XDEV.raw_os_error()) {
        return escapes(path);
    }
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::FileTooLarge => ErrorKind::LimitExceeded,
        _ if raw == Some(Errno::NOSYS.raw_os_error()) => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    fn workspace() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().canonicalize().unwrap().join("work");
        fs::create_dir_all(work.join("inner")).unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        (folder, work)
    }

    #[test]
    fn puts_gets_lists_and_deletes() {
        let (_folder, work) = workspace();
        let files = WorkspaceFiles::open(&work).unwrap();
        let put = files.put("src/./deep/../app.py", b"print(1)\n").unwrap();
        assert_eq!(put, work.join("src/app.py"));
        files.put(work.join("data.bin"), b"\0\xff").unwrap();
        files.put(".git/config", b"x").unwrap();
        assert_eq!(files.get_text("src/app.py").unwrap(), "print(1)\n");
        assert_eq!(files.get("data.bin").unwrap(), b"\0\xff");
        assert_eq!(files.get_text("data.bin").unwrap_err().kind(), ErrorKind::InvalidInput);
        symlink("../data.bin", work.join("inner/inside")).unwrap();
        symlink("../../secret", work.join("inner/outside")).unwrap();
        let names = |pattern: &str| {
            let found = files.list(pattern).unwrap();
            found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("**/*"), [".git/config", "data.bin", "inner/inside", "src/app.py"]);
        assert_eq!(names("*.bin"), ["data.bin"]);
        assert_eq!(names("**/*.py"), ["src/app.py"]);
        assert!(names("../*").is_empty() && names("**").is_empty());
        assert_eq!(files.list("/etc/*").unwrap_err().kind(), ErrorKind::Unsupported);
        files.delete("inner/inside").unwrap();
        assert_eq!(files.get("data.bin").unwrap(), b"\0\xff");
        files.delete("data.bin").unwrap();
        assert_eq!(files.delete("data.bin").unwrap_err().kind(), ErrorKind::NotFound);
        for path in ["", "src"] {
            assert!(files.put(path, b"x").is_err() && files.delete(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn nothing_leads_out() {
        let (folder, work) = workspace();
        let files = WorkspaceFiles::open(&work).unwrap();
        symlink("../secret", work.join("file")).unwrap();
        symlink("..", work.join("around")).unwrap();
        symlink(folder.path(), work.join("absolute")).unwrap();
        symlink("/proc/self/root", work.join("magic")).unwrap();
        let outside = folder.path().join("secret");
        let paths = [
            "../secret",
            "inner/../../secret",
            "file",
            "around/secret",
            "absolute/secret",
            "magic/etc/passwd",
            outside.to_str().unwrap(),
        ];
        for path in paths {
            for error in [files.get(path).unwrap_err(), files.put(path, b"x").unwrap_err()] {
                assert!(error.to_string().contains("escapes workspace"), "{path}: {error}");
            }
        }
        for path in ["../secret", "around/secret", "absolute/secret"] {
            files.delete(path).unwrap_err();
        }
        assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
        assert!(files.put("around/new/file", b"x").is_err());
        assert!(!folder.path().join("new").exists());
    }

    /// What is checked first and opened later can be another by then.
    #[test]
    fn no_race_leads_out() {
        const MOST: usize = 200_000;
        let (folder, work) = workspace();
        let files = WorkspaceFiles::open(&work).unwrap();
        let (stop, swapped) = (AtomicBool::new(false), work.join("swapped"));
        fs::create_dir(&swapped).unwrap();
        fs::write(swapped.join("secret"), "mine").unwrap();
        symlink("..", work.join("link")).unwrap();
        let (mut seen, mut leaked) = ((0, 0), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (one, other) = (&swapped, &work.join("link"));
                    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                }
            });
            // Whatever it sees, the other thread has to end.
            for _ in 0..MOST {
                match files.get_text("swapped/secret") {
                    Ok(text) if text == "mine" => seen.0 += 1,
                    Ok(_) => leaked += 1,
                    Err(_) => seen.1 += 1,
                }
                if files.put("swapped/secret", b"mine").is_err() {
                    seen.1 += 1;
                }
                if leaked > 0 || seen.0 >= 200 && seen.1 >= 200 {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(leaked, 0);
        assert!(seen.0 > 0 && seen.1 > 0, "{seen:?}");
        assert_eq!(fs::read_to_string(folder.path().join("secret")).unwrap(), "secret");
    }
}
