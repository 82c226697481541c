//! What a session tells of itself.

use std::sync::Arc;

use bastide_model::PosixPath;
use bastide_model::events::Operation;
use serde_json::{Number, Value, json};

use super::Session;
use crate::events::{BoundSession, Finished, Recorder, SinkStats, Telling, further, telling};
use crate::link::Link;
use crate::process::ToldProcess;
use crate::snapshot::Saved;
use crate::{Command, ProcessId, Result};

impl Session {
    /// Waits until every sink has what happened so far, each for a while, and the audit log is on the
    /// disk.
    pub async fn flush_events(&self) {
        if let Some(events) = &self.events {
            events.flush().await;
        }
    }

    /// What became of the events of this session, for each sink.
    #[must_use]
    pub fn event_stats(&self) -> Vec<SinkStats> {
        self.events.as_ref().map(|events| events.stats()).unwrap_or_default()
    }

    /// Files of the workspace that belong to sinks and stay out of snapshots.
    #[must_use]
    pub fn event_skip_paths(&self) -> Vec<PosixPath> {
        self.events.as_ref().map(|events| events.skip_paths()).unwrap_or_default()
    }

    /// Prepares to tell of an operation as the reference does.
    pub(crate) fn telling(&self, operation: impl FnOnce() -> Operation) -> Telling<'_> {
        telling(self.events.as_ref(), operation)
    }

    /// Prepares to tell of an operation the reference says nothing about.
    pub(crate) fn further(&self, op: &'static str, data: impl FnOnce() -> Value) -> Telling<'_> {
        self.telling(|| further(op, data()))
    }

    /// Tells that a command starts.
    pub(super) async fn tell_of_command(&self, command: &Command) -> Result<Option<ToldProcess>> {
        let open = self.telling(|| command.operation()).open().await?;
        Ok(open.map(|open| {
            let (given, timeout_s) = (command.given(), command.timeout_s());
            ToldProcess::command(open, given, timeout_s, self.backend.has_own_system())
        }))
    }

    /// Tells that somebody listens to a process.
    pub(super) async fn tell_of_listening(
        &self,
        process: ProcessId,
        from: u64,
        only_so_far: bool,
    ) -> Result<Option<ToldProcess>> {
        let op = if only_so_far { "log" } else { "attach" };
        let told = self.further(op, || json!({"process": process.0, "from": from}));
        Ok(told.open().await?.map(ToldProcess::listening))
    }

    /// A recorder for this session over another link.
    pub(super) fn recorder_for(&self, link: &Arc<dyn Link>) -> Result<Option<Arc<Recorder>>> {
        let Some(events) = &self.events else { return Ok(None) };
        let bound = BoundSession {
            backend: Arc::clone(&self.backend),
            machine: self.machine.clone(),
            link: Arc::clone(link),
            policy: self.policy.clone(),
            root: self.root.clone(),
        };
        events.again(&self.options, &bound)
    }
}

impl Command {
    /// The command as it was given, as text.
    pub(crate) fn given(&self) -> Vec<String> {
        // A line for the shell was given without the shell.
        let skipped = if self.is_shell { 2 } else { 0 };
        let given = self.argv.iter().skip(skipped);
        given.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
    }

    pub(crate) fn timeout_s(&self) -> Option<Number> {
        let seconds = self.timeout?.as_secs_f64();
        Number::from_f64(seconds)
    }

    fn operation(&self) -> Operation {
        Operation::Exec {
            command: self.given(),
            timeout_s: self.timeout_s(),
            shell: self.is_shell.into(),
            user: self.user.clone(),
        }
    }

    /// What further operations say of it.
    pub(crate) fn description(&self) -> Value {
        json!({
            "command": self.given(),
            "shell": self.is_shell,
            "user": self.user,
            "terminal": self.terminal.is_some(),
        })
    }
}

impl Saved {
    /// What is told of a workspace that was saved, where everything is.
    pub(crate) fn told(&self) -> Finished {
        match &self.fingerprint {
            Some(record) => Finished::done()
                .with("fingerprint", record.fingerprint.as_str())
                .with("fingerprint_version", record.version.as_str()),
            None => Finished::done(),
        }
    }
}
