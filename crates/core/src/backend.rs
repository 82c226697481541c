//! Where sessions run.

mod host_mounts;
mod keep_alive;
mod session_id;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide_model::Manifest;
use bastide_model::receipt::{Isolation, NetworkAccess, Receipt};
use bastide_model::state::BackendState;
use bastide_proto::hello::Token;
use bastide_proto::{GuestPath, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

pub use bastide_proto::boot::ResourceLimits;
pub use bastide_proto::warden::{LeaseState, LeaseUpdate};
pub use host_mounts::{HostMount, HostMountState, HostMountStatus, HostMounts};
pub(crate) use keep_alive::lock_for_fork as hold_descriptors;
pub use keep_alive::{KeepAlive, KeepAliveHandle};
pub use session_id::SessionId;

use crate::Result;
use crate::egress::{Egress, EgressRequest, EgressResponse};
use crate::state::SessionFolder;

/// A place where sessions can run. A backend only boots machines and opens byte streams to the
/// guest inside; everything else is done by the guest, and is the same on every backend.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync {
    /// The name users select this backend by. It is stored with every machine.
    fn name(&self) -> &'static str;

    /// Whether sessions can have files and folders of this host at the same paths inside. Then a
    /// workspace whose root the caller chose is that folder of the host itself.
    fn has_host_files(&self) -> bool {
        false
    }

    /// Whether sessions have a system of their own, as those of the reference's Docker client do:
    /// users have home directories there, a login shell reads its profile, and death by a signal is
    /// reported as 128 plus its number.
    fn has_own_system(&self) -> bool {
        !self.has_host_files()
    }

    /// The folder that holds the sessions of this backend.
    fn home(&self) -> &Path;

    /// Boots the machine of a session: creates it, or starts it again. When this returns, either
    /// the machine runs or nothing of it is left running. Files that the machine keeps on the host
    /// go into the session's folder.
    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted>;

    /// Opens a new byte stream to the guest. Any process can do that.
    async fn connect(&self, machine: &Machine) -> Result<Connection>;

    /// The status of the machine.
    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus>;

    /// Ends every process of the machine and keeps its files. Stopping a machine that is stopped or
    /// missing succeeds.
    async fn stop(&self, machine: &Machine) -> Result<()>;

    /// Removes everything of the machine, and the session's folder. Destroying a missing machine
    /// succeeds.
    async fn destroy(&self, machine: &Machine) -> Result<()>;

    /// Ends what still runs of a session without a machine on record, because its boot was
    /// interrupted, and removes the session's folder.
    async fn discard(&self, folder: &Path) -> Result<()>;

    /// Whether a machine on record belongs to this home. It does not if the session's folder was
    /// copied here: the machine is then that of the original.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be determined.
    fn is_own(&self, machine: &Machine) -> Result<bool> {
        let _ = machine;
        Ok(true)
    }

    /// Removes a folder of the host that was created for a session and that its commands wrote to.
    /// Its content is treated as hostile. A missing folder is no error.
    async fn remove_tree(&self, folder: &Path) -> Result<()>;

    /// Looks for machines and files that no session's folder leads to, and removes them if `mode`
    /// says so.
    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        let _ = mode;
        Ok(Orphans::default())
    }

    /// Where the workspace of a machine is, if that is not where the specification says: a machine
    /// that sees the host's own paths has it where the host has room.
    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        let _ = machine;
        None
    }

    /// The types of session states that sessions of this backend can have.
    fn state_types(&self) -> Vec<&'static str> {
        vec![self.name()]
    }

    /// What a session's state stores about its machine, for readers elsewhere. None of it is
    /// trusted when it is read back.
    fn stored(&self, machine: &Machine) -> BackendState {
        let machine_state = machine.state.as_object().cloned();
        let receipt = Some(Box::new(machine.receipt.clone()));
        BackendState::Local { machine: machine_state, receipt }
    }

    /// What a session's state says about a machine that was not created yet.
    fn unmade(&self) -> BackendState {
        BackendState::Local { machine: None, receipt: None }
    }

    /// How ports of a machine are published, if this backend can.
    fn expose(&self) -> Option<&dyn Expose> {
        None
    }

    /// What others than the guest count of a machine that runs: processors and memory, where they do.
    fn counted(&self, machine: &Machine) -> Option<Usage> {
        let _ = machine;
        None
    }

    /// Whether a machine ends by a clock of its own, unless its guest is told to go on without whoever made it.
    fn detaches_by_link(&self) -> bool {
        false
    }

    /// After how long without a call a link is closed, to be opened again with the next, where open ones cost something.
    fn idle_link(&self) -> Option<Duration> {
        None
    }

    /// Does what else is to be done when such a machine was told so.
    ///
    /// # Errors
    ///
    /// Fails if it would not go on.
    async fn detach_machine(&self, machine: &Machine) -> Result<()> {
        let _ = machine;
        Ok(())
    }

    /// Whether a machine that is stopped keeps its files. Where it keeps none, a client that knows a
    /// [store](crate::snapshot::store::Store) saves its sessions there when they are stopped, unless another snapshot was
    /// asked for.
    fn keeps_files(&self) -> bool {
        true
    }

    /// How leases of machines are kept, if anybody on this host keeps them alive.
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }

    /// Whether programs inside can mount, as root, in sessions whose manifest asks for it.
    fn mounts_inside(&self) -> bool {
        false
    }

    /// How cloud storage is mounted from outside, if this backend can.
    fn host_mounts(&self) -> Option<&dyn HostMounts> {
        None
    }

    /// How sessions have a network that has a policy, if this backend can give them one.
    fn egress_networks(&self) -> Option<&dyn EgressNetworks> {
        None
    }
}

