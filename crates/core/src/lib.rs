#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod apply;
pub mod backend;
mod client;
mod command;
mod environment;
mod fault;
pub mod files;
pub mod host;
pub mod link;
mod output;
mod process;
mod pty;
mod session;
mod state;

pub use backend::{
    Backend, Booted, Connection, Grant, Machine, MachineEnd, MachineSpec, MachineStatus,
    ResourceLimits, SessionId, Side,
};
pub use bastide_model::receipt::{NetworkAccess, Receipt, Rung};
pub use bastide_model::{Error, ErrorKind, ExposedPort, Result};
pub use bastide_proto::GuestPath;
pub use client::{Client, CreateOptions, SessionInfo, SessionState, SweepReport, Swept};
pub use command::{Command, Input};
pub use files::{
    Content, ExtractOptions, FileChange, FileInfo, FileKind, FileReader, Files, Watch, WriteOptions,
};
pub use output::Output;
pub use process::{Exit, OutputEvent, Process, ProcessId, ProcessInfo, ProcessWriter, Reason};
pub use pty::PtyLimits;
pub use session::Session;
pub use state::SessionFolder;

pub use bastide_model as model;
