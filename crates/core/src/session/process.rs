//! A command that runs, and how it ended.

mod input_sender;
mod recording;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide_proto::frame::MAX_DATA;
use bastide_proto::{Control, End, FaultKind, ProcessNotice, ProcessRecord, Request, TerminalSize};
use bytes::Bytes;
use tokio::time::Instant;

use crate::journal::{CommandPoint, TerminalLines};
use crate::link::fault::{agent_lost, refused};
use crate::link::{Incoming, Link, Receiver, Stream, decode};
use crate::session::output::{Output, OutputCollector};
use crate::session::usage::Usage;
use crate::{Input, Result};

pub(crate) use recording::ProcessRecording;

use input_sender::{InputMessage, InputSender};

/// How much later than the guest the host gives up on a command's end.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A command that runs in a session.
///
/// One that was started with [`Session::spawn`](crate::Session::spawn) is cancelled by dropping it:
/// everything descended from it is ended. One that was [detached](Self::detach), or that this process
/// only [listens to](crate::Session::attach), lives on.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    offset: u64,
    from_guest: Receiver,
    input_sender: InputSender,
    /// The link by which the command is cancelled when this is dropped, if it is.
    owned: Option<Arc<dyn Link>>,
    /// When the guest must have reported the end, if ever.
    deadline: Option<Instant>,
    /// Records its end, if there is a sink.
    recording: Option<ProcessRecording>,
    /// The point of the journal that it is, if it is one.
    point: Option<CommandPoint>,
    /// What is typed on its terminal, where lines are points.
    lines: Option<Arc<TerminalLines>>,
    /// What it used, once its end is near.
    usage: Option<Usage>,
    /// Its end, where somebody gave up on hearing it while others were told.
    ended: Option<Exit>,
}

/// The number a session knows a process by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A piece of output, or the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Standard output, or what a terminal shows.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// So many bytes were said after the session's log of the process was full, and are lost.
    Lost(u64),
    /// The command is over, and all its output was here.
    Exit(Exit),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Why.
    pub reason: ExitReason,
    /// What the shell would call its exit code: its own, 128 + N for signal N, 124 for a timeout,
    /// 126 or 127 if it could not be executed.
    pub code: i32,
    /// What went wrong, where more is known than the reason says.
    pub detail: Option<String>,
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitReason {
    /// It ended by itself.
    Exited,
    /// A signal ended it.
    Signalled,
    /// It, or something it started, was killed because the session's memory was used up.
    OutOfMemory,
    /// Its deadline passed.
    Timeout,
    /// Somebody gave up on it.
    Cancelled,
    /// It could not be executed.
    NotStarted,
    /// It goes on; only this call is over.
    Detached,
}

impl ExitReason {
    /// The word programs see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signalled => "signalled",
            Self::OutOfMemory => "oom",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::NotStarted => "not_started",
            Self::Detached => "detached",
        }
    }
}

/// What a session knows about one of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// The number the session knows it by.
    pub id: ProcessId,
    /// The command's process id inside.
    pub pid: i32,
    /// The program and its arguments, cut to a bounded length.
    pub argv: Vec<String>,
    /// When it was started.
    pub started: SystemTime,
    /// How it ended, if it has.
    pub exit: Option<Exit>,
    /// How many bytes it has said; both streams count together.
    pub output: u64,
    /// Whether it runs on a terminal.
    pub terminal: bool,
    /// What else that descended from it is alive: process id inside, and command line.
    pub children: Vec<(i32, String)>,
    /// What it used so far, with all that descended from it; missing where the session does not tell.
    pub usage: Option<Usage>,
}

impl ProcessInfo {
    pub(crate) fn from_record(record: ProcessRecord) -> Result<Self> {
        let started = UNIX_EPOCH.checked_add(Duration::from_millis(record.started_ms));
        Ok(Self {
            id: ProcessId(record.process),
            pid: record.pid,
            argv: record.argv,
            started: started.unwrap_or(UNIX_EPOCH),
            exit: match record.end {
                // A supervisor that was killed from inside is how it ended, no failure of the list.
                Some(End::Failed(fault)) => {
                    let detail = Some(fault.message);
                    Some(Exit { reason: ExitReason::Signalled, code: 128 + 9, detail })
                }
                end => end.map(exit).transpose()?,
            },
            output: record.output,
            terminal: record.terminal,
            children: record.children.into_iter().map(|child| (child.pid, child.command)).collect(),
            usage: None,
        })
    }
}

