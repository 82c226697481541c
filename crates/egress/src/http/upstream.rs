//! The side of the server outside.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bastide_model::policy::{AddressOwner, DecisionReason, Host};
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
use crate::dns::owner_of;
use crate::state::ActivePolicy;

/// How long a server may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a request waits for a connection outside while there are as many as may be.
const ROOM: Duration = Duration::from_secs(60);

/// How many connections of HTTP/1 that nobody uses are kept beside a program's connection.
const MAX_IDLE: usize = 4;

/// Where a connection outside leads, and by whose word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destination {
    /// The policy it was made by.
    policy: u64,
    /// The address, and whether it is this machine's; none behind a proxy, whose business it is.
    address: Option<(IpAddr, AddressOwner)>,
}

/// A connection of HTTP/1 that requests are sent on.
pub(crate) struct Sender {
    inner: http1::SendRequest<Body>,
    destination: Destination,
}

impl Sender {
    pub(super) fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// What is known of the server's HTTP/2.
#[derive(Default)]
pub(super) enum Http2State {
    #[default]
    Unknown,
    /// It does not speak it.
    Never,
    Open(http2::SendRequest<Body>, Destination),
}

/// A way to the server.
pub(super) enum UpstreamSender {
    Http1(Sender),
    Http2(http2::SendRequest<Body>, Destination),
}

impl UpstreamSender {
    pub(super) fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(..))
    }

    /// Sends a request. The sender of HTTP/1 comes back with the answer, to be used again when that has passed.
    pub(super) async fn send(
        self,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<Sender>), hyper::Error> {
        match self {
            Self::Http1(mut sender) => {
                let response = sender.inner.send_request(request).await?;
                Ok((response, Some(sender)))
            }
            Self::Http2(mut sender, _) => Ok((sender.send_request(request).await?, None)),
        }
    }
}

impl Connection {
    /// Takes a connection back whose answer has come.
    pub(crate) fn return_idle(&self, sender: Sender) {
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
    pub(super) async fn upstream_sender(
        self: &Arc<Self>,
        active: &ActivePolicy,
        rule: Option<usize>,
        is_upgrade: bool,
    ) -> Result<UpstreamSender, DialError> {
        if self.is_tls && self.is_http2 && !is_upgrade {
            let mut http2_state = self.http2.lock().await;
            match &*http2_state {
                Http2State::Open(sender, destination)
                    if !sender.is_closed() && self.leads_to(destination, active, rule) =>
                {
                    return Ok(UpstreamSender::Http2(sender.clone(), *destination));
                }
                Http2State::Never => {}
                Http2State::Open(..) | Http2State::Unknown => {
                    let slot = match self.idle_or_slot(active, rule).await? {
                        SenderOrSlot::Idle(sender) => return Ok(UpstreamSender::Http1(sender)),
                        SenderOrSlot::Slot(slot) => slot,
                    };
                    let upstream_sender = self.dial(active, rule, true, slot).await?;
                    *http2_state = match &upstream_sender {
                        UpstreamSender::Http2(sender, destination) => {
                            Http2State::Open(sender.clone(), *destination)
                        }
                        UpstreamSender::Http1(_) => Http2State::Never,
                    };
                    return Ok(upstream_sender);
                }
            }
        }
        match self.idle_or_slot(active, rule).await? {
            SenderOrSlot::Idle(sender) => Ok(UpstreamSender::Http1(sender)),
            SenderOrSlot::Slot(slot) => self.dial(active, rule, false, slot).await,
        }
    }

    /// Whether a connection leads where this policy and this rule would lead.
    fn leads_to(
        &self,
        destination: &Destination,
        active: &ActivePolicy,
        rule: Option<usize>,
    ) -> bool {
        let host = &self.flow.host;
        let may =
            |(address, owner)| active.policy.check_address(host, rule, address, owner).is_ok();
        destination.policy == active.number && destination.address.is_none_or(may)
    }

    /// A connection that nobody uses now; else, room for another one. The first connection outside has its room with the
    /// program's own; every further one counts as much as one of the program's.
    async fn idle_or_slot(
        &self,
        active: &ActivePolicy,
        rule: Option<usize>,
    ) -> Result<SenderOrSlot, DialError> {
        let late = tokio::time::sleep(ROOM);
        tokio::pin!(late);
        loop {
            while let Some(mut sender) =
                self.take_idle(|sender| self.leads_to(&sender.destination, active, rule))
            {
                // One that the server closed meanwhile is of no use.
                if sender.inner.ready().await.is_ok() {
                    return Ok(SenderOrSlot::Idle(sender));
                }
            }
            let slot = tokio::select! {
                biased;
                slot = Arc::clone(&self.own_slot).acquire_owned() => slot,
                slot = Arc::clone(&self.shared.slots).acquire_owned() => slot,
                () = self.given_back.notified() => continue,
                () = &mut late => {
                    let message = "the session has as many connections as its policy lets it, and none became free";
                    return Err(DialError::new(DecisionReason::Limit, message));
                }
            };
            let closed =
                |_| DialError::new(DecisionReason::Limit, "there is no room for a connection");
            return slot.map(SenderOrSlot::Slot).map_err(closed);
        }
    }

    async fn dial(
        &self,
        active: &ActivePolicy,
        rule: Option<usize>,
        offers_http2: bool,
        slot: OwnedSemaphorePermit,
    ) -> Result<UpstreamSender, DialError> {
        let host = &self.flow.host;
        let (stream, address) = dial(&self.shared, active, host, self.flow.port, rule).await?;
        self.flow.set_address(address);
        let is_direct = active.policy.upstream.proxy_for(host).is_none();
        let destination = Destination {
            policy: active.number,
            address: is_direct.then(|| (address, owner_of(address))),
        };
        if !self.is_tls {
            return handshake_http1(stream, destination, slot).await;
        }
        let wrong = |message: String| DialError::new(DecisionReason::UpstreamTls, message);
        let config = active.client(&self.shared.start).map_err(wrong)?;
        let mut config = rustls::ClientConfig::clone(&config);
        config.alpn_protocols = if offers_http2 {
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
            return handshake_http2(stream, destination, slot).await;
        }
        handshake_http1(stream, destination, slot).await
    }
}

/// What a request goes out by.
enum SenderOrSlot {
    Idle(Sender),
    Slot(OwnedSemaphorePermit),
}

fn failed(error: hyper::Error) -> DialError {
    DialError::new(DecisionReason::UpstreamUnreachable, error.to_string())
}

async fn handshake_http1<I>(
    io: I,
    destination: Destination,
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
    Ok(UpstreamSender::Http1(Sender { inner: sender, destination }))
}

async fn handshake_http2<I>(
    io: I,
    destination: Destination,
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
    Ok(UpstreamSender::Http2(sender, destination))
}