/// Networks that have a policy.
#[async_trait]
pub trait EgressNetworks: Send + Sync {
    /// Refuses a session that cannot have such a network, before anything of it is made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], with the reason.
    fn check(&self, spec: &MachineSpec) -> Result<()>;

    /// Asks the proxy of a running machine. `None` if its network was closed because no proxy stayed alive.
    async fn ask(
        &self,
        machine: &Machine,
        request: &EgressRequest,
    ) -> Result<Option<EgressResponse>>;
}

/// Whether a sweep removes what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepMode {
    /// It removes them.
    Remove,
    /// It only reports what it would remove.
    Report,
}

/// What a backend has that no session's folder leads to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orphans {
    /// What was removed, or would be.
    pub removed: Vec<String>,
    /// What was kept because nothing tells whether it is this home's, and the reason.
    pub unclear: Vec<(String, String)>,
}

/// Publishing ports of machines on the host.
#[async_trait]
pub trait Expose: Send + Sync {
    /// Publishes a port; one that is already published keeps its address. Returns the port on the
    /// host's loopback interface.
    async fn publish(&self, machine: &Machine, port: u16) -> Result<u16>;

    /// The published ports: the number inside, and the one on the host's loopback interface.
    async fn published(&self, machine: &Machine) -> Result<Vec<(u16, u16)>>;
}

/// Machines that end by themselves.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Changes the lease of a machine that runs, and says what it is then.
    async fn update(&self, machine: &Machine, update: LeaseUpdate) -> Result<LeaseState>;
}

/// The status of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineStatus {
    /// It runs.
    Running {
        /// The guest's process id on this host, if it is a process of this host.
        guest_pid: Option<u32>,
    },
    /// Part of it runs, but its warden is gone.
    Broken {
        /// What is wrong.
        why: String,
    },
    /// It exists and is frozen until it is unpaused.
    Paused {
        /// How to unpause it.
        hint: String,
    },
    /// It does not run.
    Ended(MachineExit),
}

/// How a machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineExit {
    /// When, in milliseconds since 1970, if that was recorded.
    pub at_ms: Option<u64>,
    /// The reason: `stopped`, `agent_lost`, `backend_lost`, or `abandoned` if its owner was gone
    /// before it released the machine; `expired` if its lease ran out.
    pub reason: String,
    /// Details for people.
    pub detail: String,
}

impl MachineExit {
    /// Whether its owner was gone before it released the machine.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.reason == "abandoned"
    }

    /// Whether its lease ran out.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.reason == "expired"
    }

    /// An end that was not recorded.
    pub fn unrecorded(detail: impl Into<String>) -> Self {
        Self { at_ms: None, reason: "backend_lost".to_owned(), detail: detail.into() }
    }
}

