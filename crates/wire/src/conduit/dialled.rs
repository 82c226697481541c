//! The end of a conduit that brings the streams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use super::served::{Handshake, KNOWN, OpenMode};
use super::transfer::{TransferEnd, transfer};
use super::{Conduit, End, KEPT, Shared};

/// How long one try for a stream may take.
const TRY: Duration = Duration::from_secs(20);

/// How long to wait between tries, at first and at most.
const AGAIN: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// How long a stream is used at most: whoever may not open one any more is out by then.
const RENEWED: Duration = Duration::from_secs(3600);

/// Opens a conduit on a stream, and carries it on over others when that breaks: `dial` gives them, each ready for the first
/// word of a conduit. A stream that is [not found](io::ErrorKind::NotFound) will never be there again; whatever else fails
/// is tried again, until the other end has forgotten the conduit.
///
/// # Errors
///
/// Fails if the other end does not take it.
pub async fn dial<D, F, S>(mut first: S, mut dial: D) -> io::Result<Conduit>
where
    D: FnMut() -> F + Send + 'static,
    F: Future<Output = io::Result<S>> + Send,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut name = [0; 48];
    getrandom(&mut name[..], GetRandomFlags::empty())?;
    let handshake = Handshake::new(name);
    let Some(received) = timeout(TRY, ask(&mut first, &handshake, OpenMode::New, 0)).await?? else {
        return Err(io::ErrorKind::ConnectionRefused.into());
    };
    let shared = Arc::new(Shared::default());
    let conduit = Conduit(Arc::clone(&shared));
    tokio::spawn(async move {
        let (mut stream, mut received) = (first, received);
        loop {
            let transferred = timeout(RENEWED, transfer(&shared, stream, received, || {})).await;
            if transferred == Ok(TransferEnd::Ended) {
                return;
            }
            match again(&shared, &handshake, &mut dial).await {
                Some(next) => (stream, received) = next,
                None => return shared.finish(End::Lost),
            }
        }
    });
    Ok(conduit)
}

/// Another stream for a conduit, and how much the other end has received.
async fn again<D, F, S>(shared: &Shared, handshake: &Handshake, dial: &mut D) -> Option<(S, u64)>
where
    D: FnMut() -> F,
    F: Future<Output = io::Result<S>>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let deadline = Instant::now() + KEPT;
    let mut wait = AGAIN;
    // Nobody waits for an answer any more, and what was said last is told once.
    while !shared.is_closing() || wait == AGAIN {
        let one = async {
            let mut stream = dial().await?;
            let answer = ask(&mut stream, handshake, OpenMode::Resume, shared.received()).await?;
            io::Result::Ok(answer.map(|received| (stream, received)))
        };
        match timeout(TRY, one).await {
            Ok(Ok(next)) => return next,
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => return None,
            _ if Instant::now() + wait >= deadline => return None,
            _ => {}
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST);
    }
    None
}

/// Names the conduit on a stream; how much the other end has received of it, if it knows it.
async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    handshake: &Handshake,
    mode: OpenMode,
    received: u64,
) -> io::Result<Option<u64>> {
    stream.write_all(&handshake.encode(mode, received)).await?;
    stream.flush().await?;
    let known = stream.read_u8().await? == KNOWN;
    let received = stream.read_u64_le().await?;
    Ok(known.then_some(received))
}
