//! Messages with descriptors between our own processes, over a stream socket.
//!
//! A packet is a length, a message and up to a few descriptors that travel with its first byte. A
//! stream is used, not a packet socket, because a command with a large environment does not fit
//! into one packet.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bastide_proto::{LENGTH_BYTES, length_prefix, prefixed_length};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most descriptors of one packet; the kernel takes 253.
pub(crate) const MAX_FDS: usize = 64;

/// The longest message: a request of the link, and a little more.
const MAX_BYTES: usize = bastide_proto::frame::MAX_REQUEST + 4096;

/// Sends a message with descriptors over a blocking socket.
pub(crate) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_all(socket.as_fd(), &encode(message)?, fds)
}

/// As [`send`], for a message of a few bytes, without asking for memory.
pub(crate) fn send_brief<T: Serialize>(socket: impl AsFd, message: &T) -> io::Result<()> {
    let mut bytes = [0; 64];
    let (prefix, room) = bytes.split_at_mut(LENGTH_BYTES);
    let length = bastide_proto::encode_into(message, room).map_err(io::Error::other)?.len();
    prefix.copy_from_slice(&length_prefix(length).map_err(io::Error::other)?);
    send_all(socket.as_fd(), &bytes[..LENGTH_BYTES + length], &[])
}

fn send_all(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let (mut rest, mut fds) = (bytes, fds);
    while !rest.is_empty() {
        match send_some(socket, rest, fds) {
            Ok(sent) => {
                rest = &rest[sent..];
                fds = &[];
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The bytes of a packet, ready for [`send_some`].
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    bastide_proto::encode_prefixed(message).map_err(io::Error::other)
}

/// Sends a short packet whole, or fails at once with `WouldBlock`.
pub(crate) fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    match send_with(socket.as_fd(), bytes, fds, SendFlags::DONTWAIT) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends what the socket takes now; `fds` go with the first byte.
pub(crate) fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    send_with(socket, bytes, fds, SendFlags::empty())
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)
}

/// Receives a message with its descriptors from a blocking socket; `None` where the other end is
/// gone.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut fds = Vec::new();
    let mut prefix = [0; LENGTH_BYTES];
    if !fill(socket.as_fd(), &mut prefix, &mut fds)? {
        return Ok(None);
    }
    let Some(length) = prefixed_length(prefix, MAX_BYTES) else {
        return Err(io::Error::other("a packet is over its limit"));
    };
    let mut body = vec![0; length];
    if !fill(socket.as_fd(), &mut body, &mut fds)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = bastide_proto::decode(&body).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}

/// Receives what is there, with the last descriptor that came along. Whatever came besides is closed.
pub(crate) fn receive_some(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut last = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            last = descriptors.last().or(last);
        }
    }
    Ok((received.bytes, last))
}

/// Receives one packet of a socket that keeps packets apart, with its descriptors, if one is there; `None` where the other
/// end is gone.
pub(crate) fn receive_whole<T: DeserializeOwned>(
    socket: impl AsFd,
    most: usize,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = vec![0; most];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = buffer.get(..received.bytes).unwrap_or_default();
    let message = bastide_proto::decode(message).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}

/// Fills `buffer`, collecting descriptors; false at the end of the stream.
fn fill(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut buffer[filled..])];
        match recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Ok(false),
            Ok(received) => filled += received.bytes,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
    }
    Ok(true)
}
