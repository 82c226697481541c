//! One command of a run.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use bastide::{Command, Error, ErrorKind, Exit, OutputEvent, Process, Reason, Result, Session};
use serde_json::Value;
use tokio::time::Instant;

use super::Live;
use crate::shapes::CommandResult;
use crate::stream::{Lines, Listener, RunEvent, StreamName};

/// The number of the signal nobody survives.
const KILL: i32 = 9;

/// The file with all that was said.
pub(super) const LOG: &str = "log";

/// How much of each stream is held; the log has all of it.
const MAX_HELD: usize = 16 << 20;

/// How long everything has to end when a run is collected.
const END: Duration = Duration::from_secs(30);

pub(super) fn make_results(results: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(results).map_err(|error| {
        let message = format!("cannot keep results in {}: {error}", results.display());
        Error::new(ErrorKind::Io, message)
    })
}

/// Runs a command to its end, tells of its lines, and writes all of it to the log.
pub(super) async fn run(
    live: &Live,
    command: &[String],
    timeout: Option<Duration>,
    listener: &mut Listener<'_>,
) -> Result<CommandResult> {
    let Live { session, results, .. } = live;
    make_results(results)?;
    let failed = |error: io::Error| Error::new(ErrorKind::Io, format!("cannot log: {error}"));
    let log = File::options().append(true).create(true).open(results.join(LOG)).map_err(failed)?;
    let mut wanted = Command::new(command.iter().map(String::as_str));
    if let Some(timeout) = timeout {
        wanted = wanted.timeout(timeout);
    }
    if let Some(folder) = &live.cwd {
        wanted = wanted.cwd(folder.clone());
    }
    let began = Instant::now();
    listener.tell(RunEvent::Prepared {
        session: session.id().clone(),
        receipt: Box::new(session.receipt().clone()),
    });
    listener.tell(RunEvent::Started { command: command.to_vec() });
    let mut heard =
        Heard { log, out: Voice::new(StreamName::Stdout), err: Voice::new(StreamName::Stderr) };
    let mut process = session.spawn(wanted).await?;
    let exit = loop {
        match next(&mut process, listener).await? {
            Next::Said(OutputEvent::Stdout(piece)) => {
                heard.hear(StreamName::Stdout, &piece, listener).map_err(failed)?;
            }
            Next::Said(OutputEvent::Stderr(piece)) => {
                heard.hear(StreamName::Stderr, &piece, listener).map_err(failed)?;
            }
            Next::Said(OutputEvent::Lost(_)) => {}
            Next::Said(OutputEvent::Exit(exit)) => break exit,
            Next::Silence => listener.tell(RunEvent::Idle { running: began.elapsed() }),
            Next::Stopped(number) => {
                // One that has ended by itself in the meantime is what was wanted.
                drop(tokio::time::timeout(END, session.signal(process.id(), KILL)).await);
                break Exit { reason: Reason::Cancelled, code: 128 + number, detail: None };
            }
        }
    };
    let mut result = CommandResult {
        stdout: heard.out.finish(listener),
        stderr: heard.err.finish(listener),
        returncode: exit.code,
        command: command.to_vec(),
        duration_ms: u64::try_from(began.elapsed().as_millis()).ok(),
        ..CommandResult::default()
    };
    result.metadata.insert("reason".to_owned(), Value::from(exit.reason.as_str()));
    if let Some(detail) = exit.detail {
        result.metadata.insert("detail".to_owned(), Value::from(detail));
    }
    if exit.reason == Reason::NotStarted && result.stderr.is_empty() {
        let program = command.first().map_or("", String::as_str);
        result.stderr = format!("{program}: cannot be executed\n");
    }
    listener.tell(RunEvent::Ended { returncode: exit.code });
    Ok(result)
}

/// What happens next.
enum Next {
    Said(OutputEvent),
    /// Nothing, for so long that somebody is to be told.
    Silence,
    /// The command is to end, by a signal.
    Stopped(i32),
}

async fn next(process: &mut Process, listener: &mut Listener<'_>) -> Result<Next> {
    let idle = listener.idle;
    let silence = async {
        match idle {
            Some(idle) => tokio::time::sleep(idle).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        event = process.next() => event.map(Next::Said),
        number = listener.stopped() => Ok(Next::Stopped(number)),
        () = silence => Ok(Next::Silence),
    }
}

/// Ends every process of a session, so that nothing changes while it is looked at.
pub(super) async fn end_all(session: &Session) -> Result<()> {
    let end = async {
        loop {
            let alive: Vec<_> = session
                .processes()
                .await?
                .into_iter()
                .filter(|process| process.exit.is_none() || !process.children.is_empty())
                .collect();
            if alive.is_empty() {
                return Ok(());
            }
            for process in alive {
                match session.signal(process.id, KILL).await {
                    // It ended by itself meanwhile.
                    Err(error) if error.is_not_found() => {}
                    sent => sent?,
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(END, end).await {
        Ok(ended) => ended,
        Err(_) => {
            let message = "something the agent started does not end; its change is not collected";
            Err(Error::new(ErrorKind::Timeout, message))
        }
    }
}

/// What was said so far.
struct Heard {
    log: File,
    out: Voice,
    err: Voice,
}

impl Heard {
    fn hear(
        &mut self,
        stream: StreamName,
        piece: &[u8],
        listener: &mut Listener<'_>,
    ) -> io::Result<()> {
        self.log.write_all(piece)?;
        let voice = match stream {
            StreamName::Stdout => &mut self.out,
            StreamName::Stderr => &mut self.err,
        };
        voice.hear(piece, listener);
        Ok(())
    }
}

struct Voice {
    stream: StreamName,
    lines: Lines,
    held: Vec<u8>,
}

impl Voice {
    fn new(stream: StreamName) -> Self {
        Self { stream, lines: Lines::default(), held: Vec::new() }
    }

    fn hear(&mut self, piece: &[u8], listener: &mut Listener<'_>) {
        let room = MAX_HELD.saturating_sub(self.held.len()).min(piece.len());
        self.held.extend_from_slice(piece.get(..room).unwrap_or_default());
        for line in self.lines.add(piece) {
            listener.line(&line, self.stream);
        }
    }

    fn finish(mut self, listener: &mut Listener<'_>) -> String {
        if let Some(line) = self.lines.finish() {
            listener.line(&line, self.stream);
        }
        String::from_utf8_lossy(&self.held).into_owned()
    }
}
