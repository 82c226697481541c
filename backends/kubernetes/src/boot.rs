//! Bringing a pod up: its object is made, it is watched, and its guest hears what the session is.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bastide::backend::{KeepAlive, Retained};
use bastide::host::token;
use bastide::{Booted, Error, ErrorKind, Machine, MachineSpec, Result, SessionFolder};
use bastide_proto::hello::Token;
use bastide_proto::pod::PodUp;
use tokio::time::Instant;

use crate::backend::NAME;
use crate::cluster::{Call, Cluster, encoded};
use crate::end::{PodState, cannot_begin, late, state};
use crate::failure::{ApiStatus, refused, shortened};
use crate::guest_parts::GuestParts;
use crate::handshake::{GuestCall, RunningPod};
use crate::job_keep_alive::{JobKeepAlive, OwnedJob};
use crate::lease;
use crate::objects::{Event, Job, NamedObject, Page, Pod, Version};
use crate::options::StoredOptions;
use crate::pod::{Plan, SESSION_LABEL, object_name};
use crate::progress::Progress;
use crate::proof;
use crate::receipt::receipt;
use crate::removal::{remove_claim, remove_job, remove_own_job};
use crate::state::{State, forget_end};
use crate::watch::{PodEvent, PodWatch};

/// How long a job may be without a pod before somebody looks why, at first and at most: one in a queue may wait for long.
const NO_POD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How long to wait before a watch that broke is opened again, at first and at most.
const WATCH_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

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
        let job = match self.make_job().await {
            Ok(job) => job,
            Err(error) => {
                self.undo_claim(kept).await;
                return Err(error);
            }
        };
        let own = OwnedJob {
            cluster: self.cluster.clone(),
            id: self.folder.id().clone(),
            uid: job.metadata.uid.clone(),
        };
        let lifetime = self.made_with.options.lifetime_seconds;
        let places = (self.folder.path().to_owned(), self.guest.clone());
        let keep_alive = JobKeepAlive::new(own, lifetime, places, self.was_there);
        match self.start(&job, &token, kept).await {
            Ok(mut booted) => {
                keep_alive.up();
                booted.keep_alive = Some(KeepAlive::new(keep_alive));
                Ok(booted)
            }
            Err(error) => {
                keep_alive.over();
                // The first failure is the one to tell; what stays is found by a sweep.
                drop(remove_job(self.cluster, self.folder.id(), &job.metadata.uid).await);
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

    /// Makes the job. That of a machine which ended stays for a while, so that its end can be told, and makes room for the next.
    async fn make_job(&self) -> Result<Job> {
        match self.post_job().await {
            Err(error) if error.kind() == ErrorKind::Conflict && !self.folder.is_new() => {
                remove_own_job(self.cluster, self.home, self.folder.id()).await?;
                self.post_job().await
            }
            made => made,
        }
    }

    async fn post_job(&self) -> Result<Job> {
        let parts = self.parts.names();
        let object = self.plan(&parts).job()?;
        let path = self.cluster.path("/apis/batch/v1", "jobs");
        let call = Call::post(path, &object, "make the job of the session");
        self.cluster.ask::<Job>(call).await.map_err(|error| match error.status() {
            Some(409) => {
                let name = object_name(self.folder.id());
                let message = format!("there is a job {name} in the namespace {} already", self.cluster.namespace);
                Error::new(ErrorKind::Conflict, message)
                    .with_hint("one that was just stopped may be on its way out: try again; else make a fresh session")
            }
            _ => error,
        })
    }

    /// Watches the pod until its guest has answered, and opens the link.
    async fn start(&self, job: &Job, token: &Token, kept: bool) -> Result<Booted> {
        let most = self.made_with.options.boot_time();
        let message = self.message(token).map_err(|error| self.failed(&error))?;
        let mut progress = Progress::new(self.progress);
        let waiting = self.wait(job, &message, &mut progress);
        let up = match tokio::time::timeout(most, waiting).await {
            Ok(up) => up?,
            Err(_) => return Err(late(progress.pod.as_ref(), most)),
        };
        proof::check(self.spec.network, &self.made_with.options, &up.report)?;
        self.booted(job, up, token, kept).await
    }

    async fn wait(
        &self,
        job: &Job,
        message: &[u8],
        progress: &mut Progress<'_>,
    ) -> Result<RunningPod> {
        let mut watch: Option<PodWatch> = None;
        let mut again = WATCH_AGAIN.0;
        let mut patience = NO_POD.0;
        let mut look_at = Instant::now() + patience;
        loop {
            let Some(open) = &mut watch else {
                watch = match self.open_watch().await {
                    Ok(watch) => Some(watch),
                    Err(error)
                        if error.is_retryable() == Some(true)
                            || error.kind() == ErrorKind::BackendLost =>
                    {
                        tokio::time::sleep(again).await;
                        again = (again * 2).min(WATCH_AGAIN.1);
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
                    self.check_refusal(job).await?;
                    patience = (patience * 2).min(NO_POD.1);
                    look_at = Instant::now() + patience;
                }
                event = open.next() => match event {
                    Ok(Some(event)) => {
                        again = WATCH_AGAIN.0;
                        self.see(job, event, progress).await?;
                    }
                    // Closed, or out of date: how things are now is the first that a new one says.
                    Ok(None) | Err(_) => {
                        watch = None;
                        tokio::time::sleep(again).await;
                        again = (again * 2).min(WATCH_AGAIN.1);
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
    async fn check_refusal(&self, job: &Job) -> Result<()> {
        let path = self.cluster.path("/api/v1", "events");
        let selector = encoded(&format!("involvedObject.uid={}", job.metadata.uid));
        let path = format!("{path}?limit=20&fieldSelector={selector}");
        // Who may not look at events waits until the end.
        let events = self.cluster.ask::<Page<Event>>(Call::get(path, "look at events")).await;
        let events = events.map(|page| page.items).unwrap_or_default();
        match events.into_iter().find(|event| event.reason == "FailedCreate") {
            Some(event) => {
                let api_status = ApiStatus { message: event.message, ..ApiStatus::default() };
                Err(refused("make the pod", 403, &api_status))
            }
            None => Ok(()),
        }
    }

    async fn open_watch(&self) -> Result<PodWatch> {
        self.cluster.watch_pods(&format!("{SESSION_LABEL}={}", self.folder.id())).await
    }

    /// Looks at what became of the pod.
    async fn see(&self, job: &Job, event: PodEvent, progress: &mut Progress<'_>) -> Result<()> {
        let pod = match event {
            PodEvent::Changed(pod) => *pod,
            PodEvent::Gone(pod) if is_of(&pod, job) => {
                let message = format!("the pod {} was deleted while it started", pod.metadata.name);
                return Err(Error::new(ErrorKind::BackendLost, message));
            }
            PodEvent::Gone(_) => return Ok(()),
        };
        // One that a former job of this session left behind is not this one's.
        if !is_of(&pod, job) {
            return Ok(());
        }
        if let Some(error) = cannot_begin(&pod, &self.made_with.options.image) {
            return Err(error);
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
            return Err(Error::new(ErrorKind::BackendLost, message)
                .with_context("reason", end.reason)
                .with_hint(
                    "is the node of another architecture, or the memory less than 32 MiB?",
                ));
        }
        progress.see(pod);
        Ok(())
    }

    /// The end of what the container said, if that may be read.
    async fn log(&self, pod: &Pod) -> String {
        let path = self.cluster.path("/api/v1", "pods");
        let path = format!("{path}/{}/log?limitBytes={LOG_BYTES}&tailLines=20", pod.metadata.name);
        let log = self.cluster.text(Call::get(path, "read the log of the pod")).await;
        shortened(&log.unwrap_or_default())
    }

    async fn booted(&self, job: &Job, up: RunningPod, token: &Token, kept: bool) -> Result<Booted> {
        let options = &self.made_with.options;
        let container = up.pod.container();
        let state = State {
            dir: self.folder.path().to_owned(),
            access: self.made_with.access.clone(),
            server: self.made_with.server.clone(),
            namespace_uid: self.made_with.namespace_uid.clone(),
            job_uid: job.metadata.uid.clone(),
            pod: up.pod.metadata.name.clone(),
            pod_uid: up.pod.metadata.uid.clone(),
            node: up.pod.spec.node_name.clone(),
            image: options.image.clone(),
            image_id: container.map(|container| container.image_id.clone()).unwrap_or_default(),
            volume: options.volume.is_some(),
        };
        let state = serde_json::to_value(state).map_err(|error| self.failed(&error.into()))?;
        let machine = Machine {
            id: self.folder.id().clone(),
            backend: NAME.to_owned(),
            state,
            receipt: receipt(self.version, self.spec, options, &up.pod, &up.report),
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
fn environment(up: &PodUp) -> Vec<(String, String)> {
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

fn is_of(pod: &Pod, job: &Job) -> bool {
    pod.metadata.owner_references.iter().any(|owner| owner.uid == job.metadata.uid)
}
