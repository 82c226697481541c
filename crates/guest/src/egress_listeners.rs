//! The process in the egress namespace of a sandbox. It makes listening sockets there and hands them to the warden, now
//! and whenever the policy gains a port.
//!
//! Init forks it into the namespace. From then on it may do nothing but that: one capability, a filter of its own, and
//! nobody to listen to but the warden. If it ends, the sockets that were made stay; only further ones cannot be had.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bastide_proto::boot::BootFailure;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_reuseaddr, socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};

use crate::jail::{StepContext, StepError, reduce_listeners, set_up_egress};
use crate::packet;
use crate::sys::{exit_now, receive_destination};

/// How many connections wait to be accepted at each port.
const BACKLOG: i32 = 1024;

/// How long the making of a few sockets may take.
const MAKE: Duration = Duration::from_secs(5);

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ListenerPort {
    /// Connections to a port.
    Tcp(u16),
    /// Datagrams to a port.
    Udp(u16),
}

/// What the process answers: the sockets come along, or there are none.
type Answer = Result<(), i32>;

/// The life of the process, in its namespace already. Init says when the sandbox's end of the pair is there, and hears
/// whether all is well.
pub(crate) fn run(warden: &OwnedFd, init: OwnedFd) -> ! {
    let Ok(Some(((), _))) = packet::receive::<()>(&init) else { exit_now(1) };
    let is_up = set_up().map_err(BootFailure::from);
    let reported = packet::send(&init, &is_up, &[]);
    drop(init);
    if is_up.is_err() || reported.is_err() {
        exit_now(1);
    }
    while let Ok(Some((wanted, _))) = packet::receive::<Vec<ListenerPort>>(warden) {
        let made: io::Result<Vec<OwnedFd>> = wanted.into_iter().map(make).collect();
        let answered = match &made {
            Ok(sockets) => {
                let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                packet::send(warden, &Answer::Ok(()), &sockets)
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                packet::send(warden, &Answer::Err(errno), &[])
            }
        };
        if answered.is_err() {
            break;
        }
    }
    exit_now(0)
}

fn set_up() -> Result<(), StepError> {
    // A group of its own, so that no signal to somebody's group reaches it.
    setsid().step(|| "start a session of processes".to_owned())?;
    set_up_egress()?;
    reduce_listeners()
}

/// A socket that has this port at every address.
fn make(what: ListenerPort) -> io::Result<OwnedFd> {
    let (kind, port) = match what {
        ListenerPort::Tcp(port) => (SocketType::STREAM, port),
        ListenerPort::Udp(port) => (SocketType::DGRAM, port),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(AddressFamily::INET, kind, flags, None)?;
    if kind == SocketType::STREAM {
        // Connections that ended a moment ago are no reason not to listen.
        set_socket_reuseaddr(&made, true)?;
    } else {
        // An answer has to come from the address that was asked.
        receive_destination(&made)?;
    }
    bind(&made, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    if kind == SocketType::STREAM {
        listen(&made, BACKLOG)?;
    }
    Ok(made)
}

/// Where the warden asks for sockets.
#[derive(Debug)]
pub(crate) struct ListenerMaker(UnixStream);

impl ListenerMaker {
    /// Two ends: for the warden, and for the process.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (near, far) = UnixStream::pair()?;
        // The process is ours, and yet inside.
        near.set_read_timeout(Some(MAKE))?;
        near.set_write_timeout(Some(MAKE))?;
        Ok((Self(near), far.into()))
    }

    /// Has the process end.
    pub(crate) fn close(&self) {
        // One that is gone already is what is wanted.
        drop(self.0.shutdown(std::net::Shutdown::Both));
    }

    /// Has sockets made, all or none. What comes from inside is looked at before it is believed to be what was asked for.
    pub(crate) fn make(&self, wanted: &[ListenerPort]) -> io::Result<Vec<OwnedFd>> {
        let mut made = Vec::with_capacity(wanted.len());
        for some in wanted.chunks(packet::MAX_FDS) {
            packet::send(&self.0, &some, &[])?;
            let answer = packet::receive::<Answer>(&self.0)?;
            let (answer, sockets) = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
            answer.map_err(io::Error::from_raw_os_error)?;
            if sockets.len() != some.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            for (socket, what) in sockets.iter().zip(some) {
                check(socket, *what)?;
            }
            made.extend(sockets);
        }
        Ok(made)
    }
}

fn check(socket: &OwnedFd, what: ListenerPort) -> io::Result<()> {
    let (kind, port) = match what {
        ListenerPort::Tcp(port) => (SocketType::STREAM, port),
        ListenerPort::Udp(port) => (SocketType::DGRAM, port),
    };
    let address = SocketAddrV4::try_from(getsockname(socket)?).map_err(|_| Errno::BADMSG)?;
    let is_it = socket_domain(socket)? == AddressFamily::INET
        && socket_type(socket)? == kind
        && (kind == SocketType::DGRAM || socket_acceptconn(socket)?)
        && address == SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    if is_it { Ok(()) } else { Err(Errno::BADMSG.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_sockets_it_asked_for() {
        let tcp = make(ListenerPort::Tcp(0)).unwrap();
        let port = SocketAddrV4::try_from(getsockname(&tcp).unwrap()).unwrap().port();
        check(&tcp, ListenerPort::Tcp(port)).unwrap();
        assert!(check(&tcp, ListenerPort::Udp(port)).is_err());
        assert!(check(&tcp, ListenerPort::Tcp(port ^ 1)).is_err());
        let udp = make(ListenerPort::Udp(0)).unwrap();
        let port = SocketAddrV4::try_from(getsockname(&udp).unwrap()).unwrap().port();
        check(&udp, ListenerPort::Udp(port)).unwrap();
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(check(&file, ListenerPort::Tcp(port)).is_err());
    }
}
