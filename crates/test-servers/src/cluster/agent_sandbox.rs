//! agent-sandbox on a cluster: its own definitions and its own controller, unmodified, outside the cluster.

use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use super::{Cluster, find_program, process, run_quietly};

/// The script beside the program of the cluster that builds the controller from its source.
const SCRIPT: &str = "agent-sandbox.sh";

/// Where its definitions are, once that is unpacked.
const DEFINITIONS: &str = "agent/src/sigs.k8s.io/agent-sandbox/k8s/crds/";

/// What it is called among the processes of a cluster.
pub(super) const NAME: &str = "agent-sandbox";

/// Builds the controller, unless it is there, and starts it.
pub(super) fn start(cluster: &Cluster) -> io::Result<()> {
    if process::is_alive(&cluster.run(), NAME) {
        return Ok(());
    }
    let archive = find_program().map_err(io::Error::other)?;
    let script = archive.parent().unwrap_or(Path::new("/")).join(SCRIPT);
    run_quietly(Command::new("bash").arg(&script).arg("build").env("K8S_BASE", &cluster.folder))?;
    let definitions = cluster.folder.join(DEFINITIONS).display().to_string();
    run_quietly(&mut cluster.kubectl(&["apply", "--server-side", "--filename", &definitions]))?;
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    run_quietly(&mut cluster.kubectl(&established))?;
    let [metrics, health] = [20, 21].map(|number| cluster.place.port(number));
    let mut controller = Command::new("env");
    controller.arg(format!("KUBECONFIG={}", cluster.kubeconfig().display()));
    controller.arg(cluster.program("agent-sandbox-controller"));
    controller.args(["--extensions", "--leader-elect=false", "--enable-webhook=false"]);
    controller.arg("--manage-webhook-certs=false");
    controller.arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"));
    controller.arg(format!("--health-probe-bind-address=127.0.0.1:{health}"));
    process::start(&cluster.run(), NAME, &controller)?;
    cluster.wait(NAME, || TcpStream::connect(("127.0.0.1", health)).is_ok())
}
