//! Boot, connect, destroy.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::Leash;
use bastide::{
    Backend, Booted, Connection, Error, ErrorKind, Machine, MachineSpec, NetworkAccess, Result,
    SessionId,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{BootReport, BootSpec, Ready};
use bastide_proto::hello::{TOKEN_BYTES, Token};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::layout;
use crate::process::{ProcessIdentity, ended, kill};
use crate::receipt::receipt;
use crate::refusal::refused;
use crate::user::Identity;

/// How long a sandbox may take to come up.
const BOOT: Duration = Duration::from_secs(10);

/// How long the end of a sandbox may take.
const END: Duration = Duration::from_secs(10);

/// The longest report of a warden.
const MAX_REPORT: usize = 64 * 1024;

/// Nobody inside can reach the socket of a local guest, and outside its folder is the caller's alone,
/// so there is nothing to prove.
const NO_TOKEN: Token = Token([0; TOKEN_BYTES]);

/// Sessions on this machine.
pub struct LocalBackend {
    home: PathBuf,
    guest: GuestBinary,
}

/// What is needed to find a local machine again.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    dir: PathBuf,
    warden: ProcessIdentity,
    init: ProcessIdentity,
}

impl LocalBackend {
    /// A backend that keeps its sessions under the folder `home`.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be written to.
    pub fn new(home: impl Into<PathBuf>) -> Result<Self> {
        let home = home.into();
        let failed = |error: io::Error| {
            let message = format!("cannot keep sessions in {}: {error}", home.display());
            Error::new(ErrorKind::Io, message).hint("choose another folder with BASTIDE_HOME")
        };
        private_folder(&home.join("sessions"), true).map_err(failed)?;
        let guest = GuestBinary::install(&home.join("guests")).map_err(failed)?;
        Ok(Self { home, guest })
    }

    fn start_warden(&self, control: StdStream, first: StdStream) -> io::Result<u32> {
        let mut warden = Command::new(self.guest.checked_path())
            .arg0("bastide-warden")
            .arg("warden")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(control)))
            .stdout(Stdio::from(OwnedFd::from(first)))
            .stderr(Stdio::null())
            .spawn()?;
        let pid = warden.id().ok_or_else(|| io::Error::other("the warden ended at once"))?;
        // It outlives this call and may outlive this process; here it is only collected when it ends.
        tokio::spawn(async move { warden.wait().await });
        Ok(pid)
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn boot(&self, id: &SessionId, spec: &MachineSpec) -> Result<Booted> {
        let dir = self.home.join("sessions").join(id.as_str());
        let booted = self.boot_in(&dir, id, spec).await;
        if booted.is_err() {
            // The failure is what the caller must hear; a folder that stays is found by its name.
            drop(fs::remove_dir_all(&dir));
        }
        booted
    }

    async fn connect(&self, machine: &Machine) -> Result<Connection> {
        let state = state_of(machine)?;
        let lost = |error: io::Error| {
            let message = format!("session {} is not running: {error}", machine.id);
            Error::new(ErrorKind::BackendLost, message)
        };
        // Through a held folder: the name of a socket may have 107 bytes at most.
        let folder = fs::File::open(&state.dir).map_err(lost)?;
        let path = format!("/proc/self/fd/{}/guest.sock", folder.as_raw_fd());
        let stream = UnixStream::connect(path).await.map_err(lost)?;
        Ok(Connection { stream: Box::new(stream), token: NO_TOKEN })
    }

    async fn destroy(&self, machine: &Machine) -> Result<()> {
        let state = state_of(machine)?;
        let failed = |error: io::Error| {
            let message = format!("cannot remove session {}: {error}", machine.id);
            Error::new(ErrorKind::Io, message).with("path", state.dir.display().to_string())
        };
        end(&state).await.map_err(failed)?;
        match fs::remove_dir_all(&state.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }
}

