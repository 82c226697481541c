//! How the warden asks the guest for connections to ports inside: packets of eight bytes over a socket
//! of their own, each answer with at most one descriptor.
//!
//! The sandbox has a network of its own, and only who is inside can make a connection there. The guest
//! connects and hands the connected socket out. Never the other way round: a socket of the host's
//! network would be a way out for whoever has it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// How long each packet is.
const BYTES: usize = 8;

/// A packet: which question it belongs to, and a port or an error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Which question.
    pub(crate) number: u32,
    /// The port asked for; in an answer the system's error number, or 0.
    pub(crate) value: u32,
}

/// Two ends that neither wait nor survive a new program.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends one packet, with a descriptor if there is one.
pub(crate) fn send(
    socket: impl AsFd,
    packet: Packet,
    socket_inside: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = socket_inside.map(|fd| [fd]);
    if let Some(fds) = &fds
        && !ancillary.push(SendAncillaryMessage::ScmRights(fds))
    {
        return Err(Errno::MSGSIZE);
    }
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&packet.number.to_le_bytes());
    bytes[4..].copy_from_slice(&packet.value.to_le_bytes());
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives one packet with the descriptor that came along; `None` where the other end is gone. What
/// has another size is no packet.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<(Packet, Option<OwnedFd>)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // One byte more than a packet has tells a longer one.
    let mut bytes = [0; BYTES + 1];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut fd = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fd = received.last();
        }
    }
    match (received.bytes, bytes) {
        (0, _) => Ok(None),
        (BYTES, [a, b, c, d, e, f, g, h, _]) => {
            let number = u32::from_le_bytes([a, b, c, d]);
            Ok(Some((Packet { number, value: u32::from_le_bytes([e, f, g, h]) }, fd)))
        }
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn carries_packets_with_and_without_descriptors() {
        let (one, other) = pair().unwrap();
        let question = Packet { number: 7, value: 8080 };
        send(&one, question, None).unwrap();
        assert!(matches!(receive(&other), Ok(Some((got, None))) if got == question));
        let file = File::open("/dev/null").unwrap();
        send(&other, question, Some(file.as_fd())).unwrap();
        assert!(matches!(receive(&one), Ok(Some((got, Some(_)))) if got == question));
        assert!(matches!(receive(&one), Err(Errno::AGAIN)));
        drop(other);
        assert!(matches!(receive(&one), Ok(None)));
    }

    #[test]
    fn refuses_what_is_no_packet() {
        let (one, other) = pair().unwrap();
        for length in [1, 7, 9, 4096] {
            rustix::net::send(&one, &vec![1; length], SendFlags::empty()).unwrap();
            assert!(matches!(receive(&other), Err(Errno::BADMSG)), "{length} bytes");
        }
    }
}