/// What a session needs of its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineSpec {
    /// The path of the workspace inside.
    pub root: GuestPath,
    /// Which network commands can use.
    pub network: NetworkAccess,
    /// The policy of that network, where it has one.
    #[serde(default)]
    pub egress: Option<Egress>,
    /// How commands are confined, on backends that offer a choice.
    #[serde(default)]
    pub isolation: Isolation,
    /// Whether commands may create sandboxes of their own, as browsers do.
    #[serde(default)]
    pub nested_sandbox: bool,
    /// The folder of the host that is the workspace, instead of storage that belongs to the
    /// session. It belongs to the caller: it is never cleared and never removed.
    #[serde(default)]
    pub host_workspace: Option<PathBuf>,
    /// Other files and folders of the host that are visible inside.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// The resource limits of all commands together.
    #[serde(default)]
    pub limits: ResourceLimits,
    /// The ports that were declared when the session was created.
    #[serde(default)]
    pub exposed_ports: Vec<u16>,
    /// Where commands search for programs. A backend that shows programs of the host shows those in
    /// these folders, with what they need to run.
    #[serde(default)]
    pub search_path: Vec<PathBuf>,
    /// The manifest, if it has mounts that the machine itself must be prepared for. They may hold
    /// credentials, so this is never serialized.
    #[serde(skip)]
    pub storage: Option<Arc<Manifest>>,
    /// The machine the session had before, as it is on record: a backend starts no other kind of
    /// machine in its place, and gives it no other files.
    #[serde(skip)]
    pub before: Option<Box<Machine>>,
    /// The session of this home that a new one is to be like, in what only its backend knows.
    #[serde(skip)]
    pub like: Option<SessionId>,
}

/// A file or folder of the host that a session may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its path inside.
    pub path: GuestPath,
    /// Its path on the host; empty if it is part of the machine itself.
    pub host: PathBuf,
    /// Whether it can only be read.
    pub read_only: bool,
}

impl MachineSpec {
    /// A closed machine with its workspace at `root`: no network, nothing of the host, no limits.
    #[must_use]
    pub fn new(root: GuestPath) -> Self {
        Self {
            root,
            network: NetworkAccess::None,
            egress: None,
            isolation: Isolation::Auto,
            nested_sandbox: false,
            host_workspace: None,
            grants: Vec::new(),
            limits: ResourceLimits::default(),
            exposed_ports: Vec::new(),
            search_path: Vec::new(),
            storage: None,
            before: None,
            like: None,
        }
    }
}

/// A machine that a backend booted, with what is needed to find it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The session it belongs to.
    pub id: SessionId,
    /// The backend's name.
    pub backend: String,
    /// The backend's own data; nothing else reads it.
    pub state: Value,
    /// The isolation and limits that are in force.
    pub receipt: Receipt,
    /// The environment that commands have by default.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// The version of the protocol that its guest speaks. Machines of before did not say.
    #[serde(default = "first_protocol")]
    pub protocol: u32,
}

fn first_protocol() -> u32 {
    1
}

/// The result of a boot.
#[derive(Debug)]
pub struct Booted {
    /// The machine.
    pub machine: Machine,
    /// A first connection, if the boot opened one.
    pub connection: Option<Connection>,
    /// Ties the machine to this process until it is released.
    pub keep_alive: Option<KeepAlive>,
    /// What is left of the session's earlier machine.
    pub retained: Retained,
}

/// What a machine that was started again has kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retained {
    /// The files of its workspace, in a new system.
    #[default]
    Files,
    /// Everything: it is the same machine.
    System,
    /// Nothing: it is another machine.
    Nothing,
}

/// A byte stream to a guest.
pub struct Connection {
    /// The stream; it must be reliable and ordered.
    pub stream: Box<dyn Duplex>,
    /// The token that authenticates the host to the guest.
    pub token: Token,
    /// A socket that passes file descriptors beside the stream, if there is one. Its other end must
    /// have been sent to the guest before anything else.
    pub side: Option<SideSocket>,
    /// Whether the host's greeting was sent already, before the guest was there to answer.
    pub greeted: bool,
    /// For how long the stream may stand still without being lost; not at all, where nothing brings it back.
    pub outage: Duration,
}

/// A socket that passes file descriptors from the guest to the host.
#[derive(Debug)]
pub struct SideSocket {
    /// A socket that preserves packet boundaries.
    pub socket: OwnedFd,
    /// The devices of the session's files, recorded before its first command ran: a descriptor of a
    /// file on any other device is refused.
    pub devices: Vec<u64>,
}

impl SideSocket {
    /// The device of a file or folder of the host, if descriptors of files on it are accepted. Some
    /// file systems are not, because an operation on them may block without end.
    #[must_use]
    pub fn device_of(path: &Path) -> Option<u64> {
        crate::link::passable_device(path)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Both directions of a byte stream.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_name_that_could_lead_elsewhere() {
        let good = SessionId::random();
        assert_eq!(good.as_str().parse::<SessionId>().unwrap(), good);
        let long = "a".repeat(33);
        for bad in ["", "..", "a/b", "ABCDEF00ABCDEF00ABCDEF00ABCDEF00", &long, &long[..31]] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
        }
    }
}
