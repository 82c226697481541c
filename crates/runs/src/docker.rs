//! The reference's plain Docker sandbox: one `docker run` for each command.
//!
//! It is the `docker` program that is called, because its further words (`docker_args`) are the user's.
//! Beyond what the reference calls it with, a run's containers have a label of their own, by which they
//! are found and removed whatever becomes of the program or of us; there is no network unless those words
//! give one; and every `.git` of the workspace is read-only inside.

mod command;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide::{Error, ErrorKind, Result, SessionId};
use tokio::process::Command;

use crate::agents::Agent;
use crate::backend::RunBackend;
use crate::live_runs::LiveRuns;
use crate::reference::DockerRun;
use crate::stream::Listener;
use crate::types::{CommandResult, RunArtifacts, RunConfig, RunSession};
use crate::workspace::cleanup_log::RunHome;
use crate::workspace::collected::collect;
use crate::workspace::{Workspace, WorkspaceOptions};

/// The program.
pub(crate) const PROGRAM: &str = "docker";

/// How long one request to the daemon may take.
const REQUEST: Duration = Duration::from_secs(60);

/// Runs agents by `docker run`, in the folder itself.
#[derive(Debug)]
pub struct DockerSandbox {
    wanted: DockerRun,
    home: RunHome,
    program: PathBuf,
    live: LiveRuns<LiveRun>,
}

/// A run that was prepared.
#[derive(Debug)]
struct LiveRun {
    workspace: Arc<Workspace>,
    results: PathBuf,
    label: String,
    env: Vec<(String, String)>,
}

impl DockerSandbox {
    /// Runs as `wanted` says, kept under `home`.
    #[must_use]
    pub fn new(wanted: DockerRun, home: RunHome) -> Self {
        Self { wanted, home, program: PathBuf::from(PROGRAM), live: LiveRuns::default() }
    }

    /// The same; the program is this one.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// Takes back what there is of a run that did not begin, and its folder.
    fn clean_up(&self, id: &str) -> Result<()> {
        let Some(run) = self.home.take_left(id)? else { return Ok(()) };
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot take back what the run {id} left: {error}"))
        };
        let (gone, _) = run.retire().map_err(failed)?;
        std::fs::remove_dir_all(gone).map_err(failed)
    }

    /// Ends what runs of a run, and removes it if that is wanted.
    async fn end(&self, label: &str) -> Result<()> {
        match self.wanted.remove_on_exit {
            true => remove(&self.program, label).await,
            false => {
                let running = containers(&self.program, label, &[]).await?;
                request_for(&self.program, &["kill"], running).await
            }
        }
    }
}

#[async_trait]
impl RunBackend for DockerSandbox {
    fn id(&self) -> &str {
        &self.wanted.id
    }

    fn name(&self) -> Option<&str> {
        self.wanted.name.as_deref()
    }

    fn provides(&self, variable: &str) -> bool {
        self.wanted.env.get(variable).is_some_and(|value| !value.is_empty())
    }

    fn confines(&self, _: &RunSession) -> bool {
        true
    }

    async fn prepare(&self, agent: &Agent, config: &RunConfig) -> Result<RunSession> {
        command::check(&self.wanted)?;
        // Whoever has no daemon hears of it before anything is made.
        request(&self.program, &["version", "--format", "{{.Server.Version}}"]).await?;
        let id = SessionId::random().to_string();
        let given = WorkspaceOptions::default().files(agent.files()?);
        let run = self.home.begin(&id)?;
        let source = Path::new(&self.wanted.workspace);
        let workspace = match Workspace::prepare(source, &given, run).await {
            Ok(workspace) => workspace,
            Err(error) => {
                // A sweep tries again, as long as the journal says what there is to take back.
                drop(self.clean_up(&id));
                return Err(error);
            }
        };
        let label = format!("bastide.run={id}");
        workspace.note_containers(&label)?;
        let own = agent.spec.env.iter().chain(&self.wanted.env);
        let mut env: Vec<_> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
        env.extend(config.env.iter().cloned());
        let mut session = RunSession::new(id.clone(), workspace.folder());
        session.sandbox_name.clone_from(&self.wanted.name);
        session.metadata.insert("agent_id".to_owned(), agent.spec.name.clone().into());
        let results = self.home.results(&id);
        let live = LiveRun { workspace: Arc::new(workspace), results, label, env };
        self.live.insert(id, live);
        Ok(session)
    }

    async fn run(
        &self,
        session: &RunSession,
        command: &[String],
        config: &RunConfig,
        listener: &mut Listener<'_>,
    ) -> Result<CommandResult> {
        let live = self.live.get(session)?;
        command::run(self, &live, command, config.timeout, listener).await
    }

    async fn collect(&self, session: &RunSession, config: &RunConfig) -> Result<RunArtifacts> {
        let live = self.live.get(session)?;
        self.end(&live.label).await?;
        collect(&live.workspace, &live.results, &config.outputs, "Change by an agent").await
    }

    async fn cleanup(&self, session: &RunSession) -> Result<()> {
        let live = self.live.get(session)?;
        self.live.remove(session);
        let ended = self.end(&live.label).await;
        let workspace = Arc::into_inner(live).and_then(|live| Arc::into_inner(live.workspace));
        let Some(workspace) = workspace else {
            return Err(Error::new(ErrorKind::Conflict, "the run is still being used"));
        };
        // As long as its containers are there, a sweep has to know of them.
        ended?;
        if workspace.is_uncollected() {
            return workspace.leave();
        }
        let folder = workspace.close()?;
        std::fs::remove_dir_all(&folder).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot remove {}: {error}", folder.display()))
        })
    }
}

/// Removes the containers with a label, in whatever state they are.
pub(crate) async fn remove(program: &Path, label: &str) -> Result<()> {
    let all = containers(program, label, &["--all"]).await?;
    request_for(program, &["rm", "--force", "--volumes"], all).await
}

async fn containers(program: &Path, label: &str, which: &[&str]) -> Result<Vec<String>> {
    let filter = format!("label={label}");
    let asked = [&["ps", "--quiet", "--no-trunc", "--filter", &filter], which].concat();
    Ok(request(program, &asked).await?.lines().map(str::to_owned).collect())
}

async fn request_for(program: &Path, args: &[&str], containers: Vec<String>) -> Result<()> {
    for container in containers {
        match request(program, &[args, &[&container]].concat()).await {
            // It went by itself meanwhile.
            Err(error) if error.message().contains("No such container") => {}
            Err(error) if error.message().contains("is not running") => {}
            Err(error) if error.message().contains("already in progress") => {}
            done => drop(done?),
        }
    }
    Ok(())
}

/// One request, under a deadline.
async fn request(program: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let what = args.first().copied().unwrap_or_default();
    let Ok(output) = tokio::time::timeout(REQUEST, command.output()).await else {
        let message = format!("`docker {what}` did not answer");
        return Err(Error::new(ErrorKind::Timeout, message));
    };
    let output = output.map_err(|error| not_started(program, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = format!("`docker {what}` failed: {}", said.trim_end());
    Err(Error::new(ErrorKind::Io, message)
        .with_hint("`docker version` says whether the daemon can be reached"))
}

fn not_started(program: &Path, error: &std::io::Error) -> Error {
    let message = format!("cannot run {}: {error}", program.display());
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    };
    Error::new(kind, message).with_hint("install the Docker command line")
}
