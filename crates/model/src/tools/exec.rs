//! `exec_command`: runs a command, with a terminal or without.

use serde_json::{Value, json};

use super::Start;
use super::arguments::{ExecCommandArgs, read};
use super::response::{Response, normalize_output, prepend_notice};
use crate::PosixPath;
use crate::error::{Error, ErrorClass, Result};
use crate::paths::{PathUse, SandboxWorkspaceScope, WorkspacePathPolicy};
use crate::pty::PtyExecUpdate;
use crate::text::{shell_quote, trim};
use crate::truncation::formatted_truncate_text_with_token_count;

const ARGUMENTS: [&str; 7] =
    ["cmd", "workdir", "shell", "login", "tty", "yield_time_ms", "max_output_tokens"];
const OUTSIDE: &str = "workdir has to be in the workspace or below a path granted to it.";
const NO_TERMINAL: &str = "No interactive session could be opened; the command ran without one.";

/// Whether a session has interactive processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PtySupport {
    /// It has: a process goes on beyond the call that started it, on a terminal or without.
    Interactive,
    /// It has none: a command runs to its end.
    None,
}

/// Whether a shell reads the files of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellMode {
    /// It does.
    Login,
    /// It does not.
    Plain,
}

/// What a session runs a command with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shell {
    /// The session's own shell.
    Default,
    /// This program and flag.
    Argv([String; 2]),
}

impl Shell {
    /// The shell a model means by `shell` and whether it is a login shell.
    #[must_use]
    pub fn resolve(shell: Option<&str>, mode: ShellMode) -> Self {
        match (shell, mode) {
            (None, ShellMode::Login) => Self::Default,
            (None, ShellMode::Plain) => Self::Argv(["sh".to_owned(), "-c".to_owned()]),
            (Some(shell), ShellMode::Login) => Self::Argv([shell.to_owned(), "-lc".to_owned()]),
            (Some(shell), ShellMode::Plain) => Self::Argv([shell.to_owned(), "-c".to_owned()]),
        }
    }

    /// As JSON: `true`, or the program and its flag.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Default => json!(true),
            Self::Argv(argv) => json!(argv),
        }
    }
}

/// The command as it runs in `workdir`, or in the folder of the run if it has one.
///
/// # Errors
/// `InvalidManifestPathError` if that is outside.
pub fn resolve_workdir_command(
    policy: &WorkspacePathPolicy,
    scope: &SandboxWorkspaceScope,
    command: &str,
    workdir: Option<&str>,
) -> Result<String> {
    let workdir = match workdir {
        Some(workdir) if !trim(workdir).is_empty() => workdir,
        _ if scope.cwd().is_none() => return Ok(command.to_owned()),
        _ => ".",
    };
    let anchored = scope.anchor(&PosixPath::typed(workdir));
    let folder = policy.normalize_path(anchored.as_str(), PathUse::Read)?;
    // On a line of its own: the folder is changed before a list or a background job starts.
    Ok(format!("cd {} || exit\n{command}", shell_quote(folder.as_str())))
}

/// A call of the session to make.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecCall {
    /// Start an interactive process and wait for output.
    PtyStart {
        /// The command.
        command: String,
        /// What to run it with.
        shell: Shell,
        /// Whether it gets a terminal.
        tty: bool,
        /// How long to wait for output.
        yield_time_s: f64,
        /// How much output to show.
        max_output_tokens: Option<i64>,
    },
    /// Run a command to its end.
    Exec {
        /// The command.
        command: String,
        /// What to run it with.
        shell: Shell,
        /// How long it may take.
        timeout_s: f64,
    },
}

/// What came of an [`ExecCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutcome {
    /// Of starting an interactive process.
    Pty(PtyExecUpdate),
    /// Of running a command to its end.
    Exec {
        /// What it wrote.
        stdout: Vec<u8>,
        /// What it wrote to standard error.
        stderr: Vec<u8>,
        /// Its exit code.
        exit_code: i64,
    },
}

/// What a run of `exec_command` wants next.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecStep {
    /// Make this call.
    Call(ExecCall),
    /// Answer the model.
    Answer(Response),
}

