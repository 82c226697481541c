//! Joins standard input and output to the guest's socket: how a host reaches a guest where nothing but a
//! command with streams can be started in the container.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use bastide_proto::container::RUN_PATH;
use bastide_proto::warden::GUEST_SOCKET;
use tokio::io::{AsyncWriteExt, Join, copy_bidirectional_with_sizes, join};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// How much is on the way in one direction at most.
const BUFFER: usize = 64 * 1024;

/// Carries bytes until either end is gone.
///
/// # Errors
///
/// Fails if the guest does not listen.
pub fn run() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let path = Path::new(RUN_PATH).join(GUEST_SOCKET);
        let mut guest = UnixStream::connect(path).await?;
        let mut host = standard_streams()?;
        copy_bidirectional_with_sizes(&mut host, &mut guest, BUFFER, BUFFER).await?;
        host.shutdown().await
    })
}

/// Both are pipes; engines give a command that has no terminal nothing else.
fn standard_streams() -> io::Result<Join<pipe::Receiver, pipe::Sender>> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(join(pipe::Receiver::from_owned_fd(input)?, pipe::Sender::from_owned_fd(output)?))
}
