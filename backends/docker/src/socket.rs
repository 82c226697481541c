//! The guest's socket, in a folder the container shares with this host.
//!
//! Root inside can put anything into that folder. So a link there is not followed, and nothing is said
//! before the kernel has told who listens: our guest, or nobody we talk to.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use bastide::host::process::ProcessIdentity;
use bastide_proto::warden::GUEST_NAME;
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use tokio::net::UnixStream;

/// Connects to whoever listens.
pub(crate) async fn connect(run: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, run, flags | OFlags::DIRECTORY, Mode::empty())?;
    let socket = openat(&folder, GUEST_NAME, flags, Mode::empty())?;
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
