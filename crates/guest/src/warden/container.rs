//! The warden of a container: one small process on the host for each session, which the engine does not
//! know. It ends and removes the container with its owner, holds published ports, and notes ends that
//! nobody was there to see.
//!
//! It is started like the warden of a local sandbox, but has no sandbox to build: its owner has the
//! engine make the container, and says when the guest has answered.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bastide_proto::USAGE_VERSION;
use bastide_proto::boot::{BootFailure, EgressBoot};
use bastide_proto::container::{ContainerWardenSpec, UP, WARDEN_CHANNEL};
use bastide_proto::hello::{Token, WELCOME_BYTES, check_welcome, hello_at};
use bastide_proto::warden::{CONTROL_SOCKET, ExpiryAction, GUEST_SOCKET, WardenResponse};
use rustix::event::{Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::setsid;

use super::container_net::ContainerProcess;
use super::control::{self, ControlSocket};
use super::egress::{Egress, EgressFds};
use super::engine::{EngineOutcome, ask};
use super::event_loop::{Event, EventLoop};
use super::exit_record::ExitRecord;
use super::folder::Folder;
use super::lease::Lease;
use super::mount_points;
use super::mounts::{HeldProcess, Mounts};
use super::ports::Ports;
use super::{BOOT, close_standard_streams, take_owner};
use crate::jail::StepContext;
use crate::sys::close_inherited;
use crate::{packet, port_channel};

/// How often a container is looked for whose making was interrupted, and how long to wait between.
const LOOKS: usize = 20;
const AGAIN: Duration = Duration::from_millis(100);

/// The life of a container's warden.
///
/// # Errors
///
/// Fails if the owner cannot be talked to, or if what is left of the session cannot be removed.
pub fn run() -> io::Result<()> {
    close_inherited()?;
    // Not the owner's terminal's business any more: an interrupt there is for the owner.
    setsid()?;
    let mut owner = take_owner()?;
    let lock = io::stderr().as_fd().try_clone_to_owned()?;
    close_standard_streams()?;
    owner.set_read_timeout(Some(BOOT))?;
    let Some((mut spec, _)) = packet::receive::<ContainerWardenSpec>(&owner)? else {
        return Ok(());
    };
    let network = spec.egress.take().map(|boot| ContainerNetwork::start(boot, &owner));
    rustix::process::chdir("/")?;
    let folder = Folder::open(&spec.session_dir)?;
    // What cannot be made the engine makes, or says why it cannot.
    let places = mount_points::make(&spec.session_dir, &spec.mount_points).unwrap_or_default();
    let mut control = ControlSocket::new(folder.listen(CONTROL_SOCKET)?)?;
    owner.write_all(&[UP])?;
    owner.set_nonblocking(true)?;
    let container = Container { spec, folder, _lock: lock };
    // If this fails the container may live, and what is mounted in it would go with its mount points.
    container.run_until_end(owner, network, &mut control)?;
    drop(places);
    drop(mount_points::remove(&container.folder.held_path()));
    Ok(())
}

/// The network of a container, while that is being made. Its proxy gets ready meanwhile.
struct ContainerNetwork {
    egress: Egress,
    /// Where the process that makes listening sockets will be asked.
    orders: OwnedFd,
}

impl ContainerNetwork {
    /// Starts the proxy, with what the owner sends for it.
    fn start(boot: EgressBoot, owner: &UnixStream) -> io::Result<Self> {
        let (_, fds) = packet::receive::<()>(owner)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let fds = EgressFds::new(&boot, &mut fds.into_iter())?;
        let (egress, orders) = Egress::start(boot, fds)?;
        Ok(Self { egress, orders })
    }

    /// Leads the network of a container to the proxy.
    fn join(self, first: OwnedFd) -> Result<Egress, BootFailure> {
        let Self { mut egress, orders } = self;
        match egress.join_container(ContainerProcess::new(first), orders) {
            Ok(()) => Ok(egress),
            Err(failure) => {
                egress.end();
                Err(failure)
            }
        }
    }
}

struct Container {
    spec: ContainerWardenSpec,
    folder: Folder,
    /// Held so that everybody can tell that somebody of this session lives.
    _lock: OwnedFd,
}

impl Container {
    fn run_until_end(
        &self,
        owner: UnixStream,
        mut network: Option<io::Result<ContainerNetwork>>,
        control: &mut ControlSocket,
    ) -> io::Result<()> {
        let nobody = port_channel::pair()?.0;
        let ports = Ports::new(nobody, self.spec.own_network);
        let mut event_loop = EventLoop {
            init: None,
            owner: Some(owner),
            ports,
            mounts: Mounts::new(None),
            // Guests of before do not know the question.
            lease: Lease::new(self.spec.protocol >= USAGE_VERSION),
            egress: None,
            is_up: false,
            has_ended: false,
        };
        let mut was_up = false;
        loop {
            match event_loop.run(control)? {
                Event::OwnerSaysUp => {
                    let (guest, port_channel) = self.watch_guest()?;
                    // An engine in another namespace of processes has no guest that could be joined.
                    if let (Some(keeper), Ok(guest)) =
                        (&self.spec.keeper, HeldProcess::peer_of(&guest))
                    {
                        event_loop.mounts = Mounts::of_container(Some(keeper.clone()), guest);
                    }
                    event_loop.init = Some(guest.into());
                    event_loop.ports = Ports::new(port_channel, self.spec.own_network);
                    was_up = true;
                    if let Some(owner) = &mut event_loop.owner {
                        owner.write_all(&[UP])?;
                    }
                }
                Event::OwnerWantsNetwork(first) => {
                    let failed = || "start the proxy of the network".to_owned();
                    let network = network.take().unwrap_or(Err(io::ErrorKind::Unsupported.into()));
                    let made = network.step(failed).map_err(BootFailure::from);
                    let made = made.and_then(|network| network.join(first));
                    let result = made.map(|egress| event_loop.egress = Some(egress));
                    if let Some(owner) = &event_loop.owner {
                        packet::send_now(owner, &packet::encode(&result)?, &[])?;
                    }
                }
                Event::SandboxEnded => {
                    drop(self.folder.note_end(ExitRecord::GuestEnded));
                    self.end_mounts(&mut event_loop.mounts);
                    event_loop.end_helpers();
                    // An owner that is still there may want to know; its folder stays as long.
                    if event_loop.owner.is_none() {
                        return Ok(());
                    }
                }
                Event::Expired(then) => {
                    let removes = then == ExpiryAction::Delete && event_loop.owner.is_none();
                    if self.expire(removes, was_up).is_err() {
                        // The engine does not answer, and the lease says when to ask it again.
                        continue;
                    }
                    event_loop.end_helpers();
                    if removes {
                        return self.folder.remove(None);
                    }
                    event_loop.set_ended();
                    if event_loop.owner.is_none() {
                        return Ok(());
                    }
                }
                Event::OwnerGaveUp | Event::Released => {
                    event_loop.end_helpers();
                    return Ok(());
                }
                Event::OwnerGone if self.spec.keep_folder => {
                    self.ask_for(&self.spec.to_stop)?;
                    event_loop.end_helpers();
                    return Ok(());
                }
                Event::OwnerGone => {
                    self.remove_container(was_up)?;
                    event_loop.end_helpers();
                    return self.folder.remove(None);
                }
                Event::EndRequested { remove, caller } => {
                    let orders = match remove {
                        true => self.remove_container(was_up),
                        false => self.ask_for(&self.spec.to_stop).map(drop),
                    };
                    if let Err(error) = orders {
                        let errno = error.raw_os_error().unwrap_or(libc::EIO);
                        control::answer(&caller, &WardenResponse::Refused { errno });
                        continue;
                    }
                    event_loop.end_helpers();
                    if !remove && event_loop.init.is_some() {
                        drop(self.folder.note_end(ExitRecord::Stopped));
                    }
                    control::answer(&caller, &WardenResponse::Ended);
                    // The caller's socket closes when there is nothing more to wait for.
                    return if remove { self.folder.remove(None) } else { Ok(()) };
                }
            }
        }
    }

    /// Ends the container because its lease ran out, and says so before: whoever sees the end knows why.
    fn expire(&self, removes: bool, was_up: bool) -> io::Result<()> {
        if removes {
            drop(self.folder.write_tombstone());
            drop(self.folder.note_deletion());
            return self.remove_container(was_up);
        }
        drop(self.folder.note_end(ExitRecord::Expired));
        self.ask_for(&self.spec.to_stop).map(drop)
    }

    /// Has everything stored that was written to mounts, once no process of the container is left that could write: the
    /// engine is waited for.
    fn end_mounts(&self, mounts: &mut Mounts) {
        if mounts.are_kept() {
            // An engine that does not answer keeps nothing from being stored.
            drop(self.ask_for(&self.spec.to_stop));
            mounts.end();
        }
    }

    /// Removes the container. One that was still being made when its maker died may appear a moment
    /// later.
    fn remove_container(&self, was_up: bool) -> io::Result<()> {
        for _ in 0..LOOKS {
            if self.ask_for(&self.spec.to_remove)? == EngineOutcome::Yes || was_up {
                break;
            }
            let most = Timespec::try_from(AGAIN).map_err(io::Error::other)?;
            // Nothing can happen here but time.
            let _ = poll(&mut [], Some(&most));
        }
        Ok(())
    }

    /// Asks the engine for all of these; says whether there was anything to the first.
    fn ask_for(&self, requests: &[(String, String)]) -> io::Result<EngineOutcome> {
        let mut first = None;
        for (method, path) in requests {
            let done = ask(&self.spec.engine, method, path)?;
            first.get_or_insert(done);
        }
        Ok(first.unwrap_or(EngineOutcome::Nothing))
    }

    /// Connects to the guest: what it is watched by, and where it is asked for ports. No command has run
    /// yet, so it is the guest that answers.
    fn watch_guest(&self) -> io::Result<(UnixStream, OwnedFd)> {
        let mut guest = Folder::open(&self.spec.run_dir)?.connect(GUEST_SOCKET)?;
        guest.set_read_timeout(Some(BOOT))?;
        guest.set_write_timeout(Some(BOOT))?;
        let (near, far) = port_channel::pair()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [far.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let byte = [WARDEN_CHANNEL];
        sendmsg(&guest, &[IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL)?;
        guest.write_all(&hello_at(&Token(self.spec.token), self.spec.protocol))?;
        let mut welcome = [0; WELCOME_BYTES];
        guest.read_exact(&mut welcome)?;
        check_welcome(&welcome).map_err(io::Error::other)?;
        Ok((guest, near))
    }
}
