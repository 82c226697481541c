//! Telling a file from a copy of it. A file that says which inode it is, and is another, was copied: with
//! the folder it lies in, whatever else that holds.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bastide_proto::warden::{LOCK_FILE, origin_mark};
use rustix::fs::{AtFlags, StatxFlags, statx};

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
                (Ok(own), Ok(noted)) => Ok((own.dev(), own.ino()) == (noted.dev(), noted.ino())),
                // One that is gone has no copies.
                (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Ok(folder == noted),
                (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                (Err(error), _) | (_, Err(error)) => Err(error),
            },
        }
    }

    fn read(lock: &File) -> io::Result<Self> {
        let mut said = String::new();
        lock.take(MOST).read_to_string(&mut said)?;
        Ok(match said {
            said if said.is_empty() => Self::Unsaid,
            said if said == mark(lock)? => Self::Here,
            _ => Self::Copied,
        })
    }
}

/// Has the lock of a session say which file it is.
pub(super) fn settle(mut lock: &File) -> io::Result<()> {
    let mark = mark(lock)?;
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(mark.as_bytes())
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
