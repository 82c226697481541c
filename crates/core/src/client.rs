//! Making sessions.

use std::path::PathBuf;
use std::sync::Arc;

use bastide_model::Manifest;
use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::receipt::NetworkAccess;

use crate::apply::apply;
use crate::backend::{Backend, Grant, MachineSpec, SessionId};
use crate::environment::environment;
use crate::link::{Link, MuxLink};
use crate::{Error, ErrorKind, Result, Session};

/// The root of a workspace that nobody chose.
const DEFAULT_ROOT: &str = "/workspace";

/// Makes sessions on one backend.
#[derive(Debug, Clone)]
pub struct Client {
    backend: Arc<dyn Backend>,
}

/// How a new session shall be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CreateOptions {
    /// What network commands have; none unless asked.
    pub network: NetworkAccess,
    /// The environment every command starts with, before the manifest's own. The caller decides what
    /// of its own environment goes in; by default nothing does.
    pub env: Vec<(String, String)>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { network: NetworkAccess::None, env: Vec::new() }
    }
}

impl Client {
    /// A client for `backend`.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// Makes a session: boots its machine, then lays out the manifest. Either the session is up when
    /// this returns, or nothing is left of it.
    ///
    /// # Errors
    ///
    /// Fails if the manifest is not valid, or asks for what the machine cannot do; if the machine
    /// does not come up; or if the manifest cannot be laid out.
    pub async fn create(&self, manifest: &Manifest, options: CreateOptions) -> Result<Session> {
        let root = manifest.root.parse().map_err(|error| {
            let message = format!("manifest root {:?}: {error}", manifest.root);
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        let id = SessionId::random();
        let mut spec = MachineSpec::new(root);
        spec.network = options.network;
        if self.backend.has_host_files() {
            // A root of the caller's choice is a folder of the caller's.
            let is_chosen = manifest.root != DEFAULT_ROOT;
            spec.host_workspace = is_chosen.then(|| PathBuf::from(&manifest.root));
        }
        spec.grants = grants(manifest)?;
        let policy = WorkspacePathPolicy::new(&*manifest.root, manifest.extra_path_grants.clone())?;
        let booted = self.backend.boot(&id, &spec).await?;
        let connected = async {
            let connection = match booted.connection {
                Some(connection) => connection,
                None => self.backend.connect(&booted.machine).await?,
            };
            let link: Arc<dyn Link> = Arc::new(MuxLink::connect(connection).await?);
            apply(link.as_ref(), &spec.root, manifest).await?;
            Ok(link)
        };
        match connected.await {
            Ok(link) => Ok(Session {
                backend: Arc::clone(&self.backend),
                machine: booted.machine,
                link,
                env: environment(&spec.root, manifest, options.env),
                root: spec.root,
                policy,
                leash: booted.leash,
            }),
            Err(error) => {
                // The first failure is the one to tell; what cannot be removed now is found later.
                drop(self.backend.destroy(&booted.machine).await);
                Err(error)
            }
        }
    }
}

/// What the manifest grants of the host. Without a path on the host the same one is meant.
fn grants(manifest: &Manifest) -> Result<Vec<Grant>> {
    let grant = |grant: &bastide_model::PathGrant| {
        let path = grant.path.parse().map_err(|error| {
            let message = format!("granted path {:?}: {error}", grant.path);
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        let host = grant.host_path.as_ref().unwrap_or(&grant.path);
        Ok(Grant { path, host: PathBuf::from(host), read_only: grant.read_only })
    };
    manifest.extra_path_grants.iter().map(grant).collect()
}
