//! `bastide kubernetes`

use std::path::PathBuf;
use std::process::ExitCode;

use bastide::model::Manifest;
use bastide::{Error, ErrorKind, GuestPath, MachineSpec, NetworkAccess, Result};
use bastide_kubernetes::{KubernetesOptions, PodPull, guest_image, manifest, pool_manifest};
use serde_json::json;

use crate::args::kubernetes::PodArgs;
use crate::args::values::{parse_bytes, parse_cpus};
use crate::clients::pods_backend;
use crate::ui::{Ui, with_flags};

/// Print what a Kubernetes cluster needs for sessions
#[derive(Debug, clap::Args)]
pub(crate) struct KubernetesTaskArgs {
    #[command(subcommand)]
    task: KubernetesTask,
}

#[derive(Debug, clap::Subcommand)]
enum KubernetesTask {
    /// Print all that an administrator applies: namespace, account, role, policies of the network
    Manifest(ManifestArgs),
    /// Print a pool of agent-sandbox that has pods ready, for `--pool`
    ///
    /// `kubectl apply --server-side -f -` makes it: the guest, a SandboxTemplate, and a SandboxWarmPool. Sessions of this version
    /// take pods of it.
    Pool(Box<PoolArgs>),
    /// Write an image with the guest in it, for `--guest-image`, where nodes have a registry
    ///
    /// The archive is an OCI layout that `docker load` reads, too: `skopeo copy oci-archive:FILE docker://REF` and
    /// `crane push FILE REF` bring it to a registry. It is the guest of this version for this architecture, and no other.
    GuestImage(GuestImageArgs),
    /// Hold published ports of a session until it ends: started by whatever publishes one
    #[command(hide = true)]
    HoldPorts,
}

#[derive(Debug, clap::Args)]
struct ManifestArgs {
    /// Namespace for sessions
    #[arg(short, long, value_name = "NAME", default_value = "bastide", value_parser = parse_namespace)]
    namespace: String,
    /// Print an object with the manifest as text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct PoolArgs {
    /// Name of the pool
    name: String,
    /// Namespace of it
    #[arg(short, long, value_name = "NAME", default_value = "bastide", value_parser = parse_namespace)]
    namespace: String,
    /// How many pods it has ready
    #[arg(long, value_name = "N", default_value_t = 3)]
    replicas: u32,
    /// Image of the pods
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Refuse an image a node does not have, rather than pull it
    #[arg(long)]
    no_pull: bool,
    /// Run everything in a pod as one user, by number
    #[arg(long, value_name = "UID[:GID]")]
    only_user: Option<String>,
    /// Which network commands can use
    #[arg(long, value_enum, value_name = "KIND", default_value = "none")]
    network: PoolNetwork,
    /// Memory limit
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Processor limit
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<u64>,
    /// Disk limit
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    disk: Option<u64>,
    /// Print an object with the manifest as text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pod: PodArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PoolNetwork {
    /// Loopback of its own, and nothing else
    None,
    /// A network that leads out of the cluster
    Egress,
}

#[derive(Debug, clap::Args)]
struct GuestImageArgs {
    /// Archive that is written
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Name of the image in the archive
    #[arg(long, value_name = "IMAGE")]
    name: Option<String>,
    /// Print an object with the file and its size
    #[arg(long)]
    json: bool,
}

impl KubernetesTaskArgs {
    /// Whether a program reads what is printed.
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            KubernetesTask::Manifest(args) => args.json,
            KubernetesTask::Pool(args) => args.json,
            KubernetesTask::GuestImage(args) => args.json,
            KubernetesTask::HoldPorts => false,
        }
    }
}

pub(crate) async fn run(ui: &mut Ui, args: KubernetesTaskArgs) -> Result<ExitCode> {
    match args.task {
        KubernetesTask::Manifest(args) => print_manifest(ui, args),
        KubernetesTask::Pool(args) => print_pool(ui, *args),
        KubernetesTask::GuestImage(args) => write_guest_image(ui, &args),
        KubernetesTask::HoldPorts => {
            pods_backend()?.hold_ports(tokio::io::stdin(), tokio::io::stdout()).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn write_guest_image(ui: &mut Ui, args: &GuestImageArgs) -> Result<ExitCode> {
    let image = guest_image(args.name.as_deref())?;
    let file = args.output.display().to_string();
    std::fs::write(&args.output, &image).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot write {file}: {error}"))
            .with_context("path", file.clone())
    })?;
    if args.json {
        ui.json(&json!({ "file": file, "bytes": image.len() }))?;
    } else {
        ui.line(&format!("{file}: {} bytes", image.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_pool(ui: &mut Ui, args: PoolArgs) -> Result<ExitCode> {
    let PoolArgs { name, namespace, replicas, json, .. } = args;
    let mut options = KubernetesOptions::new(args.image);
    options.pull = if args.no_pull { PodPull::Never } else { PodPull::Missing };
    options.user = args.only_user;
    args.pod.put(&mut options)?;
    let root = Manifest::default().root.parse::<GuestPath>();
    let root = root.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let mut spec = MachineSpec::new(root);
    spec.network = match args.network {
        PoolNetwork::None => NetworkAccess::None,
        PoolNetwork::Egress => NetworkAccess::Bridge,
    };
    spec.limits.memory = args.memory;
    spec.limits.cpu_millis = args.cpus;
    spec.limits.disk = args.disk;
    let text = commented(&pool_manifest(&namespace, &name, replicas, &spec, &options)?);
    match json {
        true => ui.json(&json!({ "namespace": namespace, "name": name, "manifest": text }))?,
        false => text.lines().try_for_each(|line| ui.line(line))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_manifest(ui: &mut Ui, args: ManifestArgs) -> Result<ExitCode> {
    let ManifestArgs { namespace, json } = args;
    let text = commented(&manifest(&namespace));
    match json {
        true => ui.json(&json!({ "namespace": namespace, "manifest": text }))?,
        false => text.lines().try_for_each(|line| ui.line(line))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A file with our names of options in its comments.
fn commented(file: &str) -> String {
    let line = |line: &str| match line.starts_with('#') {
        true => format!("{}\n", with_flags(line)),
        false => format!("{line}\n"),
    };
    file.lines().map(line).collect()
}

/// A name that can be a namespace's: it becomes part of a file.
fn parse_namespace(text: &str) -> Result<String, String> {
    match bastide_kubernetes::is_namespace(text) {
        true => Ok(text.to_owned()),
        false => {
            Err("a namespace has lower-case letters, digits and `-`, and at most 63".to_owned())
        }
    }
}
