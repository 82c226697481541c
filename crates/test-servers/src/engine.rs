//! A Docker daemon for tests: started where none runs, ended with whoever started it, with images that
//! are made of what this machine has.

pub mod images;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that tells tests where the daemon is.
pub const HOST: &str = "BASTIDE_TEST_DOCKER";

/// gVisor's runtime, where it is installed.
const RUNSC: &str = "/usr/bin/runsc";

/// How long a daemon may take to come up or to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(50);

/// The daemon that tests use, with its images; or why there is none.
///
/// # Errors
///
/// Says why, for people.
pub fn for_tests() -> Result<String, String> {
    let host = std::env::var_os(HOST).and_then(|host| host.into_string().ok());
    host.ok_or_else(|| "no Docker daemon was prepared; `cargo xtask test` starts one".to_owned())
}

/// A daemon of our own, with its own files, socket and bridge. It ends when this is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: PathBuf,
    bridge: String,
    options: DaemonOptions,
}

/// How a daemon of our own shall be.
#[derive(Debug, Clone, Default)]
pub struct DaemonOptions {
    /// The port on loopback where it listens with TLS, and the folder of its certificates.
    pub tls: Option<(u16, PathBuf)>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// The folder in which it finds drivers, instead of the one all daemons of this machine share.
    pub drivers: Option<PathBuf>,
    /// A folder of this machine that it finds empty, as one of another machine would.
    pub hidden: Option<PathBuf>,
}

impl Daemon {
    /// Starts a daemon that keeps everything in `folder`.
    ///
    /// # Errors
    ///
    /// Fails where there is no daemon program, where this user may not run it, or where it does not
    /// come up; the message says why.
    pub fn start(folder: &Path, options: &DaemonOptions) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("only root can start a Docker daemon"));
        }
        fs::create_dir_all(folder)?;
        let bridge = make_bridge()?;
        let child = spawn(folder, &bridge, options).map_err(|error| {
            remove_bridge(&bridge);
            io::Error::new(error.kind(), format!("dockerd: {error}"))
        })?;
        let (folder, options) = (folder.to_owned(), options.clone());
        let mut daemon = Self { child, folder, bridge, options };
        daemon.await_answer()?;
        Ok(daemon)
    }

    /// Ends it, and starts it again with everything it has.
    ///
    /// # Errors
    ///
    /// Fails if it does not come up again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.end();
        self.child = spawn(&self.folder, &self.bridge, &self.options)?;
        self.await_answer()
    }

    /// Where it listens, as `DOCKER_HOST` says it.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.folder.join("docker.sock").display())
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn await_answer(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !answers(&self.host()) {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default().to_owned();
                return Err(io::Error::other(format!("dockerd ended with {status}: {last}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("dockerd does not answer"));
            }
            rest();
        }
        Ok(())
    }

    /// Ends it, and waits until it has.
    pub fn end(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.child.try_wait()) {
            // One that has ended meanwhile is what is wanted.
            let _ = kill_process(pid, Signal::TERM);
            let deadline = Instant::now() + TIMEOUT;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                rest();
            }
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
        remove_bridge(&self.bridge);
        unmount_beneath(&self.folder);
        // Its files are whoever's that made the folder.
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Starts a daemon that keeps everything in `folder`.
fn spawn(folder: &Path, bridge: &str, options: &DaemonOptions) -> io::Result<Child> {
    let log = fs::File::create(folder.join("log"))?;
    let mut command = program(options);
    command.arg("--host").arg(format!("unix://{}", folder.join("docker.sock").display()));
    for (option, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
        command.arg(option).arg(folder.join(name));
    }
    command.args(["--bridge", bridge, "--iptables=false", "--ip-masq=false"]);
    command.arg("--ip-forward=false");
    if Path::new(RUNSC).exists() {
        command.arg("--add-runtime").arg(format!("runsc={}", wrap_runsc(folder)?.display()));
    }
    if let Some((port, certificates)) = &options.tls {
        command.arg("--host").arg(format!("tcp://127.0.0.1:{port}")).arg("--tlsverify");
        for (option, name) in
            [("--tlscacert", "ca.pem"), ("--tlscert", "server.pem"), ("--tlskey", "server-key.pem")]
        {
            command.arg(option).arg(certificates.join(name));
        }
    }
    command.args(&options.arguments).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log).spawn()
}

/// The daemon, with a view of its own on this machine's files if it shall have one.
fn program(options: &DaemonOptions) -> Command {
    let line = match (&options.drivers, &options.hidden) {
        (None, None) => return Command::new("dockerd"),
        (Some(_), _) => "mkdir -p /run/docker/plugins && mount --bind \"$0\" /run/docker/plugins",
        (None, Some(_)) => "mount -t tmpfs none \"$0\"",
    };
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{line} && exec dockerd \"$@\"")]);
    command.args(options.drivers.as_ref().or(options.hidden.as_ref()));
    command
}

/// A program that starts gVisor with what works on every machine: no network of the engine's, and no
/// hardware.
fn wrap_runsc(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("runsc");
    let script = format!("#!/bin/sh\nexec {RUNSC} --network=none --platform=ptrace \"$@\"\n");
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Takes away what a daemon left mounted: without that its files cannot be removed.
fn unmount_beneath(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mut beneath: Vec<_> = points.filter(|point| Path::new(point).starts_with(folder)).collect();
    // What lies deepest goes first.
    beneath.sort_unstable_by_key(|point| std::cmp::Reverse(point.len()));
    for point in beneath {
        // One that is gone is what is wanted.
        drop(Command::new("umount").args(["--lazy", point]).stderr(Stdio::null()).status());
    }
}

/// Waits a little for something outside this process that cannot say when it is done.
fn rest() {
    let most = rustix::event::Timespec::try_from(AGAIN).ok();
    let _ = rustix::event::poll(&mut [], most.as_ref());
}

/// Whether a daemon answers there.
#[must_use]
pub fn answers(host: &str) -> bool {
    let mut docker = Command::new("docker");
    docker.args(["--host", host, "version", "--format", "{{.Server.Version}}"]);
    docker.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

/// Runs `docker` against a daemon; it must end well.
///
/// # Errors
///
/// Fails with what it says on standard error.
pub fn docker(host: &str, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new("docker");
    let output = command.args(["--host", host]).args(arguments).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let what = arguments.join(" ");
        return Err(io::Error::other(format!("docker {what}: {}", stderr.trim())));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

/// A bridge that no other daemon has: two on one bridge undo each other's.
fn make_bridge() -> io::Result<String> {
    let own = std::process::id();
    let count = BRIDGES.fetch_add(1, Ordering::Relaxed);
    let name = format!("bst{own}x{count}");
    let address = format!("10.{}.{}.1/24", own % 200 + 20, count % 250);
    for arguments in [
        &["link", "add", "name", &name, "type", "bridge"][..],
        &["addr", "add", &address, "dev", &name][..],
        &["link", "set", &name, "up"][..],
    ] {
        let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            remove_bridge(&name);
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("cannot make a bridge: {}", stderr.trim())));
        }
    }
    Ok(name)
}

/// How many bridges this process has made.
static BRIDGES: AtomicU32 = AtomicU32::new(0);

fn remove_bridge(name: &str) {
    // One that is gone is what is wanted.
    drop(Command::new("ip").args(["link", "del", name]).stderr(Stdio::null()).status());
}
