//! What a backend does, done by a cluster.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{Expose, Leases};
use bastide::host::{make_private, not_connected, remove_folder, session_of_folder, token};
use bastide::{
    Backend, Booted, Condition, Connection, Error, ErrorKind, ExpiryAction, Machine, MachineExit,
    MachineSpec, MachineStatus, Orphans, Result, SessionFolder, SessionId, SweepMode,
    home_identity,
};
use bastide_guest_bin::GuestBinary;
use tokio::runtime;
use tokio::sync::{Mutex, Semaphore};

use crate::boot::Boot;
use crate::cluster::Cluster;
use crate::end::{PodState, end, state};
use crate::guest_parts::GuestParts;
use crate::job_keep_alive::{OwnerRef, Renewal};
use crate::lease::LeaseNote;
use crate::link::dial_failed;
use crate::objects::Pod;
use crate::options::StoredOptions;
use crate::pod_cache::PodCache;
use crate::port_program::{PortProgram, TiedSessions};
use crate::readiness::KnownCluster;
use crate::refusal::check;
use crate::removal::{remove_claim, remove_own, remove_owner};
use crate::state::{
    COPIED, State, load_end, load_record, note_use, own_state, store_end, store_record,
};
use crate::stream::STREAM_AGE;
use crate::{ClusterAccess, KubernetesOptions, ports, sweep};

/// The word users choose this backend by.
pub(crate) const NAME: &str = "kubernetes";

/// The folder of programs in a home.
const GUESTS: &str = "guests";

/// How long the removal of a folder may take.
const REMOVAL: Duration = Duration::from_secs(120);

/// How many pods one process starts at a time.
const BOOTS: usize = 64;

/// After how long without a call links close, unless told.
const IDLE_LINK: Duration = Duration::from_secs(60);

type Report = Box<dyn Fn(&str) + Send + Sync>;

/// Runs sessions in pods.
pub struct KubernetesBackend {
    pub(crate) home: PathBuf,
    guest: GuestBinary,
    pub(crate) access: ClusterAccess,
    options: KubernetesOptions,
    progress: Option<Report>,
    /// By the runtime they were found in: a client has tasks there, and ends with them.
    clusters: Mutex<HashMap<(runtime::Id, ClusterAccess), Arc<KnownCluster>>>,
    parts: OnceLock<GuestParts>,
    pod_cache: PodCache,
    boots: Semaphore,
    /// After how long without a call links close.
    pub(crate) idle_link: Duration,
    stream_age: Duration,
    /// The program that holds published ports.
    pub(crate) port_program: Option<PortProgram>,
    /// The sessions that end with this process.
    pub(crate) tied: TiedSessions,
}

impl KubernetesBackend {
    /// A backend that keeps its sessions in the folder `home`, and creates new ones on the cluster that `access` leads to
    /// with `options`.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be written to.
    pub fn new(
        home: impl Into<PathBuf>,
        access: ClusterAccess,
        options: KubernetesOptions,
    ) -> Result<Self> {
        let home = home.into();
        let failed = |error: io::Error| {
            let message = format!("cannot keep sessions in {}: {error}", home.display());
            Error::new(ErrorKind::Io, message).with_condition(Condition::HomeUnusable)
        };
        bastide::check_home(&home)?;
        make_private(&home.join("sessions")).map_err(failed)?;
        let home = home.canonicalize().map_err(failed)?;
        let guest = GuestBinary::install(&home.join(GUESTS)).map_err(failed)?;
        Ok(Self {
            home,
            guest,
            access,
            options,
            progress: None,
            clusters: Mutex::default(),
            parts: OnceLock::new(),
            pod_cache: PodCache::default(),
            boots: Semaphore::new(BOOTS),
            idle_link: IDLE_LINK,
            stream_age: STREAM_AGE,
            port_program: None,
            tied: TiedSessions::default(),
        })
    }

