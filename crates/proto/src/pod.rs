//! What the host tells the first process of a pod, which no engine of ours watches over: it ends by its own clock.
//!
//! It is started as `container pod`, or `container pool` where it waits for its session for as long as it takes.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::boot::{BootFailure, UserAndGroup};
use crate::container::{ContainerReady, ContainerSpec};

/// The word that tells the first process of a container that it is one of a pod.
pub const POD: &str = "pod";

/// The same, for a pod that was made ahead: nobody may come for a long time.
pub const POOL: &str = "pool";

/// The word by which the guest copies what is in the folder of its image to another that a pod's container sees: both follow.
pub const DELIVER: &str = "deliver";

/// The folder of the guest's own in [`RUN_PATH`](crate::container::RUN_PATH) of a pod, which belongs to nobody. It is made
/// once: where it is, a guest has been.
pub const OWN_PATH: &str = "/.bastide/run/guest";

/// The code that the first process of a pod ends with when the lease of its session ran out. One that nobody was heard of for
/// too long ends with 0.
pub const EXPIRED_CODE: i32 = 124;

/// What the first process of a pod is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodSpec {
    /// The session, as in any container.
    pub container: ContainerSpec,
    /// When it ends by itself.
    pub lease: PodLease,
    /// Addresses that must not be reached from inside. Each is tried before anything is served.
    pub probes: Vec<SocketAddr>,
}

/// When a pod ends by itself, counted from the last byte that any host sent over a link. Hosts of a
/// [conduit](crate::hello::CONDUIT) send one every few seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLease {
    /// After how many milliseconds, until the session is [let go of](crate::Request::LetGo).
    pub maker_ms: u64,
    /// After how many from then on.
    pub ttl_ms: u64,
}

/// What became of the start of a pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum PodReport {
    /// The guest is up.
    Up(Box<PodReady>),
    /// Nothing runs.
    Failed(BootFailure),
}

/// What a pod that is up says of itself: no API tells what its image says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodReady {
    /// What is in force, as in any container.
    pub container: ContainerReady,
    /// The environment it was started with, less what the cluster says about its services.
    pub environment: Vec<(ByteBuf, ByteBuf)>,
    /// The folder it was started in.
    pub folder: String,
    /// Whom it was started as.
    pub started_as: UserAndGroup,
    /// What became of each address that was to be tried, in that order; then of the API server's, where the cluster told it.
    pub probes: Vec<ProbeResult>,
    /// Whether a token of the cluster's lies inside.
    pub has_cluster_token: bool,
    /// How its users are mapped to those of the node, as the kernel says it.
    pub uid_map: String,
}

/// What became of a try to reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeResult {
    /// It answered.
    Connected,
    /// It refused: something answered, there or on the way.
    Refused,
    /// It could not be reached.
    Unreachable {
        /// The system's error number.
        errno: i32,
    },
    /// Nothing answered in time.
    Silent,
}

impl ProbeResult {
    /// Whether nothing came back from there.
    #[must_use]
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Silent)
    }
}
