//! Tries addresses that must not be reached from inside.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bastide_proto::pod::ProbeResult;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

/// How long an address may take to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// Tries to connect to all of these at once.
pub(super) fn probe(addresses: &[SocketAddr]) -> Vec<ProbeResult> {
    let mut tries: Vec<_> = addresses.iter().map(|address| ProbeAttempt::begin(*address)).collect();
    let deadline = Instant::now() + ANSWER;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_waiting = tries.iter().any(|one| one.socket.is_some());
        let Ok(most) = Timespec::try_from(left) else { break };
        if left.is_zero() || !is_waiting {
            break;
        }
        let sockets = tries.iter().filter_map(|one| one.socket.as_ref());
        let mut waits: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
        if !matches!(poll(&mut waits, Some(&most)), Ok(1..)) {
            continue;
        }
        let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        let waiting = tries.iter_mut().filter(|one| one.socket.is_some());
        for (one, _) in waiting.zip(ready).filter(|(_, is_ready)| *is_ready) {
            one.finish();
        }
    }
    tries.into_iter().map(|one| one.result).collect()
}

struct ProbeAttempt {
    /// The socket, as long as nothing has come of it.
    socket: Option<OwnedFd>,
    result: ProbeResult,
}

impl ProbeAttempt {
    fn begin(address: SocketAddr) -> Self {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let begun = socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
            connect(&socket, &address).map_or_else(
                |errno| if errno == Errno::INPROGRESS { Ok(Some(socket)) } else { Err(errno) },
                |()| Ok(None),
            )
        });
        match begun {
            Ok(None) => Self { socket: None, result: ProbeResult::Connected },
            Ok(socket) => Self { socket, result: ProbeResult::Silent },
            Err(errno) => Self { socket: None, result: failed(errno) },
        }
    }

    fn finish(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        self.result = match rustix::net::sockopt::socket_error(&socket) {
            Ok(Ok(())) => ProbeResult::Connected,
            Ok(Err(errno)) | Err(errno) => failed(errno),
        };
    }
}

fn failed(errno: Errno) -> ProbeResult {
    match errno {
        Errno::CONNREFUSED | Errno::CONNRESET => ProbeResult::Refused,
        errno => ProbeResult::Unreachable { errno: errno.raw_os_error() },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn tells_what_answers_from_what_does_not() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // Nothing is ever sent to addresses of this range.
        let nowhere = "255.255.255.255:9".parse().unwrap();
        let results = probe(&[open.local_addr().unwrap(), closed, nowhere]);
        assert_eq!(results[..2], [ProbeResult::Connected, ProbeResult::Refused]);
        assert!(results[2].is_closed(), "{results:?}");
        assert_eq!(probe(&[]), []);
    }
}
