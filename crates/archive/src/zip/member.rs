//! One member of a zip, and whether it may be unpacked.

use crate::entry_path::{contained_path, names_the_root};
use crate::inventory::{Inventory, MemberKind, PathConflict};
use crate::limits::Meter;
use crate::refusal::{unreadable_zip, unsafe_zip_member};
use crate::{ArchiveLimits, EntryPath};
use bastide_model::Result;

/// One member of a zip.
///
/// ```
/// use bastide_archive::zip::ZipMember;
///
/// let refusal = ZipMember::new("link", 0o120_777).safe_path().unwrap_err();
/// assert_eq!(refusal.context()["reason"], "link member not allowed");
/// ```
#[derive(Debug, Clone, Default)]
pub struct ZipMember {
    /// The name, up to the first NUL.
    pub name: String,
    /// The mode, with the bits for what it is.
    pub unix_mode: u32,
    /// How many bytes it says it unpacks to.
    pub size: u64,
    /// The whole name, as the directory has it.
    pub(super) full_name: String,
    pub(super) packed_size: u64,
    pub(super) checksum: u32,
    pub(super) method: u16,
    pub(super) flags: u16,
    /// Where its header is; `None` if the directory points in front of the archive.
    pub(super) header_at: Option<u64>,
}

impl ZipMember {
    /// A member with nothing in it.
    #[must_use]
    pub fn new(name: &str, unix_mode: u32) -> Self {
        Self { name: name.to_owned(), full_name: name.to_owned(), unix_mode, ..Self::default() }
    }

    /// Whether this is a folder: only its name says so.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.name.ends_with('/')
    }

    /// Where the member goes, if it may be unpacked at all; `None` is the folder itself.
    ///
    /// # Errors
    /// The name leaves the folder, or the member is a link.
    pub fn safe_path(&self) -> Result<Option<EntryPath>> {
        const KIND: u32 = 0o170_000;
        const LINK: u32 = 0o120_000;
        let name = self.name.as_bytes();
        if names_the_root(name) {
            return Ok(None);
        }
        let path = contained_path(name).map_err(|reason| unsafe_zip_member(name, reason))?;
        match self.unix_mode & KIND == LINK {
            true => Err(unsafe_zip_member(name, "link member not allowed")),
            false => Ok(Some(path)),
        }
    }
}

/// Judges all members of an archive together.
///
/// # Errors
/// A member may not be unpacked, two are in each other's way, or they are too many or too large.
pub fn check_zip(members: &[ZipMember], limits: ArchiveLimits) -> Result<()> {
    let mut meter = Meter::new(limits);
    let mut inventory = Inventory::default();
    for member in members {
        let Some(path) = member.safe_path()? else { continue };
        let name = member.name.as_bytes();
        meter.count(name, member.size)?;
        let occupant = if member.is_dir() { MemberKind::Dir } else { MemberKind::File };
        inventory.add(name, &path, occupant).map_err(|clash| match clash {
            PathConflict::Taken => {
                unsafe_zip_member(name, format!("duplicate archive path: {path}"))
            }
            PathConflict::TooMany => {
                unreadable_zip("it has more folders and longer names than members account for")
            }
        })?;
    }
    match inventory.first_nested() {
        Some(nested) => {
            let reason = format!("archive path descends through non-directory: {}", nested.above);
            Err(unsafe_zip_member(&nested.member, reason))
        }
        None => Ok(()),
    }
}