    /// Sets what receives what a pod waits for.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Sets after how long without a call the link of a session that lives on closes, to be opened again with the next, and
    /// how old a stream gets before another takes its place: a minute and an hour, unless told.
    #[must_use]
    pub fn with_link_times(mut self, idle: Duration, age: Duration) -> Self {
        (self.idle_link, self.stream_age) = (idle, age);
        self
    }

    pub(crate) async fn cluster(&self, access: &ClusterAccess) -> Result<Arc<KnownCluster>> {
        let cache_key = (runtime::Handle::current().id(), access.clone());
        let mut known = self.clusters.lock().await;
        if let Some(found) = known.get(&cache_key) {
            return Ok(Arc::clone(found));
        }
        let mut cluster = Cluster::at(access).await?;
        cluster.stream_age = self.stream_age;
        let made = Arc::new(KnownCluster { cluster, ready: Mutex::new(None) });
        known.insert(cache_key, Arc::clone(&made));
        Ok(made)
    }

    /// The cluster that a session's pod is on. One that is somewhere else than it was is not asked.
    pub(crate) async fn cluster_of(&self, state: &State) -> Result<Cluster> {
        let cluster = self.cluster(&state.access).await?.cluster.clone();
        if cluster.server != state.server {
            let uid = cluster.namespace_uid().await?;
            if uid.is_none() || uid != state.namespace_uid {
                return Err(another(
                    &cluster,
                    &format!(
                        "it leads to {}, and the session is at {}",
                        cluster.server, state.server
                    ),
                ));
            }
        }
        Ok(cluster)
    }

    pub(crate) fn parts(&self) -> Result<&GuestParts> {
        if let Some(parts) = self.parts.get() {
            return Ok(parts);
        }
        let parts = GuestParts::embedded()?;
        Ok(self.parts.get_or_init(|| parts))
    }

    /// How the pod of a session is. A pod of the same name that is another's is none.
    async fn look(&self, state: &State) -> Result<Option<Pod>> {
        let cluster = self.cluster_of(state).await?;
        let home = home_identity(&self.home)?;
        let found = self.pod_cache.get(&cluster, state.owner, &home, &state.pod).await?;
        let found = found.filter(|pod| pod.metadata.uid == state.pod_uid);
        if found.is_none() && state.namespace_uid.is_some() {
            // It is gone, or this is another cluster, which says nothing about it.
            let uid = cluster.namespace_uid().await.or_else(|error| match error.status() {
                Some(404) => Ok(None),
                _ => Err(error),
            })?;
            if uid.is_some() && uid != state.namespace_uid {
                return Err(another(&cluster, "its namespace is another one of the same name"));
            }
        }
        Ok(found)
    }

    /// The same for a session whose end is not on record.
    async fn look_unless_ended(&self, state: &State) -> Result<Option<Pod>> {
        match load_end(&state.dir) {
            Some(_) => Ok(None),
            None => self.look(state).await,
        }
    }

    async fn close_ports(&self, dir: &Path, id: &SessionId) {
        self.tied.remove(id);
        ports::close(dir).await;
    }

    /// The object that the pod of a session belongs to.
    pub(crate) async fn owner_of(&self, state: &State, machine: &Machine) -> Result<OwnerRef> {
        let cluster = self.cluster_of(state).await?;
        let (id, uid, home) =
            (machine.id.clone(), state.owner_uid.clone(), home_identity(&self.home)?);
        Ok(OwnerRef { cluster, owner: state.owner, id, uid, home })
    }

    async fn end_pod(&self, state: &State, machine: &Machine) -> Result<()> {
        let OwnerRef { cluster, owner, id, uid, home } = self.owner_of(state, machine).await?;
        remove_owner(&cluster, owner, &home, &id, &uid).await
    }

    /// Removes a folder, whatever is in it: a session's (`remove`), or any (`remove-tree`).
    async fn remove_folder(&self, dir: &Path, how: &str) -> Result<()> {
        remove_folder(&self.guest.checked_path(), how, dir, REMOVAL).await
    }
}

