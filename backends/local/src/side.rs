//! The way for descriptors beside a connection.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bastide::{Connection, Side};
use bastide_proto::hello::SIDE_CHANNEL;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use tokio::net::UnixStream;

use crate::backend::NO_TOKEN;

/// Makes a connection of a fresh stream to a guest. Where descriptors can be taken, one end of a pair
/// of packet sockets goes to the guest ahead of everything else.
pub(crate) fn connection(stream: UnixStream, devices: Vec<u64>) -> io::Result<Connection> {
    if devices.is_empty() {
        return Ok(Connection { stream: Box::new(stream), token: NO_TOKEN, side: None });
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [far.as_fd()];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Nothing was sent on it yet, so there is room for one byte.
    let byte = [SIDE_CHANNEL];
    sendmsg(&stream, &[IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let side = Some(Side { socket, devices });
    Ok(Connection { stream: Box::new(stream), token: NO_TOKEN, side })
}
