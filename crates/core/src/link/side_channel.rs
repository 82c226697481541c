//! Descriptors from the guest.
//!
//! Whatever comes over this channel may have been made by an attacker. A descriptor is taken only
//! if a call waits for it, and only if it is an ordinary file on a device the host knew before the
//! first command ran; it is then read or written by position, and nothing else.

mod received_file;
mod untrusted_fd;

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Link;
use crate::Result;
use crate::backend::SideSocket;
use crate::link::fault::agent_lost;

pub(crate) use received_file::{Access, ReceivedFile, passable_device};
pub(crate) use untrusted_fd::UntrustedFd;

/// How many calls may wait for a descriptor at a time.
const MAX_WAITING: usize = 64;

/// Receives file descriptors from one guest.
#[derive(Debug)]
pub struct SideChannel {
    state: Arc<Mutex<State>>,
    devices: Vec<u64>,
    listening: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, oneshot::Sender<UntrustedFd>>,
    /// How many tickets were given, and how many descriptors came.
    given: u64,
    came: u64,
    is_broken: bool,
}

/// The claim to one file descriptor.
#[derive(Debug)]
pub struct FdTicket {
    number: u64,
    state: Arc<Mutex<State>>,
    coming: oneshot::Receiver<UntrustedFd>,
}

impl SideChannel {
    /// Listens on a socket whose other end a guest has.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be used.
    pub(super) fn new(side: SideSocket) -> io::Result<Self> {
        // A packet socket is one to the runtime, whatever it promises about order.
        let socket = std::os::unix::net::UnixDatagram::from(side.socket);
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        let state = Arc::new(Mutex::new(State::default()));
        let listening = tokio::spawn(listen(socket, Arc::clone(&state)));
        Ok(Self { state, devices: side.devices, listening })
    }

    /// Expects a file descriptor; `None` if none can come any more, or too many calls wait.
    #[must_use]
    pub fn expect(&self) -> Option<FdTicket> {
        let mut state = lock(&self.state);
        if state.is_broken || state.waiting.len() >= MAX_WAITING {
            return None;
        }
        state.given += 1;
        let number = state.given;
        let (sender, coming) = oneshot::channel();
        state.waiting.insert(number, sender);
        Some(FdTicket { number, state: Arc::clone(&self.state), coming })
    }

    /// The devices descriptors may be of.
    fn devices(&self) -> &[u64] {
        &self.devices
    }
}

impl Drop for SideChannel {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl FdTicket {
    /// The number that the guest has to send with the descriptor.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the descriptor, for so long at most, and checks it.
    pub(crate) async fn file(
        &mut self,
        link: &dyn Link,
        access: Access,
        most: Duration,
    ) -> Result<ReceivedFile> {
        let Ok(Ok(descriptor)) = tokio::time::timeout(most, &mut self.coming).await else {
            return Err(agent_lost("the guest did not pass the descriptor it promised"));
        };
        let devices = link.side().map_or(&[][..], |side| side.devices());
        ReceivedFile::check(descriptor, access, devices)
            .map_err(|why| agent_lost(&format!("the guest passed a bad descriptor: {why}")))
    }
}

impl Drop for FdTicket {
    fn drop(&mut self) {
        lock(&self.state).waiting.remove(&self.number);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing that holds it can fail half-way.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes descriptors until the guest is gone or breaks the protocol.
async fn listen(socket: UnixDatagram, state: Arc<Mutex<State>>) {
    while let Ok((number, descriptor)) = receive(&socket).await {
        let mut state = lock(&state);
        state.came += 1;
        if state.came > state.given {
            break;
        }
        // One that nobody waits for any more is closed; a call that gave up may still get its own.
        if let Some(waiting) = state.waiting.remove(&number) {
            drop(waiting.send(descriptor));
        }
    }
    let mut state = lock(&state);
    state.is_broken = true;
    state.waiting.clear();
}

/// One packet: a ticket and one descriptor, nothing else.
async fn receive(socket: &UnixDatagram) -> io::Result<(u64, UntrustedFd)> {
    socket
        .async_io(Interest::READABLE, || {
            let mut packet = [0; 9];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut slices = [IoSliceMut::new(&mut packet)];
            let received = recvmsg(socket, &mut slices, &mut ancillary, flags)?;
            let mut descriptors = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(came) = message {
                    descriptors.extend(came.map(UntrustedFd::new));
                }
            }
            let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
            let number = packet.first_chunk::<8>().filter(|_| received.bytes == 8);
            match (number, descriptors.pop()) {
                (Some(number), Some(descriptor))
                    if descriptors.is_empty() && !received.flags.intersects(cut) =>
                {
                    Ok((u64::from_le_bytes(*number), descriptor))
                }
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        })
        .await
}