#[async_trait]
impl Backend for KubernetesBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn home(&self) -> &Path {
        &self.home
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted> {
        let kept = load_record(folder.path())?;
        let was_there = kept.is_some();
        // A fork is what it was forked from.
        let like = spec.like.as_ref().map(|id| folder.path().with_file_name(id.as_str()));
        let alike = like.as_deref().map(load_record).transpose()?.flatten();
        let before = kept.or(alike);
        let options = before.as_ref().map_or(&self.options, |before| &before.options);
        options.check()?;
        check(spec, options)?;
        // A session stays where it was made, whoever resumes it.
        let access = before.as_ref().map_or(&self.access, |before| &before.access);
        let known = self.cluster(access).await?;
        let cluster = &known.cluster;
        let ready = self.ready(&known, options).await?;
        let made_with = StoredOptions {
            access: cluster.access.clone(),
            server: cluster.server.clone(),
            namespace_uid: ready.namespace_uid.clone(),
            options: options.clone(),
        };
        if let Some(before) = &before
            && before.namespace_uid.is_some()
            && before.namespace_uid != made_with.namespace_uid
        {
            return Err(another(cluster, "its namespace is another one of the same name"));
        }
        let noted = note_use(&self.home, &cluster.access)
            .and_then(|()| store_record(folder.path(), &made_with));
        noted.map_err(|error| {
            let message = format!("cannot start session {}: {error}", folder.id());
            Error::new(ErrorKind::Io, message)
        })?;
        let _turn = self
            .boots
            .acquire()
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let (parts, home) = (self.parts()?, &home_identity(&self.home)?);
        let progress =
            self.progress.as_deref().map(|report| report as &(dyn Fn(&str) + Send + Sync));
        let version = &ready.version;
        let renewal = Arc::<Renewal>::default();
        let boot = Boot {
            cluster,
            version,
            parts,
            home,
            folder,
            guest: self.guest.checked_path(),
            spec,
            made_with: &made_with,
            renewal: Arc::clone(&renewal),
            was_there,
            progress,
        };
        let booted = boot.run().await?;
        self.tied.add(folder.id(), renewal);
        Ok(booted)
    }

    async fn connect(&self, machine: &Machine) -> Result<Connection> {
        let (_, Some(state)) = own_state(&self.home, machine)? else {
            return Err(no_copy(&machine.id));
        };
        let token = token::load(&state.dir).map_err(|error| not_connected(&machine.id, error))?;
        let cluster = self.cluster_of(&state).await?;
        self.owner_of(&state, machine).await?.keep(&state.dir).await;
        let opened = cluster.dial(&state.pod).await;
        let opened = opened.map_err(|error| dial_failed(error, &machine.id, &state.pod))?;
        cluster.link(&state.pod, opened.stream, &token).await
    }

    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus> {
        let (_, Some(own)) = own_state(&self.home, machine)? else {
            return Ok(MachineStatus::Ended(MachineExit::unrecorded(COPIED)));
        };
        // Whoever ended it, or saw why, noted it.
        let found = match (load_end(&own.dir), self.look_unless_ended(&own).await?) {
            (Some(end), _) => end,
            (None, None) => gone(&own),
            (None, Some(pod)) => match state(&pod) {
                PodState::Alive => return Ok(MachineStatus::Running { guest_pid: None }),
                PodState::Lost(why) => {
                    // It may come back, so nothing is decided about it.
                    let message = format!("session {} cannot be reached: {why}", machine.id);
                    return Err(Error::new(ErrorKind::BackendLost, message)
                        .with_context("node", pod.spec.node_name.clone())
                        .with_hint("wait for the node, or for the cluster to give it up"));
                }
                PodState::Ended(end) => end,
            },
        };
        store_end(&own.dir, &found);
        // Nobody stands beside the pod, so whoever sees the end first does what is to be done then.
        if found.is_expired()
            && LeaseNote::load(&own.dir).is_some_and(|note| note.then == ExpiryAction::Delete)
        {
            self.destroy(machine).await?;
        }
        Ok(MachineStatus::Ended(found))
    }

