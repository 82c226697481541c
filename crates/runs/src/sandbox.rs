//! Runs in sandboxes of this project: the only part that knows sessions.

mod process;
mod sweep;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bastide::model::{Manifest, PathGrant};
use bastide::{
    Backend, Client, CreateOptions, Error, ErrorKind, GuestPath, Result, Rung, Session, SessionId,
};

use serde_json::Value;

use crate::agents::Agent;
use crate::backend::RunBackend;
use crate::live_runs::LiveRuns;
use crate::stream::Listener;
use crate::types::{CommandResult, RunArtifacts, RunConfig, RunSession};
use crate::workspace::cleanup_log::RunHome;
use crate::workspace::collected::collect;
use crate::workspace::{Workspace, WorkspaceOptions};

/// The variable that says where a user's own files are.
const HOME: &str = "HOME";

/// What a prepared session's metadata names the rung by.
const ISOLATION: &str = "isolation";

/// How a sandbox for runs shall be.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SandboxOptions {
    /// The folder the agent is given.
    pub workspace: PathBuf,
    /// How it is given it.
    pub given: WorkspaceOptions,
    /// How the session shall be.
    pub create: CreateOptions,
    /// What the session has besides: grants, users, variables. It has no entries, for the workspace is the
    /// agent's folder.
    pub manifest: Manifest,
    /// The run's name, if it is to have a certain one.
    pub name: Option<String>,
    /// Whether the sandbox goes when the run ends.
    pub remove_on_exit: bool,
    /// Whether a sandbox of the same name that was left is removed first.
    pub force_recreate: bool,
    /// What the commit with the change says.
    pub commit_message: Option<String>,
    /// Variables that the sandbox has by itself, such as sentinels for keys that are never inside.
    pub provided: Vec<String>,
}

impl SandboxOptions {
    /// Gives the agent its folder in that way.
    #[must_use]
    pub fn given(mut self, given: WorkspaceOptions) -> Self {
        self.given = given;
        self
    }

    /// Makes the session in that way.
    #[must_use]
    pub fn create(mut self, create: CreateOptions) -> Self {
        self.create = create;
        self
    }

    /// Gives the session what this manifest says besides its entries.
    #[must_use]
    pub fn manifest(mut self, manifest: Manifest) -> Self {
        self.manifest = manifest;
        self
    }

    /// Gives the run that name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Keeps the sandbox when the run ends.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.remove_on_exit = false;
        self
    }

    /// Removes a sandbox of the same name first.
    #[must_use]
    pub fn force_recreate(mut self) -> Self {
        self.force_recreate = true;
        self
    }

    /// Has the commit with the change say that.
    #[must_use]
    pub fn commit_message(mut self, commit_message: impl Into<String>) -> Self {
        self.commit_message = Some(commit_message.into());
        self
    }

    /// Counts these variables as there: the sandbox has them by itself.
    #[must_use]
    pub fn provided(mut self, provided: impl IntoIterator<Item = String>) -> Self {
        self.provided.extend(provided);
        self
    }
}

impl SandboxOptions {
    /// The usual options for a folder.
    #[must_use]
    pub fn new(workspace: impl Into<PathBuf>) -> Self {
        Self {
            workspace: workspace.into(),
            given: WorkspaceOptions::default(),
            create: CreateOptions::default(),
            manifest: Manifest::default(),
            name: None,
            remove_on_exit: true,
            force_recreate: false,
            commit_message: None,
            provided: Vec::new(),
        }
    }
}

/// Runs agents in sessions on some backend.
#[derive(Debug)]
pub struct Sandbox {
    backend: Arc<dyn Backend>,
    client: Client,
    home: RunHome,
    options: SandboxOptions,
    live: LiveRuns<LiveRun>,
}

/// A run that was prepared.
#[derive(Debug)]
struct LiveRun {
    session: Session,
    workspace: Arc<Workspace>,
    results: PathBuf,
    /// Where commands run, where that is not the session's own workspace.
    cwd: Option<GuestPath>,
    /// The home of the agent, where that is not the session's own.
    home: Option<String>,
}

/// A session for a run, and how commands run there.
#[derive(Debug)]
struct BootedRun {
    session: Session,
    cwd: Option<GuestPath>,
    home: Option<String>,
}

