//! Ports of the sandbox, published on the host's loopback.
//!
//! The warden holds the listeners, so an address stays the same whoever comes and goes. For each
//! connection it asks the guest for one to the port inside and then only carries bytes.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bastide_proto::warden::{MAX_PORTS, PublishedPort};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_linger, set_tcp_nodelay, socket_domain, socket_protocol, socket_type,
};
use rustix::net::{AddressFamily, SocketType, ipproto};

use super::pump::{Over, Pump};
use crate::porter::{self, Packet};

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
    /// The guest's answers.
    Porter,
    /// One connection.
    Pump(usize),
}

/// All published ports and their connections.
#[derive(Debug)]
pub(super) struct Ports {
    /// Where the guest is asked; `None` where the sandbox shares the host's network, or once the guest
    /// did not keep to the rules.
    porter: Option<OwnedFd>,
    own_network: bool,
    published: Vec<Published>,
    waiting: Vec<Waiting>,
    pumps: Vec<Pump>,
    next_number: u32,
    rest_until: Option<Instant>,
}

#[derive(Debug)]
struct Published {
    port: u16,
    host_port: u16,
    /// `None` where the port is the host's own.
    listener: Option<TcpListener>,
}

/// A connection from outside that has no other half yet.
#[derive(Debug)]
struct Waiting {
    number: u32,
    client: TcpStream,
    deadline: Instant,
}

impl Ports {
    pub(super) fn new(porter: OwnedFd, own_network: bool) -> Self {
        Self {
            porter: own_network.then_some(porter),
            own_network,
            published: Vec::new(),
            waiting: Vec::new(),
            pumps: Vec::new(),
            next_number: 0,
            rest_until: None,
        }
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
            let (host_port, listener) =
                listen().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
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
        each.map(|Published { port, host_port, .. }| PublishedPort {
            port: *port,
            host_port: *host_port,
        })
        .collect()
    }

    /// What to wait for now.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>, PollFlags)> {
        let room = self.waiting.len() + self.pumps.len() < MAX_CONNECTIONS;
        let accepts = room && self.porter.is_some() && self.rest_until.is_none();
        let listeners = self.published.iter().enumerate().filter(move |_| accepts).filter_map(
            |(index, published)| {
                let listener = published.listener.as_ref()?;
                Some((Source::Listener(index), listener.as_fd(), PollFlags::IN))
            },
        );
        // An answer nobody asked for is also one to look at: it shows what the guest is.
        let porter =
            self.porter.iter().map(|porter| (Source::Porter, porter.as_fd(), PollFlags::IN));
        let pumps = self.pumps.iter().enumerate().flat_map(|(index, pump)| {
            pump.waits().map(move |(fd, flags)| (Source::Pump(index), fd.as_fd(), flags))
        });
        listeners.chain(porter).chain(pumps)
    }

    /// When to look again even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.deadline).chain(self.rest_until).min()
    }

    /// Does what there is to do for everything in `ready`, and for what has waited too long.
    pub(super) fn turn(&mut self, ready: &[Source]) {
        let now = Instant::now();
        self.rest_until = self.rest_until.filter(|until| *until > now);
        self.waiting.retain(|waiting| {
            let late = waiting.deadline <= now;
            if late {
                refuse(&waiting.client);
            }
            !late
        });
        let mut over = Vec::new();
        for source in ready {
            match source {
                Source::Listener(index) => self.accept(*index, now),
                Source::Porter => self.hear(),
                Source::Pump(index) => {
                    let turned = self.pumps.get_mut(*index).map(Pump::turn);
                    if let Some(Err(Over)) = turned {
                        over.push(*index);
                    }
                }
            }
        }
        // From the last to the first, so that no index changes before its turn. One connection may be
        // ready at both ends.
        over.sort_unstable();
        over.dedup();
        for index in over.into_iter().rev() {
            self.pumps.swap_remove(index);
        }
    }

    fn accept(&mut self, index: usize, now: Instant) {
        let Some(published) = self.published.get(index) else { return };
        let (Some(listener), Some(porter)) = (&published.listener, &self.porter) else { return };
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.rest_until = Some(now + REST);
                }
                return;
            }
        };
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let question = Packet { number, value: u32::from(published.port) };
        match porter::send(porter, question, None) {
            Ok(()) => self.waiting.push(Waiting { number, client, deadline: now + CONNECT }),
            // It does not read what it is asked, so it will not answer either.
            Err(_) => refuse(&client),
        }
    }

    /// Takes one answer of the guest. It is the only thing a warden ever hears from inside: eight bytes,
    /// and a descriptor that must be a TCP socket.
    fn hear(&mut self) {
        let Some(porter) = &self.porter else { return };
        let (answer, socket) = match porter::receive(porter) {
            Ok(Some(received)) => received,
            Err(Errno::AGAIN | Errno::INTR) => return,
            // It is gone, or not ours any more. The published ports stay, and refuse.
            Ok(None) | Err(_) => {
                self.porter = None;
                self.waiting.drain(..).for_each(|waiting| refuse(&waiting.client));
                return;
            }
        };
        let number = answer.number;
        let Some(index) = self.waiting.iter().position(|waiting| waiting.number == number) else {
            return;
        };
        let Waiting { client, .. } = self.waiting.swap_remove(index);
        match socket.filter(is_tcp) {
            Some(socket) if answer.value == 0 => {
                // Small messages go at once; on loopback nothing is gained by holding them back.
                let _ = set_tcp_nodelay(&client, true);
                let _ = set_tcp_nodelay(&socket, true);
                self.pumps.push(Pump::new(client.into(), socket));
            }
            _ => refuse(&client),
        }
    }
}

fn listen() -> io::Result<(u16, TcpListener)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    Ok((listener.local_addr()?.port(), listener))
}

/// Whether a descriptor from inside is what was asked for, and nothing else: reading or writing any
/// other thing with the host's rights might do what nobody inside could.
fn is_tcp(fd: &OwnedFd) -> bool {
    let internet = matches!(socket_domain(fd), Ok(AddressFamily::INET | AddressFamily::INET6));
    let stream = socket_type(fd) == Ok(SocketType::STREAM);
    internet && stream && matches!(socket_protocol(fd), Ok(Some(ipproto::TCP)))
}

/// Lets a client know that nobody listens inside, as the kernel would: by a reset.
fn refuse(client: &TcpStream) {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn takes_nothing_but_tcp_sockets() {
        let (unix, _other) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cases: [(OwnedFd, bool); 5] = [
            (tcp.into(), true),
            (UdpSocket::bind("127.0.0.1:0").unwrap().into(), false),
            (unix.into(), false),
            (File::open("/dev/null").unwrap().into(), false),
            (File::open("/proc/self/maps").unwrap().into(), false),
        ];
        for (fd, want) in cases {
            assert_eq!(is_tcp(&fd), want, "{fd:?}");
        }
    }

    #[test]
    fn publishes_each_port_once_and_not_too_many() {
        let (near, _far) = porter::pair().unwrap();
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
}
