//! One member of a tar, and whether it may be unpacked.

use super::header::Header;
use super::pax::Records;
use super::rules::LinkPolicy;
use crate::EntryPath;
use crate::entry_path::{contained_path, names_the_root};
use crate::refusal::unsafe_tar_member;
use bastide_model::Result;

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TarKind {
    /// A regular file, in any of the spellings there are.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Symlink,
    /// Another name for an earlier member.
    Hardlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// Anything else.
    Other,
}

impl TarKind {
    pub(super) fn of_flag(flag: u8) -> Self {
        match flag {
            b'0' | b'\0' | b'7' | b'S' => Self::File,
            b'1' => Self::Hardlink,
            b'2' => Self::Symlink,
            b'3' => Self::CharDevice,
            b'4' => Self::BlockDevice,
            b'5' => Self::Dir,
            b'6' => Self::Fifo,
            _ => Self::Other,
        }
    }

    /// Whether contents follow the header.
    pub(super) fn has_content(self) -> bool {
        matches!(self, Self::File | Self::Other)
    }
}

/// One member of a tar.
///
/// ```
/// use bastide_archive::tar::{LinkPolicy, TarKind, TarMember};
///
/// let member = TarMember::new(b"../passwd", TarKind::File);
/// let refusal = member.safe_path(LinkPolicy::Refused).unwrap_err();
/// assert_eq!(refusal.context()["reason"], "parent traversal");
/// ```
#[derive(Debug, Clone)]
pub struct TarMember {
    /// The name as the archive has it, in bytes; folders are without a trailing `/`.
    pub name: Vec<u8>,
    /// What the member is.
    pub kind: TarKind,
    /// What a link points to.
    pub link: Vec<u8>,
    /// The permission bits as the archive has them.
    pub mode: u32,
    /// How many bytes the file unpacks to.
    pub size: u64,
    pub(super) owner: Owner,
    pub(super) records: Records,
    /// Where a sparse file's data lies, as offset and length; everything else is zero.
    pub(super) sparse: Option<Vec<(u64, u64)>>,
}

/// How extended attributes are written down in records.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Who a member belongs to, when it was last changed, and which extended attributes it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownership {
    /// The number of its user.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// When it was last changed, in seconds since 1970.
    pub seconds: i64,
    /// The rest, below a second.
    pub nanos: u32,
    /// Names and values of its extended attributes.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads a time with a fraction.
fn parse_time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // A fraction counts away from zero, and what is below a second counts forwards.
    match whole.starts_with('-') && nanos > 0 {
        true => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((seconds, nanos)),
    }
}

/// Who a member belongs to and when it was changed, to be handed on unread.
#[derive(Debug, Clone, Default)]
pub(super) struct Owner {
    pub(super) uid: i128,
    pub(super) gid: i128,
    pub(super) mtime: i128,
    pub(super) user: Vec<u8>,
    pub(super) group: Vec<u8>,
}

impl TarMember {
    /// A member with the usual mode and nothing in it.
    #[must_use]
    pub fn new(name: &[u8], kind: TarKind) -> Self {
        Self {
            name: name.to_vec(),
            kind,
            link: Vec::new(),
            mode: if kind == TarKind::Dir { 0o755 } else { 0o644 },
            size: 0,
            owner: Owner::default(),
            records: Records::default(),
            sparse: None,
        }
    }

    /// Says who the member belongs to, when it was last changed, and which extended attributes it has.
    pub fn set_ownership(&mut self, ownership: &Ownership) {
        let Ownership { uid, gid, seconds, nanos, attributes } = ownership;
        self.owner.uid = i128::from(*uid);
        self.owner.gid = i128::from(*gid);
        self.owner.mtime = i128::from(*seconds);
        if *nanos != 0 {
            let time = match *seconds < 0 {
                true if *seconds == -1 => format!("-0.{:09}", 1_000_000_000 - nanos),
                true => format!("{}.{:09}", seconds + 1, 1_000_000_000 - nanos),
                false => format!("{seconds}.{nanos:09}"),
            };
            self.records.set(b"mtime", time.as_bytes());
        }
        for (name, value) in attributes {
            self.records.set(&[ATTRIBUTE, name.as_slice()].concat(), value);
        }
    }

