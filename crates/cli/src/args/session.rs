//! The options of a new session, and what becomes of them.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::model::environment::Variable;
use bastide::snapshot::store::StoreSnapshot;
use bastide::{
    Backend, Client, CreateOptions, Error, ErrorKind, Isolation, JournalOptions, NetworkAccess,
    Result, Rung, Session, SessionId, SessionName, SnapshotChoice,
};

use rustix::fs::{Access, access};

use super::docker::DockerArgs;
use super::kubernetes::KubernetesArgs;
use super::lease::LeaseArgs;
use super::mounts::{MountArgs, STDIN};
use super::policy::PolicyArgs;
use super::sbx::SbxArgs;
use super::values::{
    JournalKeep, PassedVariable, parse_bytes, parse_cpus, parse_keep, parse_time, parse_variable,
};
use crate::clients::{client_of, docker_backend, kubernetes_backend, local_backend, sbx_backend};
use crate::config;
use crate::ui::Ui;

/// What a new session shall be like
#[derive(Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// Where the session runs
    #[arg(help_heading = "Session", long, value_name = "BACKEND", default_value = "local")]
    backend: BackendArg,

    /// Manifest of the workspace: JSON, YAML or TOML; - reads JSON or YAML from standard input
    #[arg(help_heading = "Workspace", long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Folder of the host that is the workspace
    #[arg(help_heading = "Workspace", long, value_name = "DIR")]
    workspace: Option<PathBuf>,

    /// Snapshot the workspace starts from
    #[arg(help_heading = "Workspace", long, value_name = "NAME")]
    snapshot: Option<String>,

    /// How commands are confined; `auto` is the strongest way this machine has
    #[arg(help_heading = "Walls", long, value_name = "RUNG", default_value = "auto")]
    isolation: IsolationArg,

    /// Network commands have: none, unless a policy is given
    #[arg(help_heading = "Network", long, value_name = "NETWORK")]
    network: Option<NetworkArg>,

    #[command(flatten)]
    policy: PolicyArgs,

    /// Memory all commands may use together (such as 512m or 1g)
    #[arg(help_heading = "Limits", long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,

    /// Processes there may be at a time
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,

    /// Processors all commands may use together (such as 1.5)
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<u64>,

    /// Disk commands may use; the receipt says for what that holds
    #[arg(help_heading = "Limits", long, value_name = "SIZE", value_parser = parse_bytes)]
    disk: Option<u64>,

    /// Let commands make sandboxes of their own, as browsers, bwrap and podman do; not where they
    /// write to folders of the host
    #[arg(help_heading = "Walls", long)]
    nested_sandbox: bool,

    /// Environment variable to set; without a value, your own (can be repeated)
    #[arg(help_heading = "Workspace", short, long = "env", value_name = "KEY[=VALUE]", value_parser = parse_variable)]
    envs: Vec<PassedVariable>,

    /// Make a point of every command, so that it can be undone
    #[arg(help_heading = "Undo", long)]
    journal: bool,

    /// How many points are kept, or for how long (such as 200, 24h); the oldest go first
    #[arg(help_heading = "Undo", long, value_name = "N|TIME", value_parser = parse_keep)]
    journal_keep: Option<JournalKeep>,

    #[command(flatten)]
    lease: LeaseArgs,

    /// Wait this long for room, in turn, where the home limits how many sessions run
    #[arg(help_heading = "Limits", long, value_name = "TIME", value_parser = parse_time)]
    wait: Option<Duration>,

    #[command(flatten)]
    mounts: MountArgs,

    #[command(flatten)]
    docker: DockerArgs,

    #[command(flatten)]
    sbx: SbxArgs,

    #[command(flatten)]
    kubernetes: KubernetesArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BackendArg {
    /// This machine
    Local,
    /// A container
    Docker,
    /// A Docker microVM
    Sbx,
    /// A pod of a Kubernetes cluster
    Kubernetes,
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
    /// Places that a policy names
    Policy,
    /// A network that leads out of the cluster, in pods
    Egress,
    /// As `none`, in pods whose cluster was not seen to keep it closed
    Unproved,
}

/// A session that is not made yet.
#[derive(Debug)]
pub(crate) struct SessionPlan {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) client: Client,
    pub(crate) manifest: Manifest,
    pub(crate) options: CreateOptions,
    /// Variables that the sandbox itself has.
    pub(crate) provided: Vec<String>,
    /// Whether a network with a policy was asked for by its name: what runs there may bring its places along.
    pub(crate) names_policy: bool,
}

