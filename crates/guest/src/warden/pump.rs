//! Carrying bytes between two sockets. No byte is looked at, and no call waits.

use std::os::fd::OwnedFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

/// How much is on the way in one direction at most.
const BUFFER: usize = 64 * 1024;

/// How often one connection may fill its buffers before others get their turn.
const ROUNDS: usize = 4;

/// Two connected sockets, and what is on the way between them.
#[derive(Debug)]
pub(super) struct Pump {
    ends: [OwnedFd; 2],
    /// The way that begins at the end of the same number.
    directions: [Direction; 2],
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    buffer: Vec<u8>,
    /// How much of the buffer has been sent on.
    sent: usize,
    /// Nothing more will come.
    ended: bool,
    /// The far end has been told so.
    closed: bool,
}

/// The connection is over.
#[derive(Debug)]
pub(super) struct Closed;

impl Pump {
    pub(super) fn new(one: OwnedFd, other: OwnedFd) -> Self {
        Self { ends: [one, other], directions: [Direction::default(), Direction::default()] }
    }

    /// What to wait for at each end; an end there is nothing to wait for is not listed.
    pub(super) fn waits(&self) -> impl Iterator<Item = (&OwnedFd, PollFlags)> {
        let [one, other] = &self.directions;
        let wanted = |from: &Direction, to: &Direction| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, from.is_empty() && !from.ended);
            flags.set(PollFlags::OUT, !to.is_empty());
            flags
        };
        let flags = [wanted(one, other), wanted(other, one)];
        self.ends.iter().zip(flags).filter(|(_, flags)| !flags.is_empty())
    }

    /// Moves what can be moved now.
    pub(super) fn handle_ready(&mut self) -> Result<(), Closed> {
        let [one, other] = &self.ends;
        let [there, back] = &mut self.directions;
        there.handle_ready(one, other)?;
        back.handle_ready(other, one)?;
        if self.directions.iter().all(|way| way.closed) { Err(Closed) } else { Ok(()) }
    }
}

impl Direction {
    fn is_empty(&self) -> bool {
        self.sent == self.buffer.len()
    }

    fn handle_ready(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<(), Closed> {
        for _ in 0..ROUNDS {
            if !self.flush(to)? || self.ended {
                break;
            }
            self.buffer.resize(BUFFER, 0);
            let received = recv(from, &mut self.buffer[..], RecvFlags::DONTWAIT);
            self.sent = 0;
            self.buffer.truncate(received.as_ref().map_or(0, |(count, _)| *count));
            match received {
                Ok((0, _)) => self.ended = true,
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
        if self.ended && self.is_empty() && !self.closed {
            self.closed = true;
            self.buffer = Vec::new();
            self.sent = 0;
            // The far end may be gone already; then its own way says so.
            let _ = shutdown(to, Shutdown::Write);
        }
        Ok(())
    }

    /// Sends on what is there; true if nothing is left.
    fn flush(&mut self, to: &OwnedFd) -> Result<bool, Closed> {
        while !self.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(to, &self.buffer[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Closed),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown as Direction;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use rustix::event::{PollFd, poll};

    use super::*;

    fn run(mut pump: Pump) {
        while pump.handle_ready().is_ok() {
            let waits: Vec<_> = pump.waits().collect();
            let mut waits: Vec<_> =
                waits.into_iter().map(|(fd, flags)| PollFd::new(fd, flags)).collect();
            poll(&mut waits, None).unwrap();
        }
    }

    #[test]
    fn carries_both_ways_and_passes_each_end_on() {
        let (mut client, near) = UnixStream::pair().unwrap();
        let (far, mut server) = UnixStream::pair().unwrap();
        let pump = thread::spawn(|| run(Pump::new(near.into(), far.into())));
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(1_000_000).collect();
        let echo = thread::spawn(move || {
            let mut arrived = Vec::new();
            server.read_to_end(&mut arrived).unwrap();
            server.write_all(&arrived).unwrap();
        });
        client.write_all(&sent).unwrap();
        client.shutdown(Direction::Write).unwrap();
        let mut arrived = Vec::new();
        client.read_to_end(&mut arrived).unwrap();
        assert!(arrived == sent, "bytes were changed on the way");
        echo.join().unwrap();
        pump.join().unwrap();
    }
}
