//! One command of a run.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use bastide::{Command, Error, ErrorKind, OutputEvent, Process, Reason, Result, Session};
use serde_json::Value;
use tokio::time::Instant;

use crate::shapes::CommandResult;
use crate::stream::{Lines, Listener, RunEvent, StreamName};

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
    session: &Session,
    command: &[String],
    timeout: Option<Duration>,
    results: &Path,
    listener: &mut Listener<'_>,
) -> Result<CommandResult> {
    make_results(results)?;
    let failed = |error: io::Error| Error::new(ErrorKind::Io, format!("cannot log: {error}"));
    let log = File::options().append(true).create(true).open(results.join(LOG)).map_err(failed)?;
    let mut wanted = Command::new(command.iter().map(String::as_str));
    if let Some(timeout) = timeout {
        wanted = wanted.timeout(timeout);
    }
    let began = Instant::now();
    listener.tell(RunEvent::Started { command: command.to_vec() });
    let mut heard =
        Heard { log, out: Voice::new(StreamName::Stdout), err: Voice::new(StreamName::Stderr) };
    let mut process = session.spawn(wanted).await?;
    let exit = loop {
        let Some(event) = next(&mut process, listener, began).await? else { continue };
        match event {
            OutputEvent::Stdout(piece) => {
                heard.hear(StreamName::Stdout, &piece, listener).map_err(failed)?;
            }
            OutputEvent::Stderr(piece) => {
                heard.hear(StreamName::Stderr, &piece, listener).map_err(failed)?;
            }
            OutputEvent::Lost(_) => {}
            OutputEvent::Exit(exit) => break exit,
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

/// What the command says next; `None` if it said nothing for so long that somebody was told.
async fn next(
    process: &mut Process,
    listener: &mut Listener<'_>,
    began: Instant,
) -> Result<Option<OutputEvent>> {
    let Some(idle) = listener.idle else { return process.next().await.map(Some) };
    match tokio::time::timeout(idle, process.next()).await {
        Ok(event) => event.map(Some),
        Err(_) => {
            listener.tell(RunEvent::Idle { running: began.elapsed() });
            Ok(None)
        }
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
                match session.signal(process.id, 9).await {
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
