//! Running a command in a session as if it ran here: its output is ours, and its end.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide::{
    Command, Error, ErrorKind, Exit, Output, OutputEvent, Process, ProcessId, Reason, Result,
    Session,
};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::stdin::{Stdin, feed};
use crate::terminal::AttachEnd;
use crate::ui::Ui;

/// How much of each stream is kept for a program that reads the result as one object.
const KEPT: usize = 16 * 1024 * 1024;

/// How long the end of a command may take that somebody interrupted.
const END: Duration = Duration::from_secs(5);

/// Runs a command to its end, with our standard input as its own, and passes on what it says.
pub(crate) async fn stream(ui: &mut Ui, session: &Session, command: Command) -> Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let stdin = Stdin::open()?;
    let mut process = session.spawn(command.stream_input()).await?;
    let feeding = tokio::spawn(feed(process.writer(), stdin));
    let id = process.id();
    let followed = tokio::select! {
        followed = follow(ui, &mut process) => followed,
        number = interrupts.next() => Ok(cancel(session, id, number).await),
    };
    feeding.abort();
    if followed.is_err() {
        // Whoever wanted its output is gone; so must it be.
        cancel(session, id, 0).await;
    }
    followed
}

/// Passes on what a process says until it ends.
pub(crate) async fn follow(ui: &mut Ui, process: &mut Process) -> Result<Exit> {
    loop {
        match process.next().await? {
            OutputEvent::Stdout(data) => ui.command_out(&data)?,
            OutputEvent::Stderr(data) => ui.command_err(&data)?,
            OutputEvent::Lost(bytes) => ui.note(&format!("{bytes} bytes of output were lost")),
            OutputEvent::Exit(exit) => return Ok(exit),
        }
    }
}

/// Runs a command to its end, with our standard input as its own, and collects what it says into one
/// object for a program.
pub(crate) async fn collect(session: &Session, command: Command) -> Result<(Exit, Value)> {
    let mut interrupts = Interrupts::listen()?;
    let started = Instant::now();
    let stdin = Stdin::open()?;
    let process = session.spawn(command.stream_input()).await?;
    let feeding = tokio::spawn(feed(process.writer(), stdin));
    let id = process.id();
    let mut output = std::pin::pin!(process.output(KEPT));
    let output = tokio::select! {
        output = &mut output => output,
        number = interrupts.next() => {
            let exit = cancel(session, id, number).await;
            // What it had said by then is told all the same.
            let said = tokio::time::timeout(END, output).await;
            said.unwrap_or_else(|_| Ok(silent(id, &exit))).map(|said| Output { exit, ..said })
        }
    };
    feeding.abort();
    let output = output?;
    let report = report(session, &output, started.elapsed());
    Ok((output.exit, report))
}

fn silent(process: ProcessId, exit: &Exit) -> Output {
    Output {
        process,
        stdout: Vec::new(),
        stderr: Vec::new(),
        stdout_omitted: 0,
        stderr_omitted: 0,
        lost: 0,
        exit: exit.clone(),
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
    report.insert("receipt".to_owned(), json!(session.receipt()));
    Value::Object(report)
}

/// Ends a command and everything descended from it, for a signal that came to us.
async fn cancel(session: &Session, process: ProcessId, number: i32) -> Exit {
    const KILL: i32 = 9;
    // One that has ended by itself in the meantime is what was wanted.
    drop(tokio::time::timeout(END, session.signal(process, KILL)).await);
    Exit { reason: Reason::Cancelled, code: 128 + number, detail: None }
}

/// The user or the system asking for the end. From the moment somebody listens, it does not end us.
#[derive(Debug)]
pub(crate) struct Interrupts([(SignalKind, Signal); 3]);

impl Interrupts {
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind| Ok::<_, io::Error>((kind, signal(kind)?));
        let all = || {
            Ok([
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ])
        };
        all().map(Self).map_err(|error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot listen to signals: {error}"))
        })
    }

    /// Waits for the first; its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let [interrupt, terminate, hangup] = &mut self.0;
        let (kind, _) = tokio::select! {
            _ = interrupt.1.recv() => interrupt,
            _ = terminate.1.recv() => terminate,
            _ = hangup.1.recv() => hangup,
        };
        kind.as_raw_value()
    }
}

/// Signals for work of several parts: the first asks each of them to end, the second ends this program at once.
#[derive(Debug, Clone)]
pub(crate) struct StopSignal(watch::Receiver<Option<i32>>);

impl StopSignal {
    pub(crate) fn listen() -> Result<Self> {
        let mut interrupts = Interrupts::listen()?;
        let (asked, asking) = watch::channel(None);
        tokio::spawn(async move {
            asked.send_replace(Some(interrupts.next().await));
            let number = interrupts.next().await;
            std::process::exit(128 + number);
        });
        Ok(Self(asking))
    }

    /// The exit code, if one came.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        let number = (*self.0.borrow())?;
        Some(ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX)))
    }

    /// Waits for the first; its number.
    pub(crate) async fn wait(mut self) -> i32 {
        let number = self.0.wait_for(Option::is_some).await.ok().and_then(|number| *number);
        match number {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }
}

/// Tells how a command stopped having our terminal, by our own end.
pub(crate) fn finish_lent(ui: &Ui, returned: &AttachEnd) -> ExitCode {
    match returned {
        AttachEnd::Ended(exit) => finish(ui, exit),
        AttachEnd::Left => ExitCode::SUCCESS,
        AttachEnd::Signalled(number) => {
            ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
        }
    }
}

/// Tells how a command ended, by our own end.
pub(crate) fn finish(ui: &Ui, exit: &Exit) -> ExitCode {
    if let Some(detail) = &exit.detail {
        ui.note(detail);
    }
    ExitCode::from(u8::try_from(exit.code).unwrap_or(u8::MAX))
}
