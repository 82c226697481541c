//! The way for descriptors beside a connection.

use std::io;
use std::os::fd::AsFd;

use bastide::{Connection, Side};
use bastide_proto::hello::SIDE_CHANNEL;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::net::UnixStream;

use crate::backend::NO_TOKEN;
use crate::descriptors;

/// Makes a connection of a fresh stream to a guest. Where descriptors can be taken, one end of a pair
/// of packet sockets goes to the guest ahead of everything else.
pub(crate) fn connection(stream: UnixStream, devices: Vec<u64>) -> io::Result<Connection> {
    if devices.is_empty() {
        return Ok(Connection { stream: Box::new(stream), token: NO_TOKEN, side: None });
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Nothing was sent on it yet, so there is room for one byte.
    descriptors::send(&stream, &[SIDE_CHANNEL], &[far.as_fd()])?;
    let side = Some(Side { socket, devices });
    Ok(Connection { stream: Box::new(stream), token: NO_TOKEN, side })
}
