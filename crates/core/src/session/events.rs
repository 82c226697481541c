//! What a session records of itself.

use std::sync::Arc;

use bastide_model::PosixPath;
use bastide_model::events::Operation;
use serde_json::{Number, Value, json};

use super::Session;
use crate::client::credentials;
use crate::events::{
    BoundSession, Finished, OperationScope, Recorder, Redactor, SinkStats, extension,
    operation_scope,
};
use crate::link::Link;
use crate::session::process::ProcessRecording;
use crate::snapshot::Saved;
use crate::{Command, Error, ProcessId, Result};

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
    pub(crate) fn sink_paths(&self) -> Vec<PosixPath> {
        self.events.as_ref().map(|events| events.skip_paths()).unwrap_or_default()
    }

    /// Opens the scope of an operation of the reference.
    pub(crate) fn operation_scope(
        &self,
        operation: impl FnOnce() -> Operation,
    ) -> OperationScope<'_> {
        operation_scope(self.events.as_ref(), operation)
    }

    /// Opens the scope of an operation that the reference has no events for.
    pub(crate) fn extension(
        &self,
        op: &'static str,
        data: impl FnOnce() -> Value,
    ) -> OperationScope<'_> {
        self.operation_scope(|| extension(op, data()))
    }

    /// What takes the secrets of this session out of a text, whether anybody listens to its events or not.
    pub(crate) fn redactor(&self) -> Redactor {
        let of_mounts = credentials(&self.life.state().manifest);
        Redactor::new(self.options.secrets.iter().cloned().chain(of_mounts))
    }

    /// Records that a command starts.
    pub(super) async fn record_command(
        &self,
        command: &Command,
    ) -> Result<Option<ProcessRecording>> {
        let open = self.operation_scope(|| command.operation()).open().await?;
        Ok(open.map(|open| {
            let (given, timeout_s) = (command.given(), command.timeout_s());
            ProcessRecording::command(open, given, timeout_s, self.backend.has_own_system())
        }))
    }

    /// Records a command that nobody tried to run, and gives back why.
    pub(crate) async fn record_refused_command(&self, command: &Command, why: Error) -> Error {
        match self.record_command(command).await {
            Ok(Some(recording)) => recording.fail(&why).await.err().unwrap_or(why),
            Ok(None) => why,
            Err(unrecorded) => unrecorded,
        }
    }

    /// Records that somebody attaches to a process.
    pub(super) async fn record_attach(
        &self,
        process: ProcessId,
        from: u64,
        only_so_far: bool,
    ) -> Result<Option<ProcessRecording>> {
        let op = if only_so_far { "log" } else { "attach" };
        let scope = self.extension(op, || json!({"process": process.0, "from": from}));
        Ok(scope.open().await?.map(ProcessRecording::listening))
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
        events.with_options(&self.options, &bound)
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

    /// What events of our own say of it.
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
    /// What the finish event of saving a workspace says besides, for sinks that want everything.
    pub(crate) fn finished(&self) -> Finished {
        match &self.fingerprint {
            Some(record) => Finished::done()
                .with("fingerprint", record.fingerprint.as_str())
                .with("fingerprint_version", record.version.as_str()),
            None => Finished::done(),
        }
    }
}
