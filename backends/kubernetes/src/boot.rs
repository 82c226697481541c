//! Bringing a pod up: its object is made, it is watched, and its guest hears what the session is.

use std::io;
use std::time::Duration;

use bastide::backend::{Duplex, Retained};
use bastide::{Booted, Connection, Error, ErrorKind, Machine, MachineSpec, Result, SessionFolder};
use bastide_proto::boot::{Resolver, ResourceLimits};
use bastide_proto::container::{ContainerReport, ContainerSpec, ContainerUp, MAX_SPEC};
use bastide_proto::hello::Token;
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::backend::NAME;
use crate::cluster::{Call, Cluster};
use crate::end::{PodState, cannot_begin, late, state};
use crate::failure::shortened;
use crate::guest_parts::GuestParts;
use crate::objects::{Job, NamedObject, Pod, Version};
use crate::options::MadeWith;
use crate::pod::{Plan, SESSION_LABEL, guest_command, object_name};
use crate::receipt::receipt;
use crate::removal::{remove_claim, remove_job};
use crate::state::{State, forget_end, make_token};
use crate::watch::{PodEvent, PodWatch};

/// When the guest is called for the first time after a node has its pod: most are there by then, and the cluster says
/// so later.
const FIRST_CALL: Duration = Duration::from_millis(400);

/// When it is called again. After the last of these the cluster's word is waited for.
const NEXT_CALL: Duration = Duration::from_millis(350);

/// How often it is called before the cluster says that its container runs.
const EARLY_CALLS: u32 = 2;

/// When it is called again that runs and does not answer.
const LATE_CALL: Duration = Duration::from_millis(250);

/// How often a guest whose container runs is called.
const LATE_CALLS: u32 = 40;

/// How long the guest may take to start what it starts.
const REPORT: Duration = Duration::from_secs(30);

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
    pub(crate) spec: &'a MachineSpec,
    pub(crate) made_with: &'a MadeWith,
    /// Whether the session was there before.
    pub(crate) was_there: bool,
    pub(crate) progress: Option<&'a (dyn Fn(&str) + Send + Sync)>,
}

/// A pod whose guest has answered.
struct RunningPod {
    pod: Pod,
    report: ContainerUp,
    stream: Box<dyn Duplex>,
}

/// How a call of the guest went.
enum Called {
    Up(Box<RunningPod>),
    /// It is not there yet, and what was said instead.
    NotYet(String),
}

impl Boot<'_> {
    /// Brings the pod of a session up. When this fails, nothing of it is left in the cluster.
    pub(crate) async fn run(self) -> Result<Booted> {
        let token = make_token(self.folder.path()).map_err(|error| self.failed(&error))?;
        forget_end(self.folder.path()).map_err(|error| self.failed(&error))?;
        let kept = self.make_claim().await?;
        let job = match self.make_job().await {
            Ok(job) => job,
            Err(error) => {
                self.undo_claim(kept).await;
                return Err(error);
            }
        };
        match self.start(&job, &token).await {
            Ok(up) => self.booted(&job, up, &token, kept),
            Err(error) => {
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

    async fn make_job(&self) -> Result<Job> {
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

    /// Watches the pod until its guest has answered.
    async fn start(&self, job: &Job, token: &Token) -> Result<RunningPod> {
        let most = self.made_with.options.boot_time();
        let message = self.message(token).map_err(|error| self.failed(&error))?;
        let mut progress = Progress::new(self.progress);
        let waiting = self.wait(job, &message, &mut progress);
        match tokio::time::timeout(most, waiting).await {
            Ok(done) => done,
            Err(_) => Err(late(progress.pod.as_ref(), most)),
        }
    }

    async fn wait(
        &self,
        job: &Job,
        message: &[u8],
        progress: &mut Progress<'_>,
    ) -> Result<RunningPod> {
        let mut watch: Option<PodWatch> = None;
        let mut again = WATCH_AGAIN.0;
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
            tokio::select! {
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
                            Called::Up(up) => return Ok(*up),
                            Called::NotYet(why) => progress.called(why)?,
                        }
                    }
                }
            }
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

    /// Calls the guest, and tells it what the session is.
    async fn call(&self, pod: Pod, message: &[u8]) -> Result<Called> {
        let words = guest_command("dial");
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let opened = match self.cluster.exec(&pod.metadata.name, &words).await {
            Ok(opened) => opened,
            // The node does not know the container yet, or does not answer for a moment.
            Err(error)
                if matches!(error.status(), Some(400 | 404 | 429 | 500 | 502 | 503 | 504)) =>
            {
                return Ok(Called::NotYet(error.message().to_owned()));
            }
            Err(error) if error.kind() == ErrorKind::BackendLost => {
                return Ok(Called::NotYet(error.message().to_owned()));
            }
            Err(error) => return Err(error),
        };
        let mut stream = opened.stream;
        match tokio::time::timeout(REPORT, exchange(&mut stream, message)).await {
            Ok(Ok(ContainerReport::Up(report))) => {
                Ok(Called::Up(Box::new(RunningPod { pod, report, stream })))
            }
            Ok(Ok(ContainerReport::Failed(failure))) => {
                let system = io::Error::from_raw_os_error(failure.errno);
                let message = format!("cannot {}: {system}", shortened(&failure.step));
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Ok(Err(error)) => Ok(Called::NotYet(format!("{error} {}", opened.end.reason()))),
            Err(_) => {
                let message =
                    format!("the guest of session {} did not start in time", self.folder.id());
                Err(Error::new(ErrorKind::AgentLost, message))
            }
        }
    }

    fn message(&self, token: &Token) -> io::Result<Vec<u8>> {
        bastide_proto::encode_prefixed(&self.container_spec(token)).map_err(io::Error::other)
    }

    fn container_spec(&self, token: &Token) -> ContainerSpec {
        let grants = |read_only: bool| {
            let kept = self.spec.grants.iter().filter(move |grant| grant.read_only == read_only);
            kept.map(|grant| grant.path.as_str().to_owned())
        };
        let root = self.spec.root.as_str().to_owned();
        let limits = &self.spec.limits;
        ContainerSpec {
            token: token.0,
            user: None,
            limits: ResourceLimits {
                memory: None,
                pids: limits.pids,
                cpu_millis: limits.cpu_millis,
                disk: limits.disk,
            },
            writable: std::iter::once(root).chain(grants(false)).collect(),
            readable: grants(true).collect(),
            identities: Vec::new(),
            writes_to_host: false,
            resolver: Resolver::default(),
            filtered: true,
            new_privileges: false,
            mounts: false,
        }
    }

    fn booted(&self, job: &Job, up: RunningPod, token: &Token, kept: bool) -> Result<Booted> {
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
            environment: Vec::new(),
            protocol: bastide_proto::VERSION,
        };
        let connection =
            Connection { stream: up.stream, token: token.clone(), side: None, greeted: false };
        let retained = if kept { Retained::Files } else { Retained::Nothing };
        Ok(Booted { machine, connection: Some(connection), keep_alive: None, retained })
    }

    fn failed(&self, error: &io::Error) -> Error {
        let (id, dir) = (self.folder.id(), self.folder.path());
        let message = format!("cannot start session {id} in {}: {error}", dir.display());
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    }
}

/// How far a pod has come.
struct Progress<'a> {
    pod: Option<Pod>,
    /// When the guest is called next, once its pod is on a node.
    next_call: Option<Instant>,
    early: u32,
    late: u32,
    tell: Option<&'a (dyn Fn(&str) + Send + Sync)>,
    told: String,
}

