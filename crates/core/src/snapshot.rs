//! Keeping a workspace while no session runs.
//!
//! What a snapshot is called and which type it has is data: [`model::Snapshot`](Snapshot). How it is
//! saved and restored is a [`SnapshotKeeper`], which a session asks when it stops and when it starts.
//! [`SnapshotTypes`] leads from one to the other, and takes types of a program's own.

mod local;
pub(crate) mod paths;
mod remote;
pub(crate) mod restoring;
pub(crate) mod scanning;
pub mod store;
pub(crate) mod tar;
mod types;
mod workspace;

use std::fmt;

use async_trait::async_trait;
use bastide_model::snapshot::{FingerprintRecord, Snapshot};

use crate::Result;

pub use remote::{RemoteSnapshots, RemoteSnapshotsBinding};
pub use tar::WorkspaceArchive;
pub use types::SnapshotTypes;
pub use workspace::{Progress, Workspace};

/// Saves and restores the workspace of one session.
///
/// It is given the workspace and not a stream: what keeps tar files asks for one, and what keeps
/// files by their content looks at them through the session's link.
#[async_trait]
pub trait SnapshotKeeper: fmt::Debug + Send + Sync {
    /// Whether nothing is ever kept. A session then does not even look at its workspace.
    fn keeps_nothing(&self) -> bool {
        false
    }

    /// Whether there is something to restore. A session that finds something restores it instead of
    /// laying out its manifest.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be found out; a session does not start then.
    async fn is_restorable(&self, workspace: &Workspace<'_>) -> Result<bool>;

    /// Saves the workspace as it is now. Until that is done, whatever was saved before stays as it
    /// was: a failure on the way, of whatever kind, costs nothing.
    ///
    /// # Errors
    ///
    /// Fails if the workspace cannot be read or the snapshot cannot be written.
    async fn save(&self, workspace: &Workspace<'_>) -> Result<Saved>;

    /// Makes the workspace what it was when it was saved. Everything that is to be restored is there
    /// and verified before anything in the workspace is touched; what the workspace must
    /// [keep](Workspace::kept_paths) is left alone.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot cannot be read or is damaged, with the workspace as it was; or if the
    /// workspace cannot be written.
    async fn restore(&self, workspace: &Workspace<'_>) -> Result<()>;

    /// What the workspace looks like now, in the terms of [`Saved::fingerprint`]: a session that
    /// reattaches to a workspace that still looks as it was saved does not restore it.
    ///
    /// # Errors
    ///
    /// Fails if the workspace cannot be read; it is restored then.
    async fn fingerprint(&self, _workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
        Ok(None)
    }
}

/// What was saved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// What the workspace looked like; kept in the session's state.
    pub fingerprint: Option<FingerprintRecord>,
    /// What is not in the snapshot although it was in the workspace, such as sockets: where, and why.
    pub left_out: Vec<(String, String)>,
}

impl Saved {
    /// A workspace that looked like this.
    #[must_use]
    pub fn with_fingerprint(fingerprint: Option<FingerprintRecord>) -> Self {
        Self { fingerprint, left_out: Vec::new() }
    }
}

/// Keeps nothing.
#[derive(Debug, Clone)]
struct Nothing {
    snapshot: Snapshot,
}

#[async_trait]
impl SnapshotKeeper for Nothing {
    fn keeps_nothing(&self) -> bool {
        true
    }

    async fn is_restorable(&self, _workspace: &Workspace<'_>) -> Result<bool> {
        Ok(false)
    }

    async fn save(&self, _workspace: &Workspace<'_>) -> Result<Saved> {
        Ok(Saved::default())
    }

    async fn restore(&self, _workspace: &Workspace<'_>) -> Result<()> {
        match self.snapshot.never_restorable() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
