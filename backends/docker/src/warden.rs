//! The warden of a container: a small process of this host that ends the container with its owner and
//! holds its published ports.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::time::Duration;

use bastide::backend::{KeepAlive, KeepAliveHandle};
use bastide::host::process_identity::ProcessIdentity;
use bastide::warden_client;
use bastide::{Error, ErrorKind, Result, SessionFolder};
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::BootFailure;
use bastide_proto::container::{ContainerWardenSpec, GAVE_UP, MAX_SPEC, NETWORK, UP};
use bastide_proto::warden::RELEASE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::egress::EgressSetup;

/// How long a warden may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a warden may take to make a network: longer than its proxy may to start.
const NETWORK_MADE: Duration = Duration::from_secs(40);

/// What it does then.
const STEP: &str = "make the network of the container";

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
        egress: Option<&EgressSetup>,
    ) -> io::Result<Self> {
        let (control, far_control) = StdStream::pair()?;
        let lock = folder.lock().try_clone()?;
        let mut child = Command::new(guest.checked_path())
            .arg0("bastide-warden")
            .arg("container-warden")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(far_control)))
            .stdout(Stdio::null())
            .stderr(Stdio::from(OwnedFd::from(lock)))
            .spawn()?;
        let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
        // It outlives this call and may outlive this process; here it is only collected when it ends.
        tokio::spawn(async move { child.wait().await });
        let mut control = warden_client::to_tokio(control)?;
        warden_client::send(&mut control, spec).await?;
        if let Some(egress) = egress {
            warden_client::send_with(&control, &(), &egress.descriptors()).await?;
        }
        read_reply(&mut control).await?;
        Ok(Self { control, identity: ProcessIdentity::of(pid)? })
    }

    /// Has it lead the network of a container to its proxy; `first` is the first process there.
    pub(crate) async fn make_network(&mut self, first: &OwnedFd) -> Result<()> {
        let made = async {
            warden_client::send_bytes_with(&self.control, &[NETWORK], &[first.as_fd()]).await?;
            warden_client::receive::<std::result::Result<(), BootFailure>>(
                &mut self.control,
                MAX_SPEC,
            )
            .await
        };
        let failed = |step: &str, error: io::Error, hint: Option<String>| {
            let error = Error::new(ErrorKind::Unsupported, format!("cannot {step}: {error}"));
            hint.into_iter().fold(error, Error::with_hint)
        };
        match tokio::time::timeout(NETWORK_MADE, made).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(failure))) => {
                let system = io::Error::from_raw_os_error(failure.errno);
                Err(failed(&failure.step, system, failure.hint))
            }
            Ok(Err(error)) => Err(failed(STEP, error, None)),
            Err(_) => Err(failed(STEP, io::ErrorKind::TimedOut.into(), None)),
        }
    }

    /// Tells it that the guest is up; from then on it watches over it.
    pub(crate) async fn watch(mut self) -> io::Result<KeepAlive> {
        self.control.write_all(&[UP]).await?;
        read_reply(&mut self.control).await?;
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

async fn read_reply(control: &mut UnixStream) -> io::Result<()> {
    match tokio::time::timeout(ANSWER, control.read_u8()).await {
        Ok(Ok(UP)) => Ok(()),
        Ok(Ok(_)) => Err(io::ErrorKind::InvalidData.into()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
