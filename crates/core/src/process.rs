//! A command that runs, and how it ended.

use std::time::Duration;

use bastide_proto::frame::MAX_DATA;
use bastide_proto::{End, FaultKind};
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fault::{agent_lost, refused};
use crate::link::{Incoming, Receiver, Sender, Stream};
use crate::{Input, Result};

/// How much later than the guest the host gives up on a command's end.
const GRACE: Duration = Duration::from_secs(1);

/// A command that runs in a session. Dropping it before its end cancels it: everything descended
/// from it is ended.
#[derive(Debug)]
pub struct Process {
    from_guest: Receiver,
    feeding: JoinHandle<Sender>,
    /// When the guest must have reported the end, if ever.
    deadline: Option<Instant>,
}

/// A piece of output, or the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// The command is over, and all its output was here.
    Exit(Exit),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Why.
    pub reason: Reason,
    /// What the shell would call its exit code: its own, 128 + N for signal N, 124 for a timeout,
    /// 126 or 127 if it could not be executed.
    pub code: i32,
    /// What went wrong, where more is known than the reason says.
    pub detail: Option<String>,
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It ended by itself.
    Exited,
    /// A signal ended it.
    Signalled,
    /// Its deadline passed.
    Timeout,
    /// Somebody gave up on it.
    Cancelled,
    /// It could not be executed.
    NotStarted,
}

impl Reason {
    /// The word programs see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signalled => "signalled",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::NotStarted => "not_started",
        }
    }
}

/// Everything a command said, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub exit: Exit,
}

impl Process {
    pub(crate) fn new(stream: Stream, input: Input, timeout: Option<Duration>) -> Self {
        let Stream { to_guest, from_guest, .. } = stream;
        Self {
            from_guest,
            feeding: tokio::spawn(feed(to_guest, input)),
            deadline: timeout.map(|timeout| Instant::now() + timeout + GRACE),
        }
    }

    /// What the command says next; its [`OutputEvent::Exit`] comes last.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest is gone, also when it has
    /// not reported the end one second after the command's deadline.
    pub async fn next(&mut self) -> Result<OutputEvent> {
        let incoming = match self.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, self.from_guest.next())
                .await
                .map_err(|_| agent_lost("the guest did not report the end in time"))??,
            None => self.from_guest.next().await?,
        };
        Ok(match incoming {
            Incoming::Stdout(data) => OutputEvent::Stdout(data),
            Incoming::Stderr(data) => OutputEvent::Stderr(data),
            Incoming::Item(_) => {
                return Err(agent_lost("the guest broke the protocol: an item of a command"));
            }
            Incoming::End(end) => OutputEvent::Exit(exit(end)?),
        })
    }

    /// Collects everything the command says until it ends.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn output(mut self) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                OutputEvent::Stdout(data) => stdout.extend_from_slice(&data),
                OutputEvent::Stderr(data) => stderr.extend_from_slice(&data),
                OutputEvent::Exit(exit) => return Ok(Output { stdout, stderr, exit }),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The sending half lives in the task; the call is cancelled only when both are gone.
        self.feeding.abort();
    }
}

/// Sends the input and keeps the way to the guest open: its closing means that we gave up.
async fn feed(mut to_guest: Sender, input: Input) -> Sender {
    if let Input::Bytes(mut rest) = input {
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(MAX_DATA));
            if to_guest.input(piece).await.is_err() {
                return to_guest;
            }
        }
        // If the guest is gone, the receiving half says so.
        drop(to_guest.input_end().await);
    }
    to_guest
}

fn exit(end: End) -> Result<Exit> {
    let exit = |reason, code| Exit { reason, code, detail: None };
    Ok(match end {
        End::Exited { code } => exit(Reason::Exited, code),
        End::Signalled { signal } => exit(Reason::Signalled, 128 + signal),
        End::Timeout => exit(Reason::Timeout, 124),
        End::Cancelled => exit(Reason::Cancelled, 125),
        End::NotStarted(fault) => {
            let code = if fault.kind == FaultKind::NotFound { 127 } else { 126 };
            Exit { reason: Reason::NotStarted, code, detail: Some(fault.message) }
        }
        End::Failed(fault) => return Err(refused(fault)),
        _ => return Err(agent_lost("the guest broke the protocol: not the end of a command")),
    })
}
