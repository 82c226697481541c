//! The way for descriptors beside a connection.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;

use bastide::{Connection, SideSocket};
use bastide_proto::hello::{SIDE_CHANNEL, Token, hello_at};
use bastide_wire::LazyWriteStream;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use crate::descriptors;

/// Makes a connection of a fresh stream to a guest, and greets it: it need not be there yet, and knows that version of the protocol. Where
/// descriptors can be taken, one end of a pair of packet sockets goes to it ahead of everything else.
pub(crate) fn connection(
    stream: StdStream,
    devices: Vec<u64>,
    token: Token,
    protocol: u32,
) -> io::Result<Connection> {
    let mut side = None;
    if !devices.is_empty() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        descriptors::send(&stream, &[SIDE_CHANNEL], &[far.as_fd()])?;
        side = Some(SideSocket { socket, devices });
    }
    // Nothing else was sent on it yet, so there is room for a few bytes.
    rustix::net::send(&stream, &hello_at(&token, protocol), SendFlags::NOSIGNAL)?;
    let stream = Box::new(LazyWriteStream::new(stream)?);
    Ok(Connection { stream, token, side, greeted: true, outage: std::time::Duration::ZERO })
}
