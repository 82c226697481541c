//! Published ports: a listener on this host's loopback for each, and a call of the guest for each connection to it. Whoever
//! holds the listeners is asked over a socket in the session's folder, as wardens are.

use std::fs::{File, Permissions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bastide::link::{IdleLink, Incoming, Link, Stream};
use bastide::warden_client::{connect, receive, send};
use bastide::{Error, ErrorKind, Result, SessionId};
use bastide_proto::warden::{
    MAX_CONTROL_MESSAGE, MAX_PORTS, PublishedPort, WardenRequest, WardenResponse,
};
use bastide_proto::{End, Request};
use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::state::load_end;

/// Where whoever holds the listeners is asked, in the session's folder.
const SOCKET: &str = "ports.sock";

/// Held, and locked, by whoever holds them.
const LOCK: &str = "ports.lock";

/// How long they may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The most connections at a time; further ones wait to be accepted.
const MOST_CONNECTIONS: usize = 128;

/// How much is on the way in one direction at most.
const BUFFER: usize = 32 * 1024;

/// How often the session's folder is looked at: listeners of one that is gone go, too.
const LOOK: Duration = Duration::from_secs(2);

/// How long nothing is accepted after accepting failed.
const REST: Duration = Duration::from_secs(1);

/// Asks whoever holds the listeners of a session; `None` if nobody does.
async fn ask(dir: &Path, request: WardenRequest) -> io::Result<Option<WardenResponse>> {
    let asked = async {
        let mut holder = match connect(dir, SOCKET).await {
            Ok(holder) => holder,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        send(&mut holder, &request).await?;
        receive(&mut holder, MAX_CONTROL_MESSAGE).await.map(Some)
    };
    tokio::time::timeout(ANSWER, asked).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Has a port published, or names those that are: pairs of the port inside and the one of this host. `None` if nobody holds
/// listeners of this session.
pub(crate) async fn published(
    dir: &Path,
    id: &SessionId,
    request: WardenRequest,
) -> Result<Option<Vec<(u16, u16)>>> {
    let failed = |why: String, kind: ErrorKind| {
        Error::new(kind, format!("cannot publish a port of session {id}: {why}"))
    };
    match ask(dir, request).await {
        Ok(None) => Ok(None),
        Ok(Some(WardenResponse::Ports(ports))) => {
            Ok(Some(ports.into_iter().map(|port| (port.port, port.host_port)).collect()))
        }
        Ok(Some(WardenResponse::Refused { errno })) => {
            let system = io::Error::from_raw_os_error(errno);
            Err(failed(system.to_string(), ErrorKind::Io).with_errno(errno))
        }
        Ok(Some(_)) => Err(failed("an answer to another question".to_owned(), ErrorKind::Io)),
        Err(error) => Err(failed(error.to_string(), ErrorKind::BackendLost)
            .with_hint("whoever holds its ports does not answer; stop the session and resume it")),
    }
}

/// Has the listeners of a session closed. When this returns nobody listens any more, unless whoever does is stuck.
pub(crate) async fn close(dir: &Path) {
    // One that does not answer sees that the session is gone.
    drop(ask(dir, WardenRequest::End { remove: false }).await);
}

/// The listeners of one session, in this process.
pub(crate) struct PortHolder {
    dir: PathBuf,
    link: Arc<dyn Link>,
    room: Arc<Semaphore>,
    published: Vec<Published>,
    socket: UnixListener,
    /// Says that nobody else holds any.
    _lock: File,
}

struct Published {
    port: PublishedPort,
    accepting: JoinHandle<()>,
}

impl PortHolder {
    /// Makes ready to hold the listeners of the session in that folder; `None` if somebody does already.
    pub(crate) fn begin(dir: &Path, link: IdleLink) -> io::Result<Option<Self>> {
        let lock = File::options().write(true).create(true).truncate(false).open(dir.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        let path = dir.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The path of a Unix socket has at most 107 bytes.
        let folder = File::open(dir)?;
        let socket = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(Some(Self {
            dir: dir.to_owned(),
            link: Arc::new(link),
            room: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            published: Vec::new(),
            socket,
            _lock: lock,
        }))
    }

    /// Answers until the session is gone, or somebody wants the listeners closed.
    pub(crate) async fn serve(mut self) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                accepted = self.socket.accept() => {
                    let Ok((mut asking, _)) = accepted else { break };
                    let asked = receive::<WardenRequest>(&mut asking, MAX_CONTROL_MESSAGE);
                    let Ok(Ok(asked)) = tokio::time::timeout(ANSWER, asked).await else { continue };
                    if matches!(asked, WardenRequest::End { .. }) {
                        self.close().await;
                        drop(send(&mut asking, &WardenResponse::Ended).await);
                        return;
                    }
                    let answer = self.answer(asked).await;
                    // Whoever asked and is gone needs no answer.
                    drop(send(&mut asking, &answer).await);
                }
                _ = look.tick() => {
                    if !self.dir.join(SOCKET).exists() || load_end(&self.dir).is_some() {
                        break;
                    }
                }
            }
        }
        self.close().await;
    }

    async fn answer(&mut self, asked: WardenRequest) -> WardenResponse {
        match asked {
            WardenRequest::Publish { port } => match self.publish(port).await {
                Ok(port) => WardenResponse::Ports(vec![port]),
                Err(errno) => WardenResponse::Refused { errno: errno.raw_os_error() },
            },
            WardenRequest::Ports => {
                WardenResponse::Ports(self.published.iter().map(|each| each.port).collect())
            }
            _ => WardenResponse::Refused { errno: Errno::NOSYS.raw_os_error() },
        }
    }

    /// Publishes a port; one that is published already stays as it is.
    async fn publish(&mut self, port: u16) -> std::result::Result<PublishedPort, Errno> {
        if let Some(found) = self.published.iter().find(|each| each.port.port == port) {
            return Ok(found.port);
        }
        if port == 0 {
            return Err(Errno::INVAL);
        }
        if self.published.len() >= MAX_PORTS {
            return Err(Errno::NOSPC);
        }
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(errno)?;
        let host_port = listener.local_addr().map_err(errno)?.port();
        let (link, room) = (Arc::clone(&self.link), Arc::clone(&self.room));
        let accepting = tokio::spawn(accept(listener, port, link, room));
        let port = PublishedPort { port, host_port };
        self.published.push(Published { port, accepting });
        Ok(port)
    }

    /// Closes every listener, and every connection with it.
    async fn close(&mut self) {
        for Published { accepting, .. } in self.published.drain(..) {
            accepting.abort();
            // It was told to end.
            drop(accepting.await);
        }
        drop(std::fs::remove_file(self.dir.join(SOCKET)));
    }
}

async fn accept(listener: TcpListener, port: u16, link: Arc<dyn Link>, room: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let link = Arc::clone(&link);
                connections.spawn(async move {
                    join(client, port, link.as_ref()).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
}

/// Joins a connection to a port inside. Where nobody listens there, whoever connected learns it as from the kernel: by a reset.
async fn join(mut client: TcpStream, port: u16, link: &dyn Link) {
    // Small messages go at once; on loopback nothing is gained by holding them back.
    drop(client.set_nodelay(true));
    let joined = match link.open(Request::Connect { port }).await {
        Ok(stream) => forward(&mut client, stream).await,
        Err(_) => Err(Broken),
    };
    if joined.is_err() {
        let _ = set_socket_linger(&client, Some(Duration::ZERO));
    }
}

/// A connection that one of both ends broke.
struct Broken;

impl From<Error> for Broken {
    fn from(_: Error) -> Self {
        Self
    }
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}

async fn forward(client: &mut TcpStream, stream: Stream) -> std::result::Result<(), Broken> {
    let Stream { mut to_guest, mut from_guest, .. } = stream;
    let (mut from, mut to) = client.split();
    let says = async {
        let mut room = vec![0; BUFFER];
        loop {
            let read = from.read(&mut room).await?;
            if read == 0 {
                return std::result::Result::<_, Broken>::Ok(to_guest.input_end().await?);
            }
            let said = Bytes::copy_from_slice(room.get(..read).unwrap_or_default());
            to_guest.input(said).await?;
        }
    };
    let hears = async {
        loop {
            match from_guest.next().await? {
                Incoming::Stdout(said) if said.is_empty() => to.shutdown().await?,
                Incoming::Stdout(said) => to.write_all(&said).await?,
                Incoming::End(End::Done) => return Ok(()),
                _ => return Err(Broken),
            }
        }
    };
    tokio::pin!(says, hears);
    tokio::select! {
        heard = &mut hears => heard,
        said = &mut says => {
            said?;
            hears.await
        }
    }
}

#[cfg(test)]
mod tests {
    use bastide::link::MuxLink;

    use super::*;

    fn nobody() -> IdleLink {
        let refuse = || -> futures::future::BoxFuture<'static, Result<MuxLink>> {
            Box::pin(async { Err(Error::new(ErrorKind::BackendLost, "nobody is there")) })
        };
        IdleLink::new(bastide_proto::VERSION, Duration::from_secs(60), refuse)
    }

    #[tokio::test]
    async fn holds_listeners_once_and_closes_them_when_told() {
        let (folder, id) = (tempfile::tempdir().unwrap(), SessionId::random());
        let dir = folder.path();
        let ask = |request| published(dir, &id, request);
        assert_eq!(ask(WardenRequest::Ports).await.unwrap(), None, "nobody holds any");
        let holder = PortHolder::begin(dir, nobody()).unwrap().unwrap();
        assert!(PortHolder::begin(dir, nobody()).unwrap().is_none(), "somebody does already");
        let serving = tokio::spawn(holder.serve());
        let first = ask(WardenRequest::Publish { port: 8080 }).await.unwrap().unwrap();
        assert_eq!(ask(WardenRequest::Publish { port: 8080 }).await.unwrap().unwrap(), first);
        assert_eq!(ask(WardenRequest::Ports).await.unwrap().unwrap(), first);
        assert!(ask(WardenRequest::Publish { port: 0 }).await.is_err());
        // A guest that cannot be had refuses, as a port that nobody listens on does.
        let mut client = TcpStream::connect(("127.0.0.1", first[0].1)).await.unwrap();
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        close(dir).await;
        assert!(TcpStream::connect(("127.0.0.1", first[0].1)).await.is_err());
        serving.await.unwrap();
        // What a holder that was killed left behind is in nobody's way.
        std::fs::write(dir.join(SOCKET), "").unwrap();
        assert!(PortHolder::begin(dir, nobody()).unwrap().is_some());
    }

    #[tokio::test]
    async fn closes_listeners_of_a_session_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let holder = PortHolder::begin(folder.path(), nobody()).unwrap().unwrap();
        let serving = tokio::spawn(holder.serve());
        std::fs::remove_file(folder.path().join(SOCKET)).unwrap();
        serving.await.unwrap();
    }
}
