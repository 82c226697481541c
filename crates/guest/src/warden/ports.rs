//! Ports of the sandbox, published on the host's loopback.
//!
//! The warden holds the listeners, so an address stays the same whoever comes and goes. For each
//! connection it makes a pair of sockets, has the guest join one end to the port inside, and then only
//! carries bytes.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bastide_proto::warden::{MAX_PORTS, PublishedPort};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay};
use rustix::net::{RecvFlags, recv};

use super::lease;
use super::pump::{Closed, Pump};
use crate::port_channel::{self, CONNECTED};

/// The most connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 128;

/// How long the guest may take to connect inside.
const CONNECT: Duration = Duration::from_secs(10);

/// How long nothing is accepted after accepting failed.
const REST: Duration = Duration::from_secs(1);

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A published port.
    Listener(usize),
    /// The guest's word about one connection.
    PendingConnection(usize),
    /// One connection.
    Pump(usize),
}

/// All published ports and their connections.
#[derive(Debug)]
pub(super) struct Ports {
    /// Where the guest is asked.
    port_channel: OwnedFd,
    own_network: bool,
    published: Vec<Published>,
    waiting: Vec<PendingConnection>,
    pumps: Vec<Pump>,
    rest_until: Option<Instant>,
    /// When something last went through, by the clock of leases.
    last_traffic: Duration,
}

#[derive(Debug)]
struct Published {
    port: u16,
    host_port: u16,
    /// `None` where the port is the host's own.
    listener: Option<TcpListener>,
}

/// A connection from outside whose other half is not there yet.
#[derive(Debug)]
struct PendingConnection {
    client: TcpStream,
    guest: UnixStream,
    deadline: Instant,
}

/// What became of a connection that waited.
enum ConnectReply {
    Connected,
    Refused,
    Nothing,
}

impl Ports {
    pub(super) fn new(port_channel: OwnedFd, own_network: bool) -> Self {
        Self {
            port_channel,
            own_network,
            published: Vec::new(),
            waiting: Vec::new(),
            pumps: Vec::new(),
            rest_until: None,
            last_traffic: Duration::ZERO,
        }
    }

    /// When something last went through a published port, by the clock of leases.
    pub(super) fn last_traffic(&self) -> Duration {
        self.last_traffic
    }

    /// Where the guest is asked for things inside.
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.port_channel.as_fd()
    }

    /// Publishes a port; one that is published already stays as it is.
    pub(super) fn publish(&mut self, port: u16) -> Result<PublishedPort, Errno> {
        if let Some(found) = self.published.iter().find(|published| published.port == port) {
            return Ok(PublishedPort { port, host_port: found.host_port });
        }
        if port == 0 {
            return Err(Errno::INVAL);
        }
        if self.published.len() >= MAX_PORTS {
            return Err(Errno::NOSPC);
        }
        let (host_port, listener) = if self.own_network {
            let listening = listen();
            let (host_port, listener) =
                listening.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            (host_port, Some(listener))
        } else {
            (port, None)
        };
        self.published.push(Published { port, host_port, listener });
        Ok(PublishedPort { port, host_port })
    }

    /// Every published port.
    pub(super) fn list(&self) -> Vec<PublishedPort> {
        let each = self.published.iter();
        each.map(|&Published { port, host_port, .. }| PublishedPort { port, host_port }).collect()
    }

    /// What to wait for now.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>, PollFlags)> {
        let room = self.waiting.len() + self.pumps.len() < MAX_CONNECTIONS;
        let accepts = room && self.rest_until.is_none();
        let listeners = self.published.iter().enumerate().filter(move |_| accepts).filter_map(
            |(index, published)| {
                let listener = published.listener.as_ref()?;
                Some((Source::Listener(index), listener.as_fd(), PollFlags::IN))
            },
        );
        let waiting = self.waiting.iter().enumerate().map(|(index, waiting)| {
            (Source::PendingConnection(index), waiting.guest.as_fd(), PollFlags::IN)
        });
        let pumps = self.pumps.iter().enumerate().flat_map(|(index, pump)| {
            pump.waits().map(move |(fd, flags)| (Source::Pump(index), fd.as_fd(), flags))
        });
        listeners.chain(waiting).chain(pumps)
    }

    /// When to look again even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.deadline).chain(self.rest_until).min()
    }

    /// Does what there is to do for everything in `ready`, and for what has waited too long.
    pub(super) fn handle_ready(&mut self, ready: &[Source]) {
        let now = Instant::now();
        if !ready.is_empty() {
            self.last_traffic = lease::now();
        }
        self.rest_until = self.rest_until.filter(|until| *until > now);
        let mut index = 0;
        self.pumps.retain_mut(|pump| {
            let is_ready = ready.contains(&Source::Pump(index));
            index += 1;
            !is_ready || !matches!(pump.handle_ready(), Err(Closed))
        });
        for (index, waiting) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            let is_ready = ready.contains(&Source::PendingConnection(index));
            match if is_ready { waiting.read_reply() } else { ConnectReply::Nothing } {
                ConnectReply::Connected => {
                    self.pumps.push(Pump::new(waiting.client.into(), waiting.guest.into()));
                }
                ConnectReply::Nothing if waiting.deadline > now => self.waiting.push(waiting),
                ConnectReply::Nothing | ConnectReply::Refused => refuse(&waiting.client),
            }
        }
        for source in ready {
            if let Source::Listener(index) = source {
                self.accept(*index, now);
            }
        }
    }

    fn accept(&mut self, index: usize, now: Instant) {
        let Some(published) = self.published.get(index) else { return };
        let Some(listener) = &published.listener else { return };
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.rest_until = Some(now + REST);
                }
                return;
            }
        };
        // Small messages go at once; on loopback nothing is gained by holding them back.
        let _ = set_tcp_nodelay(&client, true);
        let asked = UnixStream::pair().and_then(|(guest, far)| {
            port_channel::ask(&self.port_channel, published.port, far.as_fd())?;
            Ok(guest)
        });
        match asked {
            Ok(guest) => {
                self.waiting.push(PendingConnection { client, guest, deadline: now + CONNECT });
            }
            // A guest that does not read what it is asked will not connect either.
            Err(_) => refuse(&client),
        }
    }
}

