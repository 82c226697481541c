//! Interactive processes as the reference has them: start one, write to it, and each time get what it
//! said within a while. [`Session::spawn`](crate::Session::spawn) with a terminal is the way for programs that want to react at
//! once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bastide_model::pty::{
    PTY_PROCESSES_MAX, PTY_START_YIELD_TIME_MS, PTY_WRITE_YIELD_TIME_MS, PtyExecUpdate, PtyOutput,
    PtyUse, allocate_pty_process_id, clamp_pty_yield_time_ms, process_id_to_prune,
    resolve_pty_write_yield_time_ms, yield_time_ms,
};
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use super::ReferenceSession;
use super::exec::{not_run, shown};
use crate::compat::raise;
use crate::events::Finished;
use crate::journal::withdrawn;
use crate::{Command, Error, ErrorKind, Exit, ExitReason, OutputEvent, Process, ProcessId, Result};

/// How much output of one process waits to be collected before the process has to wait.
const MOST_PENDING: usize = 8 * 1024 * 1024;

/// How long a call waits for output, and how much of it it gives.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PtyLimits {
    /// How long to wait, in seconds; bounded as in the reference.
    pub yield_time_s: Option<f64>,
    /// About how many tokens of output to give at most.
    pub max_output_tokens: Option<i64>,
}

impl PtyLimits {
    /// Waits that many seconds for output.
    #[must_use]
    pub fn yield_time_s(mut self, yield_time_s: f64) -> Self {
        self.yield_time_s = Some(yield_time_s);
        self
    }

    /// Gives about that many tokens of output at most.
    #[must_use]
    pub fn max_output_tokens(mut self, max_output_tokens: i64) -> Self {
        self.max_output_tokens = Some(max_output_tokens);
        self
    }
}

/// The interactive processes of one session.
#[derive(Debug, Default)]
pub(crate) struct PtyProcesses(Mutex<HashMap<i64, Entry>>);

#[derive(Debug)]
struct Entry {
    process: ProcessId,
    terminal: bool,
    last_used: Instant,
    unread: Arc<PendingOutput>,
    to_process: mpsc::Sender<String>,
}

/// What a process has said and nobody has collected.
#[derive(Debug, Default)]
struct PendingOutput {
    state: Mutex<PendingOutputState>,
    /// Something was said, or the process ended.
    more: Notify,
    /// Something was collected.
    less: Notify,
}

#[derive(Debug, Default)]
struct PendingOutputState {
    output: PtyOutput,
    exit_code: Option<i64>,
    failure: Option<Error>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nobody panics while holding one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReferenceSession<'_> {
    /// Starts an interactive process and gives what it said within a while. With
    /// [`Command::terminal`] it can be written to; without one its output streams come as one.
    ///
    /// # Errors
    ///
    /// `ExecTransportError` if it cannot be run; and as [`Session::spawn`](crate::Session::spawn).
    pub async fn pty_exec_start(
        self,
        command: Command,
        limits: PtyLimits,
    ) -> Result<PtyExecUpdate> {
        let scope = self.session.extension("pty_exec_start", || command.description());
        scope.record(self.start_pty(command, limits), updated).await
    }

    async fn start_pty(self, command: Command, limits: PtyLimits) -> Result<PtyExecUpdate> {
        self.check_root()?;
        let terminal = command.terminal.is_some();
        let command = Command { timeout: None, ..command };
        let manner = self.session.backend.has_own_system().then(|| ShellExit {
            program: command.argv.first().cloned().unwrap_or_default(),
            terminal,
        });
        let argv = shown(&command);
        let point = self.session.begin_point(&command).await?;
        let process = match self.session.spawn_unrecorded(command).await {
            Ok(process) => process.with_point(point),
            Err(error) => {
                let error = withdrawn(point, error).await;
                let has_class = error.class().is_some();
                return Err(if has_class { error } else { not_run(&argv, error) });
            }
        };
        let (to_process, words) = mpsc::channel(16);
        let entry = Entry {
            process: process.id(),
            terminal,
            last_used: Instant::now(),
            unread: Arc::default(),
            to_process,
        };
        let unread = Arc::clone(&entry.unread);
        tokio::spawn(read_events(process, Arc::clone(&unread), words, manner));
        let (id, pruned) = self.session.ptys.insert(entry)?;
        if let Some(pruned) = pruned {
            // It may have ended by itself meanwhile.
            drop(self.session.signal(pruned.process, 9).await);
        }
        let wait = limits.yield_time_s.map_or(PTY_START_YIELD_TIME_MS, yield_time_ms);
        self.collect(id, &unread, clamp_pty_yield_time_ms(wait), limits.max_output_tokens).await
    }

