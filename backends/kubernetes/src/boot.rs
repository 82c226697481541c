//! Bringing a pod up: its object is made, it is watched, and its guest receives what the session is.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bastide::backend::{KeepAlive, Retained};
use bastide::host::token;
use bastide::{Booted, Error, ErrorKind, Machine, MachineSpec, Result, SessionFolder};
use bastide_proto::hello::Token;
use bastide_proto::pod::PodReady;
use tokio::time::Instant;

use crate::Owner;
use crate::backend::NAME;
use crate::cluster::{Call, Cluster, encoded};
use crate::end::{PodState, cannot_begin, state, timed_out};
use crate::failure::{ApiStatus, refused, shortened};
use crate::guest_parts::GuestParts;
use crate::handshake::{GuestCall, RunningPod};
use crate::job_keep_alive::{JobKeepAlive, OwnerRef, Renewal};
use crate::lease;
use crate::objects::{Event, NamedObject, OwnerObject, Page, Pod, Version};
use crate::options::StoredOptions;
use crate::owner::check_served;
use crate::pod::{CONTAINER, GUEST_CONTAINER, Plan, object_name};
use crate::pod_feed::PodFeed;
use crate::pool;
use crate::progress::Progress;
use crate::proof;
use crate::receipt::receipt;
use crate::removal::{remove_claim, remove_own, remove_owner};
use crate::state::{State, forget_end};
use crate::watch::PodEvent;

/// How long a job may be without a pod before somebody looks why, at first and at most: one in a queue may wait for long.
const NO_POD_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How long to wait before a watch that broke is opened again, at first and at most.
const WATCH_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How much of the log of a guest that did not start is passed on.
const LOG_BYTES: u32 = 2048;

/// Everything a boot needs.
pub(crate) struct Boot<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) version: &'a Version,
    pub(crate) parts: &'a GuestParts,
    pub(crate) home: &'a str,
    pub(crate) folder: &'a SessionFolder,
    /// The program that removes folders.
    pub(crate) guest: PathBuf,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) made_with: &'a StoredOptions,
    /// What somebody stops when the session is let go of.
    pub(crate) renewal: Arc<Renewal>,
    /// Whether the session was there before.
    pub(crate) was_there: bool,
    pub(crate) progress: Option<&'a (dyn Fn(&str) + Send + Sync)>,
}

