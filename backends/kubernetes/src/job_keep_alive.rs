//! What ties the object of a session to whoever makes it. It ends by a deadline that its maker keeps moving, until the guest has received what
//! the session is and ends by its own clock; and it goes soon after its end, until the session is let go of. So a maker that
//! is killed leaves nothing, wherever it was.

use std::io;
use std::path::{Path, PathBuf};
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

use crate::Owner;
use crate::cluster::{Call, Cluster};
use crate::end::end;
use crate::objects::NamedObject;
use crate::pod::object_name;
use crate::removal::remove_owner;
use crate::state::{load_end, store_end, write_private};

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

/// How long a `Sandbox` or a claim stays that no host was heard of: a little longer than its guest, and hosts move that.
const ALONE_SECONDS: u64 = 25 * 3600;

/// How often they do.
const MOVED: Duration = Duration::from_secs(3600);

/// When they did last, in the session's folder.
const MOVED_NAME: &str = "kept";

/// The object of a session, by the UID it must still have.
#[derive(Debug, Clone)]
pub(crate) struct OwnerRef {
    pub(crate) cluster: Cluster,
    pub(crate) owner: Owner,
    pub(crate) id: SessionId,
    pub(crate) uid: String,
    /// What is on everything of its home.
    pub(crate) home: String,
}

impl OwnerRef {
    fn path(&self) -> String {
        format!("{}/{}", self.owner.path(&self.cluster), object_name(&self.id))
    }

    async fn patch(&self, spec: serde_json::Value) -> Result<()> {
        let body = json!({ "metadata": { "uid": self.uid }, "spec": spec });
        let what = format!("change the {} of the session", self.owner.kind_name());
        let call = Call::patch(self.path(), &body, what).metadata();
        self.cluster.ask::<NamedObject>(call).await.map(drop)
    }

    /// Has the object last as long as its session.
    pub(crate) async fn detach(&self, dir: &Path, lifetime: Option<u64>) -> Result<()> {
        match (self.owner, lifetime) {
            (Owner::Job, _) => {
                self.patch(self.owner.lasting(None, lifetime, Some(KEPT_SECONDS))).await
            }
            (Owner::Sandbox | Owner::Claim, None) => self.move_end(dir).await,
            // Until now its end was moved from one sign of its maker to the next.
            (Owner::Sandbox | Owner::Claim, Some(_)) => {
                let what = format!("look at the {} of the session", self.owner.kind_name());
                let call = Call::get(self.path(), what).metadata();
                let made = self.cluster.ask::<NamedObject>(call).await?.metadata;
                let made = made.creation_timestamp;
                let kept = Some(KEPT_SECONDS);
                self.patch(self.owner.lasting(made.as_deref(), lifetime, kept)).await
            }
        }
    }

    /// Has a `Sandbox` or a claim of a session that a host was heard of last longer, if that was not done lately. Jobs end with
    /// their guests.
    pub(crate) async fn keep(&self, dir: &Path) {
        let moved = std::fs::metadata(dir.join(MOVED_NAME)).and_then(|file| file.modified());
        let is_due = moved.is_ok_and(|moved| moved.elapsed().is_ok_and(|since| since >= MOVED));
        if self.owner != Owner::Job && is_due {
            // The next host tries again.
            drop(self.move_end(dir).await);
        }
    }

    async fn move_end(&self, dir: &Path) -> Result<()> {
        let lasting = self.owner.lasting(None, Some(ALONE_SECONDS), Some(KEPT_SECONDS));
        self.patch(lasting).await?;
        // What cannot be noted is done once more.
        drop(write_private(&dir.join(MOVED_NAME), b""));
        Ok(())
    }

    /// Moves the deadline of an object that was `made` then, until its guest has a clock of its own; of one that does not end
    /// with its guest, for as long as this process has the session.
    async fn renew(
        self,
        made: Option<String>,
        lifetime: Option<u64>,
        is_up: Arc<AtomicBool>,
        renewal: Arc<Renewal>,
    ) {
        let begun = Instant::now();
        let mut wait = RENEWAL.0;
        loop {
            tokio::time::sleep(wait).await;
            let has_clock = is_up.load(Ordering::Relaxed);
            let later = begun.elapsed().as_secs() + START_SECONDS;
            let ends_with_guest = self.owner == Owner::Job;
            let deadline = match (has_clock && ends_with_guest, lifetime) {
                (true, lifetime) => lifetime,
                (false, lifetime) => Some(lifetime.map_or(later, |lifetime| lifetime.min(later))),
            };
            let is_stopped = renewal.0.lock().await;
            if *is_stopped {
                return;
            }
            match self.patch(self.owner.lasting(made.as_deref(), deadline, None)).await {
                Ok(()) if has_clock && ends_with_guest => return,
                Ok(()) => wait = RENEWAL.0,
                // It is gone, or another's.
                Err(error) if matches!(error.status(), Some(404 | 409 | 422)) => return,
                Err(_) => wait = RENEWAL.1,
            }
        }
    }
}

/// The moving of a deadline, which somebody may stop for good.
#[derive(Debug, Default)]
pub(crate) struct Renewal(tokio::sync::Mutex<bool>);

impl Renewal {
    /// Waits until nothing is on its way, and lets nothing go any more.
    pub(crate) async fn stop(&self) {
        *self.0.lock().await = true;
    }
}

/// What ties an object to this process.
pub(crate) struct JobKeepAlive {
    owner: OwnerRef,
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
    /// Ties an object that was just made, at that time by the cluster's clock.
    pub(crate) fn new(
        owner: OwnerRef,
        made: Option<String>,
        renewal: Arc<Renewal>,
        lifetime: Option<u64>,
        (dir, guest): (PathBuf, PathBuf),
        was_there: bool,
    ) -> Self {
        let is_up = Arc::new(AtomicBool::new(false));
        let renewing = owner.clone().renew(made, lifetime, Arc::clone(&is_up), renewal);
        let renewal = tokio::spawn(renewing).abort_handle();
        let (is_over, runtime) = (AtomicBool::new(false), Handle::current());
        Self { owner, dir, guest, was_there, is_up, is_over, runtime, renewal }
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
        let (owner, dir, guest) = (self.owner.clone(), self.dir.clone(), self.guest.clone());
        let was_there = self.was_there;
        // Where this process ends first, the guest ends by its own clock.
        self.runtime.spawn(async move {
            let OwnerRef { cluster, owner, id, uid, home } = owner;
            let removed = remove_owner(&cluster, owner, &home, &id, &uid).await;
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
