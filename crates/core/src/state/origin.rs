//! Telling a file from a copy of it. A file that says which inode it is, and is another, was copied: with
//! the folder it lies in, whatever else that holds.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use bastide_proto::warden::{LOCK_FILE, OWNED_ROOT_FILE, origin_mark};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, openat, renameat_with, statx,
};
use rustix::io::Errno;

use crate::host::is_same_file;

/// The longest mark there is.
const MOST: u64 = 128;

/// Whether a session's folder is the original or a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was created where it is, or moved there.
    Here,
    /// It is a copy. What its files say about processes, containers and other folders is true of
    /// the original.
    Copied,
    /// Unknown: it was created by a version that did not record it.
    Unsaid,
}

impl Origin {
    /// Where the folder of a session comes from.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be read.
    pub fn of(folder: &Path) -> io::Result<Self> {
        match File::open(folder.join(LOCK_FILE)) {
            Ok(lock) => Self::read(&lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Unsaid),
            Err(error) => Err(error),
        }
    }

    /// Whether a session's folder is the one its machine was booted in, which was at `noted` then:
    /// only then is the machine this session's.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be determined.
    pub fn is_original(folder: &Path, noted: &Path) -> io::Result<bool> {
        match Self::of(folder)? {
            Self::Here => Ok(true),
            Self::Copied => Ok(false),
            Self::Unsaid => match (fs::metadata(folder), fs::metadata(noted)) {
                (Ok(own), Ok(noted)) => Ok(is_same_file(&own, &noted)),
                // One that is gone has no copies.
                (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Ok(folder == noted),
                (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                (Err(error), _) | (_, Err(error)) => Err(error),
            },
        }
    }

    fn read(lock: &File) -> io::Result<Self> {
        let mut text = String::new();
        lock.take(MOST).read_to_string(&mut text)?;
        Ok(match text {
            text if text.is_empty() => Self::Unsaid,
            text if text == mark(lock)? => Self::Here,
            _ => Self::Copied,
        })
    }
}

/// Has the lock of a session say which file it is.
pub(super) fn write_origin(mut lock: &File) -> io::Result<()> {
    let mark = mark(lock)?;
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(mark.as_bytes())
}

/// Makes the folder elsewhere that belongs to a session, into which nobody else may look, and notes it in the session's own. A
/// new session's must not exist: what is there may be anybody's.
pub(super) fn make_owned_root(folder: &Path, root: &Path, is_new: bool) -> io::Result<()> {
    if !is_new && has_owned_root(folder, root)? {
        return Ok(());
    }
    // It has its name only once it is noted: whoever is killed in between leaves one that is known by its name.
    let unnoted = unnoted_root(folder, root)?;
    remove_unnoted_root(folder, root)?;
    fs::DirBuilder::new().mode(0o700).create(&unnoted)?;
    let note = owned_root_note(&unnoted, root);
    let made = note.and_then(|note| fs::write(folder.join(OWNED_ROOT_FILE), note));
    let made = made.and_then(|()| name(&unnoted, root));
    if made.is_err() {
        // Nothing is in it yet.
        drop(fs::remove_dir(&unnoted));
    }
    made
}

/// Removes what is left of a folder elsewhere whose maker was killed before it had its name. Nothing is in it.
pub(crate) fn remove_unnoted_root(folder: &Path, root: &Path) -> io::Result<()> {
    let unnoted = match unnoted_root(folder, root) {
        Ok(unnoted) => unnoted,
        // Nobody came as far as to make one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match fs::remove_dir(unnoted) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What the folder elsewhere of a session is called until it is noted. No other session has that name, a copy of this one
/// included.
fn unnoted_root(folder: &Path, root: &Path) -> io::Result<PathBuf> {
    let mark = mark(&File::open(folder.join(LOCK_FILE))?)?.trim_end().replace(' ', "-");
    let name = root.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let unnoted: [&OsStr; 4] = [".".as_ref(), name, "-".as_ref(), mark.as_ref()];
    Ok(root.with_file_name(unnoted.join("".as_ref())))
}

/// Gives a folder its name, which must not be taken.
fn name(unnoted: &Path, root: &Path) -> io::Result<()> {
    match renameat_with(CWD, unnoted, CWD, root, RenameFlags::NOREPLACE) {
        // Not every file system knows how.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::symlink_metadata(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(unnoted, root),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        },
        named => Ok(named?),
    }
}

/// Goes on with the folder elsewhere of a session, if it is where it was, and notes it if a version did that did not. What
/// somebody else made there since, because temporary files go in time, is not taken for it.
fn has_owned_root(folder: &Path, root: &Path) -> io::Result<bool> {
    let found = match fs::symlink_metadata(root) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if is_owned_root(folder, root)? == Some(true) {
        return Ok(true);
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("{} is somebody else's by now: move it away", root.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    fs::write(folder.join(OWNED_ROOT_FILE), owned_root_note(root, root)?)?;
    Ok(true)
}

/// Whether a folder elsewhere is the one that was made for a session; `None` where nothing is noted in the session's folder: it
/// was never made, or by a version that did not note it.
pub(crate) fn is_owned_root(folder: &Path, root: &Path) -> io::Result<Option<bool>> {
    let noted = match fs::read(folder.join(OWNED_ROOT_FILE)) {
        Ok(noted) => noted,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match owned_root_note(root, root) {
        Ok(note) => Ok(Some(note == noted)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(Some(false))
        }
        Err(error) => Err(error),
    }
}

/// Forgets which folder elsewhere was made for the session that this one is a copy of.
pub(super) fn forget_owned_root(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(OWNED_ROOT_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What is noted of a folder that is called `root`, or will be.
fn owned_root_note(found: &Path, root: &Path) -> io::Result<Vec<u8>> {
    // It is looked at, whatever its mode is.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = File::from(openat(CWD, found, flags, Mode::empty())?);
    Ok([mark(&held)?.as_bytes(), root.as_os_str().as_bytes()].concat())
}

/// What a file says about itself that is not true of any copy.
pub(super) fn mark(file: &File) -> io::Result<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    // Where a file system does not know the time, the number alone has to do.
    let knows = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let (seconds, nanoseconds) = match knows {
        true => (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
        false => (0, 0),
    };
    Ok(origin_mark(found.stx_ino, seconds, nanoseconds))
}
