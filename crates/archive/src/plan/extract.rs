//! Unpacks an archive that a user put into a workspace.

use std::io::{Read, Seek};

use super::{Action, OnConflict, Origin, UnpackStep};
use crate::ArchiveLimits;
use crate::refusal::archive_write_error;
use crate::tar::{ExtractionCheck, LinkPolicy, TarReader};
use crate::zip::{self, ZipReader};
use bastide_model::error::raise;
use bastide_model::{Error, Result};

/// The kinds of archive that are unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveScheme {
    /// Tar, plain or compressed in any way a tar reader recognises.
    Tar,
    /// Zip.
    Zip,
}

impl ArchiveScheme {
    /// The kind of archive: the one that is named, else the one the extension of `path` says.
    ///
    /// ```
    /// use bastide_archive::ArchiveScheme;
    ///
    /// assert_eq!(ArchiveScheme::of("in/data.zip", None)?, ArchiveScheme::Zip);
    /// assert!(ArchiveScheme::of("data.tar.gz", None).is_err());
    /// # Ok::<(), bastide_model::Error>(())
    /// ```
    ///
    /// # Errors
    /// It is neither `tar` nor `zip`.
    pub fn of(path: &str, named: Option<&str>) -> Result<Self> {
        match named.or_else(|| extension(path)) {
            Some("tar") => Ok(Self::Tar),
            Some("zip") => Ok(Self::Zip),
            other => Err(raise::invalid_compression_scheme(path, other)),
        }
    }
}

/// What is behind the last dot of the last name; a dot that starts a name does not count.
fn extension(path: &str) -> Option<&str> {
    let name = path.split('/').rfind(|name| !name.is_empty() && *name != ".")?;
    let (stem, extension) = name.rsplit_once('.')?;
    (!stem.is_empty() && !extension.is_empty()).then_some(extension)
}

/// The steps that unpack an archive next to where it lies. The members are checked before the first
/// step, so a refused archive leaves nothing behind but itself; what is in the way of a member
/// stops there, and leaves what was unpacked before.
#[derive(Debug)]
pub struct Extraction<R: Read> {
    members: Members<R>,
    origin: Origin,
    archive: String,
    /// What ends the plan after the step that was given last.
    failure: Option<Error>,
}

#[derive(Debug)]
enum Members<R: Read> {
    Tar(Box<TarReader<R>>),
    Zip { zip: ZipReader<R>, next: usize },
}

impl<R: Read + Seek> Extraction<R> {
    /// Reads the archive, from the start of the stream, and checks it.
    ///
    /// `path` is where the archive lies, and `folder` is that one's folder, as errors name them.
    ///
    /// # Errors
    /// The archive cannot be read, or a member may not be unpacked.
    pub fn open(
        data: R,
        scheme: ArchiveScheme,
        limits: ArchiveLimits,
        path: &str,
        folder: &str,
    ) -> Result<Self> {
        let members = match scheme {
            ArchiveScheme::Tar => {
                let reader = TarReader::open_whole(data);
                let reader = reader.and_then(|reader| check_members(reader, limits));
                let reader = reader.and_then(TarReader::rewound);
                let reader = reader.map_err(|error| archive_write_error(path, error))?;
                Members::Tar(Box::new(reader))
            }
            ArchiveScheme::Zip => {
                Members::Zip { zip: zip::open_checked(data, limits, path)?, next: 0 }
            }
        };
        let (archive, folder) = (path.to_owned(), folder.to_owned());
        let origin = Origin::Extraction { scheme, archive: archive.clone(), folder };
        Ok(Self { members, origin, archive, failure: None })
    }

    /// The next step, or `None` when all is unpacked.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn next_step(&mut self) -> Result<Option<UnpackStep<'_>>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let refuse = |error| archive_write_error(&self.archive, error);
        let existing = OnConflict::Overwritten;
        let origin = self.origin.clone();
        match &mut self.members {
            Members::Tar(reader) => loop {
                let Some(member) = reader.next_member().map_err(refuse)? else { return Ok(None) };
                let Some(path) = member.safe_path(LinkPolicy::Refused).map_err(refuse)? else {
                    continue;
                };
                let action = match member.is_dir() {
                    true => Action::Dir,
                    false => Action::File { mode: None, content: Box::new(reader.content()) },
                };
                return Ok(Some(UnpackStep {
                    path,
                    existing,
                    action,
                    archived_mode: None,
                    member: member.name,
                    origin,
                }));
            },
            Members::Zip { zip, next } => loop {
                let index = *next;
                *next += 1;
                let Some(member) = zip.members().get(index) else { return Ok(None) };
                let Some(path) = member.safe_path().map_err(refuse)? else { continue };
                let (member, is_dir) = (member.name.clone().into_bytes(), member.is_dir());
                let (path, action) = match is_dir {
                    true => (path, Action::Dir),
                    false => match zip.content(index) {
                        Ok(content) => {
                            (path, Action::File { mode: None, content: Box::new(content) })
                        }
                        // A file that cannot be opened is missed in its folder.
                        Err(error) => {
                            self.failure = Some(refuse(error));
                            (path.parent(), Action::Dir)
                        }
                    },
                };
                let archived_mode = None;
                return Ok(Some(UnpackStep {
                    path,
                    existing,
                    action,
                    archived_mode,
                    member,
                    origin,
                }));
            },
        }
    }
}

/// Checks a tar that is to be unpacked into a workspace, member by member.
///
/// # Errors
/// A member may not be unpacked, they are too many or too large, or the archive cannot be read.
pub fn check_tar_for_extraction<R: Read>(tar: R, limits: ArchiveLimits) -> Result<TarReader<R>> {
    check_members(TarReader::open(tar)?, limits)
}

fn check_members<R: Read>(mut reader: TarReader<R>, limits: ArchiveLimits) -> Result<TarReader<R>> {
    let mut check = ExtractionCheck::new(limits);
    while let Some(member) = reader.next_member()? {
        check.add(&member)?;
    }
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_what_is_behind_the_last_dot() {
        for (path, want) in [
            ("a.tar", Some("tar")),
            ("a.tar.gz", Some("gz")),
            ("d.tar/a", None),
            (".tar", None),
            ("..tar", Some("tar")),
            ("a.", None),
            ("a.zip/.", Some("zip")),
            ("a..", None),
            ("", None),
        ] {
            assert_eq!(extension(path), want, "{path}");
        }
    }
}