impl<'a> Progress<'a> {
    fn new(tell: Option<&'a (dyn Fn(&str) + Send + Sync)>) -> Self {
        Self { pod: None, next_call: None, early: 0, late: 0, tell, told: String::new() }
    }

    /// Notes how the pod is now, and when to call its guest.
    fn see(&mut self, pod: Pod) {
        let now = Instant::now();
        let was_placed = self.pod.as_ref().is_some_and(|before| !before.spec.node_name.is_empty());
        let was_running = self.pod.as_ref().is_some_and(Pod::is_running);
        if pod.is_running() && !was_running {
            self.next_call = Some(now);
        } else if !pod.spec.node_name.is_empty() && !was_placed {
            self.next_call = Some(now + FIRST_CALL);
        }
        let said = match (pod.spec.node_name.as_str(), pod.condition("PodScheduled")) {
            ("", Some(scheduled)) if scheduled.status == "False" => shortened(&scheduled.message),
            ("", _) => String::new(),
            (node, _) => format!("the pod is on node {node}"),
        };
        if let Some(tell) = self.tell
            && !said.is_empty()
            && said != self.told
        {
            tell(&said);
            self.told = said;
        }
        self.pod = Some(pod);
    }

    /// Notes that the guest did not answer, and when to call it again.
    fn called(&mut self, why: String) -> Result<()> {
        let is_running = self.pod.as_ref().is_some_and(Pod::is_running);
        let wait = match is_running {
            true => {
                self.late += 1;
                (self.late < LATE_CALLS).then_some(LATE_CALL)
            }
            false => {
                self.early += 1;
                (self.early < EARLY_CALLS).then_some(NEXT_CALL)
            }
        };
        self.next_call = wait.map(|wait| Instant::now() + wait);
        if is_running && wait.is_none() {
            let message =
                format!("the container runs, but its guest cannot be reached: {}", shortened(&why));
            return Err(Error::new(ErrorKind::BackendLost, message));
        }
        Ok(())
    }
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

async fn exchange(stream: &mut Box<dyn Duplex>, message: &[u8]) -> io::Result<ContainerReport> {
    stream.write_all(message).await?;
    stream.flush().await?;
    let mut prefix = [0; LENGTH_BYTES];
    stream.read_exact(&mut prefix).await?;
    let length = prefixed_length(prefix, MAX_SPEC).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    bastide_proto::decode::<ContainerReport>(&body).map_err(io::Error::other)
}
