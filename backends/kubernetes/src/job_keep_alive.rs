//! What ties a job to whoever makes it. A job ends by a deadline that its maker keeps moving, until the guest has heard what
//! the session is and ends by its own clock; and it goes soon after its end, until the session is let go of. So a maker that
//! is killed leaves nothing, wherever it was.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bastide::backend::KeepAliveHandle;
use bastide::host::remove_folder;
use bastide::{Result, SessionId};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cluster::{Call, Cluster};
use crate::end::end;
use crate::objects::NamedObject;
use crate::pod::object_name;
use crate::removal::remove_job;
use crate::state::{load_end, store_end};

/// After how many seconds a job ends whose maker is not heard of, before its guest has a clock.
pub(crate) const START_SECONDS: u64 = 80;

/// How long an object stays that ended before it was let go of: its maker is there, and looks.
pub(crate) const TIED_SECONDS: u64 = 10;

/// How long one stays that ended later, so that somebody sees why.
const KEPT_SECONDS: u64 = 600;

/// How often the deadline is moved, and how soon again if that failed.
const RENEWAL: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(2));

/// How long the removal of a folder may take.
const REMOVAL: Duration = Duration::from_secs(120);

/// The deadline of a job that begins.
pub(crate) fn first_deadline(lifetime: Option<u64>) -> u64 {
    lifetime.map_or(START_SECONDS, |lifetime| lifetime.min(START_SECONDS))
}

/// A job, by the UID it must still have.
#[derive(Debug, Clone)]
pub(crate) struct OwnedJob {
    pub(crate) cluster: Cluster,
    pub(crate) id: SessionId,
    pub(crate) uid: String,
}

impl OwnedJob {
    async fn patch(&self, spec: serde_json::Value) -> Result<()> {
        let path = self.cluster.path("/apis/batch/v1", "jobs");
        let path = format!("{path}/{}", object_name(&self.id));
        let body = json!({ "metadata": { "uid": self.uid }, "spec": spec });
        let call = Call::patch(path, &body, "change the job of the session").metadata();
        self.cluster.ask::<NamedObject>(call).await.map(drop)
    }

    /// Has the job last as long as its session.
    pub(crate) async fn let_go(&self, lifetime: Option<u64>) -> Result<()> {
        self.patch(json!({
            "activeDeadlineSeconds": lifetime,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        }))
        .await
    }

    async fn renew(self, lifetime: Option<u64>, is_up: Arc<AtomicBool>) {
        let begun = Instant::now();
        let mut wait = RENEWAL.0;
        loop {
            tokio::time::sleep(wait).await;
            let has_clock = is_up.load(Ordering::Relaxed);
            let later = begun.elapsed().as_secs() + START_SECONDS;
            let deadline = match (has_clock, lifetime) {
                (true, lifetime) => lifetime,
                (false, lifetime) => Some(lifetime.map_or(later, |lifetime| lifetime.min(later))),
            };
            match self.patch(json!({ "activeDeadlineSeconds": deadline })).await {
                Ok(()) if has_clock => return,
                Ok(()) => wait = RENEWAL.0,
                // It is gone, or another's.
                Err(error) if matches!(error.status(), Some(404 | 409 | 422)) => return,
                Err(_) => wait = RENEWAL.1,
            }
        }
    }
}

/// What ties a job to this process.
pub(crate) struct JobKeepAlive {
    job: OwnedJob,
    /// The session's folder, and the program that removes such.
    dir: PathBuf,
    guest: PathBuf,
    /// Whether the session was there before: its folder stays then.
    was_there: bool,
    is_up: Arc<AtomicBool>,
    is_over: AtomicBool,
    runtime: Handle,
    renewal: AbortHandle,
}

impl JobKeepAlive {
    /// Ties a job that was just made.
    pub(crate) fn new(
        job: OwnedJob,
        lifetime: Option<u64>,
        (dir, guest): (PathBuf, PathBuf),
        was_there: bool,
    ) -> Self {
        let is_up = Arc::new(AtomicBool::new(false));
        let renewal = tokio::spawn(job.clone().renew(lifetime, Arc::clone(&is_up))).abort_handle();
        let (is_over, runtime) = (AtomicBool::new(false), Handle::current());
        Self { job, dir, guest, was_there, is_up, is_over, runtime, renewal }
    }

    /// The guest has its clock.
    pub(crate) fn up(&self) {
        self.is_up.store(true, Ordering::Relaxed);
    }

    /// Nothing is left to be done by this: the job was removed, or goes on.
    pub(crate) fn over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.renewal.abort();
    }
}

impl KeepAliveHandle for JobKeepAlive {
    fn release(&self) -> io::Result<()> {
        self.over();
        Ok(())
    }
}

impl Drop for JobKeepAlive {
    fn drop(&mut self) {
        self.renewal.abort();
        // What was stopped or removed has ended already.
        let is_over = self.is_over.load(Ordering::Relaxed);
        if is_over || !self.dir.exists() || load_end(&self.dir).is_some() {
            return;
        }
        // What a session was resumed from is kept.
        let reason = if self.was_there { "stopped" } else { "abandoned" };
        store_end(&self.dir, &end(reason, "whoever started it is done with it".to_owned()));
        let (job, dir, guest) = (self.job.clone(), self.dir.clone(), self.guest.clone());
        let was_there = self.was_there;
        // Where this process ends first, the guest ends by its own clock.
        self.runtime.spawn(async move {
            let removed = remove_job(&job.cluster, &job.id, &job.uid).await;
            if removed.is_ok() && !was_there {
                // What stays is found by a sweep.
                drop(remove_folder(&guest, "remove", &dir, REMOVAL).await);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_with_a_deadline_that_no_lifetime_lengthens() {
        assert_eq!(first_deadline(None), START_SECONDS);
        assert_eq!(first_deadline(Some(5)), 5);
        assert_eq!(first_deadline(Some(100_000)), START_SECONDS);
    }
}
