//! Links that go on over another stream when one breaks: where a server, a proxy or a network stands between host and guest.

use std::io;
use std::time::Duration;

use bastide_proto::CONDUIT_VERSION;
use bastide_proto::hello::{CONDUIT, Token, WELCOME_BYTES, check_welcome, hello};
use bastide_wire::conduit::{KEPT, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::{Connection, Duplex};
use crate::link::fault::agent_lost;
use crate::{Error, ErrorKind, Result};

/// How long a guest may take to greet.
const GREETING: Duration = Duration::from_secs(10);

/// A connection over `first`, and over what `again` brings when a stream breaks. Its guest must speak version
/// [`CONDUIT_VERSION`] at least, and forgets the link if no stream comes for 90 seconds. A failure of kind
/// [`NotFound`](io::ErrorKind::NotFound) says that there will never be one.
///
/// # Errors
///
/// [`ErrorKind::AgentLost`] if nothing answers on the first stream, [`ErrorKind::Unsupported`] if the guest is too old.
pub async fn resumable<D, F>(
    first: Box<dyn Duplex>,
    token: &Token,
    mut again: D,
) -> Result<Connection>
where
    D: FnMut() -> F + Send + 'static,
    F: Future<Output = io::Result<Box<dyn Duplex>>> + Send + 'static,
{
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::Unsupported => Error::new(
            ErrorKind::Unsupported,
            "the session was started by an earlier version, whose links do not go on",
        ),
        _ => agent_lost("the guest did not greet").with_source(error),
    };
    let first = greeted(first, token).await.map_err(lost)?;
    let shown = token.clone();
    let again = move || {
        let (stream, token) = (again(), shown.clone());
        async move { greeted(stream.await?, &token).await }
    };
    let conduit = dial(first, again).await.map_err(lost)?;
    Ok(Connection {
        stream: Box::new(conduit),
        token: token.clone(),
        side: None,
        greeted: false,
        outage: KEPT,
    })
}

/// A stream on which the guest knows the host, and waits to hear which conduit it is for.
async fn greeted(mut stream: Box<dyn Duplex>, token: &Token) -> io::Result<Box<dyn Duplex>> {
    let greet = async {
        stream.write_all(&[&[CONDUIT], &hello(token)[..]].concat()).await?;
        stream.flush().await?;
        let mut welcome = [0; WELCOME_BYTES];
        stream.read_exact(&mut welcome).await?;
        let version = check_welcome(&welcome).map_err(io::Error::other)?;
        match version {
            CONDUIT_VERSION.. => io::Result::Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    };
    tokio::time::timeout(GREETING, greet).await??;
    Ok(stream)
}
