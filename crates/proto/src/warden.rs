//! What hosts say to the warden of a running local sandbox, and what it answers.
//!
//! Both ends are on the host and belong to the same user. Each connection to the warden's socket
//! carries one [`WardenRequest`] and one [`WardenResponse`], each as a length of four bytes and a message.

use serde::{Deserialize, Serialize};

/// The warden's own socket, in the session's folder.
pub const CONTROL_SOCKET: &str = "warden.sock";

/// The guest's socket, in the session's folder.
pub const GUEST_SOCKET: &str = "guest.sock";

/// Where the warden notes how the sandbox ended, in the session's folder.
pub const END_FILE: &str = "end.json";

/// Held open, and locked, by every process that keeps the sandbox alive; in the session's folder.
pub const LOCK_FILE: &str = "lock";

/// Held, and locked, by whoever makes, starts, stops or removes the session, for as long as that takes; in
/// the session's folder. Nobody inherits it.
pub const TRANSITION_LOCK_FILE: &str = "transition.lock";

/// What the lock file of a session says about itself: its own inode number and when that was born. In a
/// folder that was copied the two do not agree, and nothing outside the folder is the copy's.
#[must_use]
pub fn origin_mark(inode: u64, born_s: i64, born_ns: u32) -> String {
    format!("{inode} {born_s}.{born_ns:09}\n")
}

/// The folder elsewhere that was made for the session and goes with it: its [mark](origin_mark), and after that its path. In the
/// session's folder, so that whoever removes that knows of both.
pub const OWNED_ROOT_FILE: &str = "owned-root";

/// What the process is called that everything in a sandbox without namespaces descends from.
pub const HOST_INIT: &std::ffi::CStr = c"bastide-init";

/// How the name of a session's folder begins once the session is gone and only its removal is left.
pub const GONE_PREFIX: &str = ".gone-";

/// The one word an owner may say to a warden after the boot: live on without me.
pub const RELEASE: u8 = b'L';

/// The longest request or response.
pub const MAX_CONTROL_MESSAGE: usize = 4096;

/// The most ports one sandbox publishes.
pub const MAX_PORTS: usize = 64;

/// Present in a folder whose session somebody is removing, or was: put there before anything goes.
pub const UNWANTED_FILE: &str = "unwanted";

/// The folder of a home in which wardens note the sessions that their leases deleted, a file for each: nobody was there to
/// put that on record.
pub const DELETED_FOLDER: &str = "deleted";

/// What a lease that ran out does to its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpiryAction {
    /// Everything in it ends, and its files stay.
    #[default]
    Stop,
    /// Everything of it goes.
    Delete,
}

/// A change to the lease of a session; what is not given stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseUpdate {
    /// Whether the lease there is so far is forgotten first.
    pub forget: bool,
    /// How many milliseconds are left from now on.
    pub ttl_ms: Option<u64>,
    /// Whether that many are left at least: a lease that lasts longer is not shortened.
    pub at_least: bool,
    /// After how many milliseconds in which nothing happens the lease ends.
    pub idle_ms: Option<u64>,
    /// What happens at its end.
    pub then: Option<ExpiryAction>,
}

/// The lease of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    /// How many milliseconds are left, if that is limited.
    pub remaining_ms: Option<u64>,
    /// After how many milliseconds in which nothing happens it ends, if it does.
    pub idle_ms: Option<u64>,
    /// What happens at its end.
    pub then: ExpiryAction,
}

/// What a host wants of a warden. Variants are only ever added at the end: a warden lives as long as its session, and
/// answers hosts of later versions. It closes the connection on what it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WardenRequest {
    /// Publish a port of the sandbox's loopback on the host's loopback. Asking again changes nothing.
    Publish {
        /// The port inside.
        port: u16,
    },
    /// Name the ports that are published.
    Ports,
    /// Hand this connection to the keeper of the session's mounts. It is started if need be, from the program whose
    /// descriptor comes with the request; without one, only a keeper that is there is meant.
    Mounts,
    /// End the sandbox.
    End {
        /// Whether its folder goes too.
        remove: bool,
    },
    /// Change the session's lease, and say what it is. A change of nothing only asks.
    Lease(LeaseUpdate),
    /// Hand this connection to the proxy of the session's network.
    Egress,
}

/// What a warden answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WardenResponse {
    /// These ports are published.
    Ports(Vec<PublishedPort>),
    /// The keeper of the session's mounts hears what is said next, if there is one; else nothing is mounted.
    Mounts {
        /// Whether there is one.
        is_kept: bool,
    },
    /// Every process of the sandbox has ended. If its folder goes too, it is being removed now, and
    /// is gone when the warden has ended.
    Ended,
    /// It could not be done.
    Refused {
        /// The system's error number.
        errno: i32,
    },
    /// This is the session's lease.
    Lease(LeaseState),
    /// The proxy of the session's network hears what is said next, if there is one; else the network is closed.
    Egress {
        /// Whether there is one.
        is_served: bool,
    },
}

/// A port of the sandbox's loopback that can be reached on the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPort {
    /// The port inside.
    pub port: u16,
    /// The port outside.
    pub host_port: u16,
}
