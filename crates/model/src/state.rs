//! What is stored of a session so that it can be resumed.

mod backend;
mod read;
mod rebind;
mod write;

pub(crate) use backend::BUILTIN;
pub use backend::{BackendState, CustomBackendState, NetworkMode};

use uuid::Uuid;

use crate::manifest::Manifest;
use crate::snapshot::Snapshot;

/// Marks a stored state with the grants that had a path of the host behind them.
pub const REDACTED_HOST_PATH_GRANTS: &str = "__openai_agents_redacted_host_path_grant_paths";

/// What is stored of a session.
///
/// A state is written without anything that grants access: [`serialize`](Self::serialize) leaves out
/// paths of the host and the credentials of mounts, and marks the state. What comes back from
/// storage is not trusted with either; a program that resumes gives them back from a manifest it
/// vouches for ([`rebind_path_grants`](Self::rebind_path_grants),
/// [`rebind_mount_authority`](Self::rebind_mount_authority)).
///
/// ```
/// use bastide_model::{Manifest, PathGrant, Registry, SessionState, Snapshot};
/// use bastide_model::state::BackendState;
/// use serde_json::json;
/// use uuid::Uuid;
///
/// let grant = json!({"path": "/data", "host_path": "/home/me/data"});
/// let grant: PathGrant = bastide_model::lax::read(&grant)?;
/// let manifest = Manifest { extra_path_grants: vec![grant], ..Manifest::default() };
/// let backend = BackendState::UnixLocal { workspace_root_owned: true };
/// let snapshot = Snapshot::Noop { id: "s".to_owned() };
/// let state = SessionState::new(Uuid::nil(), snapshot, manifest.clone(), backend);
///
/// let registry = Registry::builtin();
/// let stored = state.serialize(registry)?;
/// assert!(!stored.to_string().contains("/home/me"));
///
/// let state = SessionState::parse(stored, registry)?;
/// assert!(state.check_resumable().is_err());
/// let state = state.rebind_path_grants(Some(&manifest))?;
/// assert!(state.check_resumable().is_ok());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SessionState {
    /// The session.
    pub session_id: Uuid,
    /// Where its workspace is kept when it stops.
    pub snapshot: Snapshot,
    /// The workspace that was wanted.
    pub manifest: Manifest,
    /// The ports that can be reached from outside: none twice, none 0.
    pub exposed_ports: Vec<u16>,
    /// What the workspace looked like when it was last saved.
    pub snapshot_fingerprint: Option<String>,
    /// How that was found out.
    pub snapshot_fingerprint_version: Option<String>,
    /// Whether the workspace was made.
    pub workspace_root_ready: bool,
    /// What the backend needs to know.
    pub backend: BackendState,
    /// Grants that must be given their paths of the host again.
    path_grants_to_rebind: Vec<String>,
    mount_authority_redacted: bool,
    mount_authority_rebound: bool,
}

impl SessionState {
    /// The state of a new session, whose workspace is not made yet.
    #[must_use]
    pub fn new(
        session_id: Uuid,
        snapshot: Snapshot,
        manifest: Manifest,
        backend: BackendState,
    ) -> Self {
        Self {
            session_id,
            snapshot,
            manifest,
            exposed_ports: Vec::new(),
            snapshot_fingerprint: None,
            snapshot_fingerprint_version: None,
            workspace_root_ready: false,
            backend,
            path_grants_to_rebind: Vec::new(),
            mount_authority_redacted: false,
            mount_authority_rebound: false,
        }
    }

    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        self.backend.type_name()
    }

    /// The grants that must be given their paths of the host again before the session is resumed.
    #[must_use]
    pub fn path_grants_to_rebind(&self) -> &[String] {
        &self.path_grants_to_rebind
    }

    /// Whether mounts must be given their credentials again before the session is resumed.
    #[must_use]
    pub fn is_mount_authority_redacted(&self) -> bool {
        self.mount_authority_redacted
    }

    /// Whether mounts were given their credentials again: what ran before knows nothing of them.
    #[must_use]
    pub fn is_mount_authority_rebound(&self) -> bool {
        self.mount_authority_rebound
    }
}