    /// Types `chars` on the terminal of an interactive process, or nothing, and gives what the process
    /// said within a while.
    ///
    /// # Errors
    ///
    /// `PtySessionNotFoundError` if there is no such process (any more), and `RuntimeError` if it has
    /// no terminal to type on.
    pub async fn pty_write_stdin(
        self,
        session_id: i64,
        chars: &str,
        limits: PtyLimits,
    ) -> Result<PtyExecUpdate> {
        let scope = self.session.extension(
            "pty_write_stdin",
            || json!({"session_id": session_id, "chars": chars.chars().count()}),
        );
        scope.record(self.write_pty(session_id, chars, limits), updated).await
    }

    async fn write_pty(
        self,
        session_id: i64,
        chars: &str,
        limits: PtyLimits,
    ) -> Result<PtyExecUpdate> {
        let (terminal, unread, to_process) = {
            let all = lock(&self.session.ptys.0);
            let entry = all.get(&session_id);
            let entry = entry.ok_or_else(|| raise::pty_session_not_found(session_id))?;
            (entry.terminal, Arc::clone(&entry.unread), entry.to_process.clone())
        };
        if !chars.is_empty() {
            if !terminal {
                return Err(raise::runtime_error("stdin is not available for this process"));
            }
            // A process that has ended takes no more; its end is in the answer.
            drop(to_process.send(chars.to_owned()).await);
        }
        let wait = limits.yield_time_s.map_or(PTY_WRITE_YIELD_TIME_MS, yield_time_ms);
        let wait = resolve_pty_write_yield_time_ms(wait, chars);
        let update = self.collect(session_id, &unread, wait, limits.max_output_tokens).await?;
        if let Some(entry) = lock(&self.session.ptys.0).get_mut(&session_id) {
            entry.last_used = Instant::now();
        }
        Ok(update)
    }

    /// Ends every interactive process.
    pub async fn pty_terminate_all(self) {
        let scope = self.session.extension("pty_terminate_all", || json!({}));
        // What cannot be told keeps nobody from ending them.
        drop(scope.record_unit(async { Ok(()) }).await);
        let all: Vec<Entry> = lock(&self.session.ptys.0).drain().map(|(_, entry)| entry).collect();
        for entry in all {
            // One that has ended already is what is wanted.
            drop(self.session.signal(entry.process, 9).await);
        }
    }

