//! Making sessions, and finding them again.

mod admission;
mod create;
mod deleted;
pub(crate) mod dependencies;
mod egress;
mod events;
mod fork;
pub(crate) mod lease;
mod lifetime;
mod options;
mod removal;
mod reserved_paths;
mod resume;
mod stop;
mod sweep;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::policy::Policy;
use bastide_model::receipt::{Isolation, NetworkAccess};
use bastide_model::snapshot::{Snapshot, SnapshotSpec};
use bastide_model::{Manifest, PathGrant, Registry};
use bastide_proto::GuestPathError;

use crate::backend::{Backend, Grant, MachineSpec, ResourceLimits, SessionId};
use crate::client::dependencies::Dependencies;
use crate::compat::raise;
use crate::egress::EnvironmentReader;
use crate::events::EventOptions;
use crate::journal::JournalOptions;
use crate::session::lifecycle::{ConcurrencyLimits, ProgressListener};
use crate::snapshot::SnapshotTypes;
use crate::state::{SessionName, State};
use crate::workspace::GitOptions;
use crate::{ErrorClass, Result};

pub(crate) use create::uuid_of;
pub(crate) use events::credentials;
use fork::ForkSource;
pub(crate) use lease::suspend_expiry;
pub use lease::{ExpiryAction, LeaseChange, LeaseOptions, LeaseStatus};
pub use lifetime::{SessionInfo, SessionStatus};
pub(crate) use removal::{Removal, begin_saving, shut_down};
pub use reserved_paths::runs_home;
pub use resume::ResumeOptions;
pub use sweep::{SweepItem, SweepOptions, SweepReport};

/// The root of a workspace that nobody chose.
pub(crate) const DEFAULT_ROOT: &str = "/workspace";

/// Creates sessions on one backend, and finds them again.
///
/// All clients of one home see the same sessions, in whatever process they are.
#[derive(Debug, Clone)]
pub struct Client {
    backend: Arc<dyn Backend>,
    state: Arc<State>,
    events: Arc<EventOptions>,
    registry: Arc<Registry>,
    types: SnapshotTypes,
    dependencies: Dependencies,
    environment: EnvironmentReader,
}

/// Where the workspace of a session is saved when it stops.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SnapshotChoice {
    /// In a snapshot of this kind, under the session's own id.
    Spec(SnapshotSpec),
    /// In this snapshot. If it exists already, a new session starts from it.
    Named(Snapshot),
}

impl SnapshotChoice {
    pub(crate) fn build(self, id: &str) -> Snapshot {
        match self {
            Self::Spec(spec) => spec.build(id),
            Self::Named(snapshot) => snapshot,
        }
    }
}

/// The options of a new session.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Which network commands can use; none by default.
    pub network: NetworkAccess,
    /// The policy of a network that has one: [`NetworkAccess::Policy`].
    pub policy: Option<Policy>,
    /// How commands are confined; by default in the strongest way this machine supports.
    pub isolation: Isolation,
    /// Whether commands may create sandboxes of their own, as browsers do. Not by default, because
    /// it exposes more of the kernel to them; refused where they write to folders of the host.
    pub nested_sandbox: bool,
    /// The resource limits of all commands together; none by default.
    pub limits: ResourceLimits,
    /// The environment every command starts with, before that of the manifest. The caller decides
    /// which of its own variables are passed; by default none are.
    pub env: Vec<(String, String)>,
    /// The home directory of commands: `HOME`. By default it is the workspace, or what a machine with a
    /// system of its own says.
    pub home: Option<String>,
    /// Whether the session ends with this process, in whatever way this process ends. True by
    /// default; otherwise any later process can [`attach`](Client::attach) to it.
    pub tied_to_owner: bool,
    /// The session's id; a random one by default.
    pub id: Option<SessionId>,
    /// A name for the session, besides its id; none by default. No other session of the home may have it.
    pub name: Option<SessionName>,
    /// Ports that [`resolve_exposed_port`](crate::compat::ReferenceSession::resolve_exposed_port) answers for.
    pub exposed_ports: Vec<u16>,
    /// Where the workspace is saved when the session stops; nowhere by default.
    pub snapshot: Option<SnapshotChoice>,
    /// The folder that paths of the host in the manifest are relative to, and must be in unless a
    /// grant covers them. Without one, the manifest cannot name any.
    pub base_dir: Option<PathBuf>,
    /// How repositories of the manifest are fetched.
    pub git: GitOptions,
    /// How many parts of the manifest are laid out at once.
    pub concurrency: ConcurrencyLimits,
    /// Receives the progress of long operations.
    pub progress: Option<ProgressListener>,
    /// Whether the session is of the reference's `unix_local` kind: its workspace is a folder of
    /// this host, and a temporary one if the manifest names none.
    pub unix_local: bool,
    /// Which points the session makes of itself; by default none but those somebody asks for.
    pub journal: Option<JournalOptions>,
    /// When the session ends by itself; never by default.
    pub lease: Option<LeaseOptions>,
    /// How long to wait for room where the home limits how many sessions run; not at all by default.
    pub wait: Option<Duration>,
}

