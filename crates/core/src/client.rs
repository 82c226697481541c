//! Making sessions, and finding them again.

mod lifetime;
mod sweep;

use std::path::PathBuf;
use std::sync::Arc;

use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::receipt::NetworkAccess;
use bastide_model::{Manifest, PathGrant};

use crate::apply::apply;
use crate::backend::{Backend, Booted, Grant, Machine, MachineSpec, ResourceLimits, SessionId};
use crate::environment::{environment, search_path};
use crate::link::{Link, MuxLink};
use crate::pty::PtyProcesses;
use crate::state::{Record, SessionFolder, Stage, State};
use crate::{Error, ErrorKind, Result, Session};

pub use lifetime::{SessionInfo, SessionState};
pub use sweep::{SweepReport, Swept};

/// The root of a workspace that nobody chose.
const DEFAULT_ROOT: &str = "/workspace";

/// Makes sessions on one backend, and finds them again.
///
/// All clients of one home, in whatever process, see the same sessions.
#[derive(Debug, Clone)]
pub struct Client {
    backend: Arc<dyn Backend>,
    state: Arc<State>,
}

/// How a new session shall be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CreateOptions {
    /// What network commands have; none unless asked.
    pub network: NetworkAccess,
    /// What commands may use, all of them together; no limits unless asked.
    pub limits: ResourceLimits,
    /// The environment every command starts with, before the manifest's own. The caller decides what
    /// of its own environment goes in; by default nothing does.
    pub env: Vec<(String, String)>,
    /// Whether the session ends with this process, in whatever way this process ends. It does unless
    /// asked to live on; then any later process can [`attach`](Client::attach) to it.
    pub tied_to_owner: bool,
    /// The session's name; a new one unless given.
    pub id: Option<SessionId>,
    /// Ports that [`resolve_exposed_port`](Session::resolve_exposed_port) answers for.
    pub exposed_ports: Vec<u16>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            network: NetworkAccess::None,
            limits: ResourceLimits::default(),
            env: Vec::new(),
            tied_to_owner: true,
            id: None,
            exposed_ports: Vec::new(),
        }
    }
}

