//! The live sandbox a user holds.

pub(crate) mod command;
mod detach;
pub(crate) mod environment;
mod events;
pub(crate) mod files;
pub(crate) mod journal;
pub(crate) mod lease;
pub(crate) mod lifecycle;
pub(crate) mod output;
mod ports;
pub(crate) mod process;
pub(crate) mod retry;
pub(crate) mod snapshot;
pub(crate) mod usage;

use std::sync::Arc;

use bastide_model::paths::WorkspacePathPolicy;
use bastide_model::receipt::Receipt;
use bastide_proto::{AcceptWhen, Attach, End, Exec, GuestPath, Request, Signal, Stdin};
use serde_bytes::ByteBuf;
use serde_json::json;
use tokio::time::Instant;

use crate::backend::{Backend, KeepAlive, Machine, SessionId};
use crate::client::Removal;
use crate::compat::pty::PtyProcesses;
use crate::events::{EventOptions, Finished, Recorder, extension, forget_notes, operation_scope};
use crate::journal::withdrawn;
use crate::link::fault::agent_lost;
use crate::link::{Incoming, LATE, Link, decode, link_of};
use crate::session::lifecycle::Lifecycle;
use crate::session::process::{GRACE, ProcessInfo};
use crate::state::State;
use crate::{
    Command, Condition, Error, ErrorKind, Input, MountInfo, Output, Process, ProcessId, Result,
};

/// The most processes a guest is believed to have; it keeps fewer records of what is over, and the
/// kernel fewer of what is alive.
const MOST_PROCESSES: usize = 65_536;

/// A live sandbox: run commands in it, then [`delete`](Self::delete) it.
///
/// A session made with the default options ends with the process that made it, in whatever way that
/// process ends, or when this is dropped. One that is not tied to its owner lives on, and any process
/// can [attach](crate::Client::attach) to it.
#[derive(Debug)]
pub struct Session {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) state: Arc<State>,
    pub(crate) machine: Machine,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) root: GuestPath,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) policy: WorkspacePathPolicy,
    pub(crate) exposed_ports: Vec<u16>,
    pub(crate) keep_alive: Option<Arc<KeepAlive>>,
    pub(crate) ptys: PtyProcesses,
    pub(crate) life: Arc<Lifecycle>,
    /// Records what happens here, if there is a sink.
    pub(crate) events: Option<Arc<Recorder>>,
    pub(crate) options: Arc<EventOptions>,
}