impl CreateOptions {
    /// Gives commands that network.
    #[must_use]
    pub fn network(mut self, network: NetworkAccess) -> Self {
        self.network = network;
        self
    }

    /// Gives commands a network that leads where the policy says.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.network = NetworkAccess::Policy;
        self.policy = Some(policy);
        self
    }

    /// Confines commands in that way.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Lets commands make sandboxes of their own.
    #[must_use]
    pub fn nested_sandbox(mut self) -> Self {
        self.nested_sandbox = true;
        self
    }

    /// Limits what commands may use, all of them together.
    #[must_use]
    pub fn limits(mut self, limits: ResourceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Has every command start with these variables.
    #[must_use]
    pub fn env(mut self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        self.env = env.into_iter().collect();
        self
    }

    /// Lets the session live on when this process ends.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.tied_to_owner = false;
        self
    }

    /// Gives the session that id.
    #[must_use]
    pub fn id(mut self, id: SessionId) -> Self {
        self.id = Some(id);
        self
    }

    /// Gives the session that name, besides its id.
    #[must_use]
    pub fn name(mut self, name: SessionName) -> Self {
        self.name = Some(name);
        self
    }

    /// Declares ports that can be resolved.
    #[must_use]
    pub fn exposed_ports(mut self, exposed_ports: impl IntoIterator<Item = u16>) -> Self {
        self.exposed_ports = exposed_ports.into_iter().collect();
        self
    }

    /// Keeps the workspace there when the session stops.
    #[must_use]
    pub fn snapshot(mut self, snapshot: SnapshotChoice) -> Self {
        self.snapshot = Some(snapshot);
        self
    }

    /// Lets the manifest name files and folders of the host in that folder.
    #[must_use]
    pub fn base_dir(mut self, base_dir: impl Into<PathBuf>) -> Self {
        self.base_dir = Some(base_dir.into());
        self
    }

    /// Fetches repositories of the manifest in that way.
    #[must_use]
    pub fn git(mut self, git: GitOptions) -> Self {
        self.git = git;
        self
    }

    /// Bounds how much of laying out the manifest goes on at once.
    #[must_use]
    pub fn concurrency(mut self, concurrency: ConcurrencyLimits) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Tells the listener how far long work is.
    #[must_use]
    pub fn progress(mut self, progress: ProgressListener) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Makes the session one of the reference's `unix_local` kind.
    #[must_use]
    pub fn unix_local(mut self) -> Self {
        self.unix_local = true;
        self
    }

    /// Makes points in that way.
    #[must_use]
    pub fn journal(mut self, journal: JournalOptions) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Has the session end by itself.
    #[must_use]
    pub fn lease(mut self, lease: LeaseOptions) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Waits so long for room.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            network: NetworkAccess::None,
            policy: None,
            isolation: Isolation::Auto,
            nested_sandbox: false,
            limits: ResourceLimits::default(),
            env: Vec::new(),
            home: None,
            tied_to_owner: true,
            id: None,
            name: None,
            exposed_ports: Vec::new(),
            snapshot: None,
            base_dir: None,
            git: GitOptions::default(),
            concurrency: ConcurrencyLimits::default(),
            progress: None,
            unix_local: false,
            journal: None,
            lease: None,
            wait: None,
        }
    }
}

