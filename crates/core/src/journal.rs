//! Points of a session's workspace: checkpoints, commands that can be undone, forks and merges.
//!
//! ```text
//! sessions/ID/journal.json     the points of a session, and what is undone; written whole or not at all
//! sessions/ID/journal.lock     held by whoever makes a point or goes to one
//! snapshots/points/ID/         the trees of the points, in the store
//! ```
//!
//! A point is a tree in the store, and everything that changes a workspace here goes from one tree to
//! another: the one it is, which is kept first, to one that is in the store already. What is about to
//! happen is in the journal before it begins, so that whoever comes after a crash can finish it.

mod command;
mod conflicts;
mod context;
mod diff;
mod file;
mod freeze;
mod lines;
mod merge;
mod names;
mod recovery;
mod terminal_lines;
mod transition;

use std::time::Duration;

pub use bastide_model::receipt::Mechanism;
use serde::{Deserialize, Serialize};

pub(crate) use command::{CommandPoint, withdrawn};
pub(crate) use context::{JournalContext, read_log};
pub use diff::{ChangeKind, DiffReport, FileDiff};
pub(crate) use file::ForkOrigin;
pub(crate) use freeze::Freeze;
pub use merge::MergeReport;
pub(crate) use merge::begin_fork;
pub(crate) use terminal_lines::TerminalLines;
pub use transition::TransitionReport;

/// Which points a session makes, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JournalOptions {
    /// Whether every command is a point.
    pub commands: bool,
    /// How many points are kept at most.
    pub most: usize,
    /// How long points are kept at most; for ever if none.
    pub age: Option<Duration>,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { commands: false, most: 200, age: Some(Duration::from_secs(24 * 60 * 60)) }
    }
}

impl JournalOptions {
    /// Makes a point of every command.
    #[must_use]
    pub fn commands(mut self) -> Self {
        self.commands = true;
        self
    }

    /// Keeps so many points, however old they are.
    #[must_use]
    pub fn most(mut self, most: usize) -> Self {
        (self.most, self.age) = (most.max(1), None);
        self
    }

    /// Keeps points for so long, up to ten thousand of them.
    #[must_use]
    pub fn age(mut self, age: Duration) -> Self {
        (self.most, self.age) = (10_000, Some(age));
        self
    }
}

/// What a point was made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PointKind {
    /// Somebody asked for it.
    Checkpoint,
    /// A command.
    Command,
    /// A path that was restored.
    Restore,
    /// A fork whose changes were taken over.
    Merge,
}

impl PointKind {
    /// The word programs see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Command => "command",
            Self::Restore => "restore",
            Self::Merge => "merge",
        }
    }
}

/// How many files and folders are different, and the first of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChangeSummary {
    /// How many are new.
    pub added: u64,
    /// How many are different.
    pub changed: u64,
    /// How many are gone.
    pub removed: u64,
    /// The first of them.
    pub first: Vec<String>,
}

/// A point of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Point {
    /// Its number; no other point of the session ever has it.
    pub number: u64,
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// What it was made by.
    pub kind: PointKind,
    /// The command line, or what else it is about.
    pub label: String,
    /// When it was made, in milliseconds since 1970.
    pub at_ms: u64,
    /// The command's exit code, once it has ended.
    pub exit: Option<i32>,
    /// The fingerprint of the workspace before it.
    pub before: String,
    /// The fingerprint of the workspace after it; of a checkpoint the same. None for a command whose end
    /// nobody saw.
    pub after: Option<String>,
    /// What it changed.
    pub changes: ChangeSummary,
    /// For how long processes were kept from running for it.
    pub frozen: Duration,
    /// How it was made.
    pub mechanism: Mechanism,
    /// Whether what came after the last undo went another way: it can be named, and is no step of `undo`.
    #[serde(default)]
    pub aside: bool,
}

impl Point {
    /// What people call it.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("point {} ({name})", self.number),
            None => format!("point {}", self.number),
        }
    }
}

/// Everything a journal says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalLog {
    /// The points, oldest first.
    pub points: Vec<Point>,
    /// How many of them are in effect; those after that were undone.
    pub applied: usize,
    /// How many times `redo` has something to do.
    pub redoable: usize,
    /// The highest number of a point that was removed because there were too many, or it was too old.
    pub thinned: u64,
}

/// The result of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// The point.
    pub point: Point,
    /// How many processes were kept from running meanwhile.
    pub processes: u32,
    /// How many files and folders the workspace has.
    pub entries: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// How many files were read; the others had not changed.
    pub files_read: u64,
    /// How many bytes were added to the disk.
    pub bytes_stored: u64,
    /// What is not in the point: the path, and the reason.
    pub left_out: Vec<(String, String)>,
}
