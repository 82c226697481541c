//! One connection of a host: the handshake, then many calls at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::hello::{HELLO_BYTES, check_hello, welcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::compat::TokioAsyncReadCompatExt;
use yamux::{Config, Connection, Mode};

use super::{Guest, call};

/// How long a host may take to greet.
const GREETING: Duration = Duration::from_secs(5);

/// Serves one connection until it closes. A host that does not greet properly gets no word.
pub(super) async fn serve(guest: Arc<Guest>, mut stream: UnixStream) {
    let greeted = tokio::time::timeout(GREETING, greet(&guest, &mut stream)).await;
    if !matches!(greeted, Ok(Ok(true))) {
        return;
    }
    let mut connection = Connection::new(stream.compat(), link_config(), Mode::Server);
    // Calls that wait for something else than the host learn here that the host is gone.
    let (_connected, gone) = watch::channel(());
    while let Some(Ok(stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
        tokio::spawn(call::serve(Arc::clone(&guest), stream, gone.clone()));
    }
}

async fn greet(guest: &Guest, stream: &mut UnixStream) -> std::io::Result<bool> {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    if check_hello(&hello, &guest.token).is_err() {
        return Ok(false);
    }
    stream.write_all(&welcome()).await?;
    Ok(true)
}

/// The same bounds as on the host: 256 calls, 64 MiB on the way in all.
fn link_config() -> Config {
    let mut config = Config::default();
    config
        .set_max_num_streams(256)
        .set_max_connection_receive_window(Some(64 * 1024 * 1024))
        .set_split_send_size(16 * 1024);
    config
}