    async fn detach_machine(&self, machine: &Machine) -> Result<()> {
        let (_, Some(own)) = own_state(&self.home, machine)? else { return Ok(()) };
        let lifetime = load_record(&own.dir)?.and_then(|record| record.options.lifetime_seconds);
        self.tied.stop_renewal(&machine.id).await;
        self.owner_of(&own, machine).await?.detach(&own.dir, lifetime).await?;
        self.tied.detach(&machine.id).await;
        Ok(())
    }

    async fn stop(&self, machine: &Machine) -> Result<()> {
        let (_, Some(own)) = own_state(&self.home, machine)? else { return Ok(()) };
        store_end(&own.dir, &end("stopped", "it was stopped".to_owned()));
        self.close_ports(&own.dir, &machine.id).await;
        self.end_pod(&own, machine).await
    }

    async fn destroy(&self, machine: &Machine) -> Result<()> {
        let (dir, own) = own_state(&self.home, machine)?;
        if let Some(own) = own {
            self.close_ports(&own.dir, &machine.id).await;
            // What is not there says nothing where this is another cluster.
            self.end_pod(&own, machine).await?;
            if own.volume {
                let cluster = self.cluster_of(&own).await?;
                remove_claim(&cluster, &home_identity(&self.home)?, &machine.id).await?;
            }
        }
        self.remove_folder(&dir, "remove").await
    }

    async fn discard(&self, folder: &Path) -> Result<()> {
        if let (Some(id), Ok(Some(record))) =
            (session_of_folder(&self.home, folder), load_record(folder))
        {
            let known = self.cluster(&record.access).await?;
            let home = home_identity(&self.home)?;
            remove_own(&known.cluster, record.options.kind(), &home, &id).await?;
            if record.options.volume.is_some() {
                remove_claim(&known.cluster, &home, &id).await?;
            }
        }
        self.remove_folder(folder, "remove").await
    }

    fn is_own(&self, machine: &Machine) -> Result<bool> {
        Ok(own_state(&self.home, machine)?.1.is_some())
    }

    async fn remove_tree(&self, folder: &Path) -> Result<()> {
        self.remove_folder(folder, "remove-tree").await
    }

    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        let home = home_identity(&self.home)?;
        self.sweep_each(|cluster| {
            let home = home.clone();
            async move { sweep::sweep(&cluster, &self.home, &home, mode).await }
        })
        .await
    }

    fn detaches_by_link(&self) -> bool {
        true
    }

    fn idle_link(&self) -> Option<Duration> {
        Some(self.idle_link)
    }

    fn expose(&self) -> Option<&dyn Expose> {
        Some(self)
    }

    fn keeps_files(&self) -> bool {
        self.options.volume.is_some()
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    /// What is stored of a session is what is stored of one on this machine: it is believed about nothing.
    fn state_types(&self) -> Vec<&'static str> {
        vec!["local"]
    }
}

/// What there is to say of a session whose pod is gone: one that was given a time had that until then at most.
fn gone(own: &State) -> MachineExit {
    match LeaseNote::load(&own.dir).is_some_and(LeaseNote::is_over) {
        true => end("expired", "its lease ran out, and its pod is gone".to_owned()),
        false => end("backend_lost", "its pod is gone".to_owned()),
    }
}

/// A session that was copied from another home has no pod here.
pub(crate) fn no_copy(id: &SessionId) -> Error {
    let message = format!("session {id} is not running: {COPIED}");
    Error::new(ErrorKind::BackendLost, message)
        .with_hint("use the original, or make a fresh session")
}

fn another(cluster: &Cluster, why: &str) -> Error {
    let message =
        format!("{} is not the cluster this session is on: {why}", cluster.access.described());
    Error::new(ErrorKind::Conflict, message)
        .with_hint("give the context its former cluster back, or remove the session's folder by hand if that is gone")
}

impl fmt::Debug for KubernetesBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesBackend")
            .field("home", &self.home)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
