//! The side channel of a connection: descriptors for the host.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::async_fd;

/// How long the host may take to make room.
const MOST: Duration = Duration::from_secs(5);

/// A socket that carries whole packets: a ticket, and the descriptor it is for.
#[derive(Debug)]
pub(super) struct SideChannel(AsyncFd<OwnedFd>);

impl SideChannel {
    /// Takes a socket that came from the host.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let is_right = socket_domain(&socket)? == AddressFamily::UNIX
            && socket_type(&socket)? == SocketType::SEQPACKET;
        if !is_right {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(async_fd(socket, Interest::WRITABLE)?))
    }

    /// Passes a descriptor.
    pub(super) async fn pass(&self, ticket: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        let send = self.0.async_io(Interest::WRITABLE, |socket| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let files = [file];
            if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let packet = ticket.to_le_bytes();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            sendmsg(socket.as_fd(), &[IoSlice::new(&packet)], &mut ancillary, flags)?;
            Ok(())
        });
        tokio::time::timeout(MOST, send).await?
    }
}
