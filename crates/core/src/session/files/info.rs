//! What is known about a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide_model::Permissions;
use bastide_model::listing::{self, FileEntry};
use bastide_proto::files::{EntryType, FileStat, FileTime};

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A folder.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
}

/// What is known about a file of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo {
    /// Its absolute path inside, links followed. Bytes that are not UTF-8 are shown as U+FFFD; the
    /// path itself is then in `raw_path`.
    pub path: String,
    /// Its path where that is not UTF-8.
    pub raw_path: Option<Vec<u8>>,
    /// What it is.
    pub kind: FileKind,
    /// Its permission bits, with the three above them.
    pub mode: u32,
    /// Its owner's number inside.
    pub uid: u32,
    /// Its group's number inside.
    pub gid: u32,
    /// Its owner's name, in the accounts of the sandbox.
    pub owner: Option<String>,
    /// Its group's name, in the accounts of the sandbox.
    pub group: Option<String>,
    /// Its size in bytes; for a link, the length of what it says.
    pub size: u64,
    /// When its content last changed.
    pub modified: SystemTime,
    /// How many names it has.
    pub links: u64,
    /// What it says, for a link.
    pub target: Option<Vec<u8>>,
}

impl FileInfo {
    pub(super) fn new(path: Vec<u8>, stat: FileStat) -> Self {
        let (path, raw_path) = match String::from_utf8(path) {
            Ok(path) => (path, None),
            Err(error) => {
                let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
                (shown, Some(error.into_bytes()))
            }
        };
        Self {
            path,
            raw_path,
            kind: match stat.kind {
                EntryType::Dir => FileKind::Dir,
                EntryType::File => FileKind::File,
                EntryType::Symlink => FileKind::Symlink,
                EntryType::Fifo => FileKind::Fifo,
                EntryType::Socket => FileKind::Socket,
                _ => FileKind::Device,
            },
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            owner: stat.owner,
            group: stat.group,
            size: stat.size,
            modified: time(stat.modified),
            links: stat.links,
            target: stat.target.map(serde_bytes::ByteBuf::into_vec),
        }
    }

    /// Whether it is a folder.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }

    /// The entry of a listing as the reference has it.
    #[must_use]
    pub fn to_entry(&self) -> FileEntry {
        let kind = match self.kind {
            FileKind::Dir => listing::FileKind::Directory,
            FileKind::File => listing::FileKind::File,
            FileKind::Symlink => listing::FileKind::Symlink,
            FileKind::Fifo | FileKind::Socket | FileKind::Device => listing::FileKind::Other,
        };
        let directory = if self.is_dir() { 0o040_000 } else { 0 };
        let named = |name: &Option<String>, id: u32| name.clone().unwrap_or_else(|| id.to_string());
        FileEntry {
            path: self.path.clone(),
            permissions: Permissions::from_mode(i128::from(self.mode & 0o777) | directory),
            owner: named(&self.owner, self.uid),
            group: named(&self.group, self.gid),
            size: self.size.into(),
            kind,
        }
    }
}

fn time(time: FileTime) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos.min(999_999_999)));
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(whole),
        false => UNIX_EPOCH.checked_add(whole),
    };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A moment as guests are told it, to the second below what cannot be said.
pub(super) fn file_time(time: SystemTime) -> FileTime {
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => FileTime { seconds: signed(since.as_secs()), nanos: since.subsec_nanos() },
        Err(error) => FileTime { seconds: -signed(error.duration().as_secs()) - 1, nanos: 0 },
    }
}
