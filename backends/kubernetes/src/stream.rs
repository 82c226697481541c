//! A stream to the guest: the streams of one command in the pod, carried by one WebSocket of the API server.
//!
//! Each message begins with the number of a channel. Both directions have a task of their own, so that a side that
//! does not read does not stop the other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide::backend::Duplex;
use bastide::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::{Request, Response, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};

use crate::cluster::{Cluster, api_error, encoded};
use crate::failure::{ApiStatus, malformed, shortened, silent};
use crate::pod::CONTAINER;

/// How long the server may take to open a stream.
const OPEN: Duration = Duration::from_secs(20);

/// How often something is sent on a stream that says nothing: what lies between closes those that are silent.
const PING: Duration = Duration::from_secs(20);

/// How long nothing may come on a stream, answers to those included.
const SILENCE: Duration = Duration::from_secs(70);

/// How old a stream gets before another takes its place: whether somebody may have one is asked when it opens, and never
/// again. So whose right was taken away is out by then.
pub(crate) const STREAM_AGE: Duration = Duration::from_secs(3600);

/// How long the other end may take to notice that a stream is over.
const LINGER: Duration = Duration::from_secs(5);

/// How much is sent in one message.
const CHUNK: usize = 32 * 1024;

/// How much is on the way between this and whoever reads.
const BUFFER: usize = 256 * 1024;

/// The longest message of a server.
const MOST_MESSAGE: usize = 4 << 20;

/// How much is kept of what the command says on standard error.
const MOST_ERROR: usize = 2048;

/// The forms of streams that are spoken, the better first.
const PROTOCOLS: &str = "v5.channel.k8s.io, v4.channel.k8s.io";

/// The form in which the end of standard input can be said.
const CLOSES: &str = "v5.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Why a stream ended, once it has.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamEnd(Arc<Mutex<EndState>>);

#[derive(Debug, Default)]
struct EndState {
    error: Vec<u8>,
    status: Option<ApiStatus>,
}

impl StreamEnd {
    fn with<T>(&self, act: impl FnOnce(&mut EndState) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the command and the server said at the end.
    pub(crate) fn reason(&self) -> String {
        self.with(|state| {
            let error = shortened(&String::from_utf8_lossy(&state.error));
            let status = state.status.as_ref().map(|status| shortened(&status.message));
            [status.unwrap_or_default(), error].join(" ").trim().to_owned()
        })
    }
}

/// The streams of a command in a pod.
pub(crate) struct ExecStream {
    pub(crate) stream: Box<dyn Duplex>,
    pub(crate) end: StreamEnd,
}

impl Cluster {
    /// Starts a command in the container of a pod, and gives its standard streams.
    pub(crate) async fn exec(&self, pod: &str, command: &[&str]) -> Result<ExecStream> {
        let what = format!("start a command in the pod {pod}");
        match tokio::time::timeout(OPEN, self.open(&what, pod, command)).await {
            Ok(opened) => opened,
            Err(_) => Err(silent(&self.server, &what)),
        }
    }

    async fn open(&self, what: &str, pod: &str, command: &[&str]) -> Result<ExecStream> {
        let path = self.path("/api/v1", "pods");
        let args: String = command.iter().map(|arg| format!("&command={}", encoded(arg))).collect();
        let path = format!(
            "{path}/{pod}/exec?container={CONTAINER}&stdin=true&stdout=true&stderr=true{args}"
        );
        let key = key()?;
        let request = Request::get(path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOLS)
            .body(Body::empty());
        let response = self.send(what, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = response.status();
            let body = self.body(what, response).await?;
            return Err(api_error(what, status, &body));
        }
        let closes = check(&response, &key).map_err(|why| malformed(&self.server, what, why))?;
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded =
            upgraded.map_err(|error| malformed(&self.server, what, &error.to_string()))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MOST_MESSAGE))
            .max_frame_size(Some(MOST_MESSAGE));
        let socket =
            Socket::from_raw_socket(TokioIo::new(upgraded), Role::Client, Some(config)).await;
        let (near, far) = tokio::io::duplex(BUFFER);
        let end = StreamEnd::default();
        relay(socket, far, closes, end.clone(), self.stream_age);
        Ok(ExecStream { stream: Box::new(near), end })
    }
}

