//! Unpacking, as a stream of steps for whoever holds the folder.
//!
//! ```text
//! let mut plan = TarRestore::open(archive, &rules, "/workspace")?;   // refuses before anything happens
//! while let Some(mut step) = plan.next_step()? {
//!     if let Err(obstacle) = carry_out(&mut step) {                    // the executor's part
//!         return Err(step.refuse(obstacle));
//!     }
//! }
//! ```
//!
//! An executor makes missing parents, never follows a link on the way to a place, and reports what
//! it meets as an [`Obstacle`]; the step says what that means.

mod extract;
mod restore;

pub use extract::{ArchiveScheme, Extraction, check_tar_for_extraction};
pub use restore::TarRestore;

use std::fmt;
use std::io::{self, Read};

use super::EntryPath;
use super::refusal::{
    archive_write_error, os_failure, unreadable_tar, unsafe_tar_member, unsafe_zip_member,
};
use bastide_model::Error;
use bastide_model::error::raise;

/// What to do with whatever is in a step's place already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// A file or link there is removed first, and so is a link or file where a folder should be. A
    /// folder where something else should be is an obstacle.
    Replaced,
    /// A file there is written over and keeps its mode. A link there is an obstacle, and so is
    /// anything of another kind.
    Overwritten,
}

/// What a step makes.
pub enum Action<'a> {
    /// A folder, with the usual mode; one that is there already stays as it is.
    Dir,
    /// A file.
    File {
        /// The mode it has once all its content is written; until then only its owner may look.
        /// Without one, it has the usual mode from the start.
        mode: Option<u32>,
        /// Its content. If reading fails, the file must not stay.
        content: Box<dyn Read + 'a>,
    },
    /// A symbolic link.
    Link {
        /// What it points to; kept as it is, never followed.
        target: Vec<u8>,
    },
}

impl fmt::Debug for Action<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dir => f.write_str("Dir"),
            Self::File { mode, .. } => write!(f, "File {{ mode: {mode:?} }}"),
            Self::Link { target } => write!(f, "Link {{ target: {target:?} }}"),
        }
    }
}

/// One place to fill.
#[derive(Debug)]
pub struct UnpackStep<'a> {
    /// The place, below the folder.
    pub path: EntryPath,
    /// What to do with what is there.
    pub existing: OnConflict,
    /// What to make.
    pub action: Action<'a>,
    /// The permissions that the archive of a workspace has for it, for executors that keep all of them.
    pub archived_mode: Option<u32>,
    member: Vec<u8>,
    origin: Origin,
}

/// What an executor met.
#[derive(Debug)]
pub enum Obstacle {
    /// A link on the way to the place, or, where those are not replaced, in it.
    Link {
        /// The link.
        at: EntryPath,
        /// Whether the place's parent is outside the folder, were all links followed.
        leaves: bool,
    },
    /// A folder where something else should be.
    Folder,
    /// A parent cannot be made.
    Parents(io::Error),
    /// The place cannot be filled.
    Entry(io::Error),
    /// The content cannot be read.
    Content(io::Error),
}

/// Which plan a step is of, and what its errors name.
#[derive(Debug, Clone)]
enum Origin {
    Restore { folder: String },
    Extraction { scheme: ArchiveScheme, archive: String, folder: String },
}

/// What is needed to say what an obstacle means for a step, without what the step makes: for an
/// executor that learns of obstacles later.
#[derive(Debug, Clone)]
pub struct StepName {
    path: EntryPath,
    member: Vec<u8>,
    origin: Origin,
}

impl UnpackStep<'_> {
    /// The step without what it makes.
    #[must_use]
    pub fn name(&self) -> StepName {
        let (path, member, origin) = (self.path.clone(), self.member.clone(), self.origin.clone());
        StepName { path, member, origin }
    }

    /// What the plan fails with when this step meets an obstacle.
    #[must_use]
    pub fn refuse(&self, obstacle: Obstacle) -> Error {
        self.name().refuse(obstacle)
    }
}

impl StepName {
    /// What the plan fails with when this step meets an obstacle.
    #[must_use]
    pub fn refuse(&self, obstacle: Obstacle) -> Error {
        match &self.origin {
            Origin::Restore { folder } => self.refuse_restoring(folder, obstacle),
            Origin::Extraction { scheme, archive, folder } => {
                self.refuse_extracting(*scheme, archive, folder, obstacle)
            }
        }
    }

    fn refuse_restoring(&self, folder: &str, obstacle: Obstacle) -> Error {
        match obstacle {
            Obstacle::Link { leaves: true, .. } => {
                let place = join(folder, &self.path);
                unsafe_tar_member(place.as_bytes(), "path escapes root after resolution")
            }
            Obstacle::Link { leaves: false, .. } => {
                unsafe_tar_member(self.path.as_bytes(), "symlink in parent path")
            }
            Obstacle::Folder => {
                let reason = format!("destination directory already exists: {}", self.path);
                unsafe_tar_member(&self.member, reason)
            }
            Obstacle::Parents(error) | Obstacle::Entry(error) => os_failure(error),
            Obstacle::Content(error) => unreadable_tar(error),
        }
    }

    fn refuse_extracting(
        &self,
        scheme: ArchiveScheme,
        archive: &str,
        folder: &str,
        obstacle: Obstacle,
    ) -> Error {
        let write_error = |path: &EntryPath, error: io::Error| {
            raise::workspace_archive_write(join(folder, path)).with_source(error)
        };
        match obstacle {
            Obstacle::Link { at, .. } => {
                let reason = format!("symlink in parent path: {at}");
                let cause = match scheme {
                    ArchiveScheme::Tar => unsafe_tar_member(&self.member, reason),
                    ArchiveScheme::Zip => unsafe_zip_member(&self.member, reason),
                };
                archive_write_error(archive, cause)
            }
            Obstacle::Folder => {
                write_error(&self.path, io::Error::from(io::ErrorKind::IsADirectory))
            }
            Obstacle::Entry(error) => write_error(&self.path, error),
            Obstacle::Parents(error) => write_error(&self.path.parent(), error),
            Obstacle::Content(error) => raise::workspace_archive_write(archive)
                .with_context("member", String::from_utf8_lossy(&self.member).as_ref())
                .with_context("reason", "archive member is damaged")
                .with_source(error),
        }
    }
}

fn join(folder: &str, path: &EntryPath) -> String {
    match path.is_root() {
        true => folder.to_owned(),
        false => format!("{}/{path}", folder.trim_end_matches('/')),
    }
}
