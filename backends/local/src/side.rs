//! The way for descriptors beside a connection.

use std::io;
use std::os::fd::AsFd;

use bastide::{Connection, Side};
use bastide_proto::hello::{SIDE_CHANNEL, hello};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use tokio::net::UnixStream;

use crate::backend::NO_TOKEN;
use crate::descriptors;

/// Makes a connection of a fresh stream to a guest, and greets it: it need not be there yet. Where
/// descriptors can be taken, one end of a pair of packet sockets goes to it ahead of everything else.
pub(crate) fn connection(stream: UnixStream, devices: Vec<u64>) -> io::Result<Connection> {
    let mut side = None;
    if !devices.is_empty() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        descriptors::send(&stream, &[SIDE_CHANNEL], &[far.as_fd()])?;
        side = Some(Side { socket, devices });
    }
    // Nothing else was sent on it yet, so there is room for a few bytes.
    rustix::net::send(&stream, &hello(&NO_TOKEN), SendFlags::NOSIGNAL)?;
    Ok(Connection { stream: Box::new(stream), token: NO_TOKEN, side, greeted: true })
}
