#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod accounts;
pub mod boot;
pub mod container;
pub mod egress;
pub mod files;
pub mod frame;
pub mod hello;
mod message;
pub mod mounts;
pub mod path;
pub mod reply;
pub mod request;
pub mod tree;
pub mod warden;

pub use frame::{Frame, FrameCodec, FrameError};
pub use message::{
    LENGTH_BYTES, MessageError, decode, encode, encode_into, encode_prefixed, length_prefix,
    prefixed_length,
};
pub use path::{GuestPath, GuestPathError, GuestRoute};
pub use reply::{Accepted, ChildRecord, End, Fault, FaultKind, Notice, ProcessRecord};
pub use request::{
    AcceptWhen, Attach, Control, Entry, EntryKind, Exec, Existing, Frozen, Put, PutItem,
    PutMessage, Request, Signal, Stdin, TerminalSize,
};

/// The version of this protocol. Two ends with different versions refuse each other.
pub const VERSION: u32 = 2;
