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
pub mod pod;
pub mod reply;
pub mod request;
pub mod tree;
pub mod usage;
pub mod warden;

pub use frame::{Frame, FrameCodec, FrameError};
pub use message::{
    LENGTH_BYTES, MessageError, decode, encode, encode_into, encode_prefixed, length_prefix,
    prefixed_length,
};
pub use path::{GuestPath, GuestPathError, UnresolvedPath};
pub use reply::{Accepted, ChildRecord, End, Fault, FaultKind, ProcessNotice, ProcessRecord};
pub use request::{
    AcceptWhen, Attach, Control, Entry, EntryKind, Exec, Frozen, OnConflict, Put, PutItem,
    PutMessage, Request, Signal, Stdin, TerminalSize, TerminalState, TreeToken,
};

pub use usage::{Usage, UsageRecord, UsageSource};

/// The version of this protocol. Both ends speak the older of their versions; messages of an earlier version keep their
/// form for good, and what is new in one is never sent to an end that does not know it.
///
/// | version | what is new |
/// |---|---|
/// | 1 | – |
/// | 2 | [`Request::Usage`], [`ProcessNotice::Usage`], [`FileRequest::SetTime`](files::FileRequest), [`Restore::replaced`](tree::Restore) |
/// | 3 | [`Request::LetGo`], [`CONDUIT`](hello::CONDUIT) |
/// | 4 | [`Request::Terminal`], [`Request::Lease`] |
/// | 5 | [`Request::Connect`] |
/// | 6 | [`Request::TreeToken`], [`ScanMessage::Token`](tree::ScanMessage) |
pub const VERSION: u32 = 6;

/// The oldest version that is spoken.
pub const MIN_VERSION: u32 = 1;

/// The first version that tells what commands used, sets times of files, and replaces only what was seen.
pub const USAGE_VERSION: u32 = 2;

/// The first version whose guests go on with a link on another stream, and end by their own clock.
pub const CONDUIT_VERSION: u32 = 3;

/// The first version that says who has a terminal.
pub const TERMINAL_VERSION: u32 = 4;

/// The first version whose guests keep leases of their own.
pub const LEASE_VERSION: u32 = 4;

/// The first version whose links lead to ports inside.
pub const CONNECT_VERSION: u32 = 5;

/// The first version that says whether a tree can have changed.
pub const TREE_TOKEN_VERSION: u32 = 6;
