//! What is known about a file.

use std::os::fd::OwnedFd;

use bastide_proto::UnresolvedPath;
use bastide_proto::files::{EntryType, FileStat, FileTime, FoundFile};
use rustix::fs::{FileType, OFlags, Stat, fstat, readlinkat};
use serde_bytes::ByteBuf;

use crate::accounts::Accounts;
use crate::server::beneath::{PathError, Roots, TrailingSymlink};

/// Describes a file.
pub(super) fn stat(
    roots: &Roots,
    path: &UnresolvedPath,
    follow: bool,
) -> Result<FoundFile, PathError> {
    let leaf = if follow { TrailingSymlink::Target } else { TrailingSymlink::Itself };
    let opened = roots.open_at(path, OFlags::PATH, leaf)?;
    let stat = fstat(&opened.file).map_err(|errno| opened.failed(errno))?;
    let target = link_text(&opened.file, b"", &stat);
    let stat = describe(&stat, target, &Accounts::read());
    Ok(FoundFile { path: ByteBuf::from(opened.path), stat })
}

/// What a link says.
pub(super) fn link_text(folder: &OwnedFd, name: &[u8], stat: &Stat) -> Option<ByteBuf> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let text = readlinkat(folder, name, Vec::new()).ok()?;
    Some(ByteBuf::from(text.into_bytes()))
}

/// The system's description in the host's words.
pub(super) fn describe(stat: &Stat, target: Option<ByteBuf>, accounts: &Accounts) -> FileStat {
    let named = |name: Option<&str>| name.map(ToOwned::to_owned);
    FileStat {
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        owner: named(accounts.user_name(stat.st_uid)),
        group: named(accounts.group_name(stat.st_gid)),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: FileTime {
            seconds: stat.st_mtime,
            nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        },
        #[expect(
            clippy::useless_conversion,
            reason = "the count of names is narrower on some machines"
        )]
        links: u64::from(stat.st_nlink),
        target,
    }
}

fn kind(kind: FileType) -> EntryType {
    match kind {
        FileType::Directory => EntryType::Dir,
        FileType::RegularFile => EntryType::File,
        FileType::Symlink => EntryType::Symlink,
        FileType::Fifo => EntryType::Fifo,
        FileType::Socket => EntryType::Socket,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => EntryType::Device,
    }
}
