//! Streams made ahead of need, as supervisors are: a command shall not wait for them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;

/// For how many commands streams wait at a time.
const AHEAD: usize = 2;

/// The near end of a pipe, watched for what comes out of it, and its far end.
type Pipe = (pipe::Receiver, OwnedFd);

/// The streams that wait for a command. No command has had any of them.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    outputs: Prepared<Pipe>,
    empty_inputs: Prepared<OwnedFd>,
}

impl Pipes {
    /// A pipe for what a command says.
    pub(crate) fn output(&self) -> io::Result<Pipe> {
        self.outputs.take(pipe)
    }

    /// Something to read that is at its end.
    pub(crate) fn empty_input(&self) -> io::Result<OwnedFd> {
        self.empty_inputs.take(null)
    }

    /// Makes streams until enough wait.
    pub(crate) fn refill(&self) -> io::Result<()> {
        // Standard output and standard error.
        self.outputs.refill(2 * AHEAD, pipe)?;
        self.empty_inputs.refill(AHEAD, null)
    }
}

#[derive(Debug)]
struct Prepared<T>(Mutex<Vec<T>>);

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Prepared<T> {
    fn take(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let ahead = self.0.lock().map_err(|_| io::ErrorKind::Other)?.pop();
        ahead.map_or_else(make, Ok)
    }

    fn refill(&self, count: usize, make: impl Fn() -> io::Result<T>) -> io::Result<()> {
        let mut waiting = self.0.lock().map_err(|_| io::ErrorKind::Other)?;
        while waiting.len() < count {
            waiting.push(make()?);
        }
        Ok(())
    }
}

fn pipe() -> io::Result<Pipe> {
    let (near, far) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((pipe::Receiver::from_owned_fd(near)?, far))
}

fn null() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}