impl Session {
    /// The session's name.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.machine.id
    }

    /// Where the workspace is inside.
    #[must_use]
    pub fn root(&self) -> &GuestPath {
        &self.root
    }

    /// What isolation and limits are really in force.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        &self.machine.receipt
    }

    /// The same session over a connection of its own, as another process would hold it. It does not keep
    /// the session up.
    ///
    /// # Errors
    ///
    /// Fails with [`BackendLost`](crate::ErrorKind::BackendLost) if the machine is gone, and with
    /// [`AgentLost`](crate::ErrorKind::AgentLost) if its guest does not answer.
    pub async fn reconnect(&self) -> Result<Self> {
        let connection = self.backend.connect(&self.machine).await?;
        let link = link_of(&self.backend, &self.machine, connection, false).await?;
        Ok(Self {
            events: self.recorder_for(&link)?,
            backend: Arc::clone(&self.backend),
            state: Arc::clone(&self.state),
            machine: self.machine.clone(),
            link,
            root: self.root.clone(),
            env: self.env.clone(),
            policy: self.policy.clone(),
            exposed_ports: self.exposed_ports.clone(),
            keep_alive: None,
            ptys: PtyProcesses::default(),
            life: Arc::clone(&self.life),
            options: Arc::clone(&self.options),
        })
    }

    /// Starts a command; its output is read from the [`Process`] while it runs.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest does not answer. A program
    /// that cannot be executed is no error here: the process ends with a code of 126 or 127.
    pub async fn spawn(&self, command: Command) -> Result<Process> {
        self.start_command(command, AcceptWhen::AtOnce).await
    }

    async fn start_command(&self, command: Command, answer: AcceptWhen) -> Result<Process> {
        let is_terminal = command.terminal.is_some();
        let point = self.begin_point(&command).await?;
        let recording = match self.record_command(&command).await {
            Ok(recording) => recording,
            Err(error) => return Err(withdrawn(point, error).await),
        };
        match self.start_command_unrecorded(command, answer).await {
            Ok(process) => {
                let lines = point.as_ref().filter(|_| is_terminal);
                let lines = lines.map(|point| point.lines(process.id()));
                Ok(process.with_recording(recording).with_point(point).with_lines(lines))
            }
            Err(error) => {
                let error = withdrawn(point, error).await;
                if let Some(recording) = recording {
                    recording.fail(&error).await?;
                }
                Err(error)
            }
        }
    }

    /// As [`spawn`](Self::spawn), as part of another operation that is recorded.
    pub(crate) async fn spawn_unrecorded(&self, command: Command) -> Result<Process> {
        self.start_command_unrecorded(command, AcceptWhen::AtOnce).await
    }

    async fn start_command_unrecorded(
        &self,
        command: Command,
        answer: AcceptWhen,
    ) -> Result<Process> {
        let (timeout, input) = (command.timeout, command.input.clone());
        let asked = Instant::now();
        let stream = self.link.open(self.exec_request(command, answer)).await?;
        let begun = match answer {
            // It was accepted with its first word, whenever that was.
            AcceptWhen::Together => asked + (LATE - GRACE),
            _ => Instant::now(),
        };
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout.saturating_add(GRACE)));
        Process::started(&self.link, stream, input, deadline)
    }

    /// Runs a command to its end and collects what it says.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn) and [`Process::next`]; a guest that says nothing at all is given three
    /// seconds after the command's deadline.
    pub async fn exec(&self, command: Command) -> Result<Output> {
        let limit = command.output_limit;
        // What a command is to read is sent once it is accepted.
        let is_mute = command.input == Input::None && command.terminal.is_none();
        let answer = if is_mute { AcceptWhen::Together } else { AcceptWhen::AtOnce };
        self.start_command(command, answer).await?.output(limit).await
    }

    /// Starts a command that lives on by itself, until it ends or the session does. Its input is empty
    /// unless the command says [`Command::stream_input`] or runs on a terminal.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn); and for a command with bytes to read, which nobody would be there
    /// to send.
    pub async fn launch(&self, command: Command) -> Result<ProcessId> {
        if matches!(command.input, Input::Bytes(_)) {
            let message = "a command that lives on by itself cannot be given bytes to read";
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("put them into a file, or attach to the process and write them"));
        }
        // Nobody waits for its end, so its point has none.
        let point = self.begin_point(&command).await?;
        let scope = self.extension("spawn", || command.description());
        let work = self.launch_unrecorded(command);
        match scope.record(work, |id| Finished::extension(json!({"process": id.0}))).await {
            Ok(id) => Ok(id),
            Err(error) => Err(withdrawn(point, error).await),
        }
    }

    /// As [`launch`](Self::launch), as part of another operation that is recorded.
    pub(crate) async fn launch_unrecorded(&self, command: Command) -> Result<ProcessId> {
        let mut stream = self.link.open(self.exec_request(command, AcceptWhen::Detached)).await?;
        let id = stream.accepted.process.map(ProcessId);
        match stream.from_guest.next().await? {
            Incoming::End(End::Detached) => {
                id.ok_or_else(|| agent_lost("the guest broke the protocol: no process"))
            }
            _ => Err(agent_lost("the guest broke the protocol: not the start of a process")),
        }
    }

    /// Ends a process and everything descended from it, as part of another operation.
    pub(crate) async fn kill_unrecorded(&self, process: ProcessId) -> Result<()> {
        let request = Request::Signal(Signal { process: process.0, signal: 9 });
        self.link.open(request).await?.finish().await
    }

    /// The mounts of the session: what is mounted, how, and what commands can get at by it.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest does not answer.
    pub async fn mounts(&self) -> Result<Vec<MountInfo>> {
        let scope = self.extension("mounts", || json!({}));
        let work = crate::workspace::mounts::list(self);
        scope
            .record(work, |all| Finished::extension(json!({"mounts": all.len()})))
            .await
            .map_err(|error| self.redacted_if(error))
    }

    /// Listens to a process: what it has said from `from` on, and what it says until it ends. Dropping
    /// the [`Process`] leaves the process alone.
    ///
    /// # Errors
    ///
    /// Fails with [`NotFound`](crate::ErrorKind::NotFound) if there is no record of the process.
    pub async fn attach(&self, process: ProcessId, from: u64) -> Result<Process> {
        self.listen(process, from, false).await
    }

    /// Reads what a process has said so far, from `from` on. It ends with the process's end, or with
    /// [`ExitReason::Detached`](crate::ExitReason::Detached) if the process goes on.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub async fn log(&self, process: ProcessId, from: u64) -> Result<Process> {
        self.listen(process, from, true).await
    }

    async fn listen(&self, process: ProcessId, from: u64, only_so_far: bool) -> Result<Process> {
        let recording = self.record_attach(process, from, only_so_far).await?;
        let attach = Attach { process: process.0, from, only_so_far };
        let attached = match self.link.open(Request::Attach(attach)).await {
            Ok(stream) => Process::attached(stream, Input::Stream),
            Err(error) => Err(error),
        };
        match (attached, recording) {
            (Ok(process), recording) => {
                let lines = if only_so_far { None } else { self.typed_lines(process.id())? };
                Ok(process.with_recording(recording).with_lines(lines))
            }
            (Err(error), Some(recording)) => recording.fail(&error).await.and(Err(error)),
            (Err(error), None) => Err(error),
        }
    }

    /// Sends a signal to a process: `SIGKILL` (9) to everything descended from the command, any other
    /// to its process group.
    ///
    /// # Errors
    ///
    /// Fails with [`NotFound`](crate::ErrorKind::NotFound) if the process has ended or there is no
    /// record of it, and with [`InvalidInput`](crate::ErrorKind::InvalidInput) for an unknown signal.
    pub async fn signal(&self, process: ProcessId, signal: i32) -> Result<()> {
        let scope = self.extension("signal", || json!({"process": process.0, "signal": signal}));
        let request = Request::Signal(Signal { process: process.0, signal });
        scope.record_unit(async { self.link.open(request).await?.finish().await }).await
    }

    /// Every process the session has a record of, oldest first.
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest does not answer.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        let scope = self.extension("processes", || json!({}));
        scope
            .record(self.list_processes(), |all| {
                Finished::extension(json!({"processes": all.len()}))
            })
            .await
    }

    pub(crate) async fn list_processes(&self) -> Result<Vec<ProcessInfo>> {
        let mut stream = self.link.open(Request::Processes).await?;
        let mut all = Vec::new();
        loop {
            match stream.from_guest.next().await? {
                Incoming::Item(item) if all.len() < MOST_PROCESSES => {
                    all.push(ProcessInfo::from_record(decode(&item)?)?);
                }
                Incoming::End(End::Done) => return self.with_usage(all).await,
                _ => return Err(agent_lost("the guest broke the protocol: not a list")),
            }
        }
    }

    /// A command as it will really be run, for whoever tells of it.
    pub(crate) fn as_run(&self, mut command: Command) -> Command {
        let is_login = command.is_shell && self.backend.has_own_system();
        if let (true, Some(flag)) = (is_login, command.argv.get_mut(1)) {
            *flag = b"-lc".to_vec();
        }
        command
    }

    fn exec_request(&self, command: Command, answer: AcceptWhen) -> Request {
        let Command { argv, env, cwd, user, input, timeout, terminal, .. } = self.as_run(command);
        let mut env = self.environment(env);
        if terminal.is_some()
            && self.backend.has_own_system()
            && !env.iter().any(|(key, _)| &key[..] == b"TERM")
        {
            // As engines do.
            env.push((ByteBuf::from("TERM"), ByteBuf::from("xterm")));
        }
        Request::Exec(Exec {
            argv: argv.into_iter().map(ByteBuf::from).collect(),
            env,
            cwd: cwd.unwrap_or_else(|| self.root.clone()),
            user,
            stdin: if input == Input::None { Stdin::Null } else { Stdin::Stream },
            timeout,
            terminal,
            answer,
        })
    }

    /// Ends every process of the session and removes every trace of it.
    ///
    /// # Errors
    ///
    /// Fails if the backend cannot remove something; what is left carries the session's name. Where something that was
    /// written to a mount could not be stored, the session is removed all the same, and the error says what is lost.
    pub async fn delete(self) -> Result<()> {
        // What was written is stored first; what cannot be unmounted goes with the machine, which
        // takes nothing of a store along.
        let released = self.release_mounts().await;
        let unstored =
            released.err().filter(|error| error.condition() == Some(&Condition::MountNotStored));
        let Self { backend, state, machine, link, keep_alive, life, events, .. } = self;
        let (home, id) = (backend.home().to_owned(), machine.id.clone());
        let scope = operation_scope(events.as_ref(), || extension("delete", json!({})));
        let deleted =
            scope.record_unit(remove(backend, state, machine, link, keep_alive, &life)).await;
        if let Some(events) = &events {
            events.close(deleted.is_ok()).await;
        }
        if deleted.is_ok() {
            forget_notes(&home, &id, events.is_some_and(|events| events.has_audit()));
        }
        let lost = |error: Error| {
            error.with_hint("the session was removed all the same, and what was kept of it with it")
        };
        deleted.and(unstored.map_or(Ok(()), |error| Err(lost(error))))
    }

    /// The environment of one command: the session's, then the command's own.
    fn environment(&self, own: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(ByteBuf, ByteBuf)> {
        let mut all = self.env.clone();
        for (key, value) in own {
            all.retain(|(other, _)| *other != key);
            all.push((key, value));
        }
        all.into_iter().map(|(key, value)| (ByteBuf::from(key), ByteBuf::from(value))).collect()
    }
}

/// Ends every process of a session and removes every trace of it.
async fn remove(
    backend: Arc<dyn Backend>,
    state: Arc<State>,
    machine: Machine,
    link: Arc<dyn Link>,
    keep_alive: Option<Arc<KeepAlive>>,
    life: &Lifecycle,
) -> Result<()> {
    drop(link);
    let id = &machine.id;
    let removed = match Removal::announce(backend.as_ref(), &state, id).await {
        Ok(Some(removal)) => removal.execute().await,
        // Somebody else removed it. Whatever runs of it ends, too.
        Ok(None) => backend.stop(&machine).await,
        Err(error) => Err(error),
    };
    life.terms.dependencies.close().await;
    drop(keep_alive);
    removed
}
