//! `cargo xtask cluster`: the Kubernetes cluster that tests use: the one that is named, else one of our own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bastide_test_servers::cluster::{Cluster, find_program};
use bastide_test_servers::kubernetes::{KUBECONFIG, MANY_USERS, SOME};
use serde_json::{Value, json};

use crate::shell::{Outcome, built_program, read, say, top};
use crate::test::packages;

/// A namespace of the tests, and what Pod Security enforces there.
struct TestNamespace {
    /// The context that leads there.
    context: &'static str,
    namespace: &'static str,
    security: &'static str,
}

/// Where tests have sessions. The first is what everybody has, the second takes sessions of several users.
const NAMESPACES: [TestNamespace; 2] = [
    TestNamespace { context: "restricted", namespace: "bastide-test", security: "restricted" },
    TestNamespace { context: MANY_USERS, namespace: "bastide-test-many", security: "baseline" },
];

/// Whom the tests are in the cluster: they have the rights of a user of Bastide, and no others.
const USER: &str = "bastide-host";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: ClusterCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ClusterCommand {
    /// Start a cluster with two nodes below `target/cluster`, and prepare a namespace for the tests
    Up(Named),
    /// End that cluster, and remove what it left on this machine
    Down,
    /// Start or end the tests' own enforcer of closed networks, which `up` starts: the bridge of the cluster keeps no policy
    /// by itself
    Enforce {
        /// End it
        #[arg(long)]
        off: bool,
    },
    /// Install agent-sandbox there and start its controller, which is built the first time
    AgentSandbox,
    /// Kill a process of that cluster and start it again: apiserver, etcd, kcm, scheduler, kubelet, containerd
    Restart {
        /// Which
        name: String,
        /// How many seconds it stays away
        #[arg(long, default_value_t = 0)]
        pause: u64,
    },
}

/// A cluster that is there already.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Named {
    /// Use the cluster of this file instead; its nodes need the images `bastide-test/*`
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of that file, if not its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.what {
        ClusterCommand::Up(named) => {
            let file = match &named.kubeconfig {
                Some(_) => prepare_named(named)?,
                None => {
                    install_missing()?;
                    prepare(&start()?)?
                }
            };
            say(&format!("export {KUBECONFIG}={}", file.display()));
            Ok(())
        }
        ClusterCommand::Down => Ok(Cluster::of(&folder())?.down()?),
        ClusterCommand::Enforce { off } => Ok(Cluster::of(&folder())?.enforce(!off)?),
        ClusterCommand::AgentSandbox => Ok(Cluster::of(&folder())?.start_agent_sandbox()?),
        ClusterCommand::Restart { name, pause } => {
            Ok(Cluster::of(&folder())?.restart(name, Duration::from_secs(*pause))?)
        }
    }
}

/// What nodes, keys and the enforcer take of this system.
fn install_missing() -> Outcome {
    let needed = ["iproute2", "nftables", "openssl", "busybox-static"];
    let mut missing = packages::missing(false);
    missing.retain(|name| needed.contains(name));
    packages::install(&missing, rustix::process::geteuid().is_root())
}

/// Where a cluster of our own keeps everything.
fn folder() -> PathBuf {
    let target = top().join("target");
    target.canonicalize().unwrap_or(target).join("cluster")
}

fn start() -> Outcome<Cluster> {
    Ok(Cluster::up(&folder(), &find_program()?)?)
}

/// A cluster for as long as tests run.
#[derive(Debug)]
pub(crate) struct TestCluster {
    cluster: Option<Cluster>,
    kubeconfig: PathBuf,
    /// Whether every suite is run, or a part of them.
    all: bool,
}

/// What this would start.
pub(crate) fn announcement() -> String {
    match (given(), find_program()) {
        (Some(file), _) => format!("cluster: the one of {}", file.display()),
        (None, Ok(_)) if rustix::process::geteuid().is_root() => {
            format!("cluster: one of its own with two nodes, in {}", folder().display())
        }
        (None, _) => "cluster: nothing".to_owned(),
    }
}

fn given() -> Option<PathBuf> {
    std::env::var_os(KUBECONFIG).filter(|file| !file.is_empty()).map(PathBuf::from)
}

