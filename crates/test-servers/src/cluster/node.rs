//! The nodes of a cluster: a kubelet and an engine each, in a mount namespace and control groups of their own. So volumes and logs
//! of their pods are seen by nobody else, and two kubelets on one machine leave each other's alone.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Cluster, NODES, images, process, read, rest, run_quietly};

/// Settings of the kernel that a kubelet changes.
const SETTINGS: [&str; 7] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
];

/// Where kubelets keep the logs of their pods, whatever they are told.
const LOGS: [&str; 2] = ["/var/log/pods", "/var/log/containers"];

fn folder(cluster: &Cluster, number: u8) -> PathBuf {
    cluster.run().join(format!("node{number}"))
}

fn socket(cluster: &Cluster, number: u8) -> PathBuf {
    folder(cluster, number).join("containerd.sock")
}

fn ctr(cluster: &Cluster, number: u8) -> Command {
    let mut ctr = Command::new(cluster.package("usr/bin/ctr"));
    ctr.arg("--address").arg(socket(cluster, number)).args(["--namespace", "k8s.io"]);
    ctr
}

/// Gives a node the images of an archive.
pub(super) fn import(cluster: &Cluster, number: u8, archive: &Path) -> io::Result<()> {
    run_quietly(ctr(cluster, number).args(["images", "import"]).arg(archive))
}

/// Starts a node, and gives it the images. It has yet to report.
pub(super) fn start(cluster: &Cluster, number: u8) -> io::Result<()> {
    let (run, folder) = (cluster.run(), folder(cluster, number));
    fs::create_dir_all(folder.join("cni"))?;
    keep_settings(&run)?;
    write_settings(cluster, number)?;
    let holder = format!("holder{number}");
    hold_mounts(cluster, &holder, &folder)?;
    let inside = |program: PathBuf| -> io::Result<Command> {
        let pid = process::find(&run, &holder).ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &pid.as_raw_nonzero().to_string(), "--"]);
        command.arg("env").arg(format!(
            "PATH={}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            cluster.package("usr/bin").display(),
            cluster.package("usr/sbin").display()
        ));
        command.arg(program);
        Ok(command)
    };
    make_groups(&group(cluster, number));
    let name = format!("containerd{number}");
    let mut engine = inside(cluster.package("usr/bin/containerd"))?;
    engine.arg("--config").arg(folder.join("containerd.toml")).args(["--log-level", "warn"]);
    process::start(&run, &name, &engine)?;
    cluster.wait(&name, || engine_answers(cluster, number))?;
    for archive in images::archives(&cluster.folder)? {
        import(cluster, number, &archive)?;
    }
    let mut kubelet = inside(cluster.program("kubelet"))?;
    kubelet.arg(format!("--config={}", folder.join("kubelet.json").display()));
    kubelet.arg(format!("--kubeconfig={}", run.join("kubeconfig.node").display()));
    kubelet.arg(format!("--root-dir={}", folder.join("kubelet").display()));
    kubelet.arg(format!("--cert-dir={}", folder.join("certs").display()));
    kubelet.arg(format!("--hostname-override={}", cluster.place.node(number)));
    kubelet.args(["--runtime-cgroups=/", "--kubelet-cgroups=/"]);
    process::start(&run, &format!("kubelet{number}"), &kubelet)
}

/// Whether the engine of a node answers.
pub(super) fn engine_answers(cluster: &Cluster, number: u8) -> bool {
    run_quietly(ctr(cluster, number).arg("version")).is_ok()
}

/// Whether the kubelet of a node answers: what the API says of it may be of before.
pub(super) fn kubelet_answers(cluster: &Cluster, number: u8) -> bool {
    let ask = || -> io::Result<String> {
        let (host, port) = (cluster.place.node(number), cluster.place.port(15));
        let mut stream = TcpStream::connect((host.as_str(), port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(" 200 "))
}

/// Whether a node says that it is ready.
pub(super) fn is_ready(cluster: &Cluster, number: u8) -> bool {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    let node = cluster.place.node(number);
    read(&mut cluster.kubectl(&["get", "node", &node, "-o", path])).is_ok_and(|said| said == "True")
}

fn keep_settings(run: &Path) -> io::Result<()> {
    let kept = run.join("settings");
    if kept.exists() {
        return Ok(());
    }
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
    let lines = SETTINGS.iter().filter_map(|name| Some(format!("{name} {}\n", read(name)?.trim())));
    fs::write(kept, lines.collect::<String>())
}

/// A process that holds the mounts of a node.
fn hold_mounts(cluster: &Cluster, name: &str, folder: &Path) -> io::Result<()> {
    let mut script = String::new();
    for place in LOGS {
        let own = folder.join(place.trim_start_matches('/'));
        fs::create_dir_all(&own)?;
        fs::create_dir_all(place)?;
        script.push_str(&format!("mount --bind {} {place} && ", own.display()));
    }
    let held = folder.join("held");
    script.push_str(&format!("touch {} && exec sleep infinity", held.display()));
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    process::start(&cluster.run(), name, &holder)?;
    cluster.wait(name, || held.exists())
}

fn group(cluster: &Cluster, number: u8) -> String {
    format!("{}-{number}", cluster.place.tag())
}

/// The folders of all hierarchies of control groups: one each in version 1, one in version 2.
fn hierarchies() -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    if top.join("cgroup.controllers").exists() {
        return vec![top.to_owned()];
    }
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let groups = words.filter(|words| words.get(2).is_some_and(|kind| kind.starts_with("cgroup")));
    groups.filter_map(|words| words.get(1).map(PathBuf::from)).collect()
}

fn make_groups(name: &str) {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        // What cannot be made the kubelet says.
        drop(fs::create_dir(&group));
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read(hierarchy.join(file)) {
                drop(fs::write(group.join(file), all));
            }
        }
    }
}

