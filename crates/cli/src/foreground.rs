//! Running a command in a session as if it ran here: its output is ours, and its end.

mod end;
mod interrupts;
mod network;

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide::{
    Command, Exit, ExitReason, Output, OutputEvent, Process, ProcessId, Result, Session,
};
use serde_json::{Map, Value, json};

use crate::stdin::{Stdin, feed};
use crate::terminal;
use crate::ui::Ui;

pub(crate) use end::{EndNotes, finish, finish_attached};
pub(crate) use interrupts::{Interrupts, StopSignal};
pub(crate) use network::NetworkErrorScanner;

use interrupts::{WaitOutcome, wait};

/// How much of each stream is kept for a program that reads the result as one object.
const KEPT: usize = 16 * 1024 * 1024;

/// Whose streams a command has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamOptions {
    /// Whether it reads our standard input.
    pub(crate) reads: bool,
    /// Whether it runs on a terminal.
    pub(crate) terminal: bool,
}

impl StreamOptions {
    /// Those of a command that is alone with our standard input.
    pub(crate) const OURS: Self = Self { reads: true, terminal: false };
}

/// How a command ended that ran as if it ran here.
#[derive(Debug)]
pub(crate) enum CommandEnd {
    /// It ended, or was killed for a signal that came to us.
    Ended(Exit, NetworkErrorScanner),
    /// A signal of this number came to us while it had our terminal.
    Signalled(i32),
}

/// Runs a command to its end, and passes on what it says. Our standard input is its own if it shall be, and is
/// not touched otherwise.
pub(crate) async fn stream(
    ui: &mut Ui,
    session: &Session,
    command: Command,
    streams: StreamOptions,
) -> Result<CommandEnd> {
    if streams.terminal && streams.reads {
        let mut process = session.spawn(command).await?;
        let mut network_errors = NetworkErrorScanner::default();
        return match terminal::attach(ui, &mut process, false, &mut network_errors).await? {
            terminal::AttachEnd::Ended(exit) => Ok(CommandEnd::Ended(exit, network_errors)),
            terminal::AttachEnd::Left => {
                // Nobody is left to type.
                let exit = Exit { reason: ExitReason::Detached, code: 0, detail: None };
                Ok(CommandEnd::Ended(exit, network_errors))
            }
            terminal::AttachEnd::Signalled(number) => Ok(CommandEnd::Signalled(number)),
        };
    }
    let mut interrupts = Interrupts::listen()?;
    let stdin = streams.reads.then(Stdin::open).transpose()?;
    let mut process = session.spawn(command).await?;
    let feeding = stdin.map(|stdin| tokio::spawn(feed(process.writer(), stdin)));
    let id = process.id();
    let mut network_errors = NetworkErrorScanner::default();
    let following = follow_with(ui, &mut process, |chunk| network_errors.look(chunk));
    let WaitOutcome { outcome, killed_for } = wait(session, id, &mut interrupts, following).await;
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    if matches!(outcome, Some(Err(_))) {
        // Whoever wanted its output is gone; so must it be.
        interrupts::kill(session, id).await;
    }
    let exit = match (killed_for, outcome) {
        (Some(number), _) => cancelled(number),
        (None, Some(outcome)) => outcome?,
        (None, None) => cancelled(0),
    };
    Ok(CommandEnd::Ended(exit, network_errors))
}

fn cancelled(number: i32) -> Exit {
    Exit { reason: ExitReason::Cancelled, code: 128 + number, detail: None }
}

/// Passes on what a process says until it ends.
pub(crate) async fn follow(ui: &mut Ui, process: &mut Process) -> Result<Exit> {
    follow_with(ui, process, |_| {}).await
}

/// The same, and has each piece looked at.
pub(crate) async fn follow_with(
    ui: &mut Ui,
    process: &mut Process,
    mut look: impl FnMut(&[u8]),
) -> Result<Exit> {
    loop {
        match process.next().await? {
            OutputEvent::Stdout(data) => {
                look(&data);
                ui.command_out(&data)?;
            }
            OutputEvent::Stderr(data) => {
                look(&data);
                ui.command_err(&data)?;
            }
            OutputEvent::Lost(bytes) => ui.note(&format!("{bytes} bytes of output were lost")),
            OutputEvent::Exit(exit) => return Ok(exit),
        }
    }
}

/// Runs a command to its end, and collects what it says into one object for a program.
pub(crate) async fn collect(
    session: &Session,
    command: Command,
    streams: StreamOptions,
) -> Result<(Exit, Value)> {
    let mut interrupts = Interrupts::listen()?;
    let started = Instant::now();
    let stdin = streams.reads.then(Stdin::open).transpose()?;
    let process = session.spawn(command).await?;
    let feeding = stdin.map(|stdin| tokio::spawn(feed(process.writer(), stdin)));
    let id = process.id();
    let collecting = process.output(KEPT);
    let WaitOutcome { outcome, killed_for } = wait(session, id, &mut interrupts, collecting).await;
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    let output = match (killed_for.map(cancelled), outcome) {
        (None, Some(output)) => output?,
        (Some(exit), Some(Ok(output))) => Output { exit, ..output },
        (exit, _) => silent(id, exit.unwrap_or_else(|| cancelled(0))),
    };
    let report = report(session, &output, started.elapsed());
    Ok((output.exit, report))
}

fn silent(process: ProcessId, exit: Exit) -> Output {
    Output {
        process,
        stdout: Vec::new(),
        stderr: Vec::new(),
        stdout_omitted: 0,
        stderr_omitted: 0,
        lost: 0,
        exit,
        usage: None,
    }
}

/// Puts what may be text into an object; what is not is there whole besides.
pub(crate) fn put_text(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    object.insert(name.to_owned(), json!(String::from_utf8_lossy(bytes)));
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{name}_b64"), json!(STANDARD.encode(bytes)));
    }
}

/// Collects what a process says until it ends, or until somebody has heard enough, into one object for a
/// program.
pub(crate) async fn listen(session: &Session, process: Process) -> Result<Option<(Exit, Value)>> {
    let mut interrupts = Interrupts::listen()?;
    let started = Instant::now();
    let output = tokio::select! {
        output = process.output(KEPT) => output?,
        _ = interrupts.next() => return Ok(None),
    };
    let report = report(session, &output, started.elapsed());
    Ok(Some((output.exit, report)))
}

fn report(session: &Session, output: &Output, took: Duration) -> Value {
    let mut report = Map::new();
    report.insert("id".to_owned(), json!(session.id()));
    report.insert("exit_code".to_owned(), json!(output.exit.code));
    report.insert("reason".to_owned(), json!(output.exit.reason.as_str()));
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        put_text(&mut report, name, bytes);
    }
    report.insert("truncated".to_owned(), json!(output.is_truncated()));
    let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    report.insert("duration_ms".to_owned(), json!(took));
    if let Some(detail) = &output.exit.detail {
        report.insert("detail".to_owned(), json!(detail));
    }
    report.insert("usage".to_owned(), json!(output.usage.map(|usage| usage.to_json())));
    report.insert("receipt".to_owned(), json!(session.receipt()));
    Value::Object(report)
}