    /// Waits for output until the time is up or the process has ended, then gives what there is.
    async fn collect(
        self,
        id: i64,
        unread: &PendingOutput,
        wait_ms: i64,
        max_output_tokens: Option<i64>,
    ) -> Result<PtyExecUpdate> {
        let started = Instant::now();
        loop {
            let more = unread.more.notified();
            let Some(left) = lock(&unread.state).output.wait(started.elapsed(), wait_ms) else {
                break;
            };
            // Running out of time is one of the two ways for this to end.
            drop(tokio::time::timeout(left, more).await);
        }
        let (collected, exit_code, failure) = {
            let mut state = lock(&unread.state);
            (state.output.collect(max_output_tokens), state.exit_code, state.failure.take())
        };
        unread.less.notify_one();
        if exit_code.is_some() || failure.is_some() {
            lock(&self.session.ptys.0).remove(&id);
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        Ok(PtyExecUpdate {
            process_id: exit_code.is_none().then_some(id),
            output: collected.output,
            exit_code,
            original_token_count: collected.original_token_count,
        })
    }
}

impl PtyProcesses {
    /// Gives a process an id; if there are too many, one of the others has to go.
    fn insert(&self, entry: Entry) -> Result<(i64, Option<Entry>)> {
        let mut all = lock(&self.0);
        let random = uuid::Uuid::new_v4().as_u64_pair().0;
        let id = allocate_pty_process_id(random, |id| all.contains_key(&id)).ok_or_else(|| {
            Error::new(ErrorKind::LimitExceeded, "the session has no more ids for processes")
        })?;
        let pruned = if all.len() >= PTY_PROCESSES_MAX { prune(&mut all) } else { None };
        all.insert(id, entry);
        Ok((id, pruned))
    }
}

/// What is told of an answer; not what the process said.
fn updated(update: &PtyExecUpdate) -> Finished {
    let size = update.output.len();
    Finished::extension(json!({"session_id": update.process_id, "exit_code": update.exit_code}))
        .with("size", size)
}

fn prune(all: &mut HashMap<i64, Entry>) -> Option<Entry> {
    let now = Instant::now();
    let uses: Vec<_> = all
        .iter()
        .map(|(id, entry)| PtyUse {
            process_id: *id,
            last_used: -now.duration_since(entry.last_used).as_secs_f64(),
            exited: lock(&entry.unread.state).exit_code.is_some(),
        })
        .collect();
    process_id_to_prune(&uses).and_then(|id| all.remove(&id))
}

/// How the reference's Docker client tells of ends: its interactive processes are started by a shell.
#[derive(Debug)]
struct ShellExit {
    program: Vec<u8>,
    terminal: bool,
}

impl ShellExit {
    /// What that shell says of a program it cannot execute.
    fn complaint(&self, exit: &Exit) -> Vec<u8> {
        let detail = exit.detail.as_deref().unwrap_or_default();
        let why = match exit.code {
            // It may be the folder to start in that is missing.
            127 if detail.starts_with("cannot execute") => "not found",
            _ if detail.contains("Permission denied") => "Permission denied",
            _ => detail,
        };
        let end = if self.terminal { "\r\n" } else { "\n" };
        [b"sh: 1: exec: ", &self.program[..], format!(": {why}{end}").as_bytes()].concat()
    }
}

/// What the reference would call the code of an end.
fn exit_code(exit: &Exit, manner: Option<&ShellExit>) -> i64 {
    match exit.reason {
        ExitReason::Signalled if manner.is_none() => i64::from(128 - exit.code),
        _ => i64::from(exit.code),
    }
}

/// Listens to a process until it ends, and passes on what is typed.
async fn read_events(
    mut process: Process,
    unread: Arc<PendingOutput>,
    mut words: mpsc::Receiver<String>,
    manner: Option<ShellExit>,
) {
    let mut typing = true;
    loop {
        // A process nobody listens to has to wait, so that nothing it says is lost or piles up.
        if lock(&unread.state).output.pending().len() >= MOST_PENDING {
            unread.less.notified().await;
            continue;
        }
        let said = tokio::select! {
            said = process.next() => said,
            word = words.recv(), if typing => {
                match word {
                    // If the guest is gone, what is heard next says so.
                    Some(word) => drop(process.write(word).await),
                    None => typing = false,
                }
                continue;
            }
        };
        let mut state = lock(&unread.state);
        match said {
            Ok(OutputEvent::Stdout(data) | OutputEvent::Stderr(data)) => state.output.push(&data),
            Ok(OutputEvent::Lost(_)) => {}
            Ok(OutputEvent::Exit(exit)) => {
                if let (ExitReason::NotStarted, Some(manner)) = (exit.reason, &manner) {
                    state.output.push(&manner.complaint(&exit));
                }
                state.exit_code = Some(exit_code(&exit, manner.as_ref()));
                state.output.close();
            }
            Err(error) => {
                state.failure = Some(error);
                state.output.close();
            }
        }
        let over = state.output.is_closed();
        drop(state);
        unread.more.notify_waiters();
        if over {
            return;
        }
    }
}
