//! Bytes from one socket to another that are never looked at: through a pipe, without a copy.

use std::io;
use std::os::fd::AsFd;

use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::flow::OpenFlow;

/// How much is in the pipe at most: as much as a pipe holds.
const CHUNK: usize = 64 << 10;

/// Carries bytes both ways until both have ended, or one fails.
pub(crate) async fn splice_both_ways(
    inside: &TcpStream,
    outside: &TcpStream,
    flow: &OpenFlow,
) -> io::Result<()> {
    tokio::try_join!(
        one_way(inside, outside, |count| flow.sent_out(count)),
        one_way(outside, inside, |count| flow.came_in(count)),
    )?;
    Ok(())
}

async fn one_way(from: &TcpStream, to: &TcpStream, count: impl Fn(usize)) -> io::Result<()> {
    let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        // The pipe is empty here: whoever would block is the socket.
        let read = || Ok(splice(from.as_fd(), None, &inlet, None, CHUNK, flags)?);
        let taken = from.async_io(Interest::READABLE, read).await?;
        if taken == 0 {
            // The other side may have more to say.
            return Ok(rustix::net::shutdown(to.as_fd(), Shutdown::Write)?);
        }
        let mut left = taken;
        while left > 0 {
            let write = || Ok(splice(&outlet, None, to.as_fd(), None, left, flags)?);
            left -= to.async_io(Interest::WRITABLE, write).await?;
        }
        count(taken);
    }
}
