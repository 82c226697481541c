//! The keeper of a session's mounts of cloud storage: a process beside the warden, from the first mount on.
//!
//! It has the keys and the FUSE devices, and starts the programs that answer for them. The warden only starts it, hands
//! it the connections of hosts that want a mount, and sees it to its end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bastide_proto::mounts::KeeperSpec;
use bastide_proto::warden::WardenResponse;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::control::answer;
use crate::packet;
use crate::port_channel::{self, NAMESPACES};
use crate::sys::peer;

/// How long the keeper may take to have everything stored that was written: longer than its programs may.
const LAST_STORES: Duration = Duration::from_secs(45);

/// What comes with the connection of a host.
const CALLER: &[u8] = b"C";

/// The mounts of a session.
#[derive(Debug)]
pub(super) struct Mounts {
    /// Nothing can be mounted from outside without.
    spec: Option<KeeperSpec>,
    /// Whose namespaces they are made in, if it is not init that hands them out.
    inside: Option<HeldProcess>,
    keeper: Option<Keeper>,
}

/// A process that cannot be taken for another one.
#[derive(Debug)]
pub(super) struct HeldProcess {
    pid: Pid,
    held: OwnedFd,
}

impl HeldProcess {
    /// The process at the other end of a connection that it answered on just now.
    pub(super) fn peer_of(connection: &UnixStream) -> io::Result<Self> {
        let pid = peer(connection.as_fd())?.pid.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, held: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Hands its namespaces of users and of mounts over, as init does where it is asked.
    fn send_namespaces(&self, asker: &UnixStream) -> io::Result<()> {
        let open = |kind| File::open(format!("/proc/{}/ns/{kind}", self.pid.as_raw_pid()));
        let (users, mounts) = (open("user")?, open("mnt")?);
        // While it lives nobody else has its number.
        let mut ended = [PollFd::new(&self.held, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec::default()))? > 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        packet::send_now(asker, &packet::encode(&())?, &[users.as_fd(), mounts.as_fd()])
    }
}

#[derive(Debug)]
struct Keeper {
    process: Child,
    channel: OwnedFd,
}

impl Mounts {
    /// Those of a session in which something can be mounted, if there is a specification.
    pub(super) fn new(spec: Option<KeeperSpec>) -> Self {
        Self { spec, inside: None, keeper: None }
    }

    /// Those of a container, in which the guest's namespaces are joined.
    pub(super) fn of_container(spec: Option<KeeperSpec>, guest: HeldProcess) -> Self {
        Self { spec, inside: Some(guest), keeper: None }
    }

    /// Whether anybody keeps mounts.
    pub(super) fn are_kept(&self) -> bool {
        self.keeper.is_some()
    }

    /// Hands the connection of a host over to the keeper, which is started if there is none and a program for it.
    pub(super) fn forward_caller(
        &mut self,
        caller: &UnixStream,
        program: Option<&OwnedFd>,
        port_channel: BorrowedFd<'_>,
    ) {
        let found = match (self.living(), &self.spec, program) {
            (_, None, _) => Err(Errno::OPNOTSUPP),
            (true, _, _) => Ok(true),
            (false, Some(_), None) => Ok(false),
            (false, Some(spec), Some(program)) => {
                let inside = self.inside.as_ref();
                let ask = |end: &UnixStream| match inside {
                    Some(guest) => guest.send_namespaces(end),
                    // Init answers on this by itself; the warden waits for nobody inside.
                    None => Ok(port_channel::ask(port_channel, NAMESPACES, end.as_fd())?),
                };
                Keeper::start(spec, program, ask)
                    .map(|keeper| self.keeper = Some(keeper))
                    .map(|()| true)
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
        };
        match found {
            Ok(is_kept) => answer(caller, &WardenResponse::Mounts { is_kept }),
            Err(errno) => {
                answer(caller, &WardenResponse::Refused { errno: errno.raw_os_error() });
            }
        }
        if let (Ok(true), Some(keeper)) = (found, &self.keeper) {
            // A keeper that is gone closes the connection by that.
            drop(packet::send_now(&keeper.channel, CALLER, &[caller.as_fd()]));
        }
    }

    /// Whether a keeper is there; one that has ended is collected.
    fn living(&mut self) -> bool {
        let lives = |keeper: &mut Keeper| matches!(keeper.process.try_wait(), Ok(None));
        if !self.keeper.as_mut().is_some_and(lives) {
            self.keeper = None;
        }
        self.keeper.is_some()
    }

    /// Ends the keeper, once it has had everything stored that was written. The sandbox has ended.
    pub(super) fn end(&mut self) {
        let Some(Keeper { mut process, channel }) = self.keeper.take() else { return };
        drop(channel);
        if !has_ended(&process, LAST_STORES) {
            drop(process.kill());
        }
        drop(process.wait());
    }
}

/// Waits until a process has ended, but not for long.
pub(super) fn has_ended(process: &Child, most: Duration) -> bool {
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    let held = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let (Some(held), Ok(most)) = (held, Timespec::try_from(most)) else { return false };
    loop {
        match poll(&mut [PollFd::new(&held, PollFlags::IN)], Some(&most)) {
            Err(Errno::INTR) => {}
            ended => return ended.is_ok_and(|ended| ended > 0),
        }
    }
}

impl Keeper {
    /// Starts it, and has `ask` see to it that the session's namespaces come to it.
    fn start(
        spec: &KeeperSpec,
        program: &OwnedFd,
        ask: impl FnOnce(&UnixStream) -> io::Result<()>,
    ) -> io::Result<Self> {
        let (channel, far) = port_channel::pair()?;
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        // Where it is from is for whoever looks at its command line; keys are in none.
        command.arg0("bastide-mounts").arg("keep").arg(&spec.session_dir).env_clear();
        command.stdin(Stdio::from(far)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let started = UnixStream::pair().and_then(|(near, far)| {
            ask(&far)?;
            let spec = bastide_proto::encode(spec).map_err(io::Error::other)?;
            packet::send_now(&channel, &spec, &[near.as_fd()])
        });
        if started.is_err() {
            drop(process.kill());
            drop(process.wait());
        }
        started.map(|()| Self { process, channel })
    }
}