impl Sandbox {
    /// Runs on `backend`, kept under `home`.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, home: RunHome, options: SandboxOptions) -> Self {
        let client = Client::new(Arc::clone(&backend));
        Self { backend, client, home, options, live: LiveRuns::default() }
    }

    /// The same; sessions are made by this client of the same backend.
    #[must_use]
    pub fn with_client(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    /// Removes what an earlier run of the same name left, if that is wanted.
    async fn make_way(&self, id: &str) -> Result<()> {
        if !self.options.force_recreate {
            return Ok(());
        }
        self.clean_up(id).await
    }

    /// Takes back what there is of a run that is over.
    async fn clean_up(&self, id: &str) -> Result<()> {
        let Some(run) = self.home.take_left(id)? else { return Ok(()) };
        if let Some(session) = sweep::session_of(&run)? {
            self.client.delete(&session).await?;
        }
        sweep::retire(self.backend.as_ref(), run).await.map(drop)
    }

    /// Takes a workspace back, and what is in the run's folder with it.
    async fn discard(&self, workspace: Workspace) -> Result<()> {
        let path = workspace.close()?;
        self.backend.remove_tree(&path).await
    }

    async fn boot(
        &self,
        workspace: &Workspace,
        id: SessionId,
        config: &RunConfig,
    ) -> Result<BootedRun> {
        workspace.note_session(id.as_str())?;
        let mut manifest = self.options.manifest.clone();
        let folder = text(workspace.folder())?.to_owned();
        let mut grants = workspace.grants().to_vec();
        let (mut cwd, mut home) = (None, None);
        let (read_only, description, host_path) = (false, None, None);
        if self.backend.has_host_files() {
            manifest.root = folder;
            // Else the workspace would be the agent's home, and what it keeps there part of its change.
            let own = text(&workspace.run().home())?.to_owned();
            let given = manifest.environment.fixed().into_iter().chain(config.env.iter().cloned());
            home = given.rev().find(|(name, _)| name == HOME).map(|(_, value)| value);
            if home.is_none() {
                home = Some(own.clone());
                grants.push(PathGrant { path: own, read_only, description, host_path });
            }
        } else {
            let wrong = |error| Error::new(ErrorKind::InvalidInput, format!("{folder}: {error}"));
            cwd = Some(folder.parse().map_err(wrong)?);
            grants.insert(0, PathGrant { path: folder, read_only, description, host_path });
            // A grant that names no place of the host would be of the machine itself.
            for grant in &mut grants {
                grant.host_path.get_or_insert_with(|| grant.path.clone());
            }
        }
        manifest.extra_path_grants.extend(grants);
        let mut create = self.options.create.clone();
        create.id = Some(id);
        create.tied_to_owner = self.options.remove_on_exit;
        create.env.extend(config.env.iter().cloned());
        Ok(BootedRun { session: self.client.create(&manifest, create).await?, cwd, home })
    }
}

#[async_trait]
impl RunBackend for Sandbox {
    fn id(&self) -> &str {
        self.backend.name()
    }

    fn name(&self) -> Option<&str> {
        self.options.name.as_deref()
    }

    fn provides(&self, variable: &str) -> bool {
        let SandboxOptions { create, manifest, provided, .. } = &self.options;
        create.env.iter().any(|(name, value)| name == variable && !value.is_empty())
            || manifest.environment.value.contains_key(variable)
            || provided.iter().any(|name| name == variable)
    }

    fn confines(&self, session: &RunSession) -> bool {
        let rung = session.metadata.get(ISOLATION).and_then(Value::as_str);
        rung.is_some_and(|rung| rung != Rung::Unconfined.as_str())
    }

    async fn prepare(&self, agent: &Agent, config: &RunConfig) -> Result<RunSession> {
        if !self.options.manifest.entries.is_empty() {
            let message = "a manifest with entries cannot lay out the folder an agent is given";
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("put the files there, or leave `entries` out"));
        }
        let session_id = SessionId::random();
        let id = self.options.name.clone().unwrap_or_else(|| session_id.to_string());
        self.make_way(&id).await?;
        let mut given = self.options.given.clone();
        given.files.extend(agent.files()?);
        let run = self.home.begin(&id)?;
        let workspace = match Workspace::prepare(&self.options.workspace, &given, run).await {
            Ok(workspace) => workspace,
            Err(error) => {
                // A sweep tries again.
                drop(self.clean_up(&id).await);
                return Err(error);
            }
        };
        let mut config = config.clone();
        let own = agent.spec.env.iter().map(|(key, value)| (key.clone(), value.clone()));
        config.env.splice(0..0, own);
        let BootedRun { session, cwd, home } =
            match self.boot(&workspace, session_id, &config).await {
                Ok(booted) => booted,
                Err(error) => {
                    return match self.discard(workspace).await {
                        Ok(()) => Err(error),
                        Err(left) => {
                            Err(error.with_hint(format!("`sweep` removes what is left: {left}")))
                        }
                    };
                }
            };
        let mut prepared = RunSession::new(id.clone(), workspace.folder());
        prepared.sandbox_name.clone_from(&self.options.name);
        prepared.metadata.insert("agent_id".to_owned(), agent.spec.name.clone().into());
        let receipt = session.receipt().rung.as_str();
        prepared.metadata.insert(ISOLATION.to_owned(), receipt.into());
        let results = self.home.results(&id);
        let live = LiveRun { session, workspace: Arc::new(workspace), results, cwd, home };
        self.live.insert(prepared.id.clone(), live);
        Ok(prepared)
    }

    async fn run(
        &self,
        session: &RunSession,
        command: &[String],
        config: &RunConfig,
        listener: &mut Listener<'_>,
    ) -> Result<CommandResult> {
        let live = self.live.get(session)?;
        process::run(&live, command, config.timeout, listener).await
    }

    async fn collect(&self, session: &RunSession, config: &RunConfig) -> Result<RunArtifacts> {
        let live = self.live.get(session)?;
        process::end_all(&live.session).await?;
        let message = self.options.commit_message.as_deref().unwrap_or("Change by an agent");
        collect(&live.workspace, &live.results, &config.outputs, message).await
    }

    async fn cleanup(&self, session: &RunSession) -> Result<()> {
        let live = self.live.get(session)?;
        self.live.remove(session);
        let Some(LiveRun { session, workspace, .. }) = Arc::into_inner(live) else {
            return Err(Error::new(ErrorKind::Conflict, "the run is still being used"));
        };
        let Some(workspace) = Arc::into_inner(workspace) else {
            return Err(Error::new(ErrorKind::Conflict, "the run is still being collected"));
        };
        if !self.options.remove_on_exit {
            return workspace.leave();
        }
        let deleted = session.delete().await;
        if workspace.is_uncollected() {
            return workspace.leave().and(deleted);
        }
        self.discard(workspace).await.and(deleted)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        let message = format!("{} is not UTF-8, and cannot be a workspace", path.display());
        Error::new(ErrorKind::InvalidInput, message)
    })
}
