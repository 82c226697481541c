//! Where sessions run.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use async_trait::async_trait;
use bastide_model::receipt::{NetworkAccess, Receipt};
use bastide_proto::GuestPath;
use bastide_proto::hello::Token;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Result;

/// A place where sessions can run. It only has to bring machines up and hand out byte streams to
/// the guest inside; everything else is done by the guest and is the same everywhere.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync {
    /// The word users choose this backend by; it is stored with every machine.
    fn name(&self) -> &'static str;

    /// Whether its sessions can have files and folders of this host at their own paths, so that a
    /// workspace with a root of the caller's choice is that very folder.
    fn has_host_files(&self) -> bool {
        false
    }

    /// Brings the machine of `id` to running. Either it runs when this returns, or nothing is left
    /// of it.
    async fn boot(&self, id: &SessionId, spec: &MachineSpec) -> Result<Booted>;

    /// Opens a new byte stream to the guest.
    async fn connect(&self, machine: &Machine) -> Result<Connection>;

    /// Removes every trace of the machine. Destroying a missing machine succeeds.
    async fn destroy(&self, machine: &Machine) -> Result<()>;
}

/// The name of one session: 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// A name nobody has had before.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What kind of machine a session needs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineSpec {
    /// Where the workspace is inside.
    pub root: GuestPath,
    /// What network commands have.
    pub network: NetworkAccess,
    /// Whether the machine ends with the process that made it.
    pub tied_to_owner: bool,
    /// The folder of the host that is the workspace, instead of storage of the session's own. It is
    /// the caller's: it is never cleared and never removed.
    pub host_workspace: Option<PathBuf>,
    /// What of the host is there besides.
    pub grants: Vec<Grant>,
}

/// A file or folder of the host that a session may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Where it is inside.
    pub path: GuestPath,
    /// Where it is on the host.
    pub host: PathBuf,
    /// Whether only reading is granted.
    pub read_only: bool,
}

impl MachineSpec {
    /// A closed machine with its workspace at `root`: no network, nothing of the host, and it ends
    /// with its owner.
    #[must_use]
    pub fn new(root: GuestPath) -> Self {
        Self {
            root,
            network: NetworkAccess::None,
            tied_to_owner: true,
            host_workspace: None,
            grants: Vec::new(),
        }
    }
}

/// A machine a backend brought up: enough to find it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Whose session it is.
    pub id: SessionId,
    /// The backend's name.
    pub backend: String,
    /// What the backend needs to know; nobody else reads it.
    pub state: Value,
    /// What is in force there.
    pub receipt: Receipt,
}

/// What a boot gives.
#[derive(Debug)]
pub struct Booted {
    /// The machine.
    pub machine: Machine,
    /// A first connection, where the boot made one along the way.
    pub connection: Option<Connection>,
    /// For a machine that ends with its owner: the machine ends when this is dropped.
    pub leash: Option<Leash>,
}

/// Holds a machine up: when it is dropped, or its process ends in any way, the machine ends.
pub struct Leash {
    /// Only its end matters.
    _held: Box<dyn Send + Sync>,
}

impl Leash {
    /// Wraps whatever holds the machine up.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl fmt::Debug for Leash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leash").finish_non_exhaustive()
    }
}

/// A byte stream to a guest.
pub struct Connection {
    /// The stream: anything reliable and ordered.
    pub stream: Box<dyn Duplex>,
    /// What the guest wants to hear first.
    pub token: Token,
    /// A way for descriptors beside the stream, where there is one. Its other end must be on its
    /// way to the guest already, ahead of everything else.
    pub side: Option<Side>,
}

/// A way for descriptors from the guest to the host.
#[derive(Debug)]
pub struct Side {
    /// A socket that carries whole packets.
    pub socket: OwnedFd,
    /// The devices of the session's files, as they were before its first command ran: a descriptor
    /// of anything else is not taken.
    pub devices: Vec<u64>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Both directions of a byte stream.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
