//! Commands as the reference runs them: what failed to run is an error, and a signal is reported as the
//! reference's client of that backend does.

use std::path::Path;

use serde_json::Number;

use super::ReferenceSession;
use crate::compat::raise;
use crate::{Command, Error, ErrorClass, ErrorKind, ExitReason, Output, Result};

/// What a command said, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecResult {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its exit code. If signal N ended it, 128 + N where the session has a system of its own, as
    /// containers have, and minus N elsewhere.
    pub exit_code: i64,
}

impl ExecResult {
    /// Whether the command ended well.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.exit_code == 0
    }
}

impl ReferenceSession<'_> {
    /// Runs a command to its end, as [`Session::exec`](crate::Session::exec) does, and tells its end as the reference
    /// does.
    ///
    /// # Errors
    ///
    /// `WorkspaceRootNotFoundError` if the workspace is a folder of the host that is not there any more,
    /// `ExecTransportError` if it could not be executed, `ExecTimeoutError` if it took longer than its
    /// [timeout](Command::timeout), [`LimitExceeded`](ErrorKind::LimitExceeded) if it said more than its
    /// [output limit](Command::output_limit) (it ran to its end then); and as `exec`.
    pub async fn exec_result(self, command: Command) -> Result<ExecResult> {
        let command = self.session.as_run(command);
        let argv = shown(&command);
        let timeout = command.timeout;
        if let Err(error) = self.check_root() {
            return Err(self.session.record_refused_command(&command, error).await);
        }
        let output = self.session.exec(command).await.map_err(|error| not_run(&argv, error))?;
        let is_whole = !output.is_truncated();
        let Output { stdout, stderr, stdout_omitted, stderr_omitted, lost, exit, .. } = output;
        let code = i64::from(exit.code);
        let exit_code = match exit.reason {
            ExitReason::NotStarted => {
                let error = raise::exec_transport(argv);
                return Err(match exit.detail {
                    Some(detail) => error.with_source(detail),
                    None => error,
                });
            }
            ExitReason::Timeout => {
                let seconds = timeout.and_then(|timeout| Number::from_f64(timeout.as_secs_f64()));
                return Err(raise::exec_timeout(argv, seconds));
            }
            ExitReason::Signalled | ExitReason::OutOfMemory
                if !self.session.backend.has_own_system() =>
            {
                128 - code
            }
            _ => code,
        };
        // A result has no place to say that something is missing from it.
        if !is_whole {
            let missing = stdout_omitted.saturating_add(stderr_omitted).saturating_add(lost);
            let message = format!(
                "the command ended with code {exit_code}, but {missing} bytes of its output are missing"
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message)
                .with_context("exit_code", exit_code)
                .with_hint("give it a larger `output_limit`, read it piece by piece with `spawn`, or write it to a file"));
        }
        Ok(ExecResult { stdout: stdout.to_vec(), stderr: stderr.to_vec(), exit_code })
    }

    /// Whether the folder of the host that is the workspace is still there. The sandbox has it either way, and a command would
    /// run in it without finding anything, or write what nobody finds.
    pub(super) fn check_root(self) -> Result<()> {
        match self.session.life.terms.host_folder.as_deref().map(Path::try_exists) {
            Some(Ok(false)) => Err(raise::workspace_root_not_found(self.session.root().as_str())),
            _ => Ok(()),
        }
    }
}

/// The words of a command, to be read.
pub(super) fn shown(command: &Command) -> Vec<String> {
    command.argv.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// What keeps a command from running is `ExecTransportError` with the reference, whatever it is.
pub(super) fn not_run(argv: &[String], error: Error) -> Error {
    match error.class() {
        // A guest that is gone knows of no command.
        None | Some(ErrorClass::ExecTransportError) if error.command().is_none() => {
            raise::exec_transport(argv).with_source(error)
        }
        _ => error,
    }
}
