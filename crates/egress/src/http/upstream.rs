//! The side of the server outside.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bastide_model::policy::{Host, Why};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsConnector;

use super::Connection;
use crate::body::Body;
use crate::dial::{DialError, dial};
use crate::dns::is_own_address;
use crate::state::Live;

/// How long a server may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a request waits for a connection outside while there are as many as may be.
const ROOM: Duration = Duration::from_secs(60);

/// How many connections of HTTP/1 that nobody uses are kept beside a program's connection.
const MAX_IDLE: usize = 4;

/// Where a connection outside leads, and by whose word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The policy it was made by.
    policy: u64,
    /// The address, and whether it is this machine's; none behind a proxy, whose business it is.
    address: Option<(IpAddr, bool)>,
}

/// A connection of HTTP/1 that requests are sent on.
pub(crate) struct Sender {
    inner: http1::SendRequest<Body>,
    place: Place,
}

impl Sender {
    pub(super) fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// What is known of the server's HTTP/2.
#[derive(Default)]
pub(super) enum Two {
    #[default]
    Unknown,
    /// It does not speak it.
    Never,
    Open(http2::SendRequest<Body>, Place),
}

/// A way to the server.
pub(super) enum UpstreamSender {
    One(Sender),
    Two(http2::SendRequest<Body>, Place),
}

impl UpstreamSender {
    pub(super) fn is_two(&self) -> bool {
        matches!(self, Self::Two(..))
    }

    /// Sends a request. The sender of HTTP/1 comes back with the answer, to be used again when that has passed.
    pub(super) async fn send(
        self,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<Sender>), hyper::Error> {
        match self {
            Self::One(mut sender) => {
                let response = sender.inner.send_request(request).await?;
                Ok((response, Some(sender)))
            }
            Self::Two(mut sender, _) => Ok((sender.send_request(request).await?, None)),
        }
    }
}

impl Connection {
    /// Takes a connection back whose answer has come.
    pub(crate) fn give_back(&self, sender: Sender) {
        let mut idle = self.idle();
        if !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(sender);
            self.given_back.notify_one();
        }
    }

    /// Takes one of those that nobody uses.
    fn take_idle(&self, fits: impl Fn(&Sender) -> bool) -> Option<Sender> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(fits)?;
        Some(idle.swap_remove(at))
    }

    /// A way to the server, one that is there or another.
    pub(super) async fn way(
        self: &Arc<Self>,
        live: &Live,
        rule: Option<usize>,
        is_upgrade: bool,
    ) -> Result<UpstreamSender, DialError> {
        if self.is_tls && self.is_two && !is_upgrade {
            let mut two = self.two.lock().await;
            match &*two {
                Two::Open(sender, place)
                    if !sender.is_closed() && self.leads(place, live, rule) =>
                {
                    return Ok(UpstreamSender::Two(sender.clone(), *place));
                }
                Two::Never => {}
                Two::Open(..) | Two::Unknown => {
                    let slot = match self.kept_or_slot(live, rule).await? {
                        Found::Kept(sender) => return Ok(UpstreamSender::One(sender)),
                        Found::Slot(slot) => slot,
                    };
                    let way = self.dial(live, rule, true, slot).await?;
                    *two = match &way {
                        UpstreamSender::Two(sender, place) => Two::Open(sender.clone(), *place),
                        UpstreamSender::One(_) => Two::Never,
                    };
                    return Ok(way);
                }
            }
        }
        match self.kept_or_slot(live, rule).await? {
            Found::Kept(sender) => Ok(UpstreamSender::One(sender)),
            Found::Slot(slot) => self.dial(live, rule, false, slot).await,
        }
    }

    /// Whether a connection leads where this policy and this rule would lead.
    fn leads(&self, place: &Place, live: &Live, rule: Option<usize>) -> bool {
        let host = &self.flow.host;
        let may =
            |(address, is_own)| live.policy.check_address(host, rule, address, is_own).is_ok();
        place.policy == live.number && place.address.is_none_or(may)
    }

    /// A connection that nobody uses now; else, room for another one. The first connection outside has its room with the
    /// program's own; every further one counts as much as one of the program's.
    async fn kept_or_slot(&self, live: &Live, rule: Option<usize>) -> Result<Found, DialError> {
        let late = tokio::time::sleep(ROOM);
        tokio::pin!(late);
        loop {
            while let Some(mut sender) =
                self.take_idle(|sender| self.leads(&sender.place, live, rule))
            {
                // One that the server closed meanwhile is of no use.
                if sender.inner.ready().await.is_ok() {
                    return Ok(Found::Kept(sender));
                }
            }
            let slot = tokio::select! {
                biased;
                slot = Arc::clone(&self.own_slot).acquire_owned() => slot,
                slot = Arc::clone(&self.shared.slots).acquire_owned() => slot,
                () = self.given_back.notified() => continue,
                () = &mut late => {
                    let message = "the session has as many connections as its policy lets it, and none became free";
                    return Err(DialError::new(Why::Limit, message));
                }
            };
            let closed = |_| DialError::new(Why::Limit, "there is no room for a connection");
            return slot.map(Found::Slot).map_err(closed);
        }
    }

    async fn dial(
        &self,
        live: &Live,
        rule: Option<usize>,
        offers_two: bool,
        slot: OwnedSemaphorePermit,
    ) -> Result<UpstreamSender, DialError> {
        let host = &self.flow.host;
        let (stream, address) = dial(&self.shared, live, host, self.flow.port, rule).await?;
        self.flow.set_address(address);
        let is_direct = live.policy.upstream.proxy_for(host).is_none();
        let place = Place {
            policy: live.number,
            address: is_direct.then(|| (address, is_own_address(address))),
        };
        if !self.is_tls {
            return one(stream, place, slot).await;
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
            return two(stream, place, slot).await;
        }
        one(stream, place, slot).await
    }
}

/// What a request goes out by.
enum Found {
    Kept(Sender),
    Slot(OwnedSemaphorePermit),
}

fn failed(error: hyper::Error) -> DialError {
    DialError::new(Why::UpstreamUnreachable, error.to_string())
}

async fn one<I>(
    io: I,
    place: Place,
    slot: OwnedSemaphorePermit,
) -> Result<UpstreamSender, DialError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_headers(crate::head::MAX_HEADERS)
        .handshake(TokioIo::new(io))
        .await
        .map_err(failed)?;
    // It ends with its sender, and has its room until then.
    tokio::spawn(async move {
        drop(connection.with_upgrades().await);
        drop(slot);
    });
    Ok(UpstreamSender::One(Sender { inner: sender, place }))
}

async fn two<I>(
    io: I,
    place: Place,
    slot: OwnedSemaphorePermit,
) -> Result<UpstreamSender, DialError>
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
    tokio::spawn(async move {
        drop(connection.await);
        drop(slot);
    });
    Ok(UpstreamSender::Two(sender, place))
}
