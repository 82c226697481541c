//! Hosts that connect to the warden. Each sends one request and gets one response.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use bastide_proto::prefixed_length;
use bastide_proto::warden::{MAX_CONTROL_MESSAGE, WardenRequest, WardenResponse};

use rustix::io::Errno;

use crate::{packet, sys};

/// The most hosts at a time; further ones wait to be accepted.
const MAX_CALLERS: usize = 16;

/// How long a host may take to say what it wants.
const SPEAK: Duration = Duration::from_secs(5);

/// Everybody who may want something.
#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: UnixListener,
    callers: Vec<Client>,
}

/// What a host wants.
#[derive(Debug)]
pub(super) struct ControlRequest {
    /// Where it waits for the answer.
    pub(super) caller: UnixStream,
    pub(super) request: WardenRequest,
    /// The program that came with it.
    pub(super) program: Option<OwnedFd>,
}

/// A host that has not said all it has to say.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    program: Option<OwnedFd>,
    deadline: Instant,
}

impl ControlSocket {
    pub(super) fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, callers: Vec::new() })
    }

    /// The listener, while there is room for more callers.
    pub(super) fn listener(&self) -> Option<&UnixListener> {
        (self.callers.len() < MAX_CALLERS).then_some(&self.listener)
    }

    /// The callers to listen to.
    pub(super) fn callers(&self) -> impl Iterator<Item = &UnixStream> {
        self.callers.iter().map(|caller| &caller.stream)
    }

    /// When to look again even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.callers.iter().map(|caller| caller.deadline).min()
    }

    /// Takes in a new caller.
    pub(super) fn accept(&mut self) {
        // Whoever could not be taken in notices, and comes again.
        if let Ok((stream, _)) = self.listener.accept()
            && is_ours(&stream)
            && stream.set_nonblocking(true).is_ok()
        {
            let deadline = Instant::now() + SPEAK;
            self.callers.push(Client { stream, received: Vec::new(), program: None, deadline });
        }
    }

    /// Everybody who has said what they want by now, with what they want. Callers who are gone, late
    /// or speak nonsense are forgotten.
    pub(super) fn read_requests(&mut self) -> Vec<ControlRequest> {
        let now = Instant::now();
        let mut requests = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.read_requests() {
                Ok(Some(request)) => {
                    let Client { stream: caller, program, .. } = caller;
                    requests.push(ControlRequest { caller, request, program });
                }
                Ok(None) if caller.deadline > now => self.callers.push(caller),
                Ok(None) | Err(_) => {}
            }
        }
        requests
    }
}

/// Whether whoever connected is the user of this process, or root: a command on the rung `landlock` may have opened the
/// folder the socket lies in to everybody.
fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    sys::peer(stream.as_fd()).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

impl Client {
    /// Reads what is there; the request, once it is whole.
    fn read_requests(&mut self) -> io::Result<Option<WardenRequest>> {
        let mut chunk = [0; 256];
        loop {
            match packet::receive_some(&self.stream, &mut chunk) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, program)) => {
                    self.received.extend_from_slice(&chunk[..count]);
                    self.program = program.or(self.program.take());
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let Some((prefix, body)) = self.received.split_first_chunk() else { continue };
            let length = prefixed_length(*prefix, MAX_CONTROL_MESSAGE);
            let length = length.ok_or(io::ErrorKind::InvalidData)?;
            if body.len() > length {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if body.len() == length {
                return bastide_proto::decode(body).map(Some).map_err(io::Error::other);
            }
        }
    }
}

/// Answers a caller. One that does not listen any more has lost interest. An answer fits into what a
/// socket holds, so nobody is waited for.
pub(super) fn answer(mut caller: &UnixStream, answer: &WardenResponse) {
    if let Ok(bytes) = packet::encode(answer) {
        drop(caller.write_all(&bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    use super::*;

    fn listening(name: &str) -> (ControlSocket, SocketAddr) {
        let name = format!("bastide-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        (ControlSocket::new(UnixListener::bind_addr(&address).unwrap()).unwrap(), address)
    }

    #[test]
    fn hears_a_wish_that_comes_in_pieces_and_drops_nonsense() {
        let (mut control, address) = listening("control");
        let mut slow = UnixStream::connect_addr(&address).unwrap();
        let mut liar = UnixStream::connect_addr(&address).unwrap();
        control.accept();
        control.accept();
        let request = WardenRequest::Publish { port: 8080 };
        let bytes = packet::encode(&request).unwrap();
        slow.write_all(&bytes[..3]).unwrap();
        liar.write_all(&[0xff; 8]).unwrap();
        assert_eq!(control.read_requests().len(), 0);
        assert_eq!(control.callers().count(), 1, "the liar is gone");
        slow.write_all(&bytes[3..]).unwrap();
        let received = control.read_requests();
        assert_eq!(received.iter().map(|received| received.request).collect::<Vec<_>>(), [request]);
        assert!(received.iter().all(|received| received.program.is_none()));
        for ControlRequest { caller, .. } in received {
            answer(&caller, &WardenResponse::Ended);
        }
        let mut said = Vec::new();
        slow.read_to_end(&mut said).unwrap();
        assert_eq!(said, packet::encode(&WardenResponse::Ended).unwrap());
    }

    #[test]
    fn takes_the_program_that_comes_with_a_wish() {
        let (mut control, address) = listening("program");
        let host = UnixStream::connect_addr(&address).unwrap();
        control.accept();
        let program = tempfile::tempfile().unwrap();
        packet::send(&host, &WardenRequest::Mounts, &[program.as_fd()]).unwrap();
        let received = control.read_requests();
        assert!(
            matches!(received.as_slice(), [ControlRequest { program: Some(_), .. }]),
            "{received:?}"
        );
    }
}
