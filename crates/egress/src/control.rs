//! The way between the program and its warden: one message a packet, descriptors beside it; and memory files that are
//! handed over.

use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bastide_proto::egress::{MAX_DESCRIPTORS, MAX_EGRESS_PACKET};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// More than any secrets take.
const MAX_SEALED: u64 = 1 << 20;

/// One end of a `SOCK_SEQPACKET` pair that is waited for without blocking. All that is used of the type inside is that
/// it becomes ready.
#[derive(Debug)]
pub struct Channel(UnixDatagram);

impl Channel {
    /// Takes a connected socket over. Needs a running reactor.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(UnixDatagram::from_std(socket)?))
    }

    /// The next message and its descriptors; none at the end.
    ///
    /// # Errors
    /// If it is not one.
    pub async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let received = self.0.async_io(Interest::READABLE, || receive_packet(&self.0)).await?;
        let Some((bytes, fds)) = received else { return Ok(None) };
        Ok(Some((bastide_proto::decode(&bytes).map_err(io::Error::other)?, fds)))
    }

    /// Sends a message with descriptors.
    ///
    /// # Errors
    /// If the other end is gone, or the message is too large.
    pub async fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = bastide_proto::encode(message).map_err(io::Error::other)?;
        self.0.async_io(Interest::WRITABLE, || send_packet(&self.0, &bytes, fds)).await
    }
}

fn send_packet(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MAX_EGRESS_PACKET || fds.len() > MAX_DESCRIPTORS {
        return Err(io::Error::other("a message that is too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_packet(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_EGRESS_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&socket, &mut slices, &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::other("a message that is too large"));
    }
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    buffer.truncate(received.bytes);
    Ok(Some((buffer, fds)))
}

/// A memory file with a message in it that nobody can change any more.
///
/// # Errors
/// If the system has none to give.
pub fn sealed<T: Serialize>(message: &T) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"bastide-egress", flags)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&bastide_proto::encode(message).map_err(io::Error::other)?)?;
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// What is in a memory file.
///
/// # Errors
/// If it is not such a message.
pub fn unsealed<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let mut file = std::fs::File::from(file);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_SEALED).read_to_end(&mut bytes)?;
    bastide_proto::decode(&bytes).map_err(io::Error::other)
}