impl Process {
    /// A process this one started: dropping it cancels it.
    pub(crate) fn started(
        link: &Arc<dyn Link>,
        stream: Stream,
        input: Input,
        deadline: Option<Instant>,
    ) -> Result<Self> {
        let mut process = Self::attached(stream, input)?;
        process.owned = Some(Arc::clone(link));
        process.deadline = deadline;
        Ok(process)
    }

    /// A process this one only listens to.
    pub(crate) fn attached(stream: Stream, input: Input) -> Result<Self> {
        let Stream { accepted, to_guest, from_guest } = stream;
        let id = accepted.process.map(ProcessId);
        let id = id.ok_or_else(|| agent_lost("the guest broke the protocol: no process"))?;
        Ok(Self {
            id,
            offset: accepted.from,
            from_guest,
            input_sender: InputSender::new(to_guest, input),
            owned: None,
            deadline: None,
            recording: None,
            point: None,
            lines: None,
            usage: None,
            ended: None,
        })
    }

    /// The same process; its end is recorded.
    pub(crate) fn with_recording(mut self, recording: Option<ProcessRecording>) -> Self {
        self.recording = recording;
        self
    }

    /// The same process; its end is put into the journal.
    pub(crate) fn with_point(mut self, point: Option<CommandPoint>) -> Self {
        self.point = point;
        self
    }

    /// The same process; lines typed on its terminal are put into the journal.
    pub(crate) fn with_lines(mut self, lines: Option<TerminalLines>) -> Self {
        self.lines = lines.map(Arc::new);
        self
    }

    /// The number the session knows this process by.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// What the command used, with all that descended from it and has ended; known once its
    /// [`OutputEvent::Exit`] was here.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// How many bytes of output lie before what [`next`](Self::next) gives; both streams count
    /// together. [`Session::attach`](crate::Session::attach) goes on from here.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What the command says next; its [`OutputEvent::Exit`] comes last.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest is gone, also when it has
    /// not reported the end one second after the command's deadline.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped before it is ready.
    pub async fn next(&mut self) -> Result<OutputEvent> {
        if let Some(exit) = self.ended.take() {
            return Ok(OutputEvent::Exit(exit));
        }
        let next = self.next_event().await;
        if let Some(recording) = &mut self.recording {
            match &next {
                Ok(OutputEvent::Stdout(data)) => recording.stdout(data),
                Ok(OutputEvent::Stderr(data)) => recording.stderr(data),
                Ok(OutputEvent::Lost(_)) => {}
                Ok(OutputEvent::Exit(exit)) => {
                    self.ended = Some(exit.clone());
                    if let Some(recording) = self.recording.take() {
                        recording.finish(self.id, exit, self.usage.as_ref()).await?;
                    }
                    self.ended = None;
                }
                Err(error) => {
                    if let Some(recording) = self.recording.take() {
                        recording.fail(error).await?;
                    }
                }
            }
        }
        if let Ok(OutputEvent::Exit(exit)) = &next
            && let Some(point) = self.point.take()
        {
            self.ended = Some(exit.clone());
            // The command has ended, whatever becomes of the journal: its point stays without an end then.
            drop(Box::pin(point.finish(exit)).await);
            self.ended = None;
        }
        if let Ok(OutputEvent::Exit(exit)) = &next
            && let Some(lines) = self.lines.take()
        {
            self.ended = Some(exit.clone());
            drop(Box::pin(lines.end()).await);
            self.ended = None;
        }
        next
    }

    async fn next_event(&mut self) -> Result<OutputEvent> {
        loop {
            let incoming = match self.deadline {
                Some(deadline) => tokio::time::timeout_at(deadline, self.from_guest.next())
                    .await
                    .map_err(|_| agent_lost("the guest did not report the end in time"))??,
                None => self.from_guest.next().await?,
            };
            return Ok(match incoming {
                Incoming::Stdout(data) => {
                    self.offset += data.len() as u64;
                    OutputEvent::Stdout(data)
                }
                Incoming::Stderr(data) => {
                    self.offset += data.len() as u64;
                    OutputEvent::Stderr(data)
                }
                Incoming::Item(notice) => match decode(&notice)? {
                    ProcessNotice::Lost(bytes) => OutputEvent::Lost(bytes),
                    ProcessNotice::Usage(usage) => {
                        self.usage = Some(usage.into());
                        continue;
                    }
                    _ => return Err(agent_lost("the guest broke the protocol: unknown notice")),
                },
                Incoming::End(end) => {
                    self.owned = None;
                    OutputEvent::Exit(exit(end)?)
                }
            });
        }
    }

