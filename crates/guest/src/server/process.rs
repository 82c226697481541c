//! A command that runs, and the record of it. It belongs to the guest, not to the call that started
//! it: a host may vanish, come back and read on.

mod streams;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide_proto::frame::{MAX_DATA, Tag};
use bastide_proto::{End, Exec, Fault, FaultKind, ProcessRecord, TerminalSize, TerminalState};
use bytes::BytesMut;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, kill_process, kill_process_group, pidfd_open};
use serde_bytes::ByteBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Guest;
use super::call::fault;
use super::kill::{has_group, kill_descendants, send_held};
use super::log::OutputLog;
use super::pool::{Pool, StartedCommand};
use super::terminal::Terminal;
use crate::supervisor::{ExecFailure, ExecSpec, SupervisorMessage};
use crate::tree_usage::TreeUsage;
use streams::{give, pipe_streams, terminal_streams};

/// How long the output of a command that has ended is waited for: a background child may hold the
/// pipe open for ever.
const DRAIN: Duration = Duration::from_millis(100);

/// How long a killed command may take to be reported dead. The kernel needs far less; this only
/// keeps a broken supervisor from holding the call.
const BURIAL: Duration = Duration::from_millis(900);

/// How long after its start a command is woken that may have been stopped before.
const WAKE: Duration = Duration::from_secs(3);

/// How much of a command line is kept for listings.
const MOST_SHOWN: usize = 4096;

/// A command, from its start until its record is forgotten.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) log: OutputLog,
    pub(crate) supervisor: Pid,
    command: Pid,
    argv: Vec<String>,
    started: SystemTime,
    terminal: Option<Terminal>,
    input: tokio::sync::Mutex<Option<pipe::Sender>>,
    /// Set once the command has ended and its output was drained as far as it is waited for.
    end: watch::Sender<Option<End>>,
    /// Somebody wants the command and all that descends from it gone.
    cancelled: Notify,
    /// Whether anything of it is alive.
    alive: watch::Sender<bool>,
    /// What is known of what it used: all that ended by its supervisor's word, and the rest as it was last seen.
    used: Mutex<TreeUsage>,
    /// Whether it ends with the call that started it.
    owned: AtomicBool,
    /// Whether somebody was told all there is to tell, so that the record may go.
    delivered: AtomicBool,
}

impl Process {
    /// Starts a command.
    pub(crate) async fn start(guest: &Arc<Guest>, exec: Exec) -> Result<Arc<Self>, Fault> {
        if exec.argv.is_empty() {
            return Err(Fault::new(FaultKind::Invalid, "the command has no program"));
        }
        let _gate = super::freeze::may_start(guest).await?;
        guest.unchanged.forget();
        let (who, home) = guest.users.find_with_home(exec.user.as_deref()).await?;
        let (pool, taken) = guest.users.take(who.as_ref()).await?;
        // A time beyond what the clock can count is none.
        let deadline = exec.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (streams, far) = match exec.terminal {
            Some(size) => terminal_streams(size),
            None => pipe_streams(&guest.pipes, exec.stdin),
        }
        .and_then(|(streams, far)| {
            if let Some(who) = &who {
                give(&far, who)?;
            }
            Ok((streams, far))
        })
        .map_err(|error| fault("cannot make the command's streams", &error))?;
        let argv = shown(&exec.argv);
        let mut env = exec.env;
        if !env.iter().any(|(key, _)| &key[..] == b"HOME") {
            env.push((ByteBuf::from("HOME"), ByteBuf::from(home)));
        }
        let orders = ExecSpec {
            argv: exec.argv,
            env,
            cwd: exec.cwd.into(),
            terminal: exec.terminal.is_some(),
        };
        let started = taken.start(&orders, far).await;
        let started = started.map_err(|error| fault("cannot start a process", &error))?;
        let process = Arc::new(Self {
            id: guest.processes.next_id(),
            log: OutputLog::new(),
            supervisor: started.supervisor,
            command: started.command,
            argv,
            started: SystemTime::now(),
            terminal: streams.terminal,
            input: tokio::sync::Mutex::new(streams.input),
            end: watch::Sender::new(None),
            cancelled: Notify::new(),
            alive: watch::Sender::new(true),
            used: Mutex::default(),
            owned: AtomicBool::new(false),
            delivered: AtomicBool::new(false),
        });
        guest.processes.add(&process);
        tokio::spawn(pump_all(Arc::clone(guest), Arc::clone(&process), streams.outputs));
        tokio::spawn(supervise(Arc::clone(guest), Arc::clone(&process), pool, started, deadline));
        Ok(process)
    }

