//! A Kubernetes cluster for tests: real programs on loopback, two nodes, with the images of the tests. Nothing is installed
//! into the system, and `down` leaves nothing but what was fetched.

mod agent_sandbox;
mod enforcer;
mod images;
mod node;
mod process;
mod programs;

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use programs::{PROGRAM, find_program};

/// The variable that names the folder with [`PROGRAM`] in it.
pub const FOLDER: &str = "BASTIDE_CLUSTER";

/// How many nodes there are.
const NODES: u8 = 2;

/// How many clusters of ours can be on one machine.
const MOST: u8 = 8;

/// How long anything may take to answer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(50);

/// What of a cluster is its own among others on this machine.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ClusterIndex(u8);

impl ClusterIndex {
    /// One whose ports are free.
    fn free() -> io::Result<Self> {
        let is_free = |place: &Self| {
            TcpListener::bind(("127.0.0.1", place.port(0))).is_ok()
                && TcpListener::bind(("127.0.0.1", place.port(10))).is_ok()
        };
        let found = (0..MOST).map(Self).find(is_free);
        found.ok_or_else(|| io::Error::other("as many clusters as fit run on this machine"))
    }

    fn port(self, number: u16) -> u16 {
        18_400 + 40 * u16::from(self.0) + number
    }

    fn server(self) -> String {
        format!("https://127.0.0.1:{}", self.port(10))
    }

    /// The name of a node, which is its address.
    fn node(self, number: u8) -> String {
        format!("127.1.{}.{}", self.0, number + 1)
    }

    fn tag(self) -> String {
        format!("bstk{}", self.0)
    }

    fn pods(self) -> String {
        format!("10.{}.0.0/24", 211 + u16::from(self.0))
    }

    /// The first address of services, which is that of the API server.
    fn service(self) -> String {
        format!("10.{}.0.1", 221 + u16::from(self.0))
    }

    fn services(self) -> String {
        format!("10.{}.0.0/24", 221 + u16::from(self.0))
    }
}

/// A cluster whose files are in one folder. It runs until somebody takes it [down](Self::down), whatever becomes of this.
#[derive(Debug, Clone)]
pub struct Cluster {
    folder: PathBuf,
    place: ClusterIndex,
}

