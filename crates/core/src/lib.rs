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
pub mod link;
mod process;
mod session;

pub use backend::{Backend, Booted, Connection, Grant, Machine, MachineSpec, SessionId, Side};
pub use bastide_model::receipt::{NetworkAccess, Receipt, Rung};
pub use bastide_model::{Error, ErrorKind, Result};
pub use bastide_proto::GuestPath;
pub use client::{Client, CreateOptions};
pub use command::{Command, Input};
pub use files::{
    Content, ExtractOptions, FileChange, FileInfo, FileKind, FileReader, Files, Watch, WriteOptions,
};
pub use process::{Exit, Output, OutputEvent, Process, Reason};
pub use session::Session;

pub use bastide_model as model;
