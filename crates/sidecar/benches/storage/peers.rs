//! What users would mount a store with instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::mount::UnmountFlags;

use crate::servers::{DEADLINE, Server, tools};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Rclone,
    /// Ours, over the library that the real one is made of.
    MountS3,
}

impl Peer {
    /// Those that the test command has installed.
    pub(crate) fn available() -> Vec<Self> {
        let all = [Self::Rclone, Self::MountS3];
        all.into_iter().filter(|peer| peer.program().exists()).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rclone => "rclone",
            Self::MountS3 => "mount-s3",
        }
    }

    fn program(self) -> PathBuf {
        tools().join(match self {
            Self::Rclone => "venv/bin/rclone",
            Self::MountS3 => "bin/mount-s3",
        })
    }
}

/// A mount of the bucket `data`; gone with the value.
pub(crate) struct PeerMount {
    child: Child,
    folder: tempfile::TempDir,
}

impl PeerMount {
    pub(crate) fn new(peer: Peer, server: &Server) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(peer.program());
        match peer {
            Peer::Rclone => {
                let remote = format!(
                    ":s3,provider=Other,access_key_id=AKID,secret_access_key=s3cr3t,region=us-east-1,endpoint='{}':data",
                    server.endpoint()
                );
                command.args(["mount", &remote]).arg(folder.path());
                command.args(["--config", "/dev/null", "--log-level", "ERROR"]);
            }
            Peer::MountS3 => {
                command.args(["--foreground", "--allow-overwrite", "--allow-delete"]);
                command.args(["--region", "us-east-1", "--endpoint-url", &server.endpoint()]);
                command.arg("data").arg(folder.path());
                command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s3cr3t");
            }
        }
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        let path = folder.path().to_str().unwrap().to_owned();
        while !fs::read_to_string("/proc/self/mounts").unwrap().contains(&path) {
            assert!(begin.elapsed() < DEADLINE, "{} does not mount", peer.name());
            std::thread::yield_now();
        }
        Self { child, folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for PeerMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::FORCE);
        let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::DETACH);
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