impl Boot<'_> {
    /// Brings the pod of a session up. When this fails, nothing of it is left in the cluster.
    pub(crate) async fn run(self) -> Result<Booted> {
        let token = token::load_or_make(self.folder.path()).map_err(|error| self.failed(&error))?;
        let forgotten = forget_end(self.folder.path());
        let forgotten = forgotten.and_then(|()| lease::forget(self.folder.path()));
        forgotten.map_err(|error| self.failed(&error))?;
        let kept = self.make_claim().await?;
        let owner = match self.make_owner().await {
            Ok(owner) => owner,
            Err(error) => {
                self.undo_claim(kept).await;
                return Err(error);
            }
        };
        let own = OwnerRef {
            cluster: self.cluster.clone(),
            owner: self.made_with.options.kind(),
            id: self.folder.id().clone(),
            uid: owner.metadata.uid.clone(),
            home: self.home.to_owned(),
        };
        let lifetime = self.made_with.options.lifetime_seconds;
        let made = owner.metadata.creation_timestamp.clone();
        let places = (self.folder.path().to_owned(), self.guest.clone());
        let keep_alive = JobKeepAlive::new(
            own,
            made,
            Arc::clone(&self.renewal),
            lifetime,
            places,
            self.was_there,
        );
        match self.start(&owner, &token, kept).await {
            Ok(mut booted) => {
                keep_alive.up();
                booted.keep_alive = Some(KeepAlive::new(keep_alive));
                Ok(booted)
            }
            Err(error) => {
                keep_alive.over();
                // The first failure is the one to tell; what stays is found by a sweep.
                let (id, uid) = (self.folder.id(), &owner.metadata.uid);
                let owner = self.made_with.options.kind();
                drop(remove_owner(self.cluster, owner, self.home, id, uid).await);
                self.undo_claim(kept).await;
                Err(error)
            }
        }
    }

    fn plan<'a>(&'a self, parts: &'a [String]) -> Plan<'a> {
        Plan {
            id: self.folder.id(),
            home: self.home,
            spec: self.spec,
            options: &self.made_with.options,
            parts,
            image_volumes: self.version.has_image_volumes(),
        }
    }

    /// Makes the volume of the workspace, if it is to have one; whether there was one already.
    async fn make_claim(&self) -> Result<bool> {
        let parts = self.parts.names();
        let Some(claim) = self.plan(&parts).claim() else { return Ok(false) };
        let path = self.cluster.path("/api/v1", "persistentvolumeclaims");
        match self
            .cluster
            .ask::<NamedObject>(Call::post(path, &claim, "make the volume of the workspace"))
            .await
        {
            Ok(_) => Ok(false),
            Err(error) if error.status() == Some(409) && self.was_there => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn undo_claim(&self, kept: bool) {
        if !kept && self.made_with.options.volume.is_some() {
            drop(remove_claim(self.cluster, self.home, self.folder.id()).await);
        }
    }

    /// Makes the object. That of a machine which ended stays for a while, so that its end can be told, and makes room for the next;
    /// so does one that was made by a request whose answer was lost.
    async fn make_owner(&self) -> Result<OwnerObject> {
        match self.post_owner().await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let owner = self.made_with.options.kind();
                remove_own(self.cluster, owner, self.home, self.folder.id()).await?;
                self.post_owner().await
            }
            made => made,
        }
    }

    async fn post_owner(&self) -> Result<OwnerObject> {
        let parts = self.parts.names();
        let object = self.plan(&parts).owner()?;
        let owner = self.made_with.options.kind();
        let what = format!("make the {} of the session", owner.kind_name());
        let call = Call::post(owner.path(self.cluster), &object, what);
        let made = self.cluster.ask::<OwnerObject>(call).await;
        if made.as_ref().is_err_and(|error| error.status() == Some(404)) {
            check_served(self.cluster, owner).await?;
        }
        made.map_err(|error| match error.status() {
            Some(409) => {
                let (name, namespace) = (object_name(self.folder.id()), &self.cluster.namespace);
                let message =
                    format!("there is a {} {name} in the namespace {namespace} already", owner.kind_name());
                Error::new(ErrorKind::Conflict, message)
                    .with_hint("one that was just stopped may be on its way out: try again; else make a fresh session")
            }
            _ => error,
        })
    }

    /// Watches the pod until its guest has answered, and opens the link.
    async fn start(&self, owner: &OwnerObject, token: &Token, kept: bool) -> Result<Booted> {
        let most = self.made_with.options.boot_time();
        let message = self.message(token).map_err(|error| self.failed(&error))?;
        let mut progress = Progress::new(self.progress);
        let waiting = self.wait(owner, &message, &mut progress);
        let up = match tokio::time::timeout(most, waiting).await {
            Ok(up) => up?,
            Err(_) => {
                let options = &self.made_with.options;
                return Err(match (&progress.pod, &options.pool) {
                    (None, Some(pool)) => pool::timed_out(pool, progress.claim.as_ref(), most),
                    (pod, _) => timed_out(pod.as_ref(), options.queue.as_deref(), most),
                });
            }
        };
        proof::check(self.spec.network, &self.made_with.options, &up.report)?;
        self.booted(owner, up, token, kept).await
    }

    async fn pod_feed(&self) -> Result<PodFeed> {
        let owner = self.made_with.options.kind();
        self.cluster.pod_feed(owner, self.home, self.folder.id()).await
    }

    async fn wait(
        &self,
        owner: &OwnerObject,
        message: &[u8],
        progress: &mut Progress<'_>,
    ) -> Result<RunningPod> {
        let mut feed: Option<PodFeed> = None;
        let mut again = WATCH_BACKOFF.0;
        let mut time_limit = NO_POD_BACKOFF.0;
        let mut look_at = Instant::now() + time_limit;
        loop {
            let Some(open) = &mut feed else {
                feed = match self.pod_feed().await {
                    Ok(feed) => Some(feed),
                    Err(error)
                        if error.is_retryable() == Some(true)
                            || error.kind() == ErrorKind::BackendLost =>
                    {
                        tokio::time::sleep(again).await;
                        again = (again * 2).min(WATCH_BACKOFF.1);
                        None
                    }
                    Err(error) => return Err(error),
                };
                continue;
            };
            let call_at = progress.next_call;
            let look = progress.pod.is_none().then_some(look_at);
            tokio::select! {
                () = until(look) => {
                    if let Some(queue) = &self.made_with.options.queue {
                        progress.say(format!("the queue {queue} has not admitted the session yet"));
                    }
                    self.check_refusal(owner, progress).await?;
                    time_limit = (time_limit * 2).min(NO_POD_BACKOFF.1);
                    look_at = Instant::now() + time_limit;
                }
                event = open.next() => match event {
                    Some(event) => {
                        again = WATCH_BACKOFF.0;
                        self.see(owner, event, progress).await?;
                    }
                    // How things are now is the first that a new one says.
                    None => {
                        feed = None;
                        tokio::time::sleep(again).await;
                        again = (again * 2).min(WATCH_BACKOFF.1);
                    }
                },
                () = until(call_at) => {
                    if let Some(pod) = progress.pod.clone() {
                        match self.call(pod, message).await? {
                            GuestCall::Up(up) => return Ok(*up),
                            GuestCall::NotYet(why) => progress.called(why)?,
                        }
                    }
                }
            }
        }
    }

    /// Fails if the cluster refuses to make the pod: a job is taken by admission whose pod is not, and only events say so.
    async fn check_refusal(&self, owner: &OwnerObject, progress: &mut Progress<'_>) -> Result<()> {
        let refuse = |message: String| {
            let api_status = ApiStatus { message, ..ApiStatus::default() };
            Err(refused("make the pod", 403, &api_status))
        };
        let kind = self.made_with.options.kind();
        if kind != Owner::Job {
            let path = format!("{}/{}", kind.path(self.cluster), object_name(self.folder.id()));
            let call = Call::get(path, format!("look at the {} of the session", kind.kind_name()));
            // A server that is away for a moment refuses nothing.
            let Ok(Some(found)) = self.cluster.find::<OwnerObject>(call).await else {
                return Ok(());
            };
            if let Some(pool) = &self.made_with.options.pool {
                let refusal = pool::refusal(pool, &found);
                progress.claim = Some(found);
                return refusal.map_or(Ok(()), Err);
            }
            let mut conditions = found.status.conditions.into_iter();
            return match conditions.find(|one| one.reason == "ReconcilerError") {
                Some(condition) => refuse(condition.message),
                None => Ok(()),
            };
        }
        let path = self.cluster.path("/api/v1", "events");
        let selector = encoded(&format!("involvedObject.uid={}", owner.metadata.uid));
        let path = format!("{path}?limit=20&fieldSelector={selector}");
        // Who may not look at events waits until the end.
        let events = self.cluster.ask::<Page<Event>>(Call::get(path, "look at events")).await;
        let events = events.map(|page| page.items).unwrap_or_default();
        match events.into_iter().find(|event| event.reason == "FailedCreate") {
            Some(event) => refuse(event.message),
            None => Ok(()),
        }
    }

    /// Looks at what became of the pod.
    async fn see(
        &self,
        owner: &OwnerObject,
        event: PodEvent,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let pod = match event {
            PodEvent::Changed(pod) => *pod,
            PodEvent::Gone(pod) if is_of(&pod, owner) => {
                let message = format!("the pod {} was deleted while it started", pod.metadata.name);
                return Err(Error::new(ErrorKind::BackendLost, message));
            }
            PodEvent::Gone(_) => return Ok(()),
        };
        // One that a former job of this session left behind is not this one's.
        if !is_of(&pod, owner) {
            return Ok(());
        }
        if let Some(error) = cannot_begin(&pod, &self.made_with.options) {
            return Err(error);
        }
        if let Some(pool) = &self.made_with.options.pool {
            pool::check_pod(pool, &pod, self.spec)?;
        }
        if let PodState::Ended(end) = state(&pod) {
            let log = self.log(&pod).await;
            let message = match log.is_empty() {
                true => format!(
                    "the guest did not start in the pod {}: {}",
                    pod.metadata.name, end.detail
                ),
                false => format!(
                    "the guest did not start in the pod {}: {}: {log}",
                    pod.metadata.name, end.detail
                ),
            };
            let hint = match pod.failed_guest_container() {
                Some(_) => {
                    "`KubernetesOptions::guest_image`: is it the image of this version, by `bastide kubernetes guest-image`?"
                }
                None => "is the node of another architecture, or the memory less than 32 MiB?",
            };
            return Err(Error::new(ErrorKind::BackendLost, message)
                .with_context("reason", end.reason)
                .with_hint(hint));
        }
        progress.see(pod);
        Ok(())
    }

    /// The end of what the container said, if that may be read.
    async fn log(&self, pod: &Pod) -> String {
        let path = self.cluster.path("/api/v1", "pods");
        let container = match pod.failed_guest_container() {
            Some(_) => GUEST_CONTAINER,
            None => CONTAINER,
        };
        let path = format!(
            "{path}/{}/log?container={container}&limitBytes={LOG_BYTES}&tailLines=20",
            pod.metadata.name
        );
        let log = self.cluster.text(Call::get(path, "read the log of the pod")).await;
        shortened(&log.unwrap_or_default())
    }

    async fn booted(
        &self,
        owner: &OwnerObject,
        up: RunningPod,
        token: &Token,
        kept: bool,
    ) -> Result<Booted> {
        let options = &self.made_with.options;
        let container = up.pod.container();
        let asked = up.pod.spec.containers.iter().find(|container| container.name == CONTAINER);
        let state = State {
            dir: self.folder.path().to_owned(),
            access: self.made_with.access.clone(),
            server: self.made_with.server.clone(),
            namespace_uid: self.made_with.namespace_uid.clone(),
            owner: options.kind(),
            owner_uid: owner.metadata.uid.clone(),
            pod: up.pod.metadata.name.clone(),
            pod_uid: up.pod.metadata.uid.clone(),
            node: up.pod.spec.node_name.clone(),
            image: asked.map(|container| container.image.clone()).unwrap_or_default(),
            image_id: container.map(|container| container.image_id.clone()).unwrap_or_default(),
            volume: options.volume.is_some(),
        };
        // Of a pool only the pod itself says what it is.
        let mut found = options.clone();
        found.many_users |= options.pool.is_some() && up.report.started_as.uid == 0;
        let state = serde_json::to_value(state).map_err(|error| self.failed(&error.into()))?;
        let machine = Machine {
            id: self.folder.id().clone(),
            backend: NAME.to_owned(),
            state,
            receipt: receipt(self.version, self.spec, &found, &up.pod, &up.report),
            environment: environment(&up.report),
            protocol: bastide_proto::VERSION,
        };
        let connection = self.cluster.link(&up.pod.metadata.name, up.stream, token).await?;
        let retained = if kept { Retained::Files } else { Retained::Nothing };
        Ok(Booted { machine, connection: Some(connection), keep_alive: None, retained })
    }

    fn failed(&self, error: &io::Error) -> Error {
        let (id, dir) = (self.folder.id(), self.folder.path());
        let message = format!("cannot start session {id} in {}: {error}", dir.display());
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    }
}

/// What commands start with: what the image says, as far as it is text.
fn environment(up: &PodReady) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    up.environment.iter().filter_map(|(key, value)| Some((text(key)?, text(value)?))).collect()
}

/// Waits until then, or for ever.
async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn is_of(pod: &Pod, owner: &OwnerObject) -> bool {
    pod.metadata.owner_references.iter().any(|of| of.uid == owner.metadata.uid)
        || pool::is_of(pod, owner)
}