    /// Who the member belongs to, when it was last changed, and which extended attributes it has, as
    /// far as the archive says so in numbers a system has.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        let number = |keyword: &[u8], header: i128| {
            let said = self.records.get(keyword).and_then(super::pax::integer);
            u32::try_from(said.unwrap_or(header)).unwrap_or(0)
        };
        let time = self.records.get(b"mtime").and_then(|time| std::str::from_utf8(time).ok());
        let (seconds, nanos) = match time.and_then(parse_time) {
            Some(time) => time,
            None => (i64::try_from(self.owner.mtime).unwrap_or(0), 0),
        };
        let attributes = self.records.own_beginning_with(ATTRIBUTE);
        Ownership {
            uid: number(b"uid", self.owner.uid),
            gid: number(b"gid", self.owner.gid),
            seconds,
            nanos,
            attributes,
        }
    }

    /// Adds a note of one's own to the member; others pass over it.
    pub fn set_note(&mut self, keyword: &str, value: &str) {
        self.records.set(keyword.as_bytes(), value.as_bytes());
    }

    /// A note that was added to the member.
    #[must_use]
    pub fn note(&self, keyword: &str) -> Option<&str> {
        std::str::from_utf8(self.records.get(keyword.as_bytes())?).ok()
    }

    pub(super) fn of_header(header: Header) -> Self {
        Self {
            name: header.name,
            kind: TarKind::of_flag(header.flag),
            link: header.link,
            mode: header.mode,
            size: header.size,
            owner: header.owner,
            records: Records::default(),
            sparse: None,
        }
    }

    /// Whether this is a folder.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == TarKind::Dir
    }

    /// Where the member goes, if it may be unpacked at all; `None` is the folder itself.
    ///
    /// # Errors
    /// The name leaves the folder, or the member is neither file nor folder nor, where allowed, a
    /// symbolic link.
    pub fn safe_path(&self, links: LinkPolicy) -> Result<Option<EntryPath>> {
        let refuse = |reason: &str| Err(unsafe_tar_member(&self.name, reason));
        if names_the_root(&self.name) {
            return match self.kind {
                TarKind::Dir => Ok(None),
                TarKind::Symlink => refuse("archive root symlink"),
                TarKind::Hardlink => refuse("archive root hardlink"),
                _ => refuse("archive root member must be directory"),
            };
        }
        let path = match contained_path(&self.name) {
            Ok(path) => path,
            Err(reason) => return refuse(reason),
        };
        match self.kind {
            TarKind::File | TarKind::Dir => Ok(Some(path)),
            TarKind::Symlink if links != LinkPolicy::Refused => Ok(Some(path)),
            TarKind::Symlink => refuse("symlink member not allowed"),
            TarKind::Hardlink => refuse("hardlink member not allowed"),
            TarKind::CharDevice | TarKind::BlockDevice | TarKind::Fifo | TarKind::Other => {
                refuse("unsupported member type")
            }
        }
    }
}

/// The permission bits a restored file gets: none that let others write or that run it as somebody
/// else, the owner may always read and write, and it is executable if the owner could execute it.
///
/// ```
/// use bastide_archive::tar::restored_mode;
///
/// assert_eq!(restored_mode(0o4777), 0o755);
/// assert_eq!(restored_mode(0o077), 0o644);
/// ```
#[must_use]
pub fn restored_mode(mode: u32) -> u32 {
    let kept = mode & 0o755;
    let kept = if kept & 0o100 == 0 { kept & !0o111 } else { kept };
    kept | 0o600
}
