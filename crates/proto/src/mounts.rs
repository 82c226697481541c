//! Mounts of cloud storage that a program of the host serves to a session.
//!
//! A host asks the session's warden for its *mount keeper* ([`WardenRequest::Mounts`](crate::warden::WardenRequest)).
//! The warden hands the connection over; from then on it carries one [`MountRequest`] and one [`MountResponse`], each
//! as a length of four bytes and a message. Keys are only in the request, which the warden never reads.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::boot::UserAndGroup;

/// The longest request or response.
pub const MAX_MOUNT_MESSAGE: usize = 256 << 10;

/// The most mounts of one session.
pub const MAX_MOUNTS: usize = 64;

/// Where a session keeps what its mounts write until the store has it, in the session's folder.
pub const MOUNTS_FOLDER: &str = "mounts";

/// What a warden tells the keeper of its session's mounts, first and once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperSpec {
    /// The session's folder.
    pub session_dir: PathBuf,
    /// The workspace, as it is called inside.
    pub workspace: String,
    /// Whom to become inside to make folders there, where the keeper's own user does not exist inside.
    pub inside: Option<UserAndGroup>,
    /// How many bytes of each mount may wait on disk for the store; any number, if none.
    pub disk: Option<u64>,
}

/// What a host wants of the keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MountRequest {
    /// Mount a store.
    Mount(Box<StoreMount>),
    /// Unmount.
    Unmount {
        /// Where it is, inside.
        path: String,
        /// How long whoever still uses it may go on.
        deadline_ms: u64,
    },
    /// Say what is mounted.
    Status,
}

/// A store to mount.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreMount {
    /// Where, inside.
    pub path: String,
    /// The provider, as users call it.
    pub provider: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// The `MountSpec` of the mount program, as JSON, with keys.
    pub spec: String,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// How many bytes the cache may take.
    pub cache_size: u64,
    /// Who owns everything, inside; whoever commands run as by default, if none.
    pub owner: Option<UserAndGroup>,
    /// The FUSE device.
    pub device: PathBuf,
    /// Where changes are noted for the audit log.
    pub events: PathBuf,
}

impl fmt::Debug for StoreMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreMount").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What the keeper answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MountResponse {
    /// It is done.
    Done,
    /// These are mounted.
    Status(Vec<MountStatus>),
    /// It was not done, and nothing was changed.
    Refused {
        /// What kind of refusal it is.
        why: MountRefusal,
        /// The reason, with what to do about it.
        message: String,
    },
}

/// Why something was not mounted or unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MountRefusal {
    /// What was asked for makes no sense.
    Invalid,
    /// Something else is there.
    Conflict,
    /// This machine, or this user, cannot.
    Unsupported,
    /// The store cannot be used.
    Store,
    /// The system failed.
    Io,
    /// It is unmounted, and not all that was written is in the store.
    NotStored,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where, inside.
    pub path: String,
    /// The provider.
    pub provider: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether somebody answers for it.
    pub state: MountState,
    /// When it was mounted, in milliseconds since 1970.
    pub since_ms: u64,
    /// Reads that programs made.
    pub reads: u64,
    /// Writes that programs made.
    pub writes: u64,
    /// Blocks that did not have to be fetched.
    pub cache_hits: u64,
}

/// Whether somebody answers for a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountState {
    /// Its program does.
    Mounted,
    /// Its program died, and another is being started.
    Restarting,
    /// Nobody will any more.
    Lost,
}
