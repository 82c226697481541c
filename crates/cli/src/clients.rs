//! The sessions of this home, wherever they run: the record of each says where.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex, PoisonError};

use bastide::snapshot::store::{SaveOptions, SaveReport};
use bastide::{
    Backend, Client, Error, ErrorKind, JournalLog, Result, ResumeOptions, Saved, Session,
    SessionId, SessionInfo, Store, SweepItem, SweepOptions, SweepReport, Usage,
};
use bastide_docker::{DockerBackend, DockerOptions};
use bastide_kubernetes::{ClusterAccess, KubernetesBackend, KubernetesOptions};
use bastide_local::LocalBackend;
use bastide_runs::RunHome;
use bastide_sbx::{SbxBackend, SbxOptions};

use crate::args::policy::environment;
use crate::{config, events};

/// A client for each backend.
#[derive(Debug)]
pub(crate) struct Clients {
    local: Client,
    docker: OnceCell<Client>,
    sbx: OnceCell<Client>,
    kubernetes: OnceCell<Client>,
}

/// Clients for the sessions of this home.
pub(crate) fn clients() -> Result<Clients> {
    let local = client_of(&local_backend()?)?;
    let (docker, sbx, kubernetes) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
    Ok(Clients { local, docker, sbx, kubernetes })
}

/// Sessions on this machine.
pub(crate) fn local_backend() -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(LocalBackend::new(config::home()?)?))
}

/// Sessions in containers like this.
pub(crate) fn docker_backend(
    options: DockerOptions,
    progress: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Arc<dyn Backend>> {
    let backend = DockerBackend::new(config::home()?, config::engine()?, options)?;
    Ok(Arc::new(backend.with_progress(progress)))
}

/// Sessions in microVMs like this.
pub(crate) fn sbx_backend(options: SbxOptions) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(SbxBackend::new(config::home()?, config::sbx(), options)?))
}

