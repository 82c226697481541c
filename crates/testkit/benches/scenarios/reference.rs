//! The reference's clients, in a warm process of their own.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::operation::Operation;

/// A process that measures itself.
#[derive(Debug)]
pub(crate) struct Reference {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Reference {
    /// The client for this machine, or that for containers of an image on a daemon.
    pub(crate) fn start(
        python: &Path,
        folder: &Path,
        docker: Option<(&str, &str)>,
    ) -> io::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/reference.py");
        let mut command = Command::new(python);
        command.arg(script).env("TMPDIR", folder);
        if let Some((host, image)) = docker {
            command.args(["docker", image]).env("DOCKER_HOST", host);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("no pipe");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut reference = Self { child, orders, answers };
        match reference.line()?.as_str() {
            "ready" => Ok(reference),
            other => Err(io::Error::other(format!("the reference said {other:?}"))),
        }
    }

    /// How long the reference takes for one operation, by its own clock.
    pub(crate) fn measure(&mut self, operation: Operation) -> io::Result<Duration> {
        writeln!(self.orders, "{operation}")?;
        let line = self.line()?;
        let seconds: f64 = line.parse().map_err(|_| {
            io::Error::other(format!("the reference said {line:?} to `{operation}`"))
        })?;
        Ok(Duration::from_secs_f64(seconds))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
