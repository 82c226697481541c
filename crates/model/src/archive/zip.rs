//! Zip archives: reading and judging them.
//!
//! The directory is read by the project's own code: general readers fold members of the same name
//! into one, and exactly those must be refused.

mod content;
mod directory;
mod member;
mod name;

pub use content::ZipContent;
pub use member::{ZipMember, check_zip};

use std::io::{Read, Seek};

use super::limits::ArchiveLimits;
use super::refusal::archive_write_error;
use crate::Result;

/// An open zip archive.
///
/// ```
/// use bastide_model::archive::zip::ZipReader;
///
/// let empty = b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// let zip = ZipReader::open(std::io::Cursor::new(empty))?;
/// assert!(zip.members().is_empty());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug)]
pub struct ZipReader<R> {
    input: R,
    members: Vec<ZipMember>,
}

impl<R: Read + Seek> ZipReader<R> {
    /// Reads the archive's directory.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn open(mut input: R) -> Result<Self> {
        let members = directory::read(&mut input)?;
        Ok(Self { input, members })
    }

    /// The members, in the directory's order.
    #[must_use]
    pub fn members(&self) -> &[ZipMember] {
        &self.members
    }

    /// Opens the content of a member.
    ///
    /// # Errors
    /// The member is encrypted, compressed in a way nobody reads, or does not fit its directory
    /// entry.
    pub fn content(&mut self, index: usize) -> Result<ZipContent<'_, R>> {
        ZipContent::open(&mut self.input, self.members.get(index))
    }
}

/// Reads the directory of an archive that is to be unpacked from `path`, and judges its members.
pub(crate) fn open_checked<R: Read + Seek>(
    input: R,
    limits: ArchiveLimits,
    path: &str,
) -> Result<ZipReader<R>> {
    let refuse = |error| archive_write_error(path, error);
    let zip = ZipReader::open(input).map_err(refuse)?;
    check_zip(zip.members(), limits).map_err(refuse)?;
    Ok(zip)
}
