//! The Docker daemon that tests use: the one that is named, else one of our own.

use std::path::{Path, PathBuf};
use std::process::Command;

use bastide_test_servers::engine::{Daemon, DaemonOptions, HOST, answers, images};

use crate::shell::{Outcome, say, works};

/// Where the daemon keeps everything; removed at the end.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Ended before its folder goes.
    _daemon: Option<Daemon>,
    _folder: tempfile::TempDir,
    host: String,
}

/// What this would start, once the daemon's program is there if it comes with the packages.
pub(crate) fn announcement(is_coming: bool) -> String {
    match given() {
        Some(host) => format!("docker:  the daemon at {host}, with images named bastide-test/*"),
        None if can_start() || (is_coming && rustix::process::geteuid().is_root()) => {
            "docker:  a daemon of its own, with its own files, socket and bridge".to_owned()
        }
        None => "docker:  nothing".to_owned(),
    }
}

fn given() -> Option<String> {
    std::env::var_os(HOST).and_then(|host| host.into_string().ok())
}

/// Where the daemon's files go: into memory where there is enough of it. Every container is written to
/// disk with patience, and a disk that others use has little of that.
fn roomy() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let has_room = rustix::fs::statvfs(memory)
        .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) > ROOM);
    let fits = has_room && tempfile::tempdir_in(memory).is_ok();
    if fits { memory.to_owned() } else { std::env::temp_dir() }
}

/// How many bytes a daemon's files may come to.
const ROOM: u64 = 6 << 30;

/// Whether this machine could run a daemon.
pub(crate) fn can_start() -> bool {
    rustix::process::geteuid().is_root() && works(Command::new("dockerd").arg("--version"))
}

impl Engine {
    /// Finds or starts a daemon with the images of the trials; or says why there is none.
    pub(crate) fn prepare() -> Outcome<Result<Self, String>> {
        let folder = tempfile::Builder::new().prefix("bastide-docker-").tempdir_in(roomy())?;
        let (daemon, host) = match given() {
            Some(host) if answers(&host) => (None, host),
            Some(host) => return Ok(Err(format!("no Docker daemon answers at {host}"))),
            None if !can_start() => {
                let why = "`dockerd` cannot be started here: it takes root, and the package \
                           docker.io";
                return Ok(Err(why.to_owned()));
            }
            None => match Daemon::start(&folder.path().join("daemon"), &DaemonOptions::default()) {
                Ok(daemon) => {
                    let host = daemon.host();
                    (Some(daemon), host)
                }
                Err(error) => return Ok(Err(error.to_string())),
            },
        };
        say(&format!("the Docker daemon at {host}"));
        images::make(&host)?;
        Ok(Ok(Self { _daemon: daemon, _folder: folder, host }))
    }

    /// The variable that tells tests where it is.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        (HOST, self.host.clone())
    }
}
