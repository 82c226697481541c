//! Snapshots: a workspace, kept while no session runs.
//!
//! What a snapshot is called and which type it has is data: [`model::Snapshot`](Snapshot). How it is
//! saved and restored is a [`SnapshotStorage`], which a session calls when it stops and when it starts.
//! [`SnapshotTypes`] maps one to the other, and accepts types of a program's own.

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
/// It is given the workspace, not a stream: a keeper of tar files asks for one, and a keeper that
/// addresses files by content reads them through the session's link.
#[async_trait]
pub trait SnapshotStorage: fmt::Debug + Send + Sync {
    /// Whether nothing is ever kept. A session then does not even look at its workspace.
    fn is_noop(&self) -> bool {
        false
    }

    /// Whether there is a snapshot to restore. A session that has one restores it instead of laying
    /// out its manifest.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be determined; the session does not start then.
    async fn is_restorable(&self, workspace: &Workspace<'_>) -> Result<bool>;

    /// Saves the workspace as it is now. Until that is complete, the previous snapshot is
    /// unchanged, whatever fails.
    ///
    /// # Errors
    ///
    /// Fails if the workspace cannot be read or the snapshot cannot be written.
    async fn save(&self, workspace: &Workspace<'_>) -> Result<Saved>;

    /// Makes the workspace what it was when it was saved. Everything is read and verified before
    /// anything in the workspace is changed; [kept paths](Workspace::kept_paths) are left alone.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot cannot be read or is damaged, with the workspace unchanged; or if the
    /// workspace cannot be written.
    async fn restore(&self, workspace: &Workspace<'_>) -> Result<()>;

    /// The fingerprint of the workspace as it is now, comparable with [`Saved::fingerprint`]: a
    /// session that reattaches to a workspace whose fingerprint is unchanged does not restore it.
    ///
    /// # Errors
    ///
    /// Fails if the workspace cannot be read; it is restored then.
    async fn fingerprint(&self, _workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
        Ok(None)
    }
}

/// The result of saving a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The fingerprint of the workspace; kept in the session's state.
    pub fingerprint: Option<FingerprintRecord>,
    /// What was in the workspace and is not in the snapshot, such as sockets: the path, and the
    /// reason.
    pub left_out: Vec<(String, String)>,
}

impl Saved {
    /// A result with only a fingerprint.
    #[must_use]
    pub fn with_fingerprint(fingerprint: Option<FingerprintRecord>) -> Self {
        Self { fingerprint, left_out: Vec::new() }
    }
}

/// Keeps nothing.
#[derive(Debug, Clone)]
struct NoopSnapshot {
    snapshot: Snapshot,
}

#[async_trait]
impl SnapshotStorage for NoopSnapshot {
    fn is_noop(&self) -> bool {
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
