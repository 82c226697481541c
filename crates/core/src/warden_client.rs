//! Requests to wardens: each message has a length prefix of four bytes.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Duration;

use bastide_proto::egress::{EgressRequest, EgressResponse, MAX_EGRESS_MESSAGE};
use bastide_proto::mounts::{MAX_MOUNT_MESSAGE, MountRequest, MountResponse};
use bastide_proto::warden::{
    CONTROL_SOCKET, LeaseState, LeaseUpdate, MAX_CONTROL_MESSAGE, WardenRequest, WardenResponse,
};
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::{Condition, Error, ErrorKind, Result, SessionId};

/// Registers a socket with the runtime.
///
/// # Errors
///
/// Fails if the socket cannot be used.
pub fn to_tokio(stream: StdStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Sends one message.
///
/// # Errors
///
/// Fails if the peer is gone.
pub async fn send<T: Serialize>(to: &mut UnixStream, message: &T) -> io::Result<()> {
    to.write_all(&bastide_proto::encode_prefixed(message).map_err(io::Error::other)?).await
}

/// Receives one message of at most `most` bytes.
///
/// # Errors
///
/// Fails if the peer is gone, or sends anything else.
pub async fn receive<T: DeserializeOwned>(from: &mut UnixStream, most: usize) -> io::Result<T> {
    let mut prefix = [0; LENGTH_BYTES];
    from.read_exact(&mut prefix).await?;
    let length = prefixed_length(prefix, most).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    bastide_proto::decode(&body).map_err(io::Error::other)
}

/// Connects to a socket in a session's folder, through a descriptor of the folder: the path of a
/// Unix socket has at most 107 bytes.
///
/// # Errors
///
/// Fails if nothing listens there.
pub async fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let folder = std::fs::File::open(dir)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd())).await
}

/// Sends a request to the warden of a session, and waits for its answer.
///
/// # Errors
///
/// Fails if it does not answer in time.
pub async fn request(
    dir: &Path,
    request: WardenRequest,
    most: Duration,
) -> io::Result<WardenResponse> {
    let asked = async {
        let mut warden = connect(dir, CONTROL_SOCKET).await?;
        send(&mut warden, &request).await?;
        receive(&mut warden, MAX_CONTROL_MESSAGE).await
    };
    tokio::time::timeout(most, asked).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Sends a request about ports to the warden of a session. Returns pairs: the port inside, and the
/// one on the host's loopback interface.
///
/// # Errors
///
/// [`ErrorKind::Io`] if it refuses, [`ErrorKind::BackendLost`] if it does not answer in time.
pub async fn ports(
    dir: &Path,
    id: &SessionId,
    asked: WardenRequest,
    most: Duration,
) -> Result<Vec<(u16, u16)>> {
    match request(dir, asked, most).await {
        Ok(WardenResponse::Ports(ports)) => {
            Ok(ports.into_iter().map(|port| (port.port, port.host_port)).collect())
        }
        Ok(WardenResponse::Refused { errno }) => {
            let system = io::Error::from_raw_os_error(errno);
            let message = format!("cannot publish a port of session {id}: {system}");
            Err(Error::new(ErrorKind::Io, message).with_errno(errno))
        }
        Ok(_) => Err(unexpected_response(id)),
        Err(error) => {
            let message = format!("the warden of session {id} does not answer: {error}");
            Err(Error::new(ErrorKind::BackendLost, message))
        }
    }
}

/// Changes the lease of a session, and says what it is then.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] if its warden knows no leases, [`ErrorKind::BackendLost`] if it does not answer in time.
pub async fn lease(
    dir: &Path,
    id: &SessionId,
    update: LeaseUpdate,
    most: Duration,
) -> Result<LeaseState> {
    match request(dir, WardenRequest::Lease(update), most).await {
        Ok(WardenResponse::Lease(lease)) => Ok(lease),
        Ok(WardenResponse::Refused { errno }) => {
            let system = io::Error::from_raw_os_error(errno);
            let message = format!("cannot change the lease of session {id}: {system}");
            Err(Error::new(ErrorKind::Io, message).with_errno(errno))
        }
        Ok(_) => Err(unexpected_response(id)),
        // It listens, and closes on what it does not know.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let message =
                format!("session {id} was started by an earlier version, which keeps no leases");
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_condition(Condition::SessionOfEarlierVersion(id.to_string())))
        }
        Err(error) => {
            let message = format!("the warden of session {id} does not answer: {error}");
            Err(Error::new(ErrorKind::BackendLost, message))
        }
    }
}

