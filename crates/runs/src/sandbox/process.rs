//! One command of a run.

use std::time::Duration;

use bastide::{Command, Error, ErrorKind, Exit, ExitReason, OutputEvent, Process, Result, Session};
use serde_json::Value;
use tokio::time::Instant;

use super::LiveRun;
use crate::stream::{Listener, RunEvent, StreamName};
use crate::transcript::Transcript;
use crate::types::CommandResult;

/// The number of the signal nobody survives.
const KILL: i32 = 9;

/// How long everything has to end when a run is collected.
const END: Duration = Duration::from_secs(30);

/// Runs a command to its end, tells of its lines, and writes all of it to the log.
pub(super) async fn run(
    live: &LiveRun,
    command: &[String],
    timeout: Option<Duration>,
    listener: &mut Listener<'_>,
) -> Result<CommandResult> {
    let LiveRun { session, results, .. } = live;
    let mut output_log = Transcript::open(results)?;
    let mut wanted = Command::new(command.iter().map(String::as_str));
    if let Some(timeout) = timeout {
        wanted = wanted.timeout(timeout);
    }
    if let Some(folder) = &live.cwd {
        wanted = wanted.cwd(folder.clone());
    }
    if let Some(home) = &live.home {
        wanted = wanted.env("HOME", home.as_str());
    }
    let began = Instant::now();
    listener.notify(RunEvent::Prepared {
        session: session.id().clone(),
        receipt: Box::new(session.receipt().clone()),
    });
    listener.notify(RunEvent::Started { command: command.to_vec() });
    let mut process = session.spawn(wanted).await?;
    let exit = loop {
        match next(&mut process, listener).await? {
            NextEvent::Output(OutputEvent::Stdout(chunk)) => {
                output_log.append(StreamName::Stdout, &chunk, listener)?;
            }
            NextEvent::Output(OutputEvent::Stderr(chunk)) => {
                output_log.append(StreamName::Stderr, &chunk, listener)?;
            }
            NextEvent::Output(OutputEvent::Lost(_)) => {}
            NextEvent::Output(OutputEvent::Exit(exit)) => break exit,
            NextEvent::Silence => listener.notify(RunEvent::Idle { running: began.elapsed() }),
            NextEvent::Stopped(number) => {
                // One that has ended by itself in the meantime is what was wanted.
                drop(tokio::time::timeout(END, session.signal(process.id(), KILL)).await);
                break Exit { reason: ExitReason::Cancelled, code: 128 + number, detail: None };
            }
        }
    };
    let (stdout, stderr) = output_log.finish(listener);
    let mut result = CommandResult {
        stdout,
        stderr,
        returncode: exit.code,
        command: command.to_vec(),
        duration_ms: u64::try_from(began.elapsed().as_millis()).ok(),
        ..CommandResult::default()
    };
    result.metadata.insert("reason".to_owned(), Value::from(exit.reason.as_str()));
    if let Some(detail) = exit.detail {
        result.metadata.insert("detail".to_owned(), Value::from(detail));
    }
    if exit.reason == ExitReason::NotStarted && result.stderr.is_empty() {
        let program = command.first().map_or("", String::as_str);
        result.stderr = format!("{program}: cannot be executed\n");
    }
    listener.notify(RunEvent::Ended { returncode: exit.code });
    Ok(result)
}

/// What happens next.
enum NextEvent {
    Output(OutputEvent),
    /// Nothing, for so long that somebody is to be told.
    Silence,
    /// The command is to end, by a signal.
    Stopped(i32),
}

async fn next(process: &mut Process, listener: &mut Listener<'_>) -> Result<NextEvent> {
    let idle = listener.idle;
    let silence = async {
        match idle {
            Some(idle) => tokio::time::sleep(idle).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        event = process.next() => event.map(NextEvent::Output),
        number = listener.stopped() => Ok(NextEvent::Stopped(number)),
        () = silence => Ok(NextEvent::Silence),
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