impl SessionArgs {
    /// Makes the session.
    pub(crate) async fn create(
        self,
        ui: &Ui,
        tied_to_owner: bool,
        name: Option<SessionName>,
    ) -> Result<(Client, Session)> {
        self.refuse_what_cannot_be_had()?;
        let root = self.workspace.as_deref().map(workspace).transpose()?;
        let snapshot = self.snapshot.clone();
        let SessionPlan { client, manifest, mut options, .. } = self.plan(ui, root).await?;
        options.tied_to_owner = tied_to_owner;
        let id = SessionId::random();
        // Its own snapshot when it stops; the one it starts from stays as it is.
        let snapshot = StoreSnapshot { id: id.to_string(), from: snapshot };
        options.snapshot = Some(SnapshotChoice::Named(snapshot.into_snapshot()));
        options.id = Some(id);
        options.name = name;
        let shown = ui.progress("laying out");
        options.progress = shown.listener();
        let session = client.create(&manifest, options).await?;
        drop(shown);
        Ok((client, session))
    }

    /// The session of an agent, and the folder it works in.
    pub(crate) async fn for_agent(self, ui: &Ui) -> Result<(PathBuf, SessionPlan)> {
        if self.snapshot.is_some() {
            let message = "--snapshot: an agent works in a folder of yours, not in a snapshot";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_context("option", "--snapshot")
                .with_hint("`bastide snapshot export` writes one to a folder"));
        }
        self.refuse_of_backend()?;
        let folder = self.workspace.clone().unwrap_or_else(|| PathBuf::from("."));
        Ok((folder, self.plan(ui, None).await?))
    }

    async fn plan(self, ui: &Ui, root: Option<String>) -> Result<SessionPlan> {
        let mut manifest = match &self.manifest {
            Some(path) => self.mounts.load(ui, path).await?,
            None => Manifest::default(),
        };
        if let Some(root) = root {
            manifest.root = root;
        }
        let mut manifest = self.mounts.acknowledged(manifest)?;
        // What is written on the command line is meant more than what is written in a file.
        let mut home = None;
        for (key, value) in self.envs.into_iter().filter_map(PassedVariable::resolve) {
            if key == "HOME" {
                home = Some(value.clone());
            }
            manifest.environment.value.insert(key, Variable::Plain(value));
        }
        let mut options = CreateOptions::default();
        options.home = home;
        options.policy = self.policy.policy()?;
        options.network = match (self.network, &options.policy) {
            (Some(NetworkArg::Policy), _) | (None, Some(_)) => NetworkAccess::Policy,
            (Some(NetworkArg::None | NetworkArg::Unproved) | None, _) => NetworkAccess::None,
            (Some(NetworkArg::Bridge | NetworkArg::Egress), _) => NetworkAccess::Bridge,
            (Some(NetworkArg::Host), _) => NetworkAccess::Host,
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
        options.journal = journal(self.journal, self.journal_keep);
        options.lease = self.lease.options();
        options.wait = self.wait;
        options.base_dir = base_dir(self.manifest.as_deref())?;
        if options.network == NetworkAccess::None {
            options.env = without_retries();
        }
        let mut provided = Vec::new();
        let backend = match self.backend {
            BackendArg::Docker => {
                let progress = ui.notices();
                docker_backend(self.docker.options()?, move |text| progress.say(text))?
            }
            BackendArg::Sbx => {
                provided = self.sbx.provided();
                sbx_backend(self.sbx.options()?)?
            }
            BackendArg::Kubernetes => {
                let unproved = self.network == Some(NetworkArg::Unproved);
                let chosen = self.docker.choice("kubernetes", self.kubernetes.has_pool())?;
                let (access, asked) = self.kubernetes.options(chosen, unproved)?;
                let progress = ui.notices();
                kubernetes_backend(access, asked, move |text| progress.say(text))?
            }
            // Programs of this machine see what the reference lets them see of the environment.
            BackendArg::Local => {
                options.env.extend(config::shared_environment());
                local_backend()?
            }
        };
        let names_policy = self.network == Some(NetworkArg::Policy);
        let client = client_of(&backend)?;
        Ok(SessionPlan { client, backend, manifest, options, provided, names_policy })
    }

    /// Whoever asks for something and gets less than that would be misled.
    fn refuse_what_cannot_be_had(&self) -> Result<()> {
        if self.workspace.is_some() {
            match self.backend {
                BackendArg::Local => {}
                BackendArg::Docker | BackendArg::Sbx => {
                    let why = "a folder of the host cannot be the workspace of a container or microVM; grant \
                               it beside the workspace, by `extra_path_grants` of a manifest";
                    return refuse("--workspace", why);
                }
                BackendArg::Kubernetes => {
                    let why =
                        "a folder of this host cannot be in a pod; copy it in with `bastide cp`";
                    return refuse("--workspace", why);
                }
            }
        }
        self.refuse_of_backend()
    }

    fn refuse_of_backend(&self) -> Result<()> {
        let (option, why) = match self.backend {
            BackendArg::Docker => (None, ""),
            BackendArg::Kubernetes => {
                (self.docker.given_to_engine(), "only the backend `docker` has that")
            }
            _ => {
                (self.docker.given(), "only the backends `docker` and `kubernetes` have containers")
            }
        };
        if let Some(option) = option {
            return refuse(option, why);
        }
        if self.backend != BackendArg::Kubernetes {
            if let Some(option) = self.kubernetes.given() {
                return refuse(option, "only the backend `kubernetes` has pods");
            }
            if matches!(self.network, Some(NetworkArg::Egress | NetworkArg::Unproved)) {
                return refuse("--network", "`egress` and `unproved` are networks of pods");
            }
        }
        if self.backend != BackendArg::Sbx
            && let Some(option) = self.sbx.given()
        {
            return refuse(option, "only the backend `sbx` has microVMs of Docker");
        }
        if self.backend != BackendArg::Local && !matches!(self.isolation, IsolationArg::Auto) {
            return refuse(
                "--isolation",
                "how containers and microVMs are confined is their engine's",
            );
        }
        Ok(())
    }
}

