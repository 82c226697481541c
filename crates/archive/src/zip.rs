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

use super::bounds::Stopwatch;
use super::limits::ArchiveLimits;
use super::refusal::archive_write_error;
use bastide_model::Result;
use content::Clock;

/// An open zip archive.
///
/// ```
/// use bastide_archive::zip::ZipReader;
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
    watch: Stopwatch,
    length: u64,
}

impl<R: Read + Seek> ZipReader<R> {
    /// Reads the archive's directory.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn open(mut input: R) -> Result<Self> {
        let watch = Stopwatch::start();
        let (members, length) = directory::read(&mut input, watch)?;
        Ok(Self { input, members, watch, length })
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
        let clock = Clock { watch: self.watch, archive: self.length };
        ZipContent::open(&mut self.input, self.members.get(index), clock)
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

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::bounds::FREE_TIME;
    use bastide_model::ErrorKind;

    fn later() -> Instant {
        Instant::now() + FREE_TIME + Duration::from_millis(500)
    }

    /// One member, `a`, which is stored and holds three letters.
    const ZIP: &[u8] = b"PK\x03\x04\x0a\0\0\0\0\0\0\0\0\0\xc2\x41\x24\x35\x03\0\0\0\x03\0\0\0\x01\0\0\0aabc\
        PK\x01\x02\x0a\0\x0a\0\0\0\0\0\0\0\0\0\xc2\x41\x24\x35\x03\0\0\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0a\
        PK\x05\x06\0\0\0\0\x01\0\x01\0\x2f\0\0\0\x22\0\0\0\0\0";

    #[test]
    fn a_zip_takes_no_longer_than_its_size_allows() {
        let mut zip = ZipReader::open(Cursor::new(ZIP)).unwrap();
        assert_eq!(io::read_to_string(zip.content(0).unwrap()).unwrap(), "abc");
        zip.watch.now = later;
        let error = io::read_to_string(zip.content(0).unwrap()).unwrap_err();
        assert!(error.to_string().contains("seconds"), "{error}");
        let mut watch = Stopwatch::start();
        watch.now = later;
        let error = directory::read(&mut Cursor::new(ZIP), watch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }
}