    /// Collects what the command says until it ends, at most as much as `limit` bytes of each stream.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn output(mut self, limit: usize) -> Result<Output> {
        let mut collector = OutputCollector::new(limit);
        loop {
            match self.next().await? {
                OutputEvent::Stdout(data) => collector.stdout(&data),
                OutputEvent::Stderr(data) => collector.stderr(&data),
                OutputEvent::Lost(bytes) => collector.lost(bytes),
                OutputEvent::Exit(exit) => {
                    return Ok(collector.finish(self.id, exit, self.usage));
                }
            }
        }
    }

    /// A way to write to the command while somebody else [listens](Self::next) to it. It does not keep
    /// the command alive.
    #[must_use]
    pub fn writer(&self) -> ProcessWriter {
        ProcessWriter { input_sender: self.input_sender.clone(), lines: self.lines.clone() }
    }

    /// Writes to the command's standard input, or types on its terminal.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest is gone. A command that no
    /// longer reads is no failure.
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<()> {
        self.writer().write(data).await
    }

    /// Says that no more input follows.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub async fn close_input(&self) -> Result<()> {
        self.writer().close().await
    }

    /// Gives the command's terminal another size.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub async fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        self.writer().resize(rows, columns).await
    }

    /// Lets go of the command: it lives on when this value is dropped, and can be
    /// [listened to](crate::Session::attach) again.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub async fn detach(&mut self) -> Result<()> {
        if let Some(link) = &self.owned {
            let request = Request::Detach { process: self.id.0 };
            link.open(request).await?.finish().await?;
            self.owned = None;
            if let Some(recording) = self.recording.take() {
                recording.detached(self.id).await?;
            }
        }
        Ok(())
    }
}

/// Writes to a command that somebody else may be listening to; see [`Process::writer`].
#[derive(Debug, Clone)]
pub struct ProcessWriter {
    input_sender: InputSender,
    lines: Option<Arc<TerminalLines>>,
}

impl ProcessWriter {
    /// As [`Process::write`].
    ///
    /// # Errors
    ///
    /// As [`Process::write`].
    pub async fn write(&self, data: impl Into<Bytes>) -> Result<()> {
        let mut rest: Bytes = data.into();
        if let Some(lines) = &self.lines {
            Box::pin(lines.typed(&rest)).await;
        }
        while !rest.is_empty() {
            let chunk = rest.split_to(rest.len().min(MAX_DATA));
            self.input_sender.send(InputMessage::Input(chunk)).await?;
        }
        Ok(())
    }

    /// As [`Process::close_input`].
    ///
    /// # Errors
    ///
    /// As [`Process::write`].
    pub async fn close(&self) -> Result<()> {
        self.input_sender.send(InputMessage::InputEnd).await
    }

    /// As [`Process::resize`].
    ///
    /// # Errors
    ///
    /// As [`Process::write`].
    pub async fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        let size = TerminalSize { rows, columns };
        self.input_sender.send(InputMessage::Control(Control::Resize(size))).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.input_sender.close();
        let Some(link) = self.owned.take() else { return };
        // The stream is reset by dropping it, but a guest that waits for the command to read its input
        // does not see that; so it is told. Without a runtime the whole connection is going away, and
        // the guest sees that too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let request = Request::Cancel { process: self.id.0 };
            runtime.spawn(async move { link.open(request).await.map(drop) });
        }
    }
}

pub(crate) fn exit(end: End) -> Result<Exit> {
    let exit = |reason, code| Exit { reason, code, detail: None };
    Ok(match end {
        End::Exited { code } => exit(ExitReason::Exited, code),
        End::Signalled { signal } => exit(ExitReason::Signalled, 128 + signal),
        End::OutOfMemory { code } => exit(ExitReason::OutOfMemory, code),
        End::Timeout => exit(ExitReason::Timeout, 124),
        End::Cancelled => exit(ExitReason::Cancelled, 125),
        End::Detached => exit(ExitReason::Detached, 0),
        End::NotStarted(fault) => {
            let code = if fault.kind == FaultKind::NotFound { 127 } else { 126 };
            Exit { reason: ExitReason::NotStarted, code, detail: Some(fault.message) }
        }
        End::Failed(fault) => return Err(refused(fault)),
        _ => return Err(agent_lost("the guest broke the protocol: not the end of a command")),
    })
}