    /// How the command ended, once it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    /// Waits for the end of the command.
    pub(crate) async fn ended(&self) -> End {
        let mut watching = self.end.subscribe();
        match watching.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(End::Done),
            // The sender lives in this very value.
            Err(_) => End::Done,
        }
    }

    /// Whether the command or anything descended from it is alive.
    pub(crate) fn is_alive(&self) -> bool {
        *self.alive.borrow()
    }

    /// What it used, as far as that is known.
    pub(crate) fn used(&self) -> TreeUsage {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what it used; what is known already stays.
    pub(crate) fn note_used(&self, used: TreeUsage) {
        let mut known = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *known = known.at_least(used);
    }

    /// Waits until nothing of it is alive, but not for ever.
    pub(crate) async fn wait_reaped(&self) {
        let mut watching = self.alive.subscribe();
        drop(tokio::time::timeout(BURIAL, watching.wait_for(|alive| !*alive)).await);
    }

    /// Whether nothing would be lost by forgetting it.
    pub(crate) fn is_done_with(&self) -> bool {
        !self.is_alive() && self.delivered.load(Ordering::Relaxed) && self.log.is_small()
    }

    /// Whether it ends with the call that started it.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Relaxed)
    }

    /// Ties it to the call that started it, or lets it live by itself.
    pub(crate) fn set_owned(&self, owned: bool) {
        self.owned.store(owned, Ordering::Relaxed);
    }

    /// Notes that somebody was told all there is to tell.
    pub(crate) fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Relaxed);
    }

    /// Ends the command and everything descended from it, now or, if it is over, what is left of it.
    pub(crate) fn cancel(&self) {
        if self.end().is_none() {
            self.cancelled.notify_one();
        } else if self.is_alive() {
            kill_descendants(self.supervisor);
        }
    }

    /// Sends a signal: `SIGKILL` to everything descended from the command, any other to its group.
    pub(crate) fn signal(&self, number: i32) -> Result<(), Fault> {
        let signal = rustix::process::Signal::from_named_raw(number).ok_or_else(|| {
            Fault::new(FaultKind::Invalid, format!("there is no signal {number}"))
        })?;
        if signal == rustix::process::Signal::KILL {
            // Once nothing is left of it, its supervisor's number may be another's.
            if self.is_alive() {
                kill_descendants(self.supervisor);
            }
            return Ok(());
        }
        let is_over = self.end().is_some();
        let is_gone = is_over && !(self.is_alive() && has_group(self.supervisor, self.command));
        let sent = match is_gone {
            true => Err(Errno::SRCH),
            false => kill_process_group(self.command, signal),
        };
        let sent = match sent {
            // It leads no group yet; the signal waits for it.
            Err(Errno::SRCH) if !is_over => kill_process(self.command, signal),
            sent => sent,
        };
        match sent {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => {
                let message = format!("process {} has ended", self.id);
                Err(Fault::new(FaultKind::NotFound, message))
            }
            Err(errno) => Err(fault("cannot send the signal", &errno.into())),
        }
    }

    /// Hands input to the command. One that reads no more is no failure.
    pub(crate) async fn write(&self, data: &[u8]) {
        let mut input = self.input.lock().await;
        if let Some(open) = input.as_mut()
            && open.write_all(data).await.is_err()
        {
            *input = None;
        }
    }

    /// Says that no more input follows. A terminal has no such thing: there it is a key.
    pub(crate) async fn close_input(&self) {
        if self.terminal.is_none() {
            *self.input.lock().await = None;
        }
    }

    /// Gives the command's terminal another size.
    pub(crate) fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            // A terminal whose command has ended has no size; nobody looks at it any more.
            drop(terminal.resize(size));
        }
    }

    /// Who has the command's terminal.
    pub(crate) fn terminal_state(&self) -> Result<TerminalState, Fault> {
        let none =
            || Fault::new(FaultKind::Invalid, format!("process {} has no terminal", self.id));
        let terminal = self.terminal.as_ref().ok_or_else(none)?;
        let state = terminal.state(self.command);
        state.map_err(|error| fault("cannot look at the terminal", &error))
    }

    /// The record, without what else is alive of it.
    pub(crate) fn record(&self) -> ProcessRecord {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        ProcessRecord {
            process: self.id,
            pid: self.command.as_raw_pid(),
            argv: self.argv.clone(),
            started_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
            end: self.end(),
            output: self.log.length(),
            terminal: self.terminal.is_some(),
            children: Vec::new(),
        }
    }
}

/// A command line as it is listed: readable, and bounded.
fn shown(argv: &[ByteBuf]) -> Vec<String> {
    let mut room = MOST_SHOWN;
    let mut shown = Vec::new();
    for argument in argv {
        let text = String::from_utf8_lossy(argument);
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        shown.push(text[..end].to_owned());
        room -= end;
        if room == 0 {
            break;
        }
    }
    shown
}

/// How much of a stream is read at a time until it proves to be long.
const LITTLE: usize = 4096;

/// Moves all output into the log until every stream is closed.
async fn pump_all(guest: Arc<Guest>, process: Arc<Process>, outputs: Vec<(Tag, pipe::Receiver)>) {
    let pumps = outputs.into_iter().map(|(tag, from)| pump(&guest, &process, tag, from));
    futures::future::join_all(pumps).await;
    process.log.close();
}

