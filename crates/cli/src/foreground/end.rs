//! Telling how a command ended: by our own end, and in one line where its exit code alone says too little.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Exit, ExitReason, NetworkAccess, Receipt, Session};

use super::CommandEnd;
use super::network::NetworkErrorScanner;
use crate::args::values::signal_name;
use crate::terminal::AttachEnd;
use crate::ui::Ui;

const INT: i32 = 2;
const PIPE: i32 = 13;

/// What is said about the end of a command, and what there is to say it with.
#[derive(Debug, Default)]
pub(crate) struct EndNotes {
    quiet: bool,
    program: Option<String>,
    timeout: Option<String>,
    memory: Option<String>,
    network: Option<NetworkAccess>,
}

impl EndNotes {
    /// The notes on a command.
    pub(crate) fn new(argv: &[OsString], timeout: Option<Duration>, quiet: bool) -> Self {
        let program = argv.first().map(|name| name.to_string_lossy().into_owned());
        let timeout = timeout.map(|timeout| format!(" of {timeout:?}"));
        Self { quiet, program, timeout, memory: None, network: None }
    }

    /// Adds what is in force where the command runs.
    pub(crate) fn of(self, session: &Session) -> Self {
        let receipt = session.receipt();
        Self { memory: memory(receipt), network: Some(receipt.network), ..self }
    }

    /// Tells how the command ended, by our own end.
    pub(crate) fn finish(
        &self,
        ui: &Ui,
        exit: &Exit,
        network_errors: &NetworkErrorScanner,
    ) -> ExitCode {
        if !self.quiet {
            if let Some(line) = self.line(exit) {
                ui.note(&line);
            }
            if exit.code != 0 && network_errors.seen() && self.network == Some(NetworkAccess::None)
            {
                ui.note(
                    "the network of this session is `none`, so nothing outside can be reached; make a session with \
                     `--allow HOST` for one place, or with `--network host` for that of this machine",
                );
            }
        }
        ExitCode::from(u8::try_from(exit.code).unwrap_or(u8::MAX))
    }

    /// The same of a command whose output was passed on.
    pub(crate) fn finish_streamed(&self, ui: &Ui, streamed: &CommandEnd) -> ExitCode {
        match streamed {
            CommandEnd::Ended(exit, network_errors) => self.finish(ui, exit, network_errors),
            CommandEnd::Signalled(number) => {
                ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
            }
        }
    }

    fn line(&self, exit: &Exit) -> Option<String> {
        let detail = exit.detail.as_deref();
        match exit.reason {
            ExitReason::Timeout => {
                let timeout = self.timeout.as_deref().unwrap_or_default();
                Some(format!("ended at its timeout{timeout}, with everything it started"))
            }
            ExitReason::OutOfMemory => {
                let memory = self.memory.as_deref().unwrap_or_default();
                Some(format!("killed because memory ran out{memory}"))
            }
            ExitReason::Signalled => match exit.code - 128 {
                // Whoever sent these knows.
                INT | PIPE => None,
                number => Some(format!("ended by signal {}", signal_name(number))),
            },
            ExitReason::Cancelled => {
                Some("killed, because it did not end when it was asked to".to_owned())
            }
            ExitReason::NotStarted => {
                let detail = detail.unwrap_or("it could not be started");
                Some(match &self.program {
                    Some(program) => format!("{program}: {detail}"),
                    None => detail.to_owned(),
                })
            }
            _ => detail.map(str::to_owned),
        }
    }
}

/// What bounds the memory of a session, in words.
fn memory(receipt: &Receipt) -> Option<String> {
    let limit = &receipt.limits.memory;
    let asked = limit.asked?;
    let by = limit.enforced_by.as_deref().map(|by| format!(", enforced by {by}"));
    Some(format!(": the limit is {} MiB{}", asked >> 20, by.unwrap_or_default()))
}

/// Tells how a process ended that somebody else started.
pub(crate) fn finish(ui: &Ui, exit: &Exit) -> ExitCode {
    EndNotes::default().finish(ui, exit, &NetworkErrorScanner::default())
}

/// Tells how a command stopped having our terminal, by our own end.
pub(crate) fn finish_attached(
    ui: &Ui,
    returned: &AttachEnd,
    notes: &EndNotes,
    network_errors: &NetworkErrorScanner,
) -> ExitCode {
    match returned {
        AttachEnd::Ended(exit) => notes.finish(ui, exit, network_errors),
        AttachEnd::Left => ExitCode::SUCCESS,
        AttachEnd::Signalled(number) => {
            ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
        }
    }
}