impl Client {
    /// A client for `backend`.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let state = State::at(backend.home());
        Self { backend, state }
    }

    /// Makes a session: boots its machine, then lays out the manifest. Either the session is up when
    /// this returns, or nothing is left of it; also if this process is killed on the way, or the
    /// future dropped.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Conflict`] if there is a session of that name.
    /// - [`ErrorKind::Cancelled`] if somebody deleted the session while it was being made.
    /// - Others if the manifest is not valid, or asks for what the machine cannot do; if the machine
    ///   does not come up; or if the manifest cannot be laid out.
    pub async fn create(&self, manifest: &Manifest, options: CreateOptions) -> Result<Session> {
        let root = manifest.root.parse().map_err(|error| {
            let message = format!("manifest root {:?}: {error}", manifest.root);
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        let mut spec = MachineSpec::new(root);
        spec.network = options.network;
        if self.backend.has_host_files() {
            // A root of the caller's choice is a folder of the caller's.
            let is_chosen = manifest.root != DEFAULT_ROOT;
            spec.host_workspace = is_chosen.then(|| PathBuf::from(&manifest.root));
        }
        spec.grants = grants(manifest, self.backend.has_host_files())?;
        spec.limits = options.limits;
        let id = options.id.unwrap_or_else(SessionId::random);
        let mut record = Record::intent(id, self.backend.name(), spec);
        record.tied = options.tied_to_owner;
        // A machine with a system of its own says itself where its programs are.
        let path = self.backend.has_host_files();
        record.env = environment(&record.spec.root, manifest, options.env, path);
        record.spec.search_path = search_path(&record.env);
        record.exposed_ports = declared(options.exposed_ports)?;
        record.spec.exposed_ports.clone_from(&record.exposed_ports);
        let folder = self.state.reserve(&record).await?;
        self.start(folder, record, Some(manifest)).await
    }

    /// Boots the machine of a session whose folder is ours, and puts the session on record.
    async fn start(
        &self,
        folder: SessionFolder,
        mut record: Record,
        manifest: Option<&Manifest>,
    ) -> Result<Session> {
        let Booted { machine, connection, leash } =
            match self.backend.boot(&folder, &record.spec).await {
                Ok(booted) => booted,
                Err(error) => {
                    self.undo(&folder, None, manifest.is_some()).await;
                    return Err(error);
                }
            };
        for (key, value) in &machine.environment {
            // What somebody asked for counts more than what the machine comes with.
            if !record.env.iter().any(|(known, _)| known == key) {
                record.env.push((key.clone(), value.clone()));
            }
        }
        record.stage = Stage::Running;
        record.machine = Some(machine.clone());
        let up = async {
            let connection = match connection {
                Some(connection) => connection,
                None => self.backend.connect(&machine).await?,
            };
            let link: Arc<dyn Link> = Arc::new(MuxLink::connect(connection).await?);
            if let Some(manifest) = manifest {
                apply(link.as_ref(), &record.spec.root, manifest).await?;
            }
            let stamp = folder.write(&record)?;
            // Whoever wants the session gone says so first and looks at the record then; so one of
            // both sees the other.
            if folder.is_unwanted() {
                let message = format!("session {} was deleted while it was made", record.id);
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
            // From here on the session does not need this process any more.
            let leash = match leash {
                Some(leash) if !record.tied => {
                    leash.let_go()?;
                    None
                }
                leash => leash,
            };
            Ok((link, leash, stamp))
        };
        match up.await {
            Ok((link, leash, stamp)) => {
                if !record.tied {
                    self.state.note(&record, stamp);
                }
                self.session(record, machine, link, leash)
            }
            Err(error) => {
                self.undo(&folder, Some(&machine), manifest.is_some()).await;
                Err(error)
            }
        }
    }

    /// Clears away what a failed start left. The first failure is the one to tell; what cannot be
    /// removed now is found by a later sweep.
    async fn undo(&self, folder: &SessionFolder, machine: Option<&Machine>, is_new: bool) {
        match machine {
            Some(machine) if is_new => drop(self.backend.destroy(machine).await),
            Some(machine) => drop(self.backend.stop(machine).await),
            None if is_new => drop(self.backend.discard(folder.path()).await),
            None => {}
        }
    }

    fn session(
        &self,
        record: Record,
        machine: Machine,
        link: Arc<dyn Link>,
        leash: Option<crate::backend::Leash>,
    ) -> Result<Session> {
        let policy = path_policy(&record.spec)?;
        let bytes = |text: String| text.into_bytes();
        let env = record.env.into_iter().map(|(key, value)| (bytes(key), bytes(value))).collect();
        Ok(Session {
            backend: Arc::clone(&self.backend),
            state: Arc::clone(&self.state),
            machine,
            link,
            env,
            root: record.spec.root,
            policy,
            exposed_ports: record.exposed_ports,
            leash,
            ptys: PtyProcesses::default(),
        })
    }
}

/// The ports of a session as they are kept: each once, in the order they were given.
fn declared(ports: Vec<u16>) -> Result<Vec<u16>> {
    let mut declared = Vec::with_capacity(ports.len());
    for port in ports {
        if port == 0 {
            let message = "exposed_ports entries must be between 1 and 65535";
            return Err(Error::new(ErrorKind::InvalidInput, message));
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

/// What the manifest grants of the host. Without a path on the host the same one is meant, where the
/// machine has the host's files at all.
fn grants(manifest: &Manifest, has_host_files: bool) -> Result<Vec<Grant>> {
    let grant = |grant: &PathGrant| {
        let path = grant.path.parse().map_err(|error| {
            let message = format!("granted path {:?}: {error}", grant.path);
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        let same = has_host_files.then_some(&grant.path);
        let host = grant.host_path.as_ref().or(same).map(PathBuf::from).unwrap_or_default();
        Ok(Grant { path, host, read_only: grant.read_only })
    };
    manifest.extra_path_grants.iter().map(grant).collect()
}
