//! `write_stdin`: writes to a running process, or looks for its output.

use super::Start;
use super::arguments::{WriteStdinArgs, read};
use super::exec::{PtySupport, is_class, seconds};
use super::response::Response;
use crate::error::raise;
use crate::error::{ErrorClass, Result};
use crate::pty::PtyExecUpdate;

const ARGUMENTS: [&str; 4] = ["session_id", "chars", "yield_time_ms", "max_output_tokens"];
/// What a session says about a process without a terminal.
const NO_STDIN: &str = "stdin is not available for this process";

/// A call of the session to make.
#[derive(Debug, Clone, PartialEq)]
pub struct StdinCall {
    /// The process.
    pub session_id: i64,
    /// What to write.
    pub chars: String,
    /// How long to wait for output.
    pub yield_time_s: f64,
    /// How much output to show.
    pub max_output_tokens: Option<i64>,
}

/// One use of `write_stdin`.
#[derive(Debug)]
pub struct WriteStdinRun {
    call: StdinCall,
}

impl WriteStdinRun {
    /// Starts with what the model sent.
    ///
    /// # Errors
    /// `RuntimeError` if the session has no interactive processes.
    pub fn start(raw: &str, pty: PtySupport) -> Result<Start<Self>> {
        let arguments: WriteStdinArgs = match read(raw, &ARGUMENTS) {
            Ok(arguments) => arguments,
            Err(text) => return Ok(Start::Refuse(text)),
        };
        if pty == PtySupport::None {
            return Err(raise::runtime_error("write_stdin is not available for non-PTY sandboxes"));
        }
        let call = StdinCall {
            session_id: arguments.session_id,
            chars: arguments.chars,
            yield_time_s: seconds(arguments.yield_time_ms),
            max_output_tokens: arguments.max_output_tokens,
        };
        Ok(Start::Run(Self { call }))
    }

    /// The call to make.
    #[must_use]
    pub fn call(&self) -> &StdinCall {
        &self.call
    }

    /// The answer after the call.
    ///
    /// # Errors
    /// What the call failed with, unless it is something the model is told.
    pub fn answer(self, outcome: Result<PtyExecUpdate>) -> Result<Response> {
        match outcome {
            Ok(update) => Ok(Response {
                output: String::from_utf8_lossy(&update.output).into_owned(),
                exit_code: update.exit_code,
                process_id: update.process_id,
                original_token_count: update.original_token_count,
            }),
            Err(error) if is_class(&error, ErrorClass::PtySessionNotFoundError) => {
                Ok(Response::saying(format!("Nothing written: {error}"), Some(1)))
            }
            Err(error)
                if is_class(&error, ErrorClass::RuntimeError) && error.message() == NO_STDIN =>
            {
                let text = "This process reads nothing. To write to a process, start it with \
                            `exec_command` and `tty=true`.";
                Ok(Response::saying(text, Some(1)))
            }
            Err(error) => Err(error),
        }
    }
}
