//! Cloud storage that a program of the host serves to sessions, against real servers on loopback.

mod flaky_proxy;
mod lifecycle;
mod manifests;
mod programs;
mod recipes;
mod refusals;
mod secrecy;
mod servers;

use std::time::Duration;

use bastide::backend::{HostMount, HostMounts};
use bastide::{ErrorKind, Session, SessionFolder};
use serde_json::Value;

use crate::suite::{Context, Trial, TrialError, skip};

/// Every trial of mounts from outside.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [
        lifecycle::TRIALS,
        manifests::TRIALS,
        programs::TRIALS,
        recipes::TRIALS,
        refusals::TRIALS,
        secrecy::TRIALS,
    ]
    .concat()
}

/// Those that show that a session has mounts, however its base was made.
#[must_use]
pub fn trials_of_copies() -> Vec<Trial> {
    lifecycle::TRIALS.iter().take(1).copied().collect()
}

/// Those of a rung that has no mounts of its own.
#[must_use]
pub fn trials_without() -> Vec<Trial> {
    refusals::WITHOUT.to_vec()
}

/// How long whoever uses a mount may go on when it is unmounted.
const LEAVE: Duration = Duration::from_secs(1);

/// A session, and what mounts in it.
struct Mounting<'a> {
    session: &'a Session,
    folder: SessionFolder,
    mounts: &'a dyn HostMounts,
}

impl<'a> Mounting<'a> {
    fn new(context: &'a Context, session: &'a Session) -> Result<Self, TrialError> {
        let mounts = context.backend.host_mounts().ok_or("nothing is mounted from outside here")?;
        let path = context.backend.home().join("sessions").join(session.id().as_str());
        Ok(Self { session, folder: SessionFolder::seen(path, session.id().clone())?, mounts })
    }

    /// A path in the workspace.
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.session.root())
    }

    /// Mounts a store on a folder of the workspace, read and write.
    async fn mount(&self, name: &str, provider: &str, store: Value) -> Result<(), TrialError> {
        self.mount_as(HostMount::new(self.at(name), provider, store).writable()).await
    }

    /// Mounts; skips the trial for a user who may not use FUSE, and has been told so.
    async fn mount_as(&self, mount: HostMount) -> Result<(), TrialError> {
        match self.mounts.mount(&self.folder, mount).await {
            Err(error)
                if error.kind() == ErrorKind::Unsupported && error.message().contains("fuse") =>
            {
                Err(skip(error.message()))
            }
            mounted => Ok(mounted?),
        }
    }

    async fn unmount(&self, name: &str) -> Result<(), TrialError> {
        Ok(self.mounts.unmount(&self.folder, &self.at(name), LEAVE).await?)
    }
}

/// A name that no other trial uses.
fn fresh(what: &str) -> String {
    format!("{what}-{}", uuid::Uuid::new_v4().simple())
}
