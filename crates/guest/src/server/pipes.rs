//! Pipes made ahead of need, as supervisors are: a command shall not wait for them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;

/// How many wait at a time: those of two commands.
const AHEAD: usize = 4;

/// The near end of a pipe, watched for what comes out of it, and its far end.
type Pipe = (pipe::Receiver, OwnedFd);

/// The pipes that wait for a command's output. No command has had any of them.
#[derive(Debug, Default)]
pub(crate) struct Pipes(Mutex<Vec<Pipe>>);

impl Pipes {
    /// A pipe.
    pub(crate) fn take(&self) -> io::Result<Pipe> {
        let ahead = self.0.lock().map_err(|_| io::ErrorKind::Other)?.pop();
        ahead.map_or_else(make, Ok)
    }

    /// Makes pipes until enough wait.
    pub(crate) fn refill(&self) -> io::Result<()> {
        let mut waiting = self.0.lock().map_err(|_| io::ErrorKind::Other)?;
        while waiting.len() < AHEAD {
            waiting.push(make()?);
        }
        Ok(())
    }
}

fn make() -> io::Result<Pipe> {
    let (near, far) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((pipe::Receiver::from_owned_fd(near)?, far))
}
