//! How the warden asks the guest to connect to ports inside: packets over a socket of their own, each
//! with one end of a pair of sockets that the guest joins to the port.
//!
//! The sandbox has a network of its own, and only who is inside can make a connection there. No socket
//! of the host's network goes in, which would be a way out for whoever has it; and no socket comes out,
//! which whoever made it could turn against whoever uses it. On the pair the guest first says
//! [`CONNECTED`], or closes its end. In the place of a port, [`NAMESPACES`] asks for something else; a packet of
//! one byte, [`IDLE`], asks how long nothing has happened inside.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// No port: init is asked to hand out its namespaces on the pair, which the guest only passes on.
pub(crate) const NAMESPACES: u16 = 0;

/// Asks how long nothing has happened inside. The guest answers on the pair with that many milliseconds (8 bytes,
/// little endian), 0 while something happens.
pub(crate) const IDLE: u8 = b'I';

/// What the guest is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortRequest {
    /// To join the end to this port, or [`NAMESPACES`].
    Port(u16),
    /// How long nothing has happened.
    Idle,
}

/// What the guest says first on a pair it joined to a port.
pub(crate) const CONNECTED: u8 = b'C';

/// Two ends that neither wait nor survive a new program.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Asks for `end` to be joined to `port`.
pub(crate) fn ask(socket: impl AsFd, port: u16, end: BorrowedFd<'_>) -> Result<(), Errno> {
    send_with(socket, &port.to_le_bytes(), end)
}

/// Asks how long nothing has happened inside, to be answered on `end`.
pub(crate) fn ask_idle(socket: impl AsFd, end: BorrowedFd<'_>) -> Result<(), Errno> {
    send_with(socket, &[IDLE], end)
}

fn send_with(socket: impl AsFd, packet: &[u8], end: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [end];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

/// What is asked for next, and the end it is about; `None` where nobody asks any more.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<(PortRequest, OwnedFd)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 2];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut end = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            end = received.last();
        }
    }
    match (received.bytes, end) {
        (0, _) => Ok(None),
        (1, Some(end)) if bytes[0] == IDLE => Ok(Some((PortRequest::Idle, end))),
        (2, Some(end)) => Ok(Some((PortRequest::Port(u16::from_le_bytes(bytes)), end))),
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn hands_one_end_over_with_each_question() {
        let (warden, guest) = pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        ask(&warden, 8080, far.as_fd()).unwrap();
        drop(far);
        let (port, end) = receive(&guest).unwrap().unwrap();
        assert_eq!(port, PortRequest::Port(8080));
        UnixStream::from(end).write_all(b"hello").unwrap();
        let mut arrived = String::new();
        near.read_to_string(&mut arrived).unwrap();
        assert_eq!(arrived, "hello");
        let (_near, far) = UnixStream::pair().unwrap();
        ask_idle(&warden, far.as_fd()).unwrap();
        assert!(matches!(receive(&guest), Ok(Some((PortRequest::Idle, _)))));
        assert!(matches!(receive(&guest), Err(Errno::AGAIN)));
        drop(warden);
        assert!(matches!(receive(&guest), Ok(None)));
    }
}
