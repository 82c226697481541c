#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod boot;
pub mod files;
pub mod frame;
pub mod hello;
mod message;
pub mod path;
pub mod reply;
pub mod request;

pub use frame::{Frame, FrameCodec, FrameError};
pub use message::{MessageError, decode, encode};
pub use path::{GuestPath, GuestPathError};
pub use reply::{Accepted, End, Fault, FaultKind};
pub use request::{Entry, EntryKind, Exec, Existing, Put, PutItem, PutWord, Request, Stdin};

/// The version of this protocol. Two ends with different versions refuse each other.
pub const VERSION: u32 = 1;
