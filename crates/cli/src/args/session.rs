//! The options of a new session, and what becomes of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bastide::model::document::Format;
use bastide::model::environment::Variable;
use bastide::model::{Manifest, Registry};
use bastide::store::StoreSnapshot;
use bastide::{
    Client, CreateOptions, Error, ErrorKind, NetworkAccess, ProgressListener, Result, Session,
    SessionId, SnapshotChoice, Store,
};
use bastide_local::LocalBackend;

use super::values::{parse_bytes, parse_pair};
use crate::config;
use crate::ui::{Meter, Ui};

/// What a new session shall be like
#[derive(Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// Where the session runs
    #[arg(long, value_name = "BACKEND", default_value = "local")]
    backend: BackendArg,

    /// Image the session starts from, on backends that have images
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

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

    /// Environment variable to set (can be repeated)
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = parse_pair)]
    envs: Vec<(String, String)>,
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
    /// The host's network, its loopback included
    Host,
}

/// A client for the sessions on this machine.
pub(crate) fn local_client() -> Result<Client> {
    let client = Client::new(Arc::new(LocalBackend::new(config::home()?)?));
    store()?.known_to(client)
}

/// The store of snapshots on this machine.
pub(crate) fn store() -> Result<Store> {
    Store::open(config::home()?.join("snapshots"))
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
            NetworkArg::Host => NetworkAccess::Host,
        };
        options.limits.memory = self.memory;
        options.limits.pids = self.pids;
        options.env = config::shared_environment();
        options.tied_to_owner = tied_to_owner;
        let id = SessionId::random();
        // Its own snapshot when it stops; the one it starts from stays as it is.
        let snapshot = StoreSnapshot { id: id.to_string(), from: self.snapshot };
        options.snapshot = Some(SnapshotChoice::Named(snapshot.into_snapshot()));
        options.id = Some(id);
        let meter = Arc::new(Meter::new("making the workspace"));
        let shown = Arc::clone(&meter);
        options.progress = Some(ProgressListener::new(move |progress| shown.show(progress)));
        let client = local_client()?;
        let session = client.create(&manifest, options).await;
        meter.clear();
        Ok((client, session?))
    }

    /// Whoever asks for something and gets less than that would be misled.
    fn refuse_what_cannot_be_had(&self) -> Result<()> {
        let refuse = |option: &str, why: &str| {
            let message = format!("{option}: {why}");
            Err(Error::new(ErrorKind::Unsupported, message).with("option", option))
        };
        match self.backend {
            BackendArg::Local => {}
            BackendArg::Docker | BackendArg::Sbx | BackendArg::Kube => {
                return refuse("--backend", "this build has the backend `local` only");
            }
        }
        match self.isolation {
            IsolationArg::Auto | IsolationArg::Namespaces => {}
            IsolationArg::Landlock | IsolationArg::Unconfined => {
                return refuse("--isolation", "sessions are confined by `namespaces` only");
            }
        }
        let local = "the backend `local` has no images";
        let asked = [("--image", self.image.is_some(), local)];
        match asked.into_iter().find(|(_, given, _)| *given) {
            Some((option, _, why)) => refuse(option, why),
            None => Ok(()),
        }
    }
}

/// The folder of the host that is the workspace, as the root of a manifest.
fn workspace(folder: &Path) -> Result<String> {
    let failed = |why: &str| {
        let message = format!("{} cannot be a workspace: {why}", folder.display());
        Error::new(ErrorKind::InvalidInput, message).with("option", "--workspace")
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(&error.to_string()))?;
    let folder = folder.canonicalize().map_err(|error| failed(&error.to_string()))?;
    folder.into_os_string().into_string().map_err(|_| failed("its path is no text"))
}

fn load(ui: &Ui, path: &Path) -> Result<Manifest> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("cannot read the manifest {name}: {error}"))
    })?;
    let Some(format) = Format::of_file(&name) else {
        let message = format!("cannot tell what format the manifest {name} has");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .hint("give it the extension .json, .yaml or .toml"));
    };
    let parsed = Manifest::load(&name, &text, format, Registry::builtin())?;
    for warning in &parsed.warnings {
        ui.note(&format!("{name}: {}", warning.message));
    }
    Ok(parsed.value)
}
