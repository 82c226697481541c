//! `docker exec`, as people type it.

use std::io;
use std::time::{Duration, Instant};

use bastide_testkit::engine::{docker, images};

/// A container that waits for commands.
#[derive(Debug)]
pub(crate) struct DockerExec {
    host: String,
    container: String,
}

impl DockerExec {
    pub(crate) fn start(host: &str) -> io::Result<Self> {
        let line = ["run", "--detach", "--network", "none", images::BASE, "sleep", "infinity"];
        let container = docker(host, &line)?.trim().to_owned();
        Ok(Self { host: host.to_owned(), container })
    }

    /// One command, from its start to its end.
    pub(crate) fn run(&self) -> io::Result<Duration> {
        let started = Instant::now();
        docker(&self.host, &["exec", &self.container, "/bin/true"])?;
        Ok(started.elapsed())
    }

    pub(crate) fn end(&self) -> io::Result<()> {
        docker(&self.host, &["rm", "--force", &self.container]).map(drop)
    }
}