impl PendingConnection {
    /// What the guest says: one byte, and no other.
    fn read_reply(&self) -> ConnectReply {
        let mut word = [0; 1];
        match recv(&self.guest, &mut word[..], RecvFlags::DONTWAIT) {
            Ok((1, _)) if word == [CONNECTED] => ConnectReply::Connected,
            Err(Errno::AGAIN | Errno::INTR) => ConnectReply::Nothing,
            Ok(_) | Err(_) => ConnectReply::Refused,
        }
    }
}

fn listen() -> io::Result<(u16, TcpListener)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    Ok((listener.local_addr()?.port(), listener))
}

/// Lets a client know that nobody listens inside, as the kernel would: by a reset.
fn refuse(client: &TcpStream) {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishes_each_port_once_and_not_too_many() {
        let (near, _far) = port_channel::pair().unwrap();
        let mut ports = Ports::new(near, true);
        let first = ports.publish(8080).unwrap();
        assert_eq!(ports.publish(8080), Ok(first));
        assert_eq!(ports.publish(0), Err(Errno::INVAL));
        for port in 1..u16::try_from(MAX_PORTS).unwrap() {
            ports.publish(port).unwrap();
        }
        assert_eq!(ports.publish(9999), Err(Errno::NOSPC));
        assert_eq!(ports.publish(8080), Ok(first), "and what there is stays");
    }

    #[test]
    fn believes_one_byte_of_the_guest_and_nothing_else() {
        use std::io::Write;
        use std::net::TcpStream;
        let cases: [(&[u8], usize); 3] = [(&[CONNECTED], 1), (b"X", 0), (b"", 0)];
        for (said, pumps) in cases {
            let (near, far) = port_channel::pair().unwrap();
            let mut ports = Ports::new(near, true);
            let published = ports.publish(8080).unwrap();
            let client = TcpStream::connect(("127.0.0.1", published.host_port)).unwrap();
            ports.handle_ready(&[Source::Listener(0)]);
            let (port, end) = port_channel::receive(&far).unwrap().unwrap();
            assert_eq!(port, port_channel::PortRequest::Port(8080));
            let mut guest = UnixStream::from(end);
            guest.write_all(said).unwrap();
            guest.shutdown(std::net::Shutdown::Write).unwrap();
            ports.handle_ready(&[Source::PendingConnection(0)]);
            assert_eq!((ports.waiting.len(), ports.pumps.len()), (0, pumps), "{said:?}");
            drop(client);
        }
    }
}
