//! The workspace of a session, as whoever saves or restores it sees it.

use std::fmt;

use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::{Manifest, PosixPath};
use bastide_proto::GuestPath;

use crate::backend::SessionId;
use crate::client::dependencies::Dependencies;
use crate::link::Link;
use crate::session::files::Files;

/// The workspace of a live session, to be saved or restored.
pub struct Workspace<'a> {
    pub(crate) id: &'a SessionId,
    pub(crate) link: &'a dyn Link,
    pub(crate) policy: &'a WorkspacePathPolicy,
    pub(crate) root: &'a GuestPath,
    pub(crate) manifest: &'a Manifest,
    pub(crate) left_out: Vec<PosixPath>,
    pub(crate) kept: Vec<PosixPath>,
    pub(crate) must_be_empty: bool,
    pub(crate) dependencies: &'a Dependencies,
    pub(crate) progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
}

/// The progress of a long operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Files and folders that are done.
    pub entries: u64,
    /// Bytes that are done.
    pub bytes: u64,
    /// The total number of entries, if known.
    pub total_entries: Option<u64>,
    /// The total number of bytes, if known.
    pub total_bytes: Option<u64>,
}

impl<'a> Workspace<'a> {
    /// The id of its session.
    #[must_use]
    pub fn session(&self) -> &'a SessionId {
        self.id
    }

    /// Its path inside.
    #[must_use]
    pub fn root(&self) -> &'a GuestPath {
        self.root
    }

    /// The link to the guest, for requests that have no method here.
    #[must_use]
    pub fn link(&self) -> &'a dyn Link {
        self.link
    }

    /// Its files, as the session's default user.
    #[must_use]
    pub fn files(&self) -> Files<'a> {
        Files::new(self.link, self.policy, None)
    }

    /// The session's current manifest.
    #[must_use]
    pub fn manifest(&self) -> &'a Manifest {
        self.manifest
    }

    /// What snapshots leave out: paths relative to the root, each with everything below it. These
    /// are ephemeral entries, mounts, and what the session was told to leave out.
    #[must_use]
    pub fn left_out(&self) -> &[PosixPath] {
        &self.left_out
    }

    /// What stays where it is when the workspace is cleared or restored, because something is
    /// mounted there: paths relative to the root, each with everything below it.
    #[must_use]
    pub fn kept_paths(&self) -> &[PosixPath] {
        &self.kept
    }

    /// Whether it is a folder that belongs to the caller, which is never cleared: nothing is
    /// restored over existing files.
    #[must_use]
    pub fn must_be_empty(&self) -> bool {
        self.must_be_empty
    }

    /// What the session can request from the program.
    #[must_use]
    pub fn dependencies(&self) -> &'a Dependencies {
        self.dependencies
    }

    /// Reports progress.
    pub fn report(&self, progress: Progress) {
        if let Some(on_progress) = self.progress {
            on_progress(progress);
        }
    }
}

impl fmt::Debug for Workspace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Workspace");
        out.field("session", self.id).field("root", self.root).finish_non_exhaustive()
    }
}
