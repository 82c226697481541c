//! Joins standard input and output to the guest's socket: how a host reaches a guest where nothing but a
//! command with streams can be started in the container.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bastide_proto::container::RUN_PATH;
use bastide_proto::pod::OWN_PATH;
use bastide_proto::warden::GUEST_SOCKET;
use tokio::io::{AsyncWriteExt, Join, copy_bidirectional_with_sizes, join};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// How much is on the way in one direction at most.
const BUFFER: usize = 64 * 1024;

/// How long a guest may take to listen that is only being started, and how long to wait between looks.
const ARRIVAL: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(5);

/// Carries bytes until either end is gone.
///
/// # Errors
///
/// Fails if the guest does not listen.
pub fn run() -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let mut guest = connect().await?;
        let mut host = standard_streams()?;
        copy_bidirectional_with_sizes(&mut host, &mut guest, BUFFER, BUFFER).await?;
        host.shutdown().await
    })
}

/// Connects to the guest, in the folder of its own that it has in a pod, or in the one it is given elsewhere.
async fn connect() -> io::Result<UnixStream> {
    let deadline = Instant::now() + ARRIVAL;
    loop {
        let folder = if Path::new(OWN_PATH).exists() { OWN_PATH } else { RUN_PATH };
        match UnixStream::connect(Path::new(folder).join(GUEST_SOCKET)).await {
            Ok(guest) => return Ok(guest),
            Err(error) if !is_early(&error) || Instant::now() >= deadline => return Err(error),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Both are pipes; engines give a command that has no terminal nothing else.
fn standard_streams() -> io::Result<Join<pipe::Receiver, pipe::Sender>> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(join(pipe::Receiver::from_owned_fd(input)?, pipe::Sender::from_owned_fd(output)?))
}
