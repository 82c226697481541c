//! The event loop of a warden: waiting for whatever comes first, its end, its owner's end, or a request.
//!
//! One thread, one wait for everything. Nothing here blocks on any single party.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use bastide_proto::container::{GAVE_UP, NETWORK, UP};
use bastide_proto::warden::{ExpiryAction, RELEASE, WardenRequest, WardenResponse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::control::{ControlRequest, ControlSocket, answer};
use super::egress::Egress;
use super::lease::Lease;
use super::mounts::Mounts;
use super::ports::{Ports, Source};
use crate::packet;

/// What is watched over.
#[derive(Debug)]
pub(super) struct EventLoop {
    /// The first process inside; `None` once it is known to have ended.
    pub(super) init: Option<OwnedFd>,
    /// The process that made the session, until it lets go of it.
    pub(super) owner: Option<UnixStream>,
    pub(super) ports: Ports,
    pub(super) mounts: Mounts,
    /// When it ends by itself.
    pub(super) lease: Lease,
    /// The network, where it has a policy.
    pub(super) egress: Option<Egress>,
    /// Whether the owner has said that the guest is up, where it has to.
    pub(super) is_up: bool,
    /// Whether the sandbox was seen to end.
    pub(super) has_ended: bool,
}

/// What ended the watch.
#[derive(Debug)]
pub(super) enum Event {
    /// The sandbox ended by itself.
    SandboxEnded,
    /// The owner is gone without letting go.
    OwnerGone,
    /// The owner says that the guest is up.
    OwnerSaysUp,
    /// The owner wants a network for the first process of a container, which it has a descriptor of.
    OwnerWantsNetwork(OwnedFd),
    /// The owner let go of a sandbox that had ended: nobody is left to wait for.
    Released,
    /// The owner could not make the sandbox, and left nothing of it.
    OwnerGaveUp,
    /// Somebody wants the end, and waits for the answer.
    EndRequested { remove: bool, caller: UnixStream },
    /// Its lease ran out.
    Expired(ExpiryAction),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Init,
    Owner,
    Listener,
    Caller,
    Lease,
    Egress,
    Ports(Source),
}

impl EventLoop {
    /// Serves until something ends.
    pub(super) fn run(&mut self, control: &mut ControlSocket) -> io::Result<Event> {
        loop {
            let ready = self.wait(control)?;
            if ready.contains(&Ready::Init) {
                self.set_ended();
                return Ok(Event::SandboxEnded);
            }
            if ready.contains(&Ready::Owner)
                && let Some(event) = self.read_owner()
            {
                return Ok(event);
            }
            // Before anybody is served: what the proxy said before that holds for them.
            if let Some(egress) = &mut self.egress
                && (ready.contains(&Ready::Egress) || egress.is_late())
            {
                egress.handle_ready();
            }
            if ready.contains(&Ready::Listener) {
                control.accept();
            }
            // Late callers are forgotten here too, so this runs whatever happened.
            for request in control.read_requests() {
                if let Some(event) = self.handle_request(request) {
                    return Ok(event);
                }
            }
            let ports: Vec<_> = ready
                .iter()
                .filter_map(|ready| match ready {
                    Ready::Ports(source) => Some(*source),
                    Ready::Init
                    | Ready::Owner
                    | Ready::Listener
                    | Ready::Caller
                    | Ready::Lease
                    | Ready::Egress => None,
                })
                .collect();
            self.ports.handle_ready(&ports);
            if ready.contains(&Ready::Lease)
                && let Some(then) = self.lease.check(&self.ports)
                && !self.has_ended
            {
                return Ok(Event::Expired(then));
            }
        }
    }

    /// Notes that the sandbox has ended.
    pub(super) fn set_ended(&mut self) {
        self.init = None;
        self.has_ended = true;
    }

    /// Ends the processes beside the warden. The sandbox has ended.
    pub(super) fn end_helpers(&mut self) {
        if let Some(egress) = &mut self.egress {
            egress.end();
        }
        self.mounts.end();
    }

    fn handle_request(&mut self, asked: ControlRequest) -> Option<Event> {
        let ControlRequest { caller, request, program } = asked;
        match request {
            WardenRequest::Publish { port } => {
                let granted = match self.ports.publish(port) {
                    Ok(published) => WardenResponse::Ports(vec![published]),
                    Err(errno) => WardenResponse::Refused { errno: errno.raw_os_error() },
                };
                answer(&caller, &granted);
            }
            WardenRequest::Ports => answer(&caller, &WardenResponse::Ports(self.ports.list())),
            WardenRequest::Mounts => {
                self.mounts.forward_caller(&caller, program.as_ref(), self.ports.channel());
            }
            WardenRequest::Lease(update) => {
                let changed = match self.lease.update(&update) {
                    Ok(lease) => WardenResponse::Lease(lease),
                    Err(errno) => WardenResponse::Refused { errno: errno.raw_os_error() },
                };
                answer(&caller, &changed);
            }
            WardenRequest::Egress => match &self.egress {
                Some(egress) => egress.forward_caller(&caller),
                None => {
                    let errno = Errno::OPNOTSUPP.raw_os_error();
                    answer(&caller, &WardenResponse::Refused { errno });
                }
            },
            WardenRequest::End { remove } => return Some(Event::EndRequested { remove, caller }),
            _ => answer(&caller, &WardenResponse::Refused { errno: Errno::NOSYS.raw_os_error() }),
        }
        None
    }

    /// What the owner says, or that it is gone; if it lets go, it is not watched any more.
    fn read_owner(&mut self) -> Option<Event> {
        let owner = self.owner.as_ref()?;
        let mut word = [0; 1];
        let (read, descriptor) = match packet::receive_some(owner, &mut word) {
            Ok((read, descriptor)) => (Ok(read), descriptor),
            Err(errno) => (Err(io::Error::from(errno)), None),
        };
        match read {
            Ok(1..) if word == [NETWORK] && !self.is_up => {
                Some(descriptor.map_or(Event::OwnerGone, Event::OwnerWantsNetwork))
            }
            Ok(1..) if word == [RELEASE] => {
                self.owner = None;
                self.has_ended.then_some(Event::Released)
            }
            Ok(1..) if word == [UP] && !self.is_up => {
                self.is_up = true;
                Some(Event::OwnerSaysUp)
            }
            Ok(1..) if word == [GAVE_UP] => Some(Event::OwnerGaveUp),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                None
            }
            Ok(_) | Err(_) => Some(Event::OwnerGone),
        }
    }

    /// Waits until something can be done.
    fn wait(&self, control: &ControlSocket) -> io::Result<Vec<Ready>> {
        let mut names = Vec::new();
        let mut waits = Vec::new();
        let mut add = |name, wait| {
            names.push(name);
            waits.push(wait);
        };
        if let Some(init) = &self.init {
            add(Ready::Init, PollFd::new(init, PollFlags::IN));
        }
        if let Some(owner) = &self.owner {
            add(Ready::Owner, PollFd::new(owner, PollFlags::IN | PollFlags::RDHUP));
        }
        if let Some(listener) = control.listener() {
            add(Ready::Listener, PollFd::new(listener, PollFlags::IN));
        }
        for caller in control.callers() {
            add(Ready::Caller, PollFd::new(caller, PollFlags::IN));
        }
        for fd in self.lease.waits() {
            add(Ready::Lease, PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let egress = self.egress.as_ref();
        if let Some(channel) = egress.and_then(Egress::channel) {
            add(Ready::Egress, PollFd::from_borrowed_fd(channel, PollFlags::IN));
        }
        for (source, fd, flags) in self.ports.waits() {
            add(Ready::Ports(source), PollFd::from_borrowed_fd(fd, flags));
        }
        let deadlines =
            [control.deadline(), self.ports.deadline(), egress.and_then(Egress::deadline)];
        let deadline = deadlines.into_iter().flatten().min();
        let most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        match poll(&mut waits, most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let happened = names.into_iter().zip(&waits);
        Ok(happened.filter(|(_, wait)| !wait.revents().is_empty()).map(|(name, _)| name).collect())
    }
}
