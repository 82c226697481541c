//! What is shaped like the reference, for programs written against it.
//!
//! *The reference* is the sandbox package of the OpenAI Agents SDK (Python), release 0.24.0.
//! [`Session::compat`] is a view of a session with the reference's calls: its names, its results, its
//! errors by [class](crate::Error::class). All it does can be done with [`Session`] too, or is a part of
//! what [`Session`] does by itself.

mod archive;
mod exec;
mod ports;
pub(crate) mod pty;
mod workspace;

use bastide_model::PosixPath;

use crate::Session;

pub use bastide_model::error::{ErrorClass, raise};
pub use bastide_model::pty::PtyExecUpdate;
pub use exec::ExecResult;
pub use pty::PtyLimits;
pub use workspace::ManifestPart;

pub use crate::snapshot::WorkspaceArchive;

/// A session with the calls of the reference.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceSession<'a> {
    session: &'a Session,
}

impl Session {
    /// This session with the calls of the reference.
    #[must_use]
    pub fn compat(&self) -> ReferenceSession<'_> {
        ReferenceSession { session: self }
    }
}

impl ReferenceSession<'_> {
    /// Whether the session was started, was not shut down, and its guest answers.
    /// A session that cannot say so, because a sink that must hear of it fails, does not:
    /// [`Session::is_running`] says why.
    pub async fn running(self) -> bool {
        self.session.is_running().await.unwrap_or(false)
    }

    /// Files of the workspace that belong to sinks and stay out of snapshots.
    #[must_use]
    pub fn event_skip_paths(self) -> Vec<PosixPath> {
        self.session.sink_paths()
    }
}
