//! Processes that the keeper starts, all of them this very program, and what it says to them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use bastide_proto::mounts::MountRefusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};

use super::Refusal;
use crate::attach::{AttachOutcome, AttachRequest};
use crate::control::{self, Channel, Report, encode_line, receive_packet, send_packet};
use crate::spec::{MountSpec, Start};

/// How long init may take to hand out its namespaces, and a mount to be made or taken away.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a store may take to be looked at, beyond its own timeout.
const PROBE: Duration = Duration::from_secs(15);

/// How long a program may take to be ready. It asks nobody.
const READY: Duration = Duration::from_secs(30);

/// One end of a `SOCK_SEQPACKET` pair that is waited for without blocking. All that is used of the type is that it
/// becomes ready.
#[derive(Debug)]
pub(super) struct PacketSocket(UnixDatagram);

impl PacketSocket {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(UnixDatagram::from_std(socket)?))
    }

    /// The next packet and its descriptors; none at the end.
    pub(super) async fn receive_packet(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        self.0.async_io(Interest::READABLE, || receive_packet(&self.0)).await
    }

    pub(super) async fn receive<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((bytes, fds)) = self.receive_packet().await? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&bytes)?, fds)))
    }

    pub(super) async fn send<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = encode_line(message)?;
        self.0.async_io(Interest::WRITABLE, || send_packet(&self.0, &bytes, fds)).await
    }
}

/// A process of ours; it is killed with this value.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) process: Child,
    pub(super) socket: PacketSocket,
}

impl Program {
    fn start(role: Option<&str>) -> io::Result<Self> {
        let (near, far) = Channel::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bastide-mount").args(role).env_clear().kill_on_drop(true);
        command.stdin(Stdio::from(far)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: command.spawn()?, socket: PacketSocket::new(near.into())? })
    }

    /// One that answers for a mount.
    pub(super) async fn serving(start: Start, device: &OwnedFd) -> Result<Self, String> {
        let work = async {
            let program = Self::start(None).map_err(|error| error.to_string())?;
            let start = control::Command::Start(start);
            let sent = program.socket.send(&start, &[device.as_fd()]).await;
            // One that failed at once has said why.
            match program.socket.receive::<Report>().await {
                Ok(Some((Report::Ready, _))) => Ok(program),
                Ok(Some((Report::Failed { message }, _))) => Err(message),
                other => {
                    let sent = sent.err().map(|error| format!(" ({error})")).unwrap_or_default();
                    Err(format!("its program said {}{sent}", what_came(&other)))
                }
            }
        };
        tokio::time::timeout(READY, work).await.unwrap_or_else(|_| Err("it is late".to_owned()))
    }
}

fn what_came<T>(received: &io::Result<Option<T>>) -> &'static str {
    match received {
        Ok(Some(_)) => "something else",
        Ok(None) => "nothing",
        Err(_) => "nothing that makes sense",
    }
}

/// Refuses a mount whose store cannot be used.
pub(super) async fn probe(spec: &MountSpec) -> Result<(), Refusal> {
    let failed = |message: String| {
        Refusal::new(MountRefusal::Io, format!("cannot look at the store: {message}"))
    };
    let work = async {
        let program = Program::start(None).map_err(|error| failed(error.to_string()))?;
        let command = control::Command::Probe { mount: Box::new(spec.clone()) };
        program.socket.send(&command, &[]).await.map_err(|error| failed(error.to_string()))?;
        match program.socket.receive::<Report>().await {
            Ok(Some((Report::Probed { error: None }, _))) => Ok(()),
            Ok(Some((Report::Probed { error: Some(error) }, _))) => {
                Err(Refusal::new(MountRefusal::Store, error.to_string()))
            }
            other => Err(failed(format!("its program said {}", what_came(&other)))),
        }
    };
    let most = spec.timeout().saturating_add(PROBE);
    let late = || Err(Refusal::new(MountRefusal::Store, "the store does not answer in time"));
    tokio::time::timeout(most, work).await.unwrap_or_else(|_| late())
}

/// The namespaces of the session, which its first process hands out.
pub(super) struct Namespaces {
    asked: RefCell<Option<OwnedFd>>,
    known: RefCell<Option<Rc<[OwnedFd; 2]>>>,
}

impl Namespaces {
    /// Where they will come.
    pub(super) fn new(asked: OwnedFd) -> Self {
        Self { asked: RefCell::new(Some(asked)), known: RefCell::default() }
    }

    async fn get(&self) -> io::Result<Rc<[OwnedFd; 2]>> {
        if let Some(known) = &*self.known.borrow() {
            return Ok(Rc::clone(known));
        }
        let asked = self.asked.borrow_mut().take();
        let asked = PacketSocket::new(asked.ok_or(io::ErrorKind::NotConnected)?)?;
        let come = tokio::time::timeout(ATTACH_TIMEOUT, asked.receive_packet()).await;
        let (_, fds) = come.map_err(|_| io::ErrorKind::TimedOut)??.unwrap_or_default();
        let both = <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let both = Rc::new(both);
        *self.known.borrow_mut() = Some(Rc::clone(&both));
        Ok(both)
    }

    /// Has something done in them, by a process of its own.
    pub(super) async fn run(
        &self,
        attach_request: &AttachRequest,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(AttachOutcome, Vec<OwnedFd>)> {
        let both = self.get().await?;
        let work = async {
            let helper = Program::start(Some("attach"))?;
            let all: Vec<_> = both.iter().map(AsFd::as_fd).chain(fds.iter().copied()).collect();
            helper.socket.send(attach_request, &all).await?;
            helper.socket.receive().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        };
        tokio::time::timeout(ATTACH_TIMEOUT, work).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}
