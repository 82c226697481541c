//! What the host sends to the first process of a container, and to the warden beside it.
//!
//! The specification comes over the first connection, before anything else runs inside. So the token is
//! in no file, argument, variable or label that a command could read.
//!
//! Where the host shares a folder with the container, the socket in it is the host's own, and the folder
//! cannot be written to inside: the first process calls the host there, and is handed the listening
//! socket with the specification.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::boot::{
    BootFailure, EgressBoot, Enforced, InodeId, MountPoint, Resolver, ResourceLimits, UserAndGroup,
};
use crate::hello::TOKEN_BYTES;
use crate::mounts::KeeperSpec;

/// Where everything of ours is inside a container.
pub const FOLDER: &str = "/.bastide";

/// The folder of the guest program inside a container.
pub const BIN_PATH: &str = "/.bastide/bin";

/// The guest program inside a container.
pub const GUEST_PATH: &str = "/.bastide/bin/guest";

/// The folder of the guest's socket inside a container that shares none with its host: a small file
/// system in memory.
pub const RUN_PATH: &str = "/.bastide/run";

/// The folder that the host shares with a container, for reading only. The guest's socket is in it.
pub const HOST_PATH: &str = "/.bastide/host";

/// The folder of the file that says which authorities programs inside trust, where the network has a policy. The host
/// writes it; inside it can only be read.
pub const TRUST_PATH: &str = "/.bastide/trust";

/// The word that tells the first process of a container to call the host in the folder they share,
/// instead of waiting for it.
pub const CALLS: &str = "calls";

/// The longest specification or report.
pub const MAX_SPEC: usize = 1 << 20;

/// What the first process of a container is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The token every connection must prove.
    pub token: [u8; TOKEN_BYTES],
    /// Whom commands run as, as an image says it: a user, or a user and a group, by name or number;
    /// root if none.
    pub user: Option<String>,
    /// What commands may use and the container itself does not limit.
    pub limits: ResourceLimits,
    /// What the files of the session are: the workspace first, which is made if it is missing.
    pub writable: Vec<String>,
    /// What else is granted, for reading only.
    pub readable: Vec<String>,
    /// Which files of the host some of these are: whatever else the engine bound there is not what was granted.
    pub identities: Vec<(String, InodeId)>,
    /// Whether folders of the host are among those that can be written to: nothing set-id is left in one.
    pub writes_to_host: bool,
    /// How the guest finds files beneath these folders.
    pub resolver: Resolver,
    /// Whether our own filter of system calls stands beside the engine's.
    pub filtered: bool,
    /// Whether programs may give new privileges. The kernel lets nobody have that and walls of ours.
    pub new_privileges: bool,
    /// Whether commands of root may mount, where they have the capability.
    pub mounts: bool,
}

/// What became of the start of a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ContainerReport {
    /// The guest is up.
    Up(ContainerReady),
    /// Nothing runs.
    Failed(BootFailure),
}

/// What is really in force in a container that is up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerReady {
    /// Whom commands run as.
    pub user: UserAndGroup,
    /// The name of that user, where the image has one.
    pub user_name: Option<String>,
    /// Whether commands can run as anybody else.
    pub many_users: bool,
    /// What enforces limits on the commands themselves.
    pub enforced: Enforced,
    /// The Landlock version in force on commands; 0 where there is none.
    pub landlock_abi: u32,
    /// Whether our own filter of system calls is in force.
    pub filtered: bool,
    /// Whether what loses its parent stays with the command it came from.
    pub has_subreaper: bool,
}

/// What the warden of a container is told by the process that makes the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerWardenSpec {
    /// The session's own folder on the host.
    pub session_dir: PathBuf,
    /// The folder the guest's socket is in.
    pub run_dir: PathBuf,
    /// The token of the session.
    pub token: [u8; TOKEN_BYTES],
    /// Whether the folder outlives a boot that its owner does not see through.
    pub keep_folder: bool,
    /// Whether the container has a network of its own.
    pub own_network: bool,
    /// The engine's socket.
    pub engine: PathBuf,
    /// What to ask the engine for to end every process, each as a method and a path.
    pub to_stop: Vec<(String, String)>,
    /// What to ask the engine for to remove every trace.
    pub to_remove: Vec<(String, String)>,
    /// What has to be in folders of the host before the container is made, and is removed again after it.
    pub mount_points: Vec<MountPoint>,
    /// The version of the protocol that the guest speaks: that of a container which is started again may be an earlier one.
    pub protocol: u32,
    /// What the keeper of mounts from outside is told, where whoever makes the session may mount in containers.
    pub keeper: Option<KeeperSpec>,
    /// What serves the network, where it has a policy. A packet with the program of the proxy, and the secrets if there are
    /// any, follows.
    pub egress: Option<EgressBoot>,
}

/// What the owner says to a container's warden once the guest has answered: now watch over it.
pub const UP: u8 = b'U';

/// What the owner says to a container's warden whose network has a policy, once the first process has called and before
/// that hears anything: make its network. A descriptor of the process comes along. The answer is a message:
/// `Result<(), BootFailure>`.
pub const NETWORK: u8 = b'N';

/// What the owner says to a container's warden when it could not make the container, and has removed
/// what there was of it.
pub const GAVE_UP: u8 = b'G';

/// What a warden sends ahead of its greeting on the connection by which it watches over the guest:
/// this byte, and with it one end of a pair of packet sockets over which it asks for ports.
pub const WARDEN_CHANNEL: u8 = b'!';
