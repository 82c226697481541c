#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backend;
mod client;
pub mod compat;
pub mod egress;
pub mod events;
pub mod host;
mod journal;
pub mod link;
mod lower_hex;
pub mod secrets;
mod session;
pub mod snapshot;
mod state;
mod tools;
pub mod warden_client;
mod workspace;

pub use backend::{
    Backend, Booted, Connection, Grant, Machine, MachineExit, MachineSpec, MachineStatus, Orphans,
    ResourceLimits, SessionId, SideSocket, SweepMode,
};
pub use bastide_model::receipt::{Isolation, NetworkAccess, Receipt, Rung};
pub use bastide_model::{Condition, Error, ErrorClass, ErrorKind, ExposedPort, Result};
pub use bastide_proto::GuestPath;
pub use client::dependencies::{Dependencies, Dependency};
pub use client::{
    Client, CreateOptions, ExpiryAction, LeaseChange, LeaseOptions, LeaseStatus, ResumeOptions,
    SessionInfo, SessionStatus, SnapshotChoice, SweepItem, SweepOptions, SweepReport, runs_home,
};
pub use journal::{
    ChangeKind, ChangeSummary, CheckpointReport, DiffReport, FileDiff, JournalLog, JournalOptions,
    Mechanism, MergeReport, Point, PointKind, TransitionReport,
};
pub use session::Session;
pub use session::command::{Command, Input};
pub use session::files::{
    Content, ExtractOptions, FileChange, FileInfo, FileKind, FileReader, Files, Watch, WriteOptions,
};
pub use session::journal::SessionJournal;
pub use session::lease::SessionLease;
pub use session::lifecycle::{ConcurrencyLimits, ProgressListener};
pub use session::output::Output;
pub use session::process::{
    Exit, ExitReason, OutputEvent, Process, ProcessId, ProcessInfo, ProcessWriter,
};
pub use session::snapshot::SessionSnapshots;
pub use session::usage::{Usage, UsageSource};
pub use snapshot::store::{SnapshotInfo, Store};
pub use snapshot::{
    Progress, RemoteSnapshots, Saved, SnapshotStorage, SnapshotTypes, Workspace, WorkspaceArchive,
};
pub use state::{Origin, SessionFolder, SessionName, check_home, home_identity, session_named};
pub use tools::{Skill, SkillInfo, SkillSource, Skills, ToolAnswer, Tools};
pub use workspace::{GitFetch, GitOptions, Materialized, MaterializedFile, MountInfo};

pub use bastide_archive as archive;
pub use bastide_model as model;

/// The programs of `docs/library.md`, compiled with the examples of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
#[derive(Debug)]
pub struct LibraryPage;
