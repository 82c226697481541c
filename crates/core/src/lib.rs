#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod accounts;
mod apply;
pub mod backend;
mod client;
mod command;
pub mod dependencies;
mod environment;
pub mod events;
mod fault;
pub mod files;
pub mod host;
mod lifecycle;
pub mod link;
mod output;
mod process;
mod pty;
mod reference;
mod retry;
mod session;
pub mod snapshot;
mod state;
pub mod store;
mod tools;

pub use apply::{GitFetch, GitOptions, Materialized, MaterializedFile};
pub use backend::{
    Backend, Booted, Connection, Grant, Machine, MachineEnd, MachineSpec, MachineStatus, Orphans,
    ResourceLimits, SessionId, SideSocket, SweepMode,
};
pub use bastide_model::receipt::{Isolation, NetworkAccess, Receipt, Rung};
pub use bastide_model::{Error, ErrorKind, ExposedPort, Result};
pub use bastide_proto::GuestPath;
pub use client::{
    Client, CreateOptions, ResumeOptions, SessionInfo, SessionState, SnapshotChoice, SweepOptions,
    SweepReport, Swept,
};
pub use command::{Command, Input};
pub use dependencies::{Dependencies, Dependency};
pub use files::{
    Content, ExtractOptions, FileChange, FileInfo, FileKind, FileReader, Files, Watch, WriteOptions,
};
pub use lifecycle::{ConcurrencyLimits, ProgressListener};
pub use output::Output;
pub use process::{Exit, OutputEvent, Process, ProcessId, ProcessInfo, ProcessWriter, Reason};
pub use pty::PtyLimits;
pub use reference::ExecResult;
pub use session::Session;
pub use snapshot::{
    Progress, RemoteSnapshots, Saved, SnapshotKeeper, SnapshotTypes, Workspace, WorkspaceArchive,
};
pub use state::{Origin, SessionFolder, home_identity};
pub use store::{SnapshotInfo, Store};
pub use tools::{Skill, SkillInfo, SkillSource, Skills, ToolAnswer, Tools};

pub use bastide_model as model;
