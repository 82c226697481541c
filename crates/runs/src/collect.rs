//! The complete change of a workspace, found without running anything.
//!
//! Before the agent runs, [`Baseline::record`] notes every file: what it is called, what changes when it
//! does, and what is in it, or where that can be read again. Afterwards [`Baseline::collect`] looks again,
//! and writes what differs as a patch that `git apply` takes.
//!
//! No git runs for any of that. A repository the agent could write to can name programs in dozens of
//! places (hooks, filters, monitors, drivers, pagers, aliases, includes, submodules with all of these
//! again), and which ones git consults differs between its versions. Index, object store and ignore
//! files are read here as what they are: data, bounded, and believed only as far as they can be checked.

mod base85;
mod baseline;
mod changes;
mod content;
mod glob;
mod ignore;
mod index;
mod objects;
mod oid;
mod open;
mod patch;
mod quote;
mod rename;
mod repository;
mod scan;
mod text;

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use baseline::{Baseline, BaselineOptions};
pub use changes::Changes;
pub(crate) use changes::Delta;
pub(crate) use glob::matches as glob_matches;
pub(crate) use oid::{HashKind, Oid};
pub(crate) use open::{open_folder, open_regular, open_root, split};
pub(crate) use scan::FileMode;

/// The most paths that are listed besides the change itself.
const MAX_LISTED: usize = 1000;

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeStatus {
    /// It is new.
    Added,
    /// Its content or its mode is another.
    Modified,
    /// It is gone.
    Deleted,
    /// It has another path, and maybe another content.
    Renamed,
    /// It became a link, or a link became a file.
    TypeChanged,
}

/// One file that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChangedFile {
    /// Where it is, or was if it is gone, relative to the workspace. What is not UTF-8 is replaced; the
    /// patch has the very bytes.
    pub path: String,
    /// Where it was, if it was renamed.
    pub old_path: Option<String>,
    /// What became of it.
    pub status: ChangeStatus,
    /// How many lines it has more; none for what is not text.
    pub additions: Option<u64>,
    /// How many lines it has less.
    pub deletions: Option<u64>,
}

/// Something that is in the workspace and cannot be in a patch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// Where it is.
    pub path: String,
    /// Why it cannot be.
    pub why: String,
}

/// When looking through a workspace has to be over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // A limit beyond what clocks can say is as good as a day.
        Self(now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(86_400)))
    }

    pub(crate) fn check(self) -> io::Result<()> {
        match Instant::now() < self.0 {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
