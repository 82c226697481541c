//! Connections to ports inside: for the warden that publishes them, and for hosts that have no other way than the link.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::frame::Tag;
use bastide_proto::{Accepted, End};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, copy_bidirectional_with_sizes};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixDatagram, UnixStream};
use tokio::sync::Semaphore;

use super::Guest;
use super::call::{Disconnected, Inbox, Outbox, Refusal, fault};
use crate::port_channel::{self, CONNECTED, NAMESPACES, PortRequest};

/// How long a port may take to accept.
const CONNECT: Duration = Duration::from_secs(5);

/// The most connections at a time; as many as the warden ever asks for.
const AT_ONCE: usize = 128;

/// How much is on the way in one direction at most.
const BUFFER: usize = 16 * 1024;

/// Answers the warden until it is gone.
pub(super) async fn serve(guest: Arc<Guest>, port_channel: OwnedFd) {
    // All that is used of it is that it becomes ready; what is sent are packets either way.
    let Ok(port_channel) = UnixDatagram::from_std(port_channel.into()) else { return };
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let asked =
            port_channel.async_io(Interest::READABLE, || Ok(port_channel::receive(&port_channel)?));
        let Ok(Some((asked, end))) = asked.await else { return };
        let port = match asked {
            PortRequest::Idle => {
                // It fits into what a socket holds. A warden that is gone needs no answer.
                let idle = u64::try_from(guest.idle().as_millis()).unwrap_or(u64::MAX);
                let _ = rustix::io::write(&end, &idle.to_le_bytes());
                continue;
            }
            PortRequest::Port(NAMESPACES) => {
                // Whatever becomes of it, the warden learns by its socket.
                drop(guest.users.pass_on_namespaces(&end).await);
                continue;
            }
            PortRequest::Port(port) => port,
        };
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        tokio::spawn(async move {
            // Whatever becomes of it, both ends learn by their socket closing.
            drop(join(port, end).await);
            drop(permit);
        });
    }
}

/// Joins one end of a pair to a port.
async fn join(port: u16, end: OwnedFd) -> io::Result<()> {
    let end = std::os::unix::net::UnixStream::from(end);
    end.set_nonblocking(true)?;
    let mut end = UnixStream::from_std(end)?;
    let mut inside = connect(port).await?;
    // Small messages go at once; on loopback nothing is gained by holding them back.
    inside.set_nodelay(true)?;
    end.write_all(&[CONNECTED]).await?;
    copy_bidirectional_with_sizes(&mut end, &mut inside, BUFFER, BUFFER).await?;
    Ok(())
}

/// Answers [`Request::Connect`](bastide_proto::Request::Connect): the call is a connection to a port inside.
pub(super) async fn forward(
    port: u16,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let what = format!("connect to port {port}");
    let inside = connect(port).await.map_err(|error| fault(&what, &error))?;
    // Small messages go at once; on loopback nothing is gained by holding them back.
    inside.set_nodelay(true).map_err(|error| fault(&what, &error))?;
    outbox.accept(Accepted::default()).await?;
    let (from, to) = inside.into_split();
    let end = match tokio::try_join!(pass_on(inbox, to), send_output(from, outbox)) {
        Ok(_) => End::Done,
        Err(Broken::Inside(error)) => End::Failed(fault(&what, &error)),
        Err(Broken::Disconnected) => return Err(Refusal::Disconnected),
    };
    Ok(outbox.end(&end).await?)
}

/// What broke of a connection that a call carries.
enum Broken {
    Inside(io::Error),
    Disconnected,
}

impl From<Disconnected> for Broken {
    fn from(_: Disconnected) -> Self {
        Self::Disconnected
    }
}

/// Says to a port what the host says.
async fn pass_on(inbox: &mut Inbox, mut to: OwnedWriteHalf) -> Result<(), Broken> {
    loop {
        let frame = inbox.next().await?;
        match frame.tag {
            Tag::Input => to.write_all(&frame.body).await.map_err(Broken::Inside)?,
            Tag::InputEnd => {
                // A port that has closed already is as good as told.
                drop(to.shutdown().await);
                return Ok(());
            }
            _ => return Err(Broken::Disconnected),
        }
    }
}

/// Tells the host what a port says.
async fn send_output(mut from: OwnedReadHalf, outbox: &mut Outbox) -> Result<(), Broken> {
    let mut room = vec![0; BUFFER];
    loop {
        let read = from.read(&mut room).await.map_err(Broken::Inside)?;
        let said = Bytes::copy_from_slice(room.get(..read).unwrap_or_default());
        outbox.data(Tag::Stdout, said).await?;
        if read == 0 {
            return Ok(());
        }
    }
}

/// Connects to a server inside, whichever loopback address it listens on.
async fn connect(port: u16) -> io::Result<TcpStream> {
    let connect = async {
        match TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let six = TcpStream::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await;
                // Where there is no such address, the first answer is the one that says something.
                six.map_err(|_| error)
            }
            connected => connected,
        }
    };
    tokio::time::timeout(CONNECT, connect).await.map_err(|_| io::ErrorKind::TimedOut)?
}
