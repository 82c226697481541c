//! The guest's socket, in a folder of this host that the container sees and cannot write to.
//!
//! The socket is made here and handed to the first process inside, which calls. All the same a link in
//! its place is not followed, and nothing is said before the kernel has said who listens: our guest, or
//! nobody we talk to.

use std::fs::{self, Permissions};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bastide::host::process_identity::ProcessIdentity;
use bastide_proto::warden::GUEST_SOCKET;
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

/// Makes the socket. Until [`close_folder`] whoever is inside may call; from outside nobody gets there, for
/// the folder lies in the session's.
pub(crate) fn listen(run: &Path) -> io::Result<UnixListener> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, run, flags, Mode::empty())?;
    // By the held folder: the name of a socket may have 107 bytes at most.
    let listener =
        UnixListener::bind(format!("/proc/self/fd/{}/{GUEST_SOCKET}", folder.as_raw_fd()))?;
    fs::set_permissions(run.join(GUEST_SOCKET), Permissions::from_mode(0o666))?;
    fs::set_permissions(run, Permissions::from_mode(0o711))?;
    Ok(listener)
}

/// Leaves the folder to its owner, and to root inside, once the first process has called.
pub(crate) fn close_folder(run: &Path) -> io::Result<()> {
    fs::set_permissions(run.join(GUEST_SOCKET), Permissions::from_mode(0o600))?;
    fs::set_permissions(run, Permissions::from_mode(0o700))
}

/// Hands the listening socket over, with the first bytes of a message; returns how many went.
pub(crate) async fn send_socket(
    stream: &UnixStream,
    listener: &UnixListener,
    bytes: &[u8],
) -> io::Result<usize> {
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets = [listener.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    };
    stream.async_io(Interest::WRITABLE, send).await
}

/// Connects to whoever listens.
pub(crate) async fn connect(run: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, run, flags | OFlags::DIRECTORY, Mode::empty())?;
    let socket = openat(&folder, GUEST_SOCKET, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("what is in the place of its socket is none"));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

/// Connects to the guest, and to nobody else.
pub(crate) async fn connect_to(
    run: &Path,
    guest: Option<&ProcessIdentity>,
) -> io::Result<UnixStream> {
    let stream = connect(run).await?;
    if let Some(guest) = guest
        && (peer(&stream)? != Some(guest.pid()) || guest.open()?.is_none())
    {
        return Err(io::Error::other("somebody else listens in the guest's place"));
    }
    Ok(stream)
}

/// The process that listens at the other end, where this one can see it.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<Option<u32>> {
    let pid = stream.peer_cred()?.pid();
    Ok(pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0))
}
