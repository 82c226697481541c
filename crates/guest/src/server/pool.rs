//! Supervisors forked ahead of need.
//!
//! The guest makes the sockets and hands the far ends to the launcher, so a fork is ordered without
//! waiting for an answer; the supervisor itself says when it is ready.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bastide_proto::{LENGTH_BYTES, prefixed_length};
use bastide_wire::LazyWriteStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::AsyncReadExt;

use super::kill::send_held;
use crate::launcher::ForkSupervisor;
use crate::packet;
use crate::supervisor::{ExecFailure, ExecSpec, SupervisorMessage};
use crate::tree_usage::TreeUsage;

/// How many supervisors wait at a time.
const AHEAD: usize = 2;

/// How long a supervisor may take to be there: the kernel takes a millisecond, a launcher that was stopped for ever.
const FORK_DEADLINE: Duration = Duration::from_secs(5);

/// How long after a session's first command more are ordered: many sessions have no other, and end.
const LATER: Duration = Duration::from_millis(1);

/// The supervisors that wait for a command.
#[derive(Debug)]
pub(crate) struct Pool {
    launcher: StdStream,
    launcher_pid: Pid,
    waiting: Mutex<Vec<PendingSupervisor>>,
    /// Whether a command has ended.
    was_used: AtomicBool,
}

/// A supervisor that has been ordered and may not exist yet.
#[derive(Debug)]
struct PendingSupervisor {
    supervisor: LazyWriteStream,
    command: StdStream,
}

/// A supervisor that is ready.
#[derive(Debug)]
pub(crate) struct ReadySupervisor {
    spare: PendingSupervisor,
    supervisor: Pid,
    command: Pid,
}

/// Why there is no supervisor.
#[derive(Debug)]
pub(crate) enum SupervisorError {
    /// The launcher is gone or stands still; another one may do.
    Launcher,
    /// There is none to be had.
    Refused(io::Error),
}

/// A command that has its orders.
#[derive(Debug)]
pub(crate) struct StartedCommand {
    /// The supervisor's process.
    pub(crate) supervisor: Pid,
    /// The command's process.
    pub(crate) command: Pid,
    messages: LazyWriteStream,
    /// What it used, as far as its supervisor has said.
    used: TreeUsage,
    /// Not watched: nobody needs to wake when the command is executed.
    execution: StdStream,
}

impl Pool {
    /// Orders the first supervisor. More would only take the processor from what comes up beside it;
    /// they are ordered when the first command has ended.
    pub(crate) fn new(launcher: StdStream, launcher_pid: Pid) -> io::Result<Self> {
        let first = order(&launcher)?;
        let waiting = Mutex::new(vec![first]);
        Ok(Self { launcher, launcher_pid, waiting, was_used: AtomicBool::new(false) })
    }

    /// Whether the launcher is there: nothing it would say is waited for, so what can be read is its
    /// end.
    pub(crate) fn is_alive(&self) -> bool {
        is_open(&self.launcher)
    }

    /// Ends the launcher, which does not answer. It is who it was: its socket is open.
    pub(crate) fn end_launcher(&self) {
        let held = pidfd_open(self.launcher_pid, PidfdFlags::empty());
        if let (Ok(held), true) = (held, self.is_alive()) {
            send_held(&held, self.launcher_pid, Signal::KILL);
        }
    }

    /// A supervisor that is ready. It comes in time, or its launcher is of no use any more.
    pub(crate) async fn take(&self) -> Result<ReadySupervisor, SupervisorError> {
        match tokio::time::timeout(FORK_DEADLINE, self.next()).await {
            Ok(taken) => taken,
            Err(_) => Err(SupervisorError::Launcher),
        }
    }

    async fn next(&self) -> Result<ReadySupervisor, SupervisorError> {
        loop {
            let ahead = self.waiting.lock().map_err(|_| refused(io::ErrorKind::Other))?.pop();
            let (mut spare, is_new) = match ahead {
                Some(spare) => (spare, false),
                None => (self.order().await?, true),
            };
            match next_message(&mut spare.supervisor).await {
                Ok(word) => return spare.taken(word).map_err(SupervisorError::Refused),
                // One that was ordered while there was no room for it never came to be.
                Err(_) if !is_new => {}
                Err(_) if self.is_alive() => {
                    return Err(refused(io::Error::from_raw_os_error(libc::EAGAIN)));
                }
                Err(_) => return Err(SupervisorError::Launcher),
            }
        }
    }

    /// Orders one, as soon as the launcher has room for the order.
    async fn order(&self) -> Result<PendingSupervisor, SupervisorError> {
        loop {
            match order(&self.launcher) {
                Ok(spare) => return Ok(spare),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    bastide_wire::writable(&self.launcher).await.map_err(refused)?;
                }
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(SupervisorError::Launcher);
                }
                Err(error) => return Err(refused(error)),
            }
        }
    }

    /// Orders supervisors until enough wait. Meant for when a command has ended: forking while one
    /// starts would take the processor from it. Where there is no room for more, the next command
    /// finds out by itself.
    pub(crate) fn refill(self: Arc<Self>) {
        if self.was_used.swap(true, Ordering::Relaxed) {
            drop(self.order_all());
            return;
        }
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            drop(self.order_all());
        });
    }

    fn order_all(&self) -> io::Result<()> {
        let mut waiting = self.waiting.lock().map_err(|_| io::ErrorKind::Other)?;
        while waiting.len() < AHEAD {
            waiting.push(order(&self.launcher)?);
        }
        Ok(())
    }

    /// The launcher's process.
    pub(crate) fn launcher(&self) -> Pid {
        self.launcher_pid
    }
}