/// Sends a request about mounts from outside to whoever keeps those of a session. `program` is what is started for that
/// if nobody does yet; without it, and without anybody, there is no answer. The warden reads nothing of the request.
///
/// # Errors
///
/// Fails if there is no answer in time; with the system's error number if the warden refuses.
pub async fn mounts(
    dir: &Path,
    program: Option<BorrowedFd<'_>>,
    asked: &MountRequest,
    most: Duration,
) -> io::Result<Option<MountResponse>> {
    let answered = async {
        let mut keeper = connect(dir, CONTROL_SOCKET).await?;
        let program: Vec<_> = program.into_iter().collect();
        send_with(&keeper, &WardenRequest::Mounts, &program).await?;
        match receive(&mut keeper, MAX_CONTROL_MESSAGE).await? {
            WardenResponse::Mounts { is_kept: true } => {}
            WardenResponse::Mounts { is_kept: false } => return Ok(None),
            WardenResponse::Refused { errno } => return Err(io::Error::from_raw_os_error(errno)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        send(&mut keeper, asked).await?;
        receive(&mut keeper, MAX_MOUNT_MESSAGE).await.map(Some)
    };
    tokio::time::timeout(most, answered).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Sends a request to the proxy of a session's network. No answer if there is none any more. The warden reads nothing of
/// the request.
///
/// # Errors
///
/// Fails if there is no answer in time; with the system's error number if the warden refuses.
pub async fn egress(
    dir: &Path,
    asked: &EgressRequest,
    most: Duration,
) -> io::Result<Option<EgressResponse>> {
    let answered = async {
        let mut proxy = connect(dir, CONTROL_SOCKET).await?;
        send(&mut proxy, &WardenRequest::Egress).await?;
        match receive(&mut proxy, MAX_CONTROL_MESSAGE).await? {
            WardenResponse::Egress { is_served: true } => {}
            WardenResponse::Egress { is_served: false } => return Ok(None),
            WardenResponse::Refused { errno } => return Err(io::Error::from_raw_os_error(errno)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        send(&mut proxy, asked).await?;
        receive(&mut proxy, MAX_EGRESS_MESSAGE).await.map(Some)
    };
    tokio::time::timeout(most, answered).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Sends one short message, and a few descriptors with it.
///
/// # Errors
///
/// Fails if the peer is gone, or reads nothing.
pub async fn send_with<T: Serialize>(
    to: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = bastide_proto::encode_prefixed(message).map_err(io::Error::other)?;
    send_bytes_with(to, &bytes, descriptors).await
}

/// Sends a few bytes, and a few descriptors with the first of them.
///
/// # Errors
///
/// Fails if the peer is gone, or reads nothing.
pub async fn send_bytes_with(
    to: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let sent = to.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    });
    // What was sent before was read, and this is shorter than any socket is deep.
    if sent.await? == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// The error for an answer that does not fit the request.
#[must_use]
pub fn unexpected_response(id: &SessionId) -> Error {
    let message = format!("the warden of session {id} answered something else");
    Error::new(ErrorKind::Internal, message)
}

/// What becomes of the files of a session that is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndMode {
    /// They stay.
    KeepFiles,
    /// They are removed.
    RemoveFiles,
}

/// Has the warden of a session end it, and waits until it has: `most` for the processes, `removal`
/// for what is removed after that.
///
/// # Errors
///
/// Fails if it does not answer in time.
pub async fn end(dir: &Path, mode: EndMode, most: Duration, removal: Duration) -> io::Result<()> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let asked = async {
        let mut warden = connect(dir, CONTROL_SOCKET).await?;
        send(&mut warden, &WardenRequest::End { remove: mode == EndMode::RemoveFiles }).await?;
        match receive(&mut warden, MAX_CONTROL_MESSAGE).await? {
            WardenResponse::Ended => Ok::<_, io::Error>(warden),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    let mut warden = tokio::time::timeout(most, asked).await.map_err(|_| late())??;
    // Its end of the socket closes with the warden itself.
    let gone = warden.read_u8();
    drop(tokio::time::timeout(removal, gone).await.map_err(|_| late())?);
    Ok(())
}