/// Carries bytes both ways until either end is gone, or until the stream is that old.
fn relay(socket: Socket, far: DuplexStream, closes: bool, end: StreamEnd, age: Duration) {
    let (to_server, from_server) = socket.split();
    let (from_host, to_host) = tokio::io::split(far);
    tokio::spawn(async move {
        let receiving = receive(from_server, to_host, end);
        let sending = send(to_server, from_host, closes);
        tokio::pin!(receiving, sending);
        tokio::select! {
            () = &mut receiving => {}
            // What is on its way is sent again over the next one.
            () = tokio::time::sleep(age) => {}
            () = &mut sending => {
                // What was asked for last may still be on its way.
                drop(tokio::time::timeout(LINGER, receiving).await);
            }
        }
    });
}

/// Passes on what the command says. When this returns the host sees the end of the stream.
async fn receive(
    mut server: SplitStream<Socket>,
    mut host: WriteHalf<DuplexStream>,
    end: StreamEnd,
) {
    while let Ok(Some(Ok(message))) = tokio::time::timeout(SILENCE, server.next()).await {
        let Message::Binary(data) = message else {
            if matches!(message, Message::Close(_)) {
                break;
            }
            continue;
        };
        let Some((channel, body)) = data.split_first() else { continue };
        match *channel {
            STDOUT if host.write_all(body).await.is_err() => break,
            STDOUT => {}
            STDERR => end.with(|state| {
                state.error.extend_from_slice(body);
                let old = state.error.len().saturating_sub(MOST_ERROR);
                state.error.drain(..old);
            }),
            STATUS => end.with(|state| state.status = serde_json::from_slice(body).ok()),
            _ => {}
        }
    }
    // The host may be gone already.
    drop(host.shutdown().await);
}

/// Passes on what the host says, and something else where it says nothing.
async fn send(
    mut server: SplitSink<Socket, Message>,
    mut host: ReadHalf<DuplexStream>,
    closes: bool,
) {
    let mut chunk = vec![0; CHUNK + 1];
    loop {
        let Some(room) = chunk.get_mut(1..) else { return };
        let message = match tokio::time::timeout(PING, host.read(room)).await {
            Err(_) => Message::Ping(Bytes::new()),
            Ok(Ok(read)) if read > 0 => {
                let mut data = Vec::with_capacity(read + 1);
                data.push(STDIN);
                data.extend_from_slice(room.get(..read).unwrap_or_default());
                Message::Binary(data.into())
            }
            Ok(_) => break,
        };
        if server.send(message).await.is_err() {
            return;
        }
    }
    // One that is gone needs no goodbye.
    if closes {
        drop(server.send(Message::Binary(Bytes::from_static(&[CLOSE, STDIN]))).await);
    } else {
        drop(server.close().await);
    }
}

/// A random key, by which an answer is known to be to this request.
fn key() -> Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        let got = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty());
        filled +=
            got.map_err(|error| Error::new(ErrorKind::Io, format!("no random numbers: {error}")))?;
    }
    Ok(STANDARD.encode(bytes))
}

/// What a server answers to a key that has understood it, by the rules of WebSocket (RFC 6455).
fn accepting(key: &str) -> String {
    let digest = Sha1::new()
        .chain_update(key)
        .chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
        .finalize();
    STANDARD.encode(digest)
}

/// Whether the end of standard input can be said on the stream that was opened.
fn check(response: &Response<Body>, key: &str) -> std::result::Result<bool, &'static str> {
    let header = |name| {
        response.headers().get(name).and_then(|value: &http::HeaderValue| value.to_str().ok())
    };
    if header(header::SEC_WEBSOCKET_ACCEPT) != Some(accepting(key).as_str()) {
        return Err("the answer is to another request");
    }
    match header(header::SEC_WEBSOCKET_PROTOCOL) {
        Some(protocol) if PROTOCOLS.split(", ").any(|known| known == protocol) => {
            Ok(protocol == CLOSES)
        }
        _ => Err("it chose a form of streams that was not offered"),
    }
}

impl std::fmt::Debug for ExecStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecStream").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_answer_to_its_key() {
        // The example of the RFC.
        assert_eq!(accepting("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
