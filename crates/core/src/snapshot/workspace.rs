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

/// How far some long work is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Files and folders that are done.
    pub entries: u64,
    /// Bytes that are done.
    pub bytes: u64,
    /// How many entries there are, where that is known.
    pub total_entries: Option<u64>,
    /// How many bytes there are, where that is known.
    pub total_bytes: Option<u64>,
}

impl<'a> Workspace<'a> {
    /// Whose workspace it is.
    #[must_use]
    pub fn session(&self) -> &'a SessionId {
        self.id
    }

    /// Where it is inside.
    #[must_use]
    pub fn root(&self) -> &'a GuestPath {
        self.root
    }

    /// The way to the guest, for whoever has requests of their own.
    #[must_use]
    pub fn link(&self) -> &'a dyn Link {
        self.link
    }

    /// Its files, as the session's default user.
    #[must_use]
    pub fn files(&self) -> Files<'a> {
        Files::new(self.link, self.policy, None)
    }

    /// The manifest the session has now.
    #[must_use]
    pub fn manifest(&self) -> &'a Manifest {
        self.manifest
    }

    /// What is left out of snapshots: paths relative to the root, each with all that is below it.
    /// Ephemeral entries, mounts, and what the session was told to leave out.
    #[must_use]
    pub fn left_out(&self) -> &[PosixPath] {
        &self.left_out
    }

    /// What stays where it is when the workspace is cleared or restored: paths relative to the root,
    /// each with all that is below it. Something is mounted there.
    #[must_use]
    pub fn kept_paths(&self) -> &[PosixPath] {
        &self.kept
    }

    /// Whether it is a folder of the caller's, which is never cleared: nothing is restored over what
    /// it holds.
    #[must_use]
    pub fn must_be_empty(&self) -> bool {
        self.must_be_empty
    }

    /// What the session can ask of the program around it.
    #[must_use]
    pub fn dependencies(&self) -> &'a Dependencies {
        self.dependencies
    }

    /// Tells whoever waits how far the work is.
    pub fn report(&self, progress: Progress) {
        if let Some(tell) = self.progress {
            tell(progress);
        }
    }
}

impl fmt::Debug for Workspace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Workspace");
        out.field("session", self.id).field("root", self.root).finish_non_exhaustive()
    }
}