/// Whether nothing can be read from a socket that nobody says anything on: not even its end.
fn is_open(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&at_once)), Ok(0))
}

fn refused(error: impl Into<io::Error>) -> SupervisorError {
    SupervisorError::Refused(error.into())
}

/// Orders a supervisor. A launcher that stands still is not waited for.
fn order(launcher: &StdStream) -> io::Result<PendingSupervisor> {
    let (supervisor, far_supervisor) = StdStream::pair()?;
    let (command, far_command) = StdStream::pair()?;
    let fds = [far_supervisor.as_fd(), far_command.as_fd()];
    // So few bytes go whole, or not at all.
    packet::send_now(launcher, &packet::encode(&ForkSupervisor)?, &fds)?;
    command.set_nonblocking(true)?;
    Ok(PendingSupervisor { supervisor: LazyWriteStream::new(supervisor)?, command })
}

impl PendingSupervisor {
    fn taken(self, word: SupervisorMessage) -> io::Result<ReadySupervisor> {
        let SupervisorMessage::Ready { supervisor, command } = word else {
            return Err(io::Error::other("the supervisor spoke out of turn"));
        };
        let pid = |number| Pid::from_raw(number).ok_or(io::ErrorKind::InvalidData);
        Ok(ReadySupervisor { spare: self, supervisor: pid(supervisor)?, command: pid(command)? })
    }
}

impl ReadySupervisor {
    /// Gives the waiting process its orders.
    pub(crate) async fn start(
        self,
        orders: &ExecSpec,
        streams: [OwnedFd; 3],
    ) -> io::Result<StartedCommand> {
        let Self { spare, supervisor, command } = self;
        let fds = [streams[0].as_fd(), streams[1].as_fd(), streams[2].as_fd()];
        send_packet(&spare.command, &packet::encode(orders)?, &fds).await?;
        let (messages, execution) = (spare.supervisor, spare.command);
        Ok(StartedCommand { supervisor, command, messages, used: TreeUsage::default(), execution })
    }
}

impl StartedCommand {
    /// Waits until the command has ended; an error means that its supervisor is gone.
    pub(crate) async fn ended(&mut self) -> io::Result<SupervisorMessage> {
        loop {
            match next_message(&mut self.messages).await? {
                SupervisorMessage::Used(used) => self.used = used,
                message => return Ok(message),
            }
        }
    }

    /// What it used, as far as its supervisor has said.
    pub(crate) fn used(&self) -> TreeUsage {
        self.used
    }

    /// Waits until nothing that descended from the command is alive.
    pub(crate) async fn wait_descendants(&mut self) {
        // Only what it used is still told, and then the end of the supervisor can be noticed.
        while let Ok(message) = next_message(&mut self.messages).await {
            if let SupervisorMessage::Used(used) = message {
                self.used = used;
            }
        }
    }

    /// Waits until it is clear whether the command could be executed.
    pub(crate) async fn executed(&mut self) -> io::Result<Option<ExecFailure>> {
        // The socket closes when the program is executed; a failure is written to it before. A process
        // that was killed before it read its orders leaves them in the socket, which is a reset.
        let mut packet = [0; 64];
        match recv(&self.execution, &mut packet, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(None),
            // So little comes whole; its length is before it.
            Ok((_, length)) => {
                let body = packet.get(4..length).unwrap_or_default();
                return bastide_proto::decode(body).map(Some).map_err(io::Error::other);
            }
            Err(_) => {}
        }
        match read_packet(&mut LazyWriteStream::new(self.execution.try_clone()?)?).await {
            Ok(body) => bastide_proto::decode(&body).map(Some).map_err(io::Error::other),
            Err(error) if has_closed(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether the far end is gone, with all it was sent or without.
fn has_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

async fn next_message(from: &mut LazyWriteStream) -> io::Result<SupervisorMessage> {
    bastide_proto::decode(&read_packet(from).await?).map_err(io::Error::other)
}

/// The next packet, which carries no descriptors.
pub(crate) async fn read_packet(from: &mut LazyWriteStream) -> io::Result<Vec<u8>> {
    let mut prefix = [0; LENGTH_BYTES];
    from.read_exact(&mut prefix).await?;
    // Both ends are ours, but a command may have taken a supervisor's place by a bug: stay bounded.
    let length = prefixed_length(prefix, 4096).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(body)
}

/// Sends the bytes of a packet, with descriptors.
pub(crate) async fn send_packet(
    to: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let (mut rest, mut fds) = (bytes, fds);
    while !rest.is_empty() {
        match packet::send_some(to.as_fd(), rest, fds) {
            Ok(sent) => (rest, fds) = (&rest[sent..], &[]),
            Err(Errno::AGAIN) => bastide_wire::writable(&to).await?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
