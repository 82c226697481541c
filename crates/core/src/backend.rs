//! Where sessions run.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::Manifest;
use bastide_model::receipt::{Isolation, NetworkAccess, Receipt};
use bastide_model::state::BackendState;
use bastide_proto::GuestPath;
use bastide_proto::hello::Token;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

pub use bastide_proto::boot::ResourceLimits;

use crate::state::SessionFolder;
use crate::{Error, ErrorKind, Result};

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

    /// Whether its sessions have a system of their own, as those of the reference's Docker client do:
    /// users have their homes there, a shell reads its profile, and a signal is told by 128 and its
    /// number.
    fn has_own_system(&self) -> bool {
        !self.has_host_files()
    }

    /// The folder in which sessions of this backend are remembered.
    fn home(&self) -> &Path;

    /// Brings the machine of a session to running, making it or starting it again. Either it runs
    /// when this returns, or nothing of it does. Files the machine keeps on the host go into the
    /// session's folder.
    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted>;

    /// Opens a new byte stream to the guest. Works from any process.
    async fn connect(&self, machine: &Machine) -> Result<Connection>;

    /// Says how the machine is.
    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus>;

    /// Ends every process of the machine; files stay. Stopping a stopped or missing machine succeeds.
    async fn stop(&self, machine: &Machine) -> Result<()>;

    /// Removes every trace of the machine, and the session's folder. Destroying a missing machine
    /// succeeds.
    async fn destroy(&self, machine: &Machine) -> Result<()>;

    /// Ends whatever still lives of a session that has no machine on record, because its boot was
    /// interrupted, and removes the session's folder.
    async fn discard(&self, folder: &Path) -> Result<()>;

    /// Whether a machine on record is this home's: not if the session's folder was copied here, because the
    /// machine is the original's then.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be told.
    fn is_own(&self, machine: &Machine) -> Result<bool> {
        let _ = machine;
        Ok(true)
    }

    /// Removes a folder of the host that was made for a session and whose content its commands wrote.
    /// Nothing in it is believed. A missing one is no failure.
    async fn remove_tree(&self, folder: &Path) -> Result<()>;

    /// Looks for what no folder of a session leads to, and removes it if `mode` says so.
    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        let _ = mode;
        Ok(Orphans::default())
    }

    /// Where the workspace of a machine is, if not where its specification says: a machine that sees
    /// the host's own paths has it wherever there is room for it.
    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        let _ = machine;
        None
    }

    /// The types of session states its sessions can have.
    fn state_types(&self) -> Vec<&'static str> {
        vec![self.name()]
    }

    /// What is stored of a machine in a session's state, for whoever reads it elsewhere. Nothing in it
    /// is believed when it comes back.
    fn stored(&self, machine: &Machine) -> BackendState {
        let machine_state = machine.state.as_object().cloned();
        let receipt = Some(Box::new(machine.receipt.clone()));
        BackendState::Local { machine: machine_state, receipt }
    }

    /// What a session's state says of a machine that was not made yet.
    fn unmade(&self) -> BackendState {
        BackendState::Local { machine: None, receipt: None }
    }

    /// How ports of a machine are published, where the backend can.
    fn expose(&self) -> Option<&dyn Expose> {
        None
    }
}

/// Whether a sweep removes what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepMode {
    /// It does.
    Remove,
    /// It only says what it would remove.
    Report,
}

/// What a backend has that no folder of a session leads to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orphans {
    /// What is, or would be, removed.
    pub removed: Vec<String>,
    /// What was left alone because nobody can tell whether it is this home's, and why.
    pub unclear: Vec<(String, String)>,
}

/// Publishing ports of machines on the host.
#[async_trait]
pub trait Expose: Send + Sync {
    /// Publishes a port; one that is published already stays where it is. Returns the port on the
    /// host's loopback.
    async fn publish(&self, machine: &Machine, port: u16) -> Result<u16>;

    /// The ports that are published: inside, and on the host's loopback.
    async fn published(&self, machine: &Machine) -> Result<Vec<(u16, u16)>>;
}

/// How a machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineStatus {
    /// It runs.
    Running {
        /// The guest's process on this host, where it is one.
        guest_pid: Option<u32>,
    },
    /// Part of it runs, but nobody watches over it any more.
    Broken {
        /// What is wrong.
        why: String,
    },
    /// It is there, and nothing in it runs until somebody lets it.
    Paused {
        /// How that is done.
        hint: String,
    },
    /// It does not run.
    Ended(MachineEnd),
}

/// How a machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineEnd {
    /// When, in milliseconds since 1970, where somebody was there to note it.
    pub at_ms: Option<u64>,
    /// Why, in a word: `stopped`, `agent_lost`, `backend_lost`, or `abandoned` if whoever started it was
    /// gone before it could live on without.
    pub reason: String,
    /// What is known besides.
    pub detail: String,
}