impl Cluster {
    /// Starts a cluster of the program in the archive `program` that keeps everything in `folder`.
    ///
    /// # Errors
    ///
    /// Fails where this user may not, where a package cannot be had, or where something does not come up; the message
    /// says what. Nothing is left running then.
    pub fn up(folder: &Path, program: &Path) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("only root can start the nodes of a cluster"));
        }
        if folder.join("run/place").exists() {
            let message = format!("a cluster runs in {} already", folder.display());
            return Err(io::Error::other(message));
        }
        programs::prepare(folder, program)?;
        images::prepare(folder)?;
        let cluster = Self { folder: folder.to_owned(), place: ClusterIndex::free()? };
        let started = cluster.start();
        if started.is_err() {
            drop(cluster.down());
        }
        started.map(|()| cluster)
    }

    /// The cluster that runs in a folder.
    ///
    /// # Errors
    ///
    /// Fails if there is none.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(folder.join("run/place")).map_err(|error| {
            io::Error::new(error.kind(), format!("no cluster runs in {}", folder.display()))
        })?;
        Ok(Self { folder: folder.to_owned(), place: serde_json::from_str(&text)? })
    }

    /// The file by which an administrator reaches it.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.run().join("kubeconfig.admin")
    }

    fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    fn package(&self, path: &str) -> PathBuf {
        self.folder.join("packages").join(path)
    }

    /// The client, as the administrator.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--cache-dir").arg(self.run().join("kubectl")).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn start(&self) -> io::Result<()> {
        let run = self.run();
        fs::create_dir_all(&run)?;
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700))?;
        fs::write(run.join("place"), serde_json::to_vec(&self.place)?)?;
        self.write_access()?;
        self.start_control_plane()?;
        for number in 1..=NODES {
            node::start(self, number)?;
        }
        for number in 1..=NODES {
            let name = format!("kubelet{number}");
            self.wait(&name, || node::is_ready(self, number))?;
        }
        self.start_service()?;
        self.wait("kcm", || {
            run_quietly(&mut self.kubectl(&["get", "serviceaccount", "default"])).is_ok()
        })
    }

    /// The address at which every pod is told that the API server is. Nothing of this cluster leads there by itself, so whoever
    /// tries it would take any pod for closed.
    fn start_service(&self) -> io::Result<()> {
        let address = self.place.service();
        run_quietly(Command::new("ip").args(["address", "replace", &address, "dev", "lo"]))?;
        let mut service = Command::new(self.package("bin/busybox"));
        let nothing = self.run().join("nothing");
        fs::create_dir_all(&nothing)?;
        service.args(["httpd", "-f", "-p", &format!("{address}:443"), "-h"]).arg(nothing);
        process::start(&self.run(), "service", &service)
    }

    /// Keys, tokens and the files that name them.
    fn write_access(&self) -> io::Result<()> {
        let run = self.run();
        run_quietly(
            Command::new("openssl").args(["genrsa", "-out"]).arg(run.join("sa.key")).arg("2048"),
        )?;
        let mut tokens = String::new();
        for (number, (name, group)) in
            [("admin", "system:masters"), ("node", "system:masters"), ("user", "")]
                .iter()
                .enumerate()
        {
            let token = read(Command::new("openssl").args(["rand", "-hex", "16"]))?;
            let token = token.trim();
            tokens.push_str(&format!("{token},{name},{number},{group}\n"));
            let file = serde_json::json!({
                "apiVersion": "v1", "kind": "Config", "current-context": name,
                "clusters": [{"name": "bastide-test", "cluster": {"server": self.place.server(), "insecure-skip-tls-verify": true}}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": name, "context": {"cluster": "bastide-test", "user": name, "namespace": "default"}}],
            });
            fs::write(run.join(format!("kubeconfig.{name}")), file.to_string())?;
        }
        fs::write(run.join("tokens.csv"), tokens)
    }

    fn start_control_plane(&self) -> io::Result<()> {
        let (run, place) = (self.run(), self.place);
        let [etcd, peers] = [0, 1].map(|number| format!("http://127.0.0.1:{}", place.port(number)));
        let path = |name: &str| run.join(name).display().to_string();
        let mut store = Command::new(self.package("usr/bin/etcd"));
        store.args(["--unsafe-no-fsync", "--data-dir", &path("etcd")]);
        store.args(["--listen-client-urls", &etcd, "--advertise-client-urls", &etcd]);
        store.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        store.arg(format!("--initial-cluster=default={peers}"));
        process::start(&run, "etcd", &store)?;
        let mut server = Command::new(self.program("kube-apiserver"));
        server
            .arg(format!("--etcd-servers={etcd}"))
            .arg(format!("--secure-port={}", place.port(10)));
        server
            .arg(format!("--cert-dir={}", path("certs")))
            .arg(format!("--token-auth-file={}", path("tokens.csv")));
        for option in ["--service-account-key-file", "--service-account-signing-key-file"] {
            server.arg(format!("{option}={}", path("sa.key")));
        }
        server.arg(format!("--service-cluster-ip-range={}", place.services()));
        server.args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--authorization-mode=Node,RBAC",
        ]);
        server.args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--api-audiences=api",
            "--event-ttl=10m",
        ]);
        server.args([
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=Hostname",
        ]);
        server.arg("--enable-admission-plugins=ResourceQuota");
        server.arg(format!("--audit-log-path={}", path("audit.log")));
        server.arg(format!("--audit-policy-file={}", path("audit.json")));
        let policy = serde_json::json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]});
        fs::write(run.join("audit.json"), policy.to_string())?;
        process::start(&run, "apiserver", &server)?;
        self.wait("apiserver", || self.answers())?;
        let mut manager = Command::new(self.program("kube-controller-manager"));
        manager.arg(format!("--service-account-private-key-file={}", path("sa.key")));
        manager
            .arg(format!("--cert-dir={}", path("certs-kcm")))
            .arg(format!("--secure-port={}", place.port(11)));
        manager.args([
            "--use-service-account-credentials=false",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
        ]);
        manager.arg("--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller");
        let mut scheduler = Command::new(self.program("kube-scheduler"));
        scheduler
            .arg(format!("--cert-dir={}", path("certs-ks")))
            .arg(format!("--secure-port={}", place.port(12)));
        for (name, mut command) in [("kcm", manager), ("scheduler", scheduler)] {
            command.arg(format!("--kubeconfig={}", self.kubeconfig().display()));
            command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
            process::start(&run, name, &command)?;
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        run_quietly(&mut self.kubectl(&["get", "--raw", "/readyz", "--request-timeout=2s"])).is_ok()
    }

    /// Waits until something is so, or its process has ended.
    fn wait(&self, name: &str, is_so: impl Fn() -> bool) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so() {
            if !process::is_alive(&self.run(), name) || Instant::now() > deadline {
                let why = process::last_log_line(&self.run(), name);
                return Err(io::Error::other(format!("{name} did not come up: {why}")));
            }
            rest();
        }
        Ok(())
    }

    /// Gives every node the images of an archive.
    ///
    /// # Errors
    ///
    /// Fails if a node does not take it.
    pub fn import(&self, archive: &Path) -> io::Result<()> {
        (1..=NODES).try_for_each(|number| node::import(self, number, archive))
    }

    /// Kills a process of the cluster, waits, and starts it again: `etcd`, `apiserver`, `kcm`, `scheduler`, or
    /// `kubelet` or `containerd` of the first node, or of another by its number. Returns when it answers.
    ///
    /// # Errors
    ///
    /// Fails if there is none of that name, or if it does not come back.
    pub fn restart(&self, name: &str, pause: Duration) -> io::Result<()> {
        let name = match name {
            "kubelet" | "containerd" => format!("{name}1"),
            name => name.to_owned(),
        };
        // One that was killed for good comes back, too.
        if process::find(&self.run(), &name).is_some() {
            process::kill(&self.run(), &name)?;
        }
        let until = Instant::now() + pause;
        while Instant::now() < until {
            rest();
        }
        process::start_again(&self.run(), &name)?;
        let number =
            name.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
        if name.starts_with("containerd") {
            return self.wait(&name, || node::engine_answers(self, number));
        }
        if name.starts_with("kubelet") {
            return self.wait(&name, || {
                node::kubelet_answers(self, number) && node::is_ready(self, number)
            });
        }
        self.wait(&name, || self.answers())
    }

    /// Has the network keep pods closed that are labelled so, or not any more.
    ///
    /// # Errors
    ///
    /// Fails where there is no `nft`, or if it is so already.
    pub fn enforce(&self, is_enforced: bool) -> io::Result<()> {
        if is_enforced { enforcer::start(self) } else { enforcer::end(self) }
    }

    /// Installs agent-sandbox, and starts its controller. It is built from its source the first time, which takes minutes.
    ///
    /// # Errors
    ///
    /// Fails where its source or what builds it cannot be had.
    pub fn start_agent_sandbox(&self) -> io::Result<()> {
        agent_sandbox::start(self)
    }

    /// Kills a process of the cluster for good.
    ///
    /// # Errors
    ///
    /// Fails if there is none of that name.
    pub fn kill(&self, name: &str) -> io::Result<()> {
        process::kill(&self.run(), name)
    }

    /// Ends everything, and removes what it left on this machine. Programs and images stay, for the next one.
    ///
    /// # Errors
    ///
    /// Fails if files cannot be removed.
    pub fn down(&self) -> io::Result<()> {
        let run = self.run();
        drop(enforcer::end(self));
        node::end_all(self);
        for name in [agent_sandbox::NAME, "service", "scheduler", "kcm", "apiserver", "etcd"] {
            drop(process::kill(&run, name));
        }
        let address = format!("{}/32", self.place.service());
        drop(read(Command::new("ip").args(["address", "delete", &address, "dev", "lo"])));
        node::clear_away(self);
        fs::remove_dir_all(&run)
    }
}

/// Runs a command; it must end well.
fn run_quietly(command: &mut Command) -> io::Result<()> {
    read(command).map(drop)
}

/// What a command says; it must end well.
fn read(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let name = command.get_program().to_string_lossy().into_owned();
        return Err(io::Error::other(format!("{name}: {}: {}", output.status, stderr.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits a little for something outside this process that cannot say when it is done.
fn rest() {
    let most = rustix::event::Timespec::try_from(AGAIN).ok();
    let _ = rustix::event::poll(&mut [], most.as_ref());
}
