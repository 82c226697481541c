//! The side of the server outside.

use std::sync::Arc;
use std::time::Duration;

use bastide_model::policy::{Host, Why};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::Connection;
use crate::body::Body;
use crate::dial::{DialError, dial};
use crate::state::Live;

/// How long a server may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection of HTTP/1 that requests are sent on.
pub(crate) type Sender = http1::SendRequest<Body>;

/// What is known of the server's HTTP/2.
#[derive(Default)]
pub(super) enum Two {
    #[default]
    Unknown,
    /// It does not speak it.
    Never,
    Open(http2::SendRequest<Body>),
}

/// A way to the server.
pub(super) enum Way {
    One(Sender),
    Two(http2::SendRequest<Body>),
}

impl Way {
    pub(super) fn is_two(&self) -> bool {
        matches!(self, Self::Two(_))
    }

    /// Sends a request. The sender of HTTP/1 comes back with the answer, to be used again when that has passed.
    pub(super) async fn send(
        self,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<Sender>), hyper::Error> {
        match self {
            Self::One(mut sender) => {
                let response = sender.send_request(request).await?;
                Ok((response, Some(sender)))
            }
            Self::Two(mut sender) => Ok((sender.send_request(request).await?, None)),
        }
    }
}

impl Connection {
    /// A way to the server, one that is there or another.
    pub(super) async fn way(
        self: &Arc<Self>,
        live: &Live,
        rule: Option<usize>,
        is_upgrade: bool,
    ) -> Result<Way, DialError> {
        if self.is_tls && self.is_two && !is_upgrade {
            let mut two = self.two.lock().await;
            match &*two {
                Two::Open(sender) if !sender.is_closed() => return Ok(Way::Two(sender.clone())),
                Two::Never => {}
                Two::Open(_) | Two::Unknown => {
                    let way = self.dial(live, rule, true).await?;
                    *two = match &way {
                        Way::Two(sender) => Two::Open(sender.clone()),
                        Way::One(_) => Two::Never,
                    };
                    return Ok(way);
                }
            }
        }
        loop {
            let Some(mut sender) = self.idle().pop() else { break };
            // One that the server closed meanwhile is of no use.
            if sender.ready().await.is_ok() {
                return Ok(Way::One(sender));
            }
        }
        self.dial(live, rule, false).await
    }

    async fn dial(
        &self,
        live: &Live,
        rule: Option<usize>,
        offers_two: bool,
    ) -> Result<Way, DialError> {
        let host = &self.flow.host;
        let (stream, address) = dial(&self.shared, live, host, self.flow.port, rule).await?;
        self.flow.set_address(address);
        if !self.is_tls {
            return one(stream).await;
        }
        let wrong = |message: String| DialError::new(Why::UpstreamTls, message);
        let config = live.client(&self.shared.start).map_err(wrong)?;
        let mut config = rustls::ClientConfig::clone(&config);
        config.alpn_protocols = if offers_two {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        } else {
            vec![b"http/1.1".to_vec()]
        };
        let name = match host {
            Host::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|e| wrong(e.to_string()))?
            }
            Host::Address(address) => ServerName::from(*address),
        };
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = match tokio::time::timeout(HANDSHAKE, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(wrong(format!("{host} is not trusted: {error}"))),
            Err(_) => return Err(wrong(format!("{host} does not say who it is in time"))),
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return two(stream).await;
        }
        one(stream).await
    }
}

fn failed(error: hyper::Error) -> DialError {
    DialError::new(Why::UpstreamUnreachable, error.to_string())
}

async fn one<I>(io: I) -> Result<Way, DialError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_headers(crate::head::MAX_HEADERS)
        .handshake(TokioIo::new(io))
        .await
        .map_err(failed)?;
    // It ends with its sender.
    tokio::spawn(connection.with_upgrades());
    Ok(Way::One(sender))
}

async fn two<I>(io: I) -> Result<Way, DialError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .max_send_buf_size(256 << 10)
        .handshake(TokioIo::new(io))
        .await
        .map_err(failed)?;
    tokio::spawn(connection);
    Ok(Way::Two(sender))
}
