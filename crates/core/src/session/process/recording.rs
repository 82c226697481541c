//! What events say of a command while and after it runs.

use bastide_model::events::OperationResult;
use bytes::Bytes;
use serde_json::{Map, Number, json};

use super::{Exit, ExitReason, ProcessId};
use crate::compat::raise;
use crate::events::{Finished, OpenOperation};
use crate::session::usage::Usage;
use crate::{Error, ErrorKind, Result};

/// The recording of a command: what is kept of its output for sinks.
#[derive(Debug)]
pub(crate) struct ProcessRecording {
    open: OpenOperation,
    kind: Kind,
    /// How many bytes of each stream any sink may get.
    most: usize,
    stdout: RecordedOutput,
    stderr: RecordedOutput,
}

/// What is recorded: a command of one's own, or attaching to one of somebody else's.
#[derive(Debug)]
enum Kind {
    Command { command: Vec<String>, timeout_s: Option<Number>, has_own_system: bool },
    Listening,
}

#[derive(Debug, Default)]
struct RecordedOutput {
    bytes: Vec<u8>,
    total: u64,
}

impl RecordedOutput {
    fn add(&mut self, data: &[u8], most: usize) {
        self.total += data.len() as u64;
        let room = most.saturating_sub(self.bytes.len()).min(data.len());
        self.bytes.extend_from_slice(&data[..room]);
    }
}

impl ProcessRecording {
    /// A command that was started.
    pub(crate) fn command(
        open: OpenOperation,
        command: Vec<String>,
        timeout_s: Option<Number>,
        has_own_system: bool,
    ) -> Self {
        let most = open.recorder().output_wanted("exec");
        // Enough to find a secret at the end of what a sink may get; nobody keeps more than that.
        let most = most.min(crate::session::output::DEFAULT_LIMIT);
        let kind = Kind::Command { command, timeout_s, has_own_system };
        Self {
            open,
            kind,
            most,
            stdout: RecordedOutput::default(),
            stderr: RecordedOutput::default(),
        }
    }

    /// A process somebody else started.
    pub(crate) fn listening(open: OpenOperation) -> Self {
        let (stdout, stderr) = (RecordedOutput::default(), RecordedOutput::default());
        Self { open, kind: Kind::Listening, most: 0, stdout, stderr }
    }

    pub(super) fn stdout(&mut self, data: &Bytes) {
        self.stdout.add(data, self.most);
    }

    pub(super) fn stderr(&mut self, data: &Bytes) {
        self.stderr.add(data, self.most);
    }

    /// Records its end.
    pub(super) async fn finish(
        self,
        id: ProcessId,
        exit: &Exit,
        usage: Option<&Usage>,
    ) -> Result<()> {
        // As the reference's client of that backend has it.
        let has_own_system = matches!(self.kind, Kind::Command { has_own_system: true, .. });
        let exit_code = match exit.reason {
            ExitReason::Signalled if !has_own_system => i64::from(128 - exit.code),
            _ => i64::from(exit.code),
        };
        let reason = exit.reason.as_str();
        let finished = match self.kind {
            Kind::Command { command, timeout_s, .. } => {
                let result = match exit.reason {
                    ExitReason::Timeout => Err(raise::exec_timeout(command, timeout_s)),
                    ExitReason::NotStarted => Err(raise::exec_transport(command)),
                    _ => Ok(OperationResult::Exec {
                        exit_code,
                        stdout: self.stdout.bytes,
                        stderr: self.stderr.bytes,
                    }),
                };
                Finished { result, extra: Map::new() }.with("process", id.0).with("reason", reason)
            }
            Kind::Listening if exit.reason == ExitReason::Detached => Finished::done(),
            // Whoever started it may not have been there to see the end.
            Kind::Listening => Finished::extension(json!({
                "exit_code": exit_code,
                "reason": reason,
                "late": true,
            })),
        };
        let mut finished =
            finished.with("stdout_size", self.stdout.total).with("stderr_size", self.stderr.total);
        if let Some(usage) = usage {
            let cpu_us = u64::try_from(usage.cpu.as_micros()).unwrap_or(u64::MAX);
            finished = finished
                .with("cpu_us", cpu_us)
                .with("peak_memory_bytes", usage.peak_memory)
                .with("read_bytes", usage.read)
                .with("written_bytes", usage.written)
                .with("usage_source", usage.source.as_str());
        }
        self.open.finish(finished).await
    }

    /// Records that it goes on by itself.
    pub(super) async fn detached(self, id: ProcessId) -> Result<()> {
        let result = Ok(OperationResult::Extension {
            data: Map::from_iter([("detached".to_owned(), true.into())]),
        });
        self.open.finish(Finished { result, extra: Map::new() }.with("process", id.0)).await
    }

    /// Tells that nobody knows its end; of a command, with the class that has in the reference.
    pub(crate) async fn fail(self, error: &Error) -> Result<()> {
        match self.kind {
            Kind::Command { command, .. }
                if error.class().is_none() || error.kind() == ErrorKind::AgentLost =>
            {
                let why = error.to_string();
                self.open.fail(&raise::exec_transport(command).with_source(why)).await
            }
            _ => self.open.fail(error).await,
        }
    }
}