/// Sessions in pods like this.
pub(crate) fn kubernetes_backend(
    access: ClusterAccess,
    options: KubernetesOptions,
    progress: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Arc<dyn Backend>> {
    let mut backend = KubernetesBackend::new(config::home()?, access, options)?;
    if let Ok(program) = std::env::current_exe() {
        // A command is over when it has said the address of a port.
        let args = ["kubernetes", "hold-ports"].map(str::to_owned);
        backend = backend.with_port_program(program, args.to_vec());
    }
    Ok(Arc::new(backend.with_progress(progress)))
}

/// What is known of pods in general: where a session is, it says itself.
pub(crate) fn pods_backend() -> Result<KubernetesBackend> {
    let access = ClusterAccess::new(config::kubeconfig());
    KubernetesBackend::new(config::home()?, access, KubernetesOptions::default())
}

/// A client that knows the snapshots of this home, and tells whoever is to hear of it.
pub(crate) fn client_of(backend: &Arc<dyn Backend>) -> Result<Client> {
    let client = Client::new(Arc::clone(backend)).with_environment(environment());
    Ok(store()?.known_to(client)?.with_events(events::options()?))
}

/// The runs of agents of this home.
pub(crate) fn run_home() -> Result<RunHome> {
    RunHome::at(config::runs()?)
}

/// Whether there has been a run in this home.
pub(crate) fn had_runs() -> Result<bool> {
    Ok(config::runs()?.is_dir())
}

/// The store of snapshots of this home.
pub(crate) fn store() -> Result<Store> {
    Store::open(config::home()?.join("snapshots"))
}

/// The sessions this command went on with.
static ATTACHED: Mutex<Vec<SessionId>> = Mutex::new(Vec::new());

/// What a command failed with, said better where one of its sessions ended meanwhile.
pub(crate) async fn explained(error: Error) -> Error {
    let lost = matches!(error.kind(), ErrorKind::AgentLost | ErrorKind::BackendLost);
    let attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (true, Ok(clients)) = (lost, clients()) else { return error };
    let mut error = error;
    for id in attached {
        if let Ok(client) = clients.of(&id) {
            error = client.explain(&id, error).await;
        }
    }
    error
}

impl Clients {
    /// The client for sessions on this machine.
    pub(crate) fn local(self) -> Client {
        self.local
    }

    fn docker(&self) -> Result<&Client> {
        if let Some(client) = self.docker.get() {
            return Ok(client);
        }
        let client = client_of(&docker_backend(DockerOptions::default(), |_| {})?)?;
        Ok(self.docker.get_or_init(|| client))
    }

    fn sbx(&self) -> Result<&Client> {
        if let Some(client) = self.sbx.get() {
            return Ok(client);
        }
        let client = client_of(&sbx_backend(SbxOptions::new())?)?;
        Ok(self.sbx.get_or_init(|| client))
    }

    fn kubernetes(&self) -> Result<&Client> {
        if let Some(client) = self.kubernetes.get() {
            return Ok(client);
        }
        // Where a session is, its own record says.
        let access = ClusterAccess::new(config::kubeconfig());
        let backend = kubernetes_backend(access, KubernetesOptions::default(), |_| {})?;
        let client = client_of(&backend)?;
        Ok(self.kubernetes.get_or_init(|| client))
    }

    /// The clients of other backends that this home has had sessions on.
    fn others(&self) -> Result<Vec<&Client>> {
        let home = config::home()?;
        let mut others = Vec::new();
        if bastide_docker::was_used(&home) {
            others.push(self.docker()?);
        }
        if bastide_sbx::was_used(&home) {
            others.push(self.sbx()?);
        }
        if bastide_kubernetes::was_used(&home) {
            others.push(self.kubernetes()?);
        }
        Ok(others)
    }

    /// The client for the backend a session is on.
    pub(crate) fn of(&self, id: &SessionId) -> Result<&Client> {
        match self.local.backend_of(id).as_deref() {
            Some("docker") => self.docker(),
            Some("sbx") => self.sbx(),
            Some("kubernetes") => self.kubernetes(),
            _ => Ok(&self.local),
        }
    }

    /// The one session whose name begins with `prefix`.
    pub(crate) fn find(&self, prefix: &str) -> Result<SessionId> {
        self.local.find(prefix)
    }

    /// Goes on with a session that runs.
    pub(crate) async fn attach(&self, id: &SessionId) -> Result<Session> {
        let session = self.of(id)?.attach(id).await?;
        ATTACHED.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        Ok(session)
    }

    /// Makes sessions that begin with the files of another.
    pub(crate) async fn fork(
        &self,
        session: &Session,
        count: usize,
        at: Option<&str>,
    ) -> Result<Vec<Session>> {
        self.of(session.id())?.fork(session, count, at).await
    }

    /// Makes a fork that ends with this process.
    pub(crate) async fn fork_tied(&self, session: &Session, at: &str) -> Result<Session> {
        self.of(session.id())?.fork_tied(session, Some(at)).await
    }

    /// The points of a session.
    pub(crate) fn log(&self, id: &SessionId) -> Result<JournalLog> {
        self.of(id)?.log(id)
    }

    /// What is known about one session.
    pub(crate) async fn inspect(&self, id: &SessionId) -> Result<SessionInfo> {
        self.of(id)?.inspect(id).await
    }

    /// What a session that runs used.
    pub(crate) async fn usage(&self, id: &SessionId) -> Result<Usage> {
        self.of(id)?.usage(id).await
    }

    /// Saves a session and ends everything in it.
    pub(crate) async fn stop(&self, id: &SessionId) -> Result<Saved> {
        self.of(id)?.stop(id).await
    }

    /// Saves the workspace of a session.
    pub(crate) async fn save_snapshot(
        &self,
        id: &SessionId,
        store: &Store,
        name: &str,
        options: SaveOptions<'_>,
    ) -> Result<SaveReport> {
        self.of(id)?.save_snapshot_with(id, store, name, options).await
    }

    /// Goes on with a session that was stopped, or that ended.
    pub(crate) async fn resume_with(
        &self,
        id: &SessionId,
        options: ResumeOptions,
    ) -> Result<Session> {
        self.of(id)?.resume_with(id, options).await
    }

    /// Removes a session, in whatever state it is.
    pub(crate) async fn delete(&self, id: &SessionId) -> Result<bool> {
        let deleted = self.of(id)?.delete(id).await?;
        self.forget_snapshot(id)?;
        Ok(deleted)
    }

    /// Removes what a session that is gone was kept in while it was stopped: it is of no use without it. Another session
    /// that has its name by now keeps its own.
    fn forget_snapshot(&self, id: &SessionId) -> Result<()> {
        match self.local.backend_of(id) {
            None => store()?.remove(id.as_str()).map(drop),
            Some(_) => Ok(()),
        }
    }

    /// Does what is left to do about sessions that their leases deleted.
    pub(crate) async fn finish_deletions(&self) {
        // Whichever backend they were on.
        self.local.finish_deletions().await;
    }

    /// Every session there is, the oldest first.
    pub(crate) async fn list(&self) -> Result<Vec<SessionInfo>> {
        let mut all = self.local.list().await?;
        for other in self.others()? {
            let more = other.list().await?;
            // Each of them lists those that nobody can tell where they are.
            let is_new = |info: &SessionInfo| !all.iter().any(|known| known.id == info.id);
            let more: Vec<_> = more.into_iter().filter(is_new).collect();
            all.extend(more);
        }
        all.sort_by(|one, other| {
            (one.created_at_ms, &one.id).cmp(&(other.created_at_ms, &other.id))
        });
        Ok(all)
    }

    /// Removes what no session needs.
    pub(crate) async fn sweep(&self, options: SweepOptions) -> Result<SweepReport> {
        let report = self.sweep_sessions(options).await?;
        if !options.dry_run {
            let mut ids = report.removed.iter().filter_map(|swept| swept.id.as_ref());
            ids.try_for_each(|id| self.forget_snapshot(id))?;
        }
        Ok(report)
    }

    async fn sweep_sessions(&self, options: SweepOptions) -> Result<SweepReport> {
        let mut report = self.local.sweep_with(options).await?;
        for other in self.others()? {
            // Who comes last sees all that was kept.
            let mut last = other.sweep_with(options).await?;
            last.removed.splice(0..0, report.removed);
            last.failed.splice(0..0, report.failed);
            last.ended.splice(0..0, report.ended);
            // Each of them finds those that nobody can tell whose they are.
            let is_new = |swept: &SweepItem| !last.unclear.contains(swept);
            let unclear: Vec<_> = report.unclear.into_iter().filter(is_new).collect();
            last.unclear.splice(0..0, unclear);
            report = last;
        }
        Ok(report)
    }

    /// Waits until what was changed is in the index.
    pub(crate) async fn flush(&self) {
        self.local.flush().await;
    }
}
