//! The way between the program and its warden: one message a packet, descriptors beside the first.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fs::Counts;
use crate::probe::ProbeError;
use crate::spec::{MountSpec, Start};

/// The largest message either side takes.
const MAX_MESSAGE: usize = 160 << 10;
/// The most mounts of one program.
pub(crate) const MAX_MOUNTS: usize = 64;
/// How long whoever writes waits for whoever reads.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the program is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Command {
    /// First: say whether this store can be used, and end.
    Probe {
        /// Which.
        mount: Box<MountSpec>,
    },
    /// First: answer for these descriptors.
    Start(Start),
    /// Later: tell the counts of every mount.
    Counts,
    /// Later: store what was written, and end. The end of the channel means the same.
    Stop {
        /// How long that may take; what is not stored by then is kept.
        #[serde(default)]
        within_ms: Option<u64>,
    },
}

/// What the program says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Report {
    /// The answer to a probe.
    Probed {
        /// Why the store cannot be used; nothing if it can.
        error: Option<ProbeError>,
    },
    /// Everything is answered for from now on.
    Ready,
    /// Nothing is, and nothing will be.
    Failed {
        /// Why.
        message: String,
    },
    /// Something was changed, or was not.
    Event(Event),
    /// What a mount has done so far.
    Counts {
        /// Which.
        mount: String,
        /// The counts.
        counts: Counts,
    },
    /// Something that was written is not in the store, and will not be.
    Unstored {
        /// In which mount.
        mount: String,
        /// Below the mount.
        path: String,
        /// Where it is kept, if it could be.
        kept: Option<PathBuf>,
    },
    /// A mount is gone.
    Ended {
        /// Which.
        mount: String,
    },
}

/// A change that a program inside made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// In which mount.
    pub mount: String,
    /// `write`, `delete`, `rename`, `mkdir` or `rmdir`.
    pub op: String,
    /// Below the mount.
    pub path: String,
    /// Where to, of a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// How many bytes.
    pub size: u64,
    /// `ok`, or why not.
    pub outcome: String,
}

/// One end of the channel, a `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Takes a connected socket over.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        set_socket_timeout(&socket, Timeout::Send, Some(TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Two ends.
    ///
    /// # Errors
    /// If the system has none to give.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(ours)?, theirs))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the other end is gone, or did not read for five seconds.
    pub fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        self.send_with(message, &[])
    }

    /// Sends a message with descriptors.
    ///
    /// # Errors
    /// As `send`.
    pub fn send_with<T: Serialize>(&self, message: &T, fds: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send_packet(&self.0, &encode_line(message)?, &fds)
    }

    /// The next message and its descriptors; none at the end.
    ///
    /// # Errors
    /// If it is not one.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((bytes, fds)) = receive_packet(&self.0)? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&bytes)?, fds)))
    }
}

/// A message as it is sent.
pub(crate) fn encode_line<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends a packet with descriptors.
pub(crate) fn send_packet(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if bytes.len() > MAX_MESSAGE || fds.len() > MAX_MOUNTS {
        return Err(io::Error::other("a message that is too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MOUNTS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next packet and its descriptors; none at the end.
pub(crate) fn receive_packet(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MOUNTS))];
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

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_descriptors_and_ends() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs).unwrap();
        let file = tempfile::tempfile().unwrap();
        ours.send_with(&Command::Counts, &[file.into()]).unwrap();
        let (command, fds) = theirs.receive::<Command>().unwrap().unwrap();
        assert!(matches!(command, Command::Counts) && fds.len() == 1);
        drop(ours);
        assert!(theirs.receive::<Command>().unwrap().is_none());
    }
}