/// One use of `exec_command`.
#[derive(Debug)]
pub struct ExecCommandRun {
    arguments: ExecCommandArgs,
    command: String,
    pty: PtySupport,
    fell_back: bool,
}

impl ExecCommandRun {
    /// Starts with what the model sent.
    ///
    /// # Errors
    /// The working folder cannot be told.
    pub fn start(
        raw: &str,
        policy: &WorkspacePathPolicy,
        scope: &SandboxWorkspaceScope,
        pty: PtySupport,
    ) -> Result<Start<Self>> {
        let arguments: ExecCommandArgs = match read(raw, &ARGUMENTS) {
            Ok(arguments) => arguments,
            Err(text) => return Ok(Start::Refuse(text)),
        };
        let workdir = arguments.workdir.as_deref();
        match resolve_workdir_command(policy, scope, &arguments.cmd, workdir) {
            Ok(command) => Ok(Start::Run(Self { arguments, command, pty, fell_back: false })),
            Err(error) if is_class(&error, ErrorClass::InvalidManifestPathError) => {
                Ok(Start::Refuse(OUTSIDE.to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// The first call to make.
    #[must_use]
    pub fn call(&self) -> ExecCall {
        match self.pty {
            PtySupport::Interactive => self.interactive(),
            PtySupport::None => self.one_shot(),
        }
    }

    /// Goes on after a call.
    ///
    /// # Errors
    /// What the call failed with, unless it is something the model is told.
    pub fn answer(&mut self, outcome: Result<ExecOutcome>) -> Result<ExecStep> {
        let mut response = match outcome {
            Ok(ExecOutcome::Pty(update)) => Response {
                output: String::from_utf8_lossy(&update.output).into_owned(),
                exit_code: update.exit_code,
                process_id: update.process_id,
                original_token_count: update.original_token_count,
            },
            Ok(ExecOutcome::Exec { stdout, stderr, exit_code }) => {
                let output = normalize_output(&stdout, &stderr);
                let limit = self.arguments.max_output_tokens;
                let cut = formatted_truncate_text_with_token_count(&output, limit);
                Response {
                    output: cut.text,
                    exit_code: Some(exit_code),
                    process_id: None,
                    original_token_count: cut.original_token_count,
                }
            }
            Err(error) if error.is_timeout() => {
                let text = format!("The command took longer than {:.3} seconds.", self.seconds());
                return Ok(ExecStep::Answer(Response::saying(text, None)));
            }
            Err(error) if self.may_fall_back(&error) => {
                self.fell_back = true;
                return Ok(ExecStep::Call(self.one_shot()));
            }
            Err(error) => return Err(error),
        };
        if self.fell_back {
            response.output = prepend_notice(&response.output, NO_TERMINAL);
        }
        Ok(ExecStep::Answer(response))
    }

    /// Whether the command certainly did not start, and can do without a terminal.
    fn may_fall_back(&self, error: &Error) -> bool {
        is_class(error, ErrorClass::ExecTransportError)
            && error.is_retry_safe()
            && !self.arguments.tty
            && !self.fell_back
    }

    fn seconds(&self) -> f64 {
        seconds(self.arguments.yield_time_ms)
    }

    fn shell(&self) -> Shell {
        let mode = if self.arguments.login { ShellMode::Login } else { ShellMode::Plain };
        Shell::resolve(self.arguments.shell.as_deref(), mode)
    }

    fn interactive(&self) -> ExecCall {
        ExecCall::PtyStart {
            command: self.command.clone(),
            shell: self.shell(),
            tty: self.arguments.tty,
            yield_time_s: self.seconds(),
            max_output_tokens: self.arguments.max_output_tokens,
        }
    }

    fn one_shot(&self) -> ExecCall {
        ExecCall::Exec {
            command: self.command.clone(),
            shell: self.shell(),
            timeout_s: self.seconds(),
        }
    }
}

pub(super) fn is_class(error: &Error, class: ErrorClass) -> bool {
    error.class() == Some(class)
}

pub(super) fn seconds(milliseconds: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "waits are far below 2^53 milliseconds")]
    let milliseconds = milliseconds as f64;
    milliseconds / 1000.0
}
