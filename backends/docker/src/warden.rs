//! The warden of a container: a small process of this host that ends the container with its owner and
//! holds its published ports.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::time::Duration;

use bastide::SessionFolder;
use bastide::backend::{KeepAlive, KeepAliveHandle};
use bastide::host::process_identity::ProcessIdentity;
use bastide::warden_client;
use bastide_guest_bin::GuestBinary;
use bastide_proto::container::{ContainerWardenSpec, GAVE_UP, UP};
use bastide_proto::warden::RELEASE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;

/// How long a warden may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A warden whose container is being made. When it is dropped, the container goes.
#[derive(Debug)]
pub(crate) struct Warden {
    control: UnixStream,
    pub(crate) identity: ProcessIdentity,
}

/// Holds a container up: its warden ends it when this socket closes.
struct OwnerSocket(StdStream);

impl KeepAliveHandle for OwnerSocket {
    fn release(&self) -> io::Result<()> {
        use std::io::Write;
        (&self.0).write_all(&[RELEASE])
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

impl Warden {
    /// Starts the warden of a session.
    pub(crate) async fn start(
        guest: &GuestBinary,
        folder: &SessionFolder,
        spec: &ContainerWardenSpec,
    ) -> io::Result<Self> {
        let (control, far_control) = StdStream::pair()?;
        let lock = folder.lock().try_clone()?;
        let mut child = Command::new(guest.checked_path())
            .arg0("bastide-warden")
            .arg("container-warden")
            .env_clear()
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(far_control)))
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::os::fd::OwnedFd::from(lock)))
            .spawn()?;
        let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
        // It outlives this call and may outlive this process; here it is only collected when it ends.
        tokio::spawn(async move { child.wait().await });
        let mut control = warden_client::to_tokio(control)?;
        warden_client::send(&mut control, spec).await?;
        hear(&mut control).await?;
        Ok(Self { control, identity: ProcessIdentity::of(pid)? })
    }

    /// Tells it that the guest is up; from then on it watches over it.
    pub(crate) async fn watch(mut self) -> io::Result<KeepAlive> {
        self.control.write_all(&[UP]).await?;
        hear(&mut self.control).await?;
        let control = self.control.into_std()?;
        control.set_nonblocking(false)?;
        Ok(KeepAlive::new(OwnerSocket(control)))
    }

    /// Tells it that there is nothing to watch over.
    pub(crate) async fn dismiss(mut self) {
        // One that is gone already needs not be told.
        drop(self.control.write_all(&[GAVE_UP]).await);
    }
}

async fn hear(control: &mut UnixStream) -> io::Result<()> {
    match tokio::time::timeout(ANSWER, control.read_u8()).await {
        Ok(Ok(UP)) => Ok(()),
        Ok(Ok(_)) => Err(io::ErrorKind::InvalidData.into()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