/// Which points a session makes of itself.
fn journal(commands: bool, keep: Option<JournalKeep>) -> Option<JournalOptions> {
    if !commands && keep.is_none() {
        return None;
    }
    let mut options = match keep {
        None => JournalOptions::default(),
        Some(JournalKeep::Most(most)) => JournalOptions::default().most(most),
        Some(JournalKeep::Age(age)) => JournalOptions::default().age(age),
    };
    options.commands = commands;
    Some(options)
}

/// Variables that keep installers from trying again and again where there is no network to reach anything by: each
/// fails at once, and says why.
fn without_retries() -> Vec<(String, String)> {
    const NAMES: [&str; 4] =
        ["PIP_RETRIES", "UV_HTTP_RETRIES", "NPM_CONFIG_FETCH_RETRIES", "CARGO_NET_RETRY"];
    NAMES.iter().map(|name| ((*name).to_owned(), "0".to_owned())).collect()
}

fn refuse(option: &str, why: &str) -> Result<()> {
    let message = format!("{option}: {why}");
    Err(Error::new(ErrorKind::Unsupported, message).with_context("option", option))
}

/// The folder of the host that is the workspace, as the root of a manifest.
fn workspace(folder: &Path) -> Result<String> {
    let failed = |why: &str| {
        let message = format!("{} cannot be a workspace: {why}", folder.display());
        Error::new(ErrorKind::InvalidInput, message).with_context("option", "--workspace")
    };
    let (folder, above) = resolved(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed("it is not there"),
        _ => failed(&error.to_string()),
    })?;
    // One that is not there yet is made with the session, where its maker may do so.
    if let Some(above) = above
        && access(&above, Access::WRITE_OK | Access::EXEC_OK).is_err()
    {
        let why = format!("it is not there, and cannot be made in {}", above.display());
        return Err(failed(&why).with_hint("name a folder of yours that is there"));
    }
    folder.into_os_string().into_string().map_err(|_| failed("its path is no text"))
}

/// Where a folder is, or would be, and then the folder it would be made in: links of what there is on the way are
/// followed. Nothing is made here, as the session may still be refused.
fn resolved(folder: &Path) -> io::Result<(PathBuf, Option<PathBuf>)> {
    let folder = std::path::absolute(folder)?;
    for above in folder.ancestors() {
        match above.canonicalize() {
            Ok(real) => {
                let missing = folder.strip_prefix(above).map_err(io::Error::other)?;
                if missing.components().any(|part| part == Component::ParentDir) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                // Joining nothing would leave a slash at the end.
                let is_there = missing.as_os_str().is_empty();
                return Ok(match is_there {
                    true => (real, None),
                    false => (real.join(missing), Some(real)),
                });
            }
            // A link that leads nowhere is no place to make anything in.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !above.is_symlink() => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The folder that files of the host in a manifest come from: the one the manifest lies in.
fn base_dir(manifest: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(manifest) = manifest else { return Ok(None) };
    let folder = match manifest.parent().filter(|_| manifest != Path::new(STDIN)) {
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