impl Client {
    /// A client for `backend`.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let state = State::at(backend.home());
        let registry = Arc::new(Registry::builtin().clone());
        let (types, dependencies) = (SnapshotTypes::default(), Dependencies::default());
        let events = Arc::default();
        let environment = EnvironmentReader::default();
        Self { backend, state, events, registry, types, dependencies, environment }
    }

    /// The types this client knows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Adds types of the program's own.
    #[must_use]
    pub fn with_registry(mut self, registry: Registry) -> Self {
        self.registry = Arc::new(registry);
        self
    }

    /// Sets the types of snapshots this client can save and restore.
    #[must_use]
    pub fn with_snapshot_types(mut self, types: SnapshotTypes) -> Self {
        self.types = types;
        self
    }

    /// The types of snapshots this client can save and restore.
    #[must_use]
    pub fn snapshot_types(&self) -> &SnapshotTypes {
        &self.types
    }

    /// Whether the backend mounts cloud storage from outside, so that no key enters a sandbox.
    #[must_use]
    pub fn mounts_from_outside(&self) -> bool {
        self.backend.host_mounts().is_some()
    }

    /// Sets how variables of the caller's environment are looked up, where a policy names them as sources of secrets.
    /// Without it they are not.
    #[must_use]
    pub fn with_environment(mut self, environment: EnvironmentReader) -> Self {
        self.environment = environment;
        self
    }

    /// Sets what sessions can request from the program. Every session gets a copy of the bindings.
    #[must_use]
    pub fn with_dependencies(mut self, dependencies: Dependencies) -> Self {
        self.dependencies = dependencies;
        self
    }
}

/// The ports of a session as they are kept: each once, in the order they were given.
fn declared(ports: Vec<u16>) -> Result<Vec<u16>> {
    let mut declared = Vec::with_capacity(ports.len());
    for port in ports {
        if port == 0 {
            let message = "exposed_ports entries must be between 1 and 65535";
            return Err(raise::value_error(message).with_class(ErrorClass::ValidationError));
        }
        if !declared.contains(&port) {
            declared.push(port);
        }
    }
    Ok(declared)
}

/// The rules for paths of a session.
fn path_policy(spec: &MachineSpec) -> Result<WorkspacePathPolicy> {
    let grant = |grant: &Grant| PathGrant {
        path: grant.path.as_str().to_owned(),
        read_only: grant.read_only,
        description: None,
        host_path: None,
    };
    WorkspacePathPolicy::new(spec.root.as_str(), spec.grants.iter().map(grant).collect())
}

/// The manifest, if there are mounts in it.
fn storage(manifest: &Manifest) -> Result<Option<Arc<Manifest>>> {
    for step in manifest.walk()? {
        if step?.1.as_mount().is_some() {
            return Ok(Some(Arc::new(manifest.clone())));
        }
    }
    Ok(None)
}

/// What the manifest grants of the host. Without a path on the host the same one is meant, where the
/// machine has the host's files at all.
fn grants(manifest: &Manifest, has_host_files: bool) -> Result<Vec<Grant>> {
    let grant = |grant: &PathGrant| {
        let path = grant.path.parse().map_err(|error: GuestPathError| match error {
            GuestPathError::Nul => raise::value_error("embedded null byte"),
            _ => raise::value_error(format!("granted path {:?}: {error}", grant.path)),
        })?;
        let same = has_host_files.then_some(&grant.path);
        let host = grant.host_path.as_ref().or(same).map(PathBuf::from).unwrap_or_default();
        Ok(Grant { path, host, read_only: grant.read_only })
    };
    manifest.extra_path_grants.iter().map(grant).collect()
}