async fn pump(guest: &Guest, process: &Process, tag: Tag, mut from: pipe::Receiver) {
    let mut buffer = BytesMut::new();
    // Most commands say little: memory for more is not even asked for until there is more.
    let mut most = LITTLE;
    loop {
        buffer.clear();
        buffer.reserve(most);
        match (&mut from).take(most as u64).read_buf(&mut buffer).await {
            // A terminal whose far end is closed fails with an error instead of an end.
            Ok(0) | Err(_) => return,
            Ok(read) => {
                if guest.logs.is_short() {
                    guest.processes.make_room(&guest.logs);
                }
                process.log.append(&guest.logs, tag, &buffer).await;
                if read == most {
                    most = MAX_DATA;
                }
            }
        }
    }
}

/// Sees a command through: to its end, its deadline or its cancellation, and then to the end of all
/// that descended from it.
async fn supervise(
    guest: Arc<Guest>,
    process: Arc<Process>,
    pool: Arc<Pool>,
    mut started: StartedCommand,
    deadline: Option<Instant>,
) {
    let oom_kills_before = guest.memory.oom_kills();
    let both = [process.supervisor, process.command];
    // What had no time at all is over, however quick it was.
    let had_time = deadline.is_none_or(|deadline| Instant::now() < deadline);
    let end = tokio::select! {
        end = ending(&mut started), if had_time => out_of_memory(&guest, oom_kills_before, end),
        () = sleep_until(deadline) => End::Timeout,
        () = process.cancelled.notified() => End::Cancelled,
        // An earlier command may have stopped both while they waited for their orders. As long as the supervisor has
        // not ended, they are who they were.
        () = wake_later(both) => End::Done,
    };
    match end {
        End::Timeout | End::Cancelled => {
            kill_descendants(process.supervisor);
            // The supervisor goes when nothing of the command is left.
            drop(tokio::time::timeout(BURIAL, started.wait_descendants()).await);
        }
        // The supervisor is gone, so what it looked after has fallen to the first process.
        End::Failed(_) => {
            let known = guest.processes.supervisors(process.supervisor);
            guest.users.kill_orphans(process.supervisor, &known).await;
        }
        _ => {}
    }
    let is_by_itself = matches!(end, End::Exited { .. } | End::Signalled { .. });
    let time_limit = deadline.filter(|_| is_by_itself);
    drain(&process.log, time_limit).await;
    process.note_used(started.used());
    process.end.send_replace(Some(end));
    // Whoever waits for the end is told first, and may need this very processor to hear it.
    tokio::task::yield_now().await;
    if guest.processes.supervisors(process.supervisor).is_empty() {
        rustix::thread::sched_yield();
    }
    pool.refill();
    // Where there is no room for more, the next command finds out by itself.
    drop(guest.pipes.refill());
    // The supervisor lives as long as anything it has to look after does.
    started.wait_descendants().await;
    process.note_used(started.used());
    guest.usage.add(process.used());
    guest.activity.touch();
    process.alive.send_replace(false);
    guest.processes.prune();
}

/// Waits for what is still to come of a command that is over. Where the caller said how long it may take, that is as long as its
/// background children say something within every [`DRAIN`], until then at most.
async fn drain(log: &OutputLog, deadline: Option<Instant>) {
    loop {
        let logged = log.length();
        if tokio::time::timeout(DRAIN, log.closed()).await.is_ok() {
            return;
        }
        let goes_on = log.length() > logged;
        if !goes_on || deadline.is_none_or(|deadline| Instant::now() >= deadline) {
            return;
        }
    }
}

/// Says that memory ran out where the kernel's count of OOM kills says so and the command did not end well.
fn out_of_memory(guest: &Guest, oom_kills_before: u64, end: End) -> End {
    let code = match end {
        End::Signalled { signal: libc::SIGKILL } => 128 + libc::SIGKILL,
        End::Exited { code } if code != 0 => code,
        other => return other,
    };
    if guest.memory.oom_kills() > oom_kills_before { End::OutOfMemory { code } } else { end }
}

/// Waits for the end of the command by itself.
async fn ending(started: &mut StartedCommand) -> End {
    let word = started.ended().await;
    match started.executed().await {
        Ok(Some(failure)) => return End::NotStarted(not_started(failure)),
        Ok(None) => {}
        Err(error) => return End::Failed(fault("lost the command", &error)),
    }
    match word {
        Ok(SupervisorMessage::Exited(code)) => End::Exited { code },
        Ok(SupervisorMessage::Signalled(signal)) => End::Signalled { signal },
        Ok(SupervisorMessage::Ready { .. } | SupervisorMessage::Used(_)) | Err(_) => {
            let message = "the command's supervisor was killed from inside";
            End::Failed(Fault::new(FaultKind::Internal, message))
        }
    }
}

fn not_started(failure: ExecFailure) -> Fault {
    let (what, errno) = match failure {
        ExecFailure::Folder(errno) => ("cannot enter the folder to start in", errno),
        ExecFailure::Program(errno) => ("cannot execute the program", errno),
    };
    fault(what, &io::Error::from_raw_os_error(errno))
}

/// Lets processes go on that may have been stopped, once, and never ends.
async fn wake_later(processes: [Pid; 2]) {
    tokio::time::sleep(WAKE).await;
    for pid in processes {
        if let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) {
            send_held(&held, pid, rustix::process::Signal::CONT);
        }
    }
    std::future::pending::<()>().await;
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
