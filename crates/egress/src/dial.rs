//! Connections to the outside, to addresses that were looked at.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bastide_model::policy::{DecisionReason, Host, ProxyAddress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::dns::owner_of;
use crate::state::{ActivePolicy, ProxyState};

/// How long all of it may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// After how long the next address is tried besides.
const STAGGER: Duration = Duration::from_millis(250);

/// The longest answer of a proxy that is read.
const MAX_PROXY_ANSWER: usize = 8 << 10;

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) struct DialError {
    pub(crate) why: DecisionReason,
    pub(crate) message: String,
}

impl DialError {
    pub(crate) fn new(why: DecisionReason, message: impl Into<String>) -> Self {
        Self { why, message: message.into() }
    }

    fn unreachable(message: impl Into<String>) -> Self {
        Self::new(DecisionReason::UpstreamUnreachable, message)
    }
}

/// Connects to a host that `rule` lets be reached.
pub(crate) async fn dial(
    shared: &ProxyState,
    active: &ActivePolicy,
    host: &Host,
    port: u16,
    rule: Option<usize>,
) -> Result<(TcpStream, IpAddr), DialError> {
    let work = async {
        if let Some(proxy) = active.policy.upstream.proxy_for(host) {
            return dial_by_proxy(shared, active, proxy, host, port).await;
        }
        let found = addresses(shared, active, host).await?;
        let mut fit = Vec::new();
        let mut refused = None;
        for address in found {
            match active.policy.check_address(host, rule, address, owner_of(address)) {
                Ok(()) => fit.push(address),
                Err(what) => refused = Some(format!("{host} leads to {address}, which is {what}")),
            }
        }
        match refused {
            Some(message) if fit.is_empty() => {
                Err(DialError::new(DecisionReason::Private, message))
            }
            _ => connect(&fit, port).await,
        }
    };
    let late = || DialError::unreachable(format!("{host} does not answer in time"));
    let (stream, address) = tokio::time::timeout(TIMEOUT, work).await.map_err(|_| late())??;
    // Small messages are not held back; on error they only come later.
    drop(stream.set_nodelay(true));
    Ok((stream, address))
}

async fn addresses(
    shared: &ProxyState,
    active: &ActivePolicy,
    host: &Host,
) -> Result<Vec<IpAddr>, DialError> {
    match host {
        Host::Address(address) => Ok(vec![*address]),
        Host::Name(name) => {
            let found = shared.resolver.addresses(&active.policy, name).await;
            found.map_err(DialError::unreachable)
        }
    }
}

/// Connects to the first that answers: six and four in turns, the next one a little later.
async fn connect(addresses: &[IpAddr], port: u16) -> Result<(TcpStream, IpAddr), DialError> {
    let (six, four): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| address.is_ipv6());
    let mut order = Vec::new();
    for index in 0..six.len().max(four.len()) {
        order.extend(six.get(index));
        order.extend(four.get(index));
    }
    let mut waiting = order.into_iter();
    let mut tries: JoinSet<(IpAddr, std::io::Result<TcpStream>)> = JoinSet::new();
    let mut problem = "it has no address".to_owned();
    let start = |tries: &mut JoinSet<_>, address: IpAddr| {
        tries.spawn(
            async move { (address, TcpStream::connect(SocketAddr::new(address, port)).await) },
        );
    };
    if let Some(first) = waiting.next() {
        start(&mut tries, first);
    }
    while !tries.is_empty() {
        let joined = tokio::time::timeout(STAGGER, tries.join_next()).await;
        match joined {
            Ok(Some(Ok((address, Ok(stream))))) => return Ok((stream, address)),
            Ok(Some(Ok((address, Err(error))))) => {
                problem = format!("{}: {error}", SocketAddr::new(address, port));
            }
            _ => {}
        }
        if let Some(next) = waiting.next() {
            start(&mut tries, next);
        }
    }
    Err(DialError::unreachable(problem))
}

/// Asks a proxy for the connection. Where a name leads is its business.
async fn dial_by_proxy(
    shared: &ProxyState,
    active: &ActivePolicy,
    proxy: &ProxyAddress,
    host: &Host,
    port: u16,
) -> Result<(TcpStream, IpAddr), DialError> {
    let found = addresses(shared, active, &proxy.host).await?;
    let (mut stream, address) = connect(&found, proxy.port).await?;
    let target = match host {
        Host::Address(IpAddr::V6(v6)) => format!("[{v6}]:{port}"),
        other => format!("{other}:{port}"),
    };
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    let failed = |error: std::io::Error| DialError::unreachable(format!("the proxy: {error}"));
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    // Byte by byte: what follows the answer is not ours.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_PROXY_ANSWER {
            return Err(DialError::unreachable("the proxy answers at too great length"));
        }
        answer.push(stream.read_u8().await.map_err(failed)?);
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default();
    let status = line.split(' ').nth(1).unwrap_or_default();
    if !line.starts_with("HTTP/1.") || !status.starts_with('2') {
        let status_line: String = line.chars().take(128).collect();
        return Err(DialError::unreachable(format!("the proxy says {status_line:?}")));
    }
    Ok((stream, address))
}
