//! The reference's clients, in a process of their own.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::LiveBackend;

/// How long a scenario may take. Calls have deadlines of their own in the process, but some of them wait
/// where nothing can interrupt them.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A process that performs scenarios, and another one after each that got stuck.
#[derive(Debug)]
pub(super) struct Reference {
    python: PathBuf,
    side: LiveBackend,
    running: Running,
}

#[derive(Debug)]
struct Running {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<io::Result<String>>,
}

impl Reference {
    pub(super) fn start(python: &Path, side: &LiveBackend) -> io::Result<Self> {
        let running = Running::start(python, side)?;
        Ok(Self { python: python.to_owned(), side: side.clone(), running })
    }

    /// What the reference makes of a scenario.
    pub(super) fn perform(&mut self, line: &Value) -> io::Result<Value> {
        match self.running.perform(line)? {
            Some(answer) => Ok(answer),
            None => {
                self.running = Running::start(&self.python, &self.side)?;
                Ok(json!({"calls": [{"error": {"type": "TimeoutError"}}]}))
            }
        }
    }
}

impl Running {
    fn start(python: &Path, side: &LiveBackend) -> io::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/live/reference.py");
        // Its commands ignore what whoever started this ignores, such as `nohup`; ours do not.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(python).arg(script).arg(side.name());
        // Its commands have this one's, too; ours have a `/tmp` of their own.
        command.env_remove("TMPDIR");
        if let LiveBackend::Docker { host, image } = side {
            command.arg(image).env("DOCKER_HOST", host);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("no pipe");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let lines = BufReader::new(child.stdout.take().ok_or_else(missing)?).lines();
        let (received, answers) = channel();
        // Ends with the process, whose output it reads.
        thread::spawn(move || lines.map(|line| received.send(line)).all(|sent| sent.is_ok()));
        Ok(Self { child, orders, answers })
    }

    /// What it makes of a scenario; `None` if it does not answer.
    fn perform(&mut self, line: &Value) -> io::Result<Option<Value>> {
        writeln!(self.orders, "{line}")?;
        self.orders.flush()?;
        match self.answers.recv_timeout(TIMEOUT) {
            Ok(answer) => serde_json::from_str(&answer?).map(Some).map_err(io::Error::other),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the reference ended")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