/// Removes a control group with all beneath it; whether it is gone.
fn remove_group(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

fn write_settings(cluster: &Cluster, number: u8) -> io::Result<()> {
    let (folder, place) = (folder(cluster, number), cluster.place);
    let network = json!({"cniVersion": "0.4.0", "name": "bastide-test", "plugins": [{
        "type": "bridge", "bridge": format!("{}b0", place.tag()), "isDefaultGateway": true, "ipMasq": false,
        "ipam": {"type": "host-local", "dataDir": cluster.run().join("ipam"), "ranges": [[{"subnet": place.pods()}]]},
    }]});
    fs::write(folder.join("cni/10-bastide-test.conflist"), network.to_string())?;
    let path = |name: &str| folder.join(name).display().to_string();
    let cri = "[plugins.\"io.containerd.grpc.v1.cri\"";
    let pause = format!("docker.io/{}:latest", images::PAUSE);
    let engine = format!(
        "version = 2\nroot = \"{root}\"\nstate = \"{state}\"\noom_score = 0\n\
         disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.internal.v1.tracing\"]\n\
         [grpc]\naddress = \"{socket}\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{opt}\"\n\
         {cri}]\nsandbox_image = \"{pause}\"\nrestrict_oom_score_adj = true\ndisable_apparmor = true\nnetns_mounts_under_state_dir = true\nstream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n\
         {cri}.containerd]\nsnapshotter = \"overlayfs\"\ndefault_runtime_name = \"runc\"\n\
         {cri}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         {cri}.containerd.runtimes.runc.options]\nBinaryName = \"{runc}\"\n\
         {cri}.cni]\nbin_dir = \"{plugins}\"\nconf_dir = \"{cni}\"\n",
        root = path("engine"),
        state = path("engine-state"),
        socket = path("containerd.sock"),
        opt = path("opt"),
        pause = pause,
        runc = cluster.package("usr/sbin/runc").display(),
        plugins = cluster.package("usr/lib/cni").display(),
        cni = path("cni"),
    );
    fs::write(folder.join("containerd.toml"), engine)?;
    let node = place.node(number);
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": node, "port": place.port(17), "readOnlyPort": 0,
        "healthzBindAddress": node, "healthzPort": place.port(15),
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "cgroupRoot": format!("/{}", group(cluster, number)),
        "containerRuntimeEndpoint": format!("unix://{}", path("containerd.sock")),
        "enforceNodeAllocatable": [], "failSwapOn": false, "makeIPTablesUtilChains": false, "protectKernelDefaults": false,
        "imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "64Mi"}, "oomScoreAdj": 0,
        "nodeStatusUpdateFrequency": "2s", "volumePluginDir": path("plugins"), "resolvConf": "", "maxPods": 250,
    });
    fs::write(folder.join("kubelet.json"), kubelet.to_string())
}

/// Ends kubelets, and every container.
pub(super) fn end_all(cluster: &Cluster) {
    for number in 1..=NODES {
        // Whatever is gone already is what is wanted, here and below.
        drop(process::kill(&cluster.run(), &format!("kubelet{number}")));
        for _ in 0..20 {
            let tasks =
                read(ctr(cluster, number).args(["tasks", "list", "--quiet"])).unwrap_or_default();
            if tasks.trim().is_empty() {
                break;
            }
            for task in tasks.lines() {
                drop(read(ctr(cluster, number).args(["tasks", "delete", "--force", task])));
            }
            rest();
        }
        drop(process::kill(&cluster.run(), &format!("containerd{number}")));
    }
}

/// Takes away what nodes left on this machine.
pub(super) fn clear_away(cluster: &Cluster) {
    let run = cluster.run();
    for line in fs::read_to_string(run.join("settings")).unwrap_or_default().lines() {
        if let Some((name, value)) = line.split_once(' ') {
            drop(fs::write(Path::new("/proc/sys").join(name), value));
        }
    }
    end_shims(&run);
    for number in 1..=NODES {
        drop(process::kill(&run, &format!("holder{number}")));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mut beneath: Vec<_> = points.filter(|point| Path::new(point).starts_with(&run)).collect();
    beneath.sort_unstable_by_key(|point| std::cmp::Reverse(point.len()));
    for point in beneath {
        drop(read(Command::new("umount").args(["--lazy", point])));
    }
    drop(read(Command::new("ip").args(["link", "delete", &format!("{}b0", cluster.place.tag())])));
    for number in 1..=NODES {
        for hierarchy in hierarchies() {
            let group = hierarchy.join(group(cluster, number));
            for _ in 0..40 {
                if remove_group(&group) {
                    break;
                }
                rest();
            }
        }
    }
    for place in LOGS {
        // Only if nobody else has anything there.
        drop(fs::remove_dir(place));
    }
}

/// Ends what watches over containers of this cluster alone: engines leave it running.
fn end_shims(run: &Path) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let is_ours = line.contains("containerd-shim") && line.contains(&run.display().to_string());
        if let (true, Some(pid)) = (is_ours, rustix::process::Pid::from_raw(pid)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