impl TestCluster {
    /// Finds or starts a cluster; or says why there is none.
    pub(crate) fn prepare(all: bool) -> Result<Self, String> {
        if let Some(kubeconfig) = given() {
            return Ok(Self { cluster: None, kubeconfig, all });
        }
        let started = start().map_err(|error| error.to_string())?;
        // From here on it is ended whatever happens.
        let mut held = Self { cluster: Some(started.clone()), kubeconfig: PathBuf::new(), all };
        held.kubeconfig = prepare(&started).map_err(|error| error.to_string())?;
        if all && let Err(error) = started.start_agent_sandbox() {
            // Its trials are skipped, and say so.
            say(&format!("no agent-sandbox: {error}"));
        }
        Ok(held)
    }

    /// The variables that tell tests how it is reached, and how much of them is wanted.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![(KUBECONFIG, self.kubeconfig.display().to_string())];
        if !self.all {
            variables.push((SOME, "1".to_owned()));
        }
        variables
    }

    /// Whether every suite is run there.
    pub(crate) fn is_for_all(&self) -> bool {
        self.all
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.cluster.as_ref().map(Cluster::down) {
            say(&format!("the cluster in {} was not removed: {error}", folder().display()));
        }
    }
}

/// Prepares a cluster of our own for the tests; the file by which they reach it.
fn prepare(cluster: &Cluster) -> Outcome<PathBuf> {
    cluster.enforce(true)?;
    prepare_with(&|arguments| cluster.kubectl(arguments), &folder().join("run/kubeconfig.test"))
}

/// The same for one that is there.
fn prepare_named(named: &Named) -> Outcome<PathBuf> {
    let kubectl = |arguments: &[&str]| {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").args(&named.kubeconfig);
        if let Some(context) = &named.context {
            command.arg("--context").arg(context);
        }
        command.args(arguments).stdin(Stdio::null());
        command
    };
    fs::create_dir_all(folder())?;
    prepare_with(&kubectl, &folder().join("kubeconfig.named"))
}

/// Makes the namespaces with all an administrator is told to apply, and a file that has the rights of a user there.
fn prepare_with(kubectl: &dyn Fn(&[&str]) -> Command, file: &Path) -> Outcome<PathBuf> {
    let program = built_program()?;
    let shown =
        read(&mut kubectl(&["config", "view", "--minify", "--flatten", "--output", "json"]))?;
    let mut shown: Value = serde_json::from_str(&shown)?;
    let server = shown["clusters"][0]["name"].clone();
    let (mut users, mut contexts) = (Vec::new(), Vec::new());
    for target in &NAMESPACES {
        let token = prepare_namespace(kubectl, &program, target)?;
        users.push(json!({"name": target.context, "user": {"token": token}}));
        let (name, namespace) = (target.context, target.namespace);
        let context = json!({"cluster": server, "user": name, "namespace": namespace});
        contexts.push(json!({"name": name, "context": context}));
    }
    shown["users"] = users.into();
    shown["contexts"] = contexts.into();
    shown["current-context"] = json!(NAMESPACES[0].context);
    fs::write(file, shown.to_string())?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    Ok(file.to_owned())
}

/// Makes one namespace; the token of its user.
fn prepare_namespace(
    kubectl: &dyn Fn(&[&str]) -> Command,
    program: &Path,
    target: &TestNamespace,
) -> Outcome<String> {
    let namespace = target.namespace;
    let mut program = Command::new(program);
    let manifest = read(program.args(["kubernetes", "manifest", "--namespace", namespace]))?;
    let mut apply = kubectl(&["apply", "-f", "-"]);
    let mut apply = apply.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    apply.stdin.take().ok_or("no input of kubectl")?.write_all(manifest.as_bytes())?;
    if !apply.wait()?.success() {
        return Err("kubectl did not apply the manifest".into());
    }
    let enforced = format!("pod-security.kubernetes.io/enforce={}", target.security);
    read(&mut kubectl(&["label", "namespace", namespace, &enforced, "--overwrite"]))?;
    let create = ["create", "token", USER, "--namespace", namespace, "--duration", "24h"];
    Ok(read(&mut kubectl(&create))?.trim().to_owned())
}
