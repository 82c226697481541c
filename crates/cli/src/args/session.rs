//! The options of a new session, and what becomes of them.

use std::path::{Path, PathBuf};

use bastide::model::document::Format;
use bastide::model::environment::Variable;
use bastide::model::{Manifest, Registry};
use bastide::snapshot::store::StoreSnapshot;
use bastide::{
    Client, CreateOptions, Error, ErrorKind, Isolation, NetworkAccess, Result, Rung, Session,
    SessionId, SnapshotChoice,
};

use super::docker::DockerArgs;
use super::values::{parse_bytes, parse_cpus, parse_pair};
use crate::clients::{clients, docker_client};
use crate::config;
use crate::ui::Ui;

/// What a new session shall be like
#[derive(Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// Where the session runs
    #[arg(long, value_name = "BACKEND", default_value = "local")]
    backend: BackendArg,

    /// Manifest of the workspace: JSON, YAML or TOML
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Folder of the host that is the workspace
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,

    /// Snapshot the workspace starts from
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,

    /// How commands are confined; `auto` is the strongest way this machine has
    #[arg(long, value_name = "RUNG", default_value = "auto")]
    isolation: IsolationArg,

    /// Network commands have
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    network: NetworkArg,

    /// Memory all commands may use together (such as 512m or 1g)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,

    /// Processes there may be at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,

    /// Processors all commands may use together (such as 1.5)
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<u64>,

    /// Disk commands may use; the receipt says for what that holds
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    disk: Option<u64>,

    /// Let commands make sandboxes of their own, as browsers, bwrap and podman do; not where they
    /// write to folders of the host
    #[arg(long)]
    nested_sandbox: bool,

    /// Environment variable to set (can be repeated)
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = parse_pair)]
    envs: Vec<(String, String)>,

    #[command(flatten)]
    docker: DockerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BackendArg {
    /// This machine
    Local,
    /// A container
    Docker,
    /// A Docker microVM
    Sbx,
    /// A pod
    Kube,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum IsolationArg {
    /// The strongest way this machine has
    Auto,
    /// Namespaces of its own
    Namespaces,
    /// Landlock over the host's own paths
    Landlock,
    /// None
    Unconfined,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum NetworkArg {
    /// Loopback of its own, and nothing else
    None,
    /// A network that leads out, in containers
    Bridge,
    /// The host's network, its loopback included
    Host,
}

impl SessionArgs {
    /// Makes the session.
    pub(crate) async fn create(self, ui: &Ui, tied_to_owner: bool) -> Result<(Client, Session)> {
        self.refuse_what_cannot_be_had()?;
        let mut manifest = match &self.manifest {
            Some(path) => load(ui, path)?,
            None => Manifest::default(),
        };
        if let Some(folder) = &self.workspace {
            manifest.root = workspace(folder)?;
        }
        // What is written on the command line is meant more than what is written in a file.
        for (key, value) in self.envs {
            manifest.environment.value.insert(key, Variable::Plain(value));
        }
        let mut options = CreateOptions::default();
        options.network = match self.network {
            NetworkArg::None => NetworkAccess::None,
            NetworkArg::Bridge => NetworkAccess::Bridge,
            NetworkArg::Host => NetworkAccess::Host,
        };
        options.isolation = match self.isolation {
            IsolationArg::Auto => Isolation::Auto,
            IsolationArg::Namespaces => Isolation::Exactly(Rung::Namespaces),
            IsolationArg::Landlock => Isolation::Exactly(Rung::Landlock),
            IsolationArg::Unconfined => Isolation::Exactly(Rung::Unconfined),
        };
        options.limits.memory = self.memory;
        options.limits.pids = self.pids;
        options.limits.cpu_millis = self.cpus;
        options.limits.disk = self.disk;
        options.nested_sandbox = self.nested_sandbox;
        options.tied_to_owner = tied_to_owner;
        let id = SessionId::random();
        // Its own snapshot when it stops; the one it starts from stays as it is.
        let snapshot = StoreSnapshot { id: id.to_string(), from: self.snapshot };
        options.snapshot = Some(SnapshotChoice::Named(snapshot.into_snapshot()));
        options.id = Some(id);
        options.base_dir = base_dir(self.manifest.as_deref())?;
        let shown = ui.progress("laying out");
        options.progress = shown.listener();
        let client = match self.backend {
            BackendArg::Docker => {
                let progress = ui.notices();
                docker_client(self.docker.options()?, move |said| progress.say(said))?
            }
            // Programs of this machine see what the reference lets them see of the environment.
            BackendArg::Local | BackendArg::Sbx | BackendArg::Kube => {
                options.env = config::shared_environment();
                clients()?.local()
            }
        };
        let session = client.create(&manifest, options).await?;
        drop(shown);
        Ok((client, session))
    }

    /// Whoever asks for something and gets less than that would be misled.
    fn refuse_what_cannot_be_had(&self) -> Result<()> {
        let refuse = |option: &str, why: &str| {
            let message = format!("{option}: {why}");
            Err(Error::new(ErrorKind::Unsupported, message).with_context("option", option))
        };
        match self.backend {
            BackendArg::Local => {
                if let Some(option) = self.docker.given() {
                    return refuse(option, "the backend `local` has no containers");
                }
            }
            BackendArg::Docker => {
                if self.workspace.is_some() {
                    let why = "a folder of the host cannot be the workspace of a container; grant \
                               it beside the workspace, by `extra_path_grants` of a manifest";
                    return refuse("--workspace", why);
                }
            }
            BackendArg::Sbx | BackendArg::Kube => {
                return refuse("--backend", "this build has the backends `local` and `docker`");
            }
        }
        if self.backend != BackendArg::Local && !matches!(self.isolation, IsolationArg::Auto) {
            return refuse("--isolation", "how containers are confined is their engine's");
        }
        Ok(())
    }
}

/// The folder of the host that is the workspace, as the root of a manifest.
fn workspace(folder: &Path) -> Result<String> {
    let failed = |why: &str| {
        let message = format!("{} cannot be a workspace: {why}", folder.display());
        Error::new(ErrorKind::InvalidInput, message).with_context("option", "--workspace")
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(&error.to_string()))?;
    let folder = folder.canonicalize().map_err(|error| failed(&error.to_string()))?;
    folder.into_os_string().into_string().map_err(|_| failed("its path is no text"))
}

/// The folder that files of the host in a manifest come from: the one the manifest lies in.
fn base_dir(manifest: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(manifest) = manifest else { return Ok(None) };
    let folder = match manifest.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|error| {
        let message =
            format!("cannot find the folder of the manifest {}: {error}", manifest.display());
        Error::new(ErrorKind::NotFound, message)
    })?;
    Ok(Some(folder))
}

fn load(ui: &Ui, path: &Path) -> Result<Manifest> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("cannot read the manifest {name}: {error}"))
    })?;
    let Some(format) = Format::of_file(&name) else {
        let message = format!("cannot tell what format the manifest {name} has");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("give it the extension .json, .yaml or .toml"));
    };
    let parsed = Manifest::load(&name, &text, format, Registry::builtin())?;
    for warning in &parsed.warnings {
        ui.note(&format!("{name}: {}", warning.message));
    }
    Ok(parsed.value)
}
