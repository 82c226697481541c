//! Connections to ports inside, for the warden that publishes them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::sync::Semaphore;

use crate::porter::{self, Packet};

/// How long a port may take to accept.
const CONNECT: Duration = Duration::from_secs(5);

/// The most connections being made at a time; as many as the warden ever asks for.
const AT_ONCE: usize = 128;

/// Answers the warden until it is gone.
pub(super) async fn serve(porter: OwnedFd) {
    // All that is used of it is that it becomes ready; what is sent are packets either way.
    let Ok(porter) = UnixDatagram::from_std(porter.into()).map(Arc::new) else { return };
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let asked = porter.async_io(Interest::READABLE, || Ok(porter::receive(&*porter)?));
        let Ok(Some((question, _))) = asked.await else { return };
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let porter = Arc::clone(&porter);
        tokio::spawn(async move {
            answer(&porter, question).await;
            drop(permit);
        });
    }
}

async fn answer(porter: &UnixDatagram, question: Packet) {
    let connected = match u16::try_from(question.value) {
        Ok(port) => connect(port).await.and_then(TcpStream::into_std),
        Err(_) => Err(io::ErrorKind::InvalidInput.into()),
    };
    let value = match &connected {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO).unsigned_abs(),
    };
    let socket = connected.as_ref().ok().map(AsFd::as_fd);
    let packet = Packet { number: question.number, value };
    let send = || match porter::send(porter, packet, socket) {
        Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
        sent => Ok(sent),
    };
    // A warden that is gone wants nothing any more.
    drop(porter.async_io(Interest::WRITABLE, send).await);
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
