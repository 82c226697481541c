//! What can be asked of pods of a Kubernetes cluster.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide::model::document::{Document, Format};
use bastide::{Error, ErrorKind, Result};
use bastide_kubernetes::{
    ClaimMount, ClusterAccess, KubernetesOptions, Owner, PodPull, VolumeRequest,
};

use super::docker::ContainerChoice;
use super::values::{parse_pair, parse_time};
use crate::config;

/// Which cluster, and as whom
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub(crate) struct ClusterArgs {
    /// File that says which clusters there are; unless given, as kubectl finds it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of that file
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Namespace sessions are in; unless given, that of the context
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

impl ClusterArgs {
    /// How the cluster is found.
    pub(crate) fn access(&self) -> Result<ClusterAccess> {
        let files = match &self.kubeconfig {
            Some(file) => vec![std::path::absolute(file).map_err(|error| {
                let message = format!("--kubeconfig: {}: {error}", file.display());
                Error::new(ErrorKind::InvalidInput, message).with_context("option", "--kubeconfig")
            })?],
            None => config::kubeconfig(),
        };
        Ok(ClusterAccess::new(files)
            .context(self.context.clone())
            .namespace(self.namespace.clone()))
    }

    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--kubeconfig", self.kubeconfig.is_some()),
            ("--context", self.context.is_some()),
            ("--namespace", self.namespace.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

/// What a pod is made of
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub(crate) struct PodArgs {
    /// Runtime class of the pod, such as gvisor or kata
    #[arg(long, value_name = "NAME")]
    runtime_class: Option<String>,

    /// Label of the nodes the pod may be on (can be repeated)
    #[arg(long = "node-selector", value_name = "KEY=VALUE", value_parser = parse_pair)]
    node_selector: Vec<(String, String)>,

    /// Taint of nodes that the pod tolerates (can be repeated)
    #[arg(long = "toleration", value_name = "KEY[=VALUE][:EFFECT]")]
    tolerations: Vec<String>,

    /// Priority class of the pod
    #[arg(long, value_name = "NAME")]
    priority_class: Option<String>,

    /// Secret of the namespace by which the image may be pulled (can be repeated)
    #[arg(long = "pull-secret", value_name = "NAME")]
    pull_secrets: Vec<String>,

    /// Let commands run as several users, root among them: not in namespaces that are `restricted`
    #[arg(long)]
    many_users: bool,

    /// Give the pod a user namespace of its own, where nodes can
    #[arg(long)]
    own_users: bool,

    /// Volume of the namespace beside the workspace (can be repeated)
    #[arg(long = "mount-claim", value_name = "NAME:PATH[:ro]", value_parser = parse_claim)]
    claims: Vec<ClaimMount>,

    /// Share of its limits that a node must have free for the pod, such as 0.5 (all unless given)
    #[arg(long, value_name = "FRACTION", value_parser = parse_percent)]
    requests: Option<u32>,

    /// File with fields of the pod that have no option: JSON, YAML or TOML
    #[arg(long, value_name = "FILE")]
    pod_patch: Option<PathBuf>,

    /// Image the guest comes from, instead of ConfigMaps: made by `bastide kubernetes guest-image`
    #[arg(long, value_name = "IMAGE")]
    guest_image: Option<String>,
}

/// What a new pod shall be like
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub(crate) struct KubernetesArgs {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// What the session is in the cluster: a job, or a Sandbox of agent-sandbox where that is installed
    #[arg(long, value_enum, value_name = "KIND")]
    owner: Option<OwnerArg>,

    #[command(flatten)]
    pod: PodArgs,

    /// Workspace on a volume that outlives the pod
    #[arg(long, value_name = "SIZE[,CLASS]")]
    volume: Option<String>,

    /// How long the pod may take to be there (5m unless given)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    boot_timeout: Option<Duration>,

    /// How long the session lasts at most, kept by the cluster
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    lifetime: Option<Duration>,

    /// Local queue of Kueue that admits the session
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,

    /// Pool of agent-sandbox that has the pod ready: see `bastide kubernetes pool`
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}

/// What a session is in a cluster.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OwnerArg {
    /// A job, which every cluster knows
    Job,
    /// A Sandbox of agent-sandbox
    Sandbox,
}

impl PodArgs {
    /// Has pods be like this.
    pub(crate) fn put(self, options: &mut KubernetesOptions) -> Result<()> {
        options.runtime_class = self.runtime_class;
        options.node_selector = self.node_selector.into_iter().collect();
        options.tolerations = self.tolerations;
        options.priority_class = self.priority_class;
        options.pull_secrets = self.pull_secrets;
        options.many_users = self.many_users;
        options.own_users = self.own_users;
        options.claims = self.claims;
        options.requests_percent = self.requests;
        options.pod_patch = self.pod_patch.as_deref().map(read_patch).transpose()?;
        options.guest_image = self.guest_image;
        Ok(())
    }

    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--runtime-class", self.runtime_class.is_some()),
            ("--node-selector", !self.node_selector.is_empty()),
            ("--toleration", !self.tolerations.is_empty()),
            ("--priority-class", self.priority_class.is_some()),
            ("--pull-secret", !self.pull_secrets.is_empty()),
            ("--many-users", self.many_users),
            ("--own-users", self.own_users),
            ("--mount-claim", !self.claims.is_empty()),
            ("--requests", self.requests.is_some()),
            ("--pod-patch", self.pod_patch.is_some()),
            ("--guest-image", self.guest_image.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

impl KubernetesArgs {
    /// Whether the pod is there already, of an image that nobody names.
    pub(crate) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Where the pod is, and what it is like.
    pub(crate) fn options(
        self,
        chosen: ContainerChoice,
        unproved: bool,
    ) -> Result<(ClusterAccess, KubernetesOptions)> {
        let access = self.cluster.access()?;
        let mut options = KubernetesOptions::new(chosen.image);
        if chosen.no_pull {
            options.pull = PodPull::Never;
        }
        options.labels = chosen.labels.into_iter().collect();
        options.read_only_root = chosen.read_only;
        options.user = chosen.only_user;
        options.owner = match self.owner {
            Some(OwnerArg::Sandbox) => Owner::Sandbox,
            Some(OwnerArg::Job) | None => Owner::Job,
        };
        options.unproved_network = unproved;
        options.volume = self.volume.as_deref().map(parse_volume);
        options.boot_seconds = self.boot_timeout.map(whole_seconds);
        options.lifetime_seconds = self.lifetime.map(whole_seconds);
        options.queue = self.queue;
        options.pool = self.pool;
        self.pod.put(&mut options)?;
        Ok((access, options))
    }

    /// The first option that was given, where none can be had.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--owner", self.owner.is_some()),
            ("--volume", self.volume.is_some()),
            ("--boot-timeout", self.boot_timeout.is_some()),
            ("--lifetime", self.lifetime.is_some()),
            ("--queue", self.queue.is_some()),
            ("--pool", self.pool.is_some()),
        ];
        let own = all.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
        let own = own.or_else(|| self.pod.given());
        self.cluster.given().or(own)
    }
}

fn parse_volume(text: &str) -> VolumeRequest {
    match text.split_once(',') {
        Some((size, class)) => {
            VolumeRequest { size: size.to_owned(), class: Some(class.to_owned()) }
        }
        None => VolumeRequest { size: text.to_owned(), class: None },
    }
}

fn parse_claim(text: &str) -> std::result::Result<ClaimMount, String> {
    let form = || "write NAME:PATH, or NAME:PATH:ro".to_owned();
    let (name, place) = text.split_once(':').ok_or_else(form)?;
    let (path, read_only) = match place.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (place, false),
    };
    let path = path.parse().map_err(|error| format!("{path:?}: {error}"))?;
    Ok(ClaimMount { name: name.to_owned(), path, read_only })
}

/// The largest file of a patch.
const MAX_PATCH: u64 = 1 << 20;

fn read_patch(path: &Path) -> Result<serde_json::Value> {
    let name = path.display().to_string();
    let refused = |kind: ErrorKind, why: &str| {
        Error::new(kind, format!("--pod-patch: {name}: {why}"))
            .with_context("option", "--pod-patch")
    };
    let Some(format) = Format::of_file(&name) else {
        let error = refused(ErrorKind::InvalidInput, "cannot tell what format it has");
        return Err(error.with_hint("give it the extension .json, .yaml or .toml"));
    };
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_PATCH + 1).read_to_string(&mut text));
    let count = read.map_err(|error| refused(ErrorKind::NotFound, &error.to_string()))?;
    if u64::try_from(count).unwrap_or(u64::MAX) > MAX_PATCH {
        return Err(refused(ErrorKind::InvalidInput, "it is larger than 1 MiB"));
    }
    Ok(Document::parse(&name, &text, format)?.value().clone())
}

fn parse_percent(text: &str) -> std::result::Result<u32, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    let percent = share.map(|share| (share * 100.0).ceil());
    let known = (1..=100_u32).find(|known| percent == Some(f64::from(*known)));
    known.ok_or_else(|| "it is more than 0 and at most 1".to_owned())
}

/// A cluster counts seconds; one that is begun counts.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
