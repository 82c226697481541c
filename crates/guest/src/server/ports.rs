//! Connections to ports inside, for the warden that publishes them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Interest, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixDatagram, UnixStream};
use tokio::sync::Semaphore;

use super::Guest;
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