impl MachineEnd {
    /// Whether it never came to live on without whoever started it.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.reason == "abandoned"
    }

    /// An end that nobody noted.
    pub fn unseen(detail: impl Into<String>) -> Self {
        Self { at_ms: None, reason: "backend_lost".to_owned(), detail: detail.into() }
    }
}

/// The name of one session: 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 32 && text.bytes().all(is_digit) {
            return Ok(Self(text.to_owned()));
        }
        let message = format!("{text:?} is no name of a session");
        Err(Error::new(ErrorKind::InvalidInput, message).with_hint("it has 32 hexadecimal digits"))
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What kind of machine a session needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineSpec {
    /// Where the workspace is inside.
    pub root: GuestPath,
    /// What network commands have.
    pub network: NetworkAccess,
    /// How commands are confined, on backends that have a choice.
    #[serde(default)]
    pub isolation: Isolation,
    /// Whether commands may make sandboxes of their own, as browsers do.
    #[serde(default)]
    pub nested_sandbox: bool,
    /// The folder of the host that is the workspace, instead of storage of the session's own. It is
    /// the caller's: it is never cleared and never removed.
    #[serde(default)]
    pub host_workspace: Option<PathBuf>,
    /// What of the host is there besides.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// What commands may use, all of them together.
    #[serde(default)]
    pub limits: ResourceLimits,
    /// The ports that were declared when the session was made.
    #[serde(default)]
    pub exposed_ports: Vec<u16>,
    /// Where commands search for programs. A backend that shows programs of the host shows what lies
    /// there, with what those programs need.
    #[serde(default)]
    pub search_path: Vec<PathBuf>,
    /// The manifest, where it has mounts for which something must be done to the machine itself. They
    /// may hold credentials, so it is never written down with the rest.
    #[serde(skip)]
    pub storage: Option<Arc<Manifest>>,
}

/// A file or folder of the host that a session may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Where it is inside.
    pub path: GuestPath,
    /// Where it is on the host; empty where something of the machine itself is meant.
    pub host: PathBuf,
    /// Whether only reading is granted.
    pub read_only: bool,
}

impl MachineSpec {
    /// A closed machine with its workspace at `root`: no network, nothing of the host, no limits.
    #[must_use]
    pub fn new(root: GuestPath) -> Self {
        Self {
            root,
            network: NetworkAccess::None,
            isolation: Isolation::Auto,
            nested_sandbox: false,
            host_workspace: None,
            grants: Vec::new(),
            limits: ResourceLimits::default(),
            exposed_ports: Vec::new(),
            search_path: Vec::new(),
            storage: None,
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
    /// The environment commands have there where nobody says otherwise.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
}

/// What a boot gives.
#[derive(Debug)]
pub struct Booted {
    /// The machine.
    pub machine: Machine,
    /// A first connection, where the boot made one along the way.
    pub connection: Option<Connection>,
    /// Holds the machine up until it is told to let go.
    pub keep_alive: Option<KeepAlive>,
    /// What it has of a session that was there before.
    pub retained: Retained,
}

/// What a machine that was started again has of the session it is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retained {
    /// The files of its workspace, in a system that is made anew.
    #[default]
    Files,
    /// Everything: it is the same machine.
    System,
    /// Nothing: it is another machine.
    Nothing,
}

/// Holds a machine up: when it is dropped, or its process ends in any way, the machine ends and is
/// removed; unless the machine was let go of before.
pub struct KeepAlive {
    held: Box<dyn KeepAliveHandle>,
}

/// What a [`KeepAlive`] holds a machine up by.
pub trait KeepAliveHandle: Send + Sync {
    /// Tells the machine to live on without this process.
    ///
    /// # Errors
    ///
    /// Fails if the machine is gone already.
    fn release(&self) -> std::io::Result<()>;
}

impl KeepAlive {
    /// Wraps whatever holds the machine up.
    pub fn new(held: impl KeepAliveHandle + 'static) -> Self {
        Self { held: Box::new(held) }
    }

    /// Lets the machine live on without this process.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::BackendLost`] if the machine is gone already.
    pub fn release(self) -> Result<()> {
        self.held.release().map_err(|error| {
            Error::new(ErrorKind::BackendLost, "the machine ended while it was made")
                .with_source(error)
        })
    }
}

impl fmt::Debug for KeepAlive {
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
    pub side: Option<SideSocket>,
    /// Whether the guest was greeted already, before it was there to answer.
    pub greeted: bool,
}

/// A way for descriptors from the guest to the host.
#[derive(Debug)]
pub struct SideSocket {
    /// A socket that carries whole packets.
    pub socket: OwnedFd,
    /// The devices of the session's files, as they were before its first command ran: a descriptor
    /// of anything else is not taken.
    pub devices: Vec<u64>,
}

impl SideSocket {
    /// The device of a file or folder of the host, if descriptors of files on it are taken: not every
    /// file system is one whose answers can be waited for.
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