impl LocalBackend {
    async fn boot_in(&self, dir: &Path, id: &SessionId, spec: &MachineSpec) -> Result<Booted> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot start session {id}: {error}"))
                .with("path", dir.display().to_string())
        };
        let storage = dir.join("work");
        for folder in [dir, &storage, &dir.join("root")] {
            private_folder(folder, false).map_err(failed)?;
        }
        let who = Identity::of_caller().map_err(failed)?;
        let boot = boot_spec(dir, &storage, spec, id, &who);
        let (control, far_control) = StdStream::pair().map_err(failed)?;
        let (first, far_first) = StdStream::pair().map_err(failed)?;
        let warden_pid = self.start_warden(far_control, far_first).map_err(failed)?;
        let mut control = to_tokio(control).map_err(failed)?;
        let exchange = async {
            send(&mut control, &boot).await?;
            receive(&mut control).await
        };
        let report = match tokio::time::timeout(BOOT, exchange).await {
            Ok(report) => report.map_err(failed)?,
            Err(_) => return Err(failed(io::ErrorKind::TimedOut.into())),
        };
        let ready: Ready = match report {
            BootReport::Ready(ready) => ready,
            BootReport::Failed(failure) => return Err(refused(&failure)),
        };
        let state = State {
            dir: dir.to_owned(),
            warden: ProcessIdentity::of(warden_pid).map_err(failed)?,
            init: ProcessIdentity::of(ready.init_pid).map_err(failed)?,
        };
        let machine = Machine {
            id: id.clone(),
            backend: self.name().to_owned(),
            state: serde_json::to_value(state).map_err(|error| failed(error.into()))?,
            receipt: receipt(&ready, spec.network, &who),
        };
        let first = to_tokio(first).map_err(failed)?;
        Ok(Booted {
            machine,
            connection: Some(Connection { stream: Box::new(first), token: NO_TOKEN }),
            leash: Some(Leash::new(control)),
        })
    }
}

impl fmt::Debug for LocalBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBackend").field("home", &self.home).finish_non_exhaustive()
    }
}

fn boot_spec(
    dir: &Path,
    storage: &Path,
    spec: &MachineSpec,
    id: &SessionId,
    who: &Identity,
) -> BootSpec {
    let hostname = format!("bastide-{}", id.as_str().get(..8).unwrap_or_default());
    BootSpec {
        token: NO_TOKEN.0,
        session_dir: dir.to_owned(),
        root_dir: dir.join("root"),
        ids: who.ids.clone(),
        own_network: spec.network == NetworkAccess::None,
        steps: layout::steps(spec.root.as_str(), storage, &hostname, who),
        hostname,
        writable: vec![spec.root.as_str().to_owned()],
        tied_to_owner: spec.tied_to_owner,
    }
}

/// A folder for nobody but the caller.
fn private_folder(path: &Path, may_exist: bool) -> io::Result<()> {
    fs::DirBuilder::new().recursive(may_exist).mode(0o700).create(path)
}

fn state_of(machine: &Machine) -> Result<State> {
    State::deserialize(&machine.state).map_err(|error| {
        let message = format!("the state of session {} is damaged: {error}", machine.id);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

/// Ends the sandbox, and waits until its warden has seen to what is left of it.
async fn end(state: &State) -> io::Result<()> {
    let warden = state.warden.open()?;
    if let Some(init) = state.init.open()? {
        kill(&init)?;
    }
    match warden {
        Some(warden) => ended(warden, END).await,
        None => Ok(()),
    }
}

fn to_tokio(stream: StdStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn send(to: &mut UnixStream, spec: &BootSpec) -> io::Result<()> {
    let body = bastide_proto::encode(spec).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_le_bytes()).await?;
    to.write_all(&body).await
}

async fn receive(from: &mut UnixStream) -> io::Result<BootReport> {
    let mut header = [0; 4];
    from.read_exact(&mut header).await?;
    let length = usize::try_from(u32::from_le_bytes(header)).map_err(io::Error::other)?;
    if length > MAX_REPORT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    bastide_proto::decode(&body).map_err(io::Error::other)
}
