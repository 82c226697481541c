//! One connection of a program inside, from its first byte to its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bastide_model::policy::{
    DecisionReason, Explanation, Flow, Host, Protocol, Verdict, normal_name,
};
use bastide_proto::egress::{Answer, PendingFlow};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::client_hello::{ClientHello, MAX_HELLO, peek};
use crate::client_stream::ClientStream;
use crate::dial::dial;
use crate::flow::OpenFlow;
use crate::http::{Connection, explain, serve_http1, serve_http2};
use crate::notes::Note;
use crate::splice::splice_both_ways;
use crate::state::{ActivePolicy, ProxyState};

/// How long the first message of TLS may take.
const HELLO: Duration = Duration::from_secs(10);

/// How long a program that is refused may take to hear it.
const FAREWELL: Duration = Duration::from_secs(1);

/// The fatal alert `access_denied`.
const ACCESS_DENIED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];

/// How often it is looked whether the session has had all its bytes.
const TICK: Duration = Duration::from_secs(1);

/// Why a connection is not carried.
struct Refusal {
    why: DecisionReason,
    rule: Option<usize>,
    detail: Option<String>,
}

impl Refusal {
    fn new(why: DecisionReason, rule: Option<usize>) -> Self {
        Self { why, rule, detail: None }
    }

    fn with(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }
}

/// Carries a connection, if it may be.
pub(crate) async fn relay_connection(shared: Arc<ProxyState>, stream: TcpStream) {
    let Ok(local) = stream.local_addr() else { return };
    // Small messages are not held back; on error they only come later.
    drop(stream.set_nodelay(true));
    let port = local.port();
    let Some(host) = shared.dialled(local.ip()) else {
        // One of our addresses that stands for nobody, as after a new start.
        shared.note(Note::new("deny", DecisionReason::NoRule, &local.ip().to_string(), port));
        reset(&stream);
        return;
    };
    let active = shared.active();
    let found = active.policy.explain(&Flow { host: &host, port, http: None });
    let flow = OpenFlow::new(host, port, found.protocol, found.read);
    let guard = shared.open(&flow);
    tokio::select! {
        () = begin(&shared, &active, stream, &flow, &found) => {}
        () = revoked(&shared, &flow, found.verdict) => {}
        () = until_quota_spent(&shared, &active, &flow) => {}
    }
    let (out, inward) =
        (flow.bytes_out.load(Ordering::Relaxed), flow.bytes_in.load(Ordering::Relaxed));
    if flow.address().is_some() {
        let mut note = about(&flow, "end", found.why, found.rule);
        (note.bytes_out, note.bytes_in) = (Some(out), Some(inward));
        note.duration_ms = Some(flow.duration_ms());
        shared.note(note);
    }
    drop(guard);
}

fn about(
    flow: &OpenFlow,
    decision: &'static str,
    why: DecisionReason,
    rule: Option<usize>,
) -> Note {
    let mut note = Note::new(decision, why, &flow.host.to_string(), flow.port);
    note.rule = rule.map(|index| index + 1);
    note.protocol = flow.protocol.as_str();
    note.address = flow.address();
    note.intercepted = flow.read && flow.protocol == Protocol::Tls;
    note
}

async fn begin(
    shared: &Arc<ProxyState>,
    active: &ActivePolicy,
    mut stream: TcpStream,
    flow: &Arc<OpenFlow>,
    found: &Explanation,
) {
    if flow.protocol == Protocol::Http {
        // Every request is answered, denied ones with the reason.
        let connection = Connection::new(Arc::clone(shared), Arc::clone(flow), false, false);
        let inside = ClientStream::new(Vec::new(), stream, Arc::clone(flow));
        // However it ends, it has ended.
        drop(serve_http1(connection, inside).await);
        return;
    }
    let mut first = Vec::new();
    let relayed = match may_open(shared, active, flow, found).await {
        Err(refusal) => Err(refusal),
        Ok(()) if flow.protocol == Protocol::Tls => {
            match named(&mut stream, &mut first, active, flow, found).await {
                Err(refusal) => Err(refusal),
                Ok(()) if flow.read => {
                    return read(shared, active, stream, first, flow).await;
                }
                Ok(()) => pass(shared, active, &mut stream, &first, flow, found).await,
            }
        }
        Ok(()) => pass(shared, active, &mut stream, &first, flow, found).await,
    };
    if let Err(refusal) = relayed {
        let mut note = about(flow, "deny", refusal.why, refusal.rule);
        note.detail = refusal.detail;
        shared.note(note);
        if flow.protocol == Protocol::Tls && refusal.why != DecisionReason::UpstreamUnreachable {
            deny_tls(stream, first).await;
        } else {
            reset(&stream);
        }
    }
}

/// Whether the connection may be opened, asking somebody if need be.
async fn may_open(
    shared: &ProxyState,
    active: &ActivePolicy,
    flow: &OpenFlow,
    found: &Explanation,
) -> Result<(), Refusal> {
    if shared.is_over_quota() {
        return Err(Refusal::new(DecisionReason::Limit, None));
    }
    match found.verdict {
        Verdict::Allow => Ok(()),
        Verdict::Deny => Err(Refusal::new(found.why, found.rule)),
        Verdict::Ask => {
            let pending = PendingFlow {
                id: 0,
                host: flow.host.to_string(),
                port: flow.port,
                method: None,
                path: None,
                left_ms: 0,
            };
            let time_limit = Duration::from_secs(active.policy.ask_seconds);
            match shared.approvals.wait_for_approval(pending, time_limit).await {
                Some(Answer::Once | Answer::Session) => Ok(()),
                Some(Answer::Deny) => {
                    Err(Refusal::new(found.why, found.rule)
                        .with("somebody was asked, and denied it"))
                }
                None => Err(Refusal::new(DecisionReason::AskTimeout, found.rule)),
            }
        }
    }
}

/// Reads the first message of TLS into `first`.
async fn hello(stream: &mut TcpStream, first: &mut Vec<u8>) -> io::Result<ClientHello> {
    let mut room = vec![0; MAX_HELLO];
    loop {
        match peek(first) {
            ClientHello::Partial => {}
            answered => return Ok(answered),
        }
        let count = stream.read(&mut room[first.len()..]).await?;
        if count == 0 {
            return Ok(ClientHello::Malformed);
        }
        let so_far = first.len();
        first.extend_from_slice(&room[so_far..so_far + count]);
    }
}

/// Whether the first message of TLS names whom the program dialled.
async fn named(
    stream: &mut TcpStream,
    first: &mut Vec<u8>,
    active: &ActivePolicy,
    flow: &OpenFlow,
    found: &Explanation,
) -> Result<(), Refusal> {
    let refuse = |why: DecisionReason| Refusal::new(why, found.rule);
    let received = tokio::time::timeout(HELLO, hello(stream, first)).await;
    let Ok(Ok(ClientHello::Whole(server_name))) = received else {
        return Err(refuse(DecisionReason::NotHttp).with("this is no TLS"));
    };
    let rule = found.rule.and_then(|index| active.policy.rules.get(index));
    let is_optional = rule.is_some_and(|rule| rule.sni_optional);
    match (&flow.host, server_name) {
        (Host::Name(name), Some(server_name)) if normal_name(&server_name).as_ref() == Ok(name) => {
            Ok(())
        }
        (Host::Address(_), None) => Ok(()),
        (Host::Name(_), None) if is_optional => Ok(()),
        (Host::Address(_), Some(server_name)) if is_optional => {
            may_name(active, flow, found, &server_name)
        }
        (Host::Name(_), None) => Err(refuse(DecisionReason::NoSni)),
        (_, Some(server_name)) => {
            let server_name: String = server_name.chars().take(253).collect();
            Err(refuse(DecisionReason::SniMismatch).with(format!("it names {server_name}")))
        }
    }
}

/// Whether a connection to an address may name a host: not one that a rule denies which comes before the one that allows
/// the address.
fn may_name(
    active: &ActivePolicy,
    flow: &OpenFlow,
    found: &Explanation,
    server_name: &str,
) -> Result<(), Refusal> {
    let shown = || server_name.chars().take(253).collect::<String>();
    let Ok(name) = normal_name(server_name) else {
        let refusal = Refusal::new(DecisionReason::SniMismatch, found.rule);
        return Err(refusal.with(format!("it names {}", shown())));
    };
    let host = Host::Name(name);
    let of_name = active.policy.explain(&Flow { host: &host, port: flow.port, http: None });
    let comes_before = of_name.rule.is_some_and(|rule| found.rule.is_none_or(|own| rule < own));
    match of_name.verdict {
        Verdict::Deny if comes_before => {
            Err(Refusal::new(of_name.why, of_name.rule).with(format!("it names {}", shown())))
        }
        _ => Ok(()),
    }
}

/// Carries bytes that nobody reads.
async fn pass(
    shared: &ProxyState,
    active: &ActivePolicy,
    stream: &mut TcpStream,
    first: &[u8],
    flow: &OpenFlow,
    found: &Explanation,
) -> Result<(), Refusal> {
    let dialled = dial(shared, active, &flow.host, flow.port, found.rule).await;
    let (mut outside, address) =
        dialled.map_err(|error| Refusal::new(error.why, found.rule).with(error.message))?;
    flow.set_address(address);
    shared.note(about(flow, "allow", found.why, found.rule));
    let relayed = async {
        outside.write_all(first).await?;
        flow.sent_out(first.len());
        splice_both_ways(stream, &outside, flow).await
    };
    if relayed.await.is_err() {
        // What one side was told by a reset, the other is too.
        reset(stream);
        reset(&outside);
    }
    Ok(())
}

/// Answers in the host's name, and reads what is asked of it.
async fn read(
    shared: &Arc<ProxyState>,
    active: &ActivePolicy,
    stream: TcpStream,
    first: Vec<u8>,
    flow: &Arc<OpenFlow>,
) {
    let config = active.authority.as_ref().map(|authority| authority.server(&flow.host));
    let Some(Ok(config)) = config else { return reset(&stream) };
    let inside = ClientStream::new(first, stream, Arc::clone(flow));
    let accepting = TlsAcceptor::from(config).accept(inside);
    // A program that does not trust the session's authority ends it here.
    let Ok(Ok(stream)) = tokio::time::timeout(HELLO, accepting).await else {
        let mut note = about(flow, "end", DecisionReason::Rule, None);
        note.detail = Some("the program did not accept the session's certificate".to_owned());
        return shared.note(note);
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let connection = Connection::new(Arc::clone(shared), Arc::clone(flow), true, is_http2);
    // However it ends, it has ended.
    if is_http2 {
        drop(serve_http2(connection, stream).await);
    } else {
        drop(serve_http1(connection, stream).await);
    }
}

/// Tells a program that speaks TLS that it may not.
async fn deny_tls(mut stream: TcpStream, mut first: Vec<u8>) {
    let answered = async {
        // A connection that is closed with bytes unread is reset, and the alert is lost.
        drop(hello(&mut stream, &mut first).await);
        stream.write_all(&ACCESS_DENIED).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // Whoever does not listen does not hear.
    drop(tokio::time::timeout(FAREWELL, answered).await);
}

/// Has the connection end by a reset.
fn reset(stream: &TcpStream) {
    let _ = set_socket_linger(stream, Some(Duration::ZERO));
}

/// Ends when a changed policy no longer allows the connection, or a request on it.
async fn revoked(shared: &ProxyState, flow: &OpenFlow, was: Verdict) {
    let mut changes = shared.changes();
    while changes.changed().await.is_ok() {
        let active = shared.active();
        let now = active.policy.explain(&Flow { host: &flow.host, port: flow.port, http: None });
        let same = now.protocol == flow.protocol && now.read == flow.read;
        let opens = match now.verdict {
            Verdict::Allow => true,
            Verdict::Ask => was == Verdict::Ask,
            Verdict::Deny => false,
        };
        // Connections without TLS are open to everybody: their requests are answered one by one.
        let is_open = same && (flow.protocol == Protocol::Http || opens);
        let denied = flow.in_flight().into_iter().any(|request| {
            explain(&active, &flow.host, flow.port, &request).verdict == Verdict::Deny
        });
        if !is_open || denied {
            return;
        }
    }
}

/// Ends when no byte has passed for too long, or too many have.
async fn until_quota_spent(shared: &ProxyState, active: &ActivePolicy, flow: &OpenFlow) {
    let most = Duration::from_secs(active.policy.limits.idle_seconds.into());
    loop {
        let left = most.saturating_sub(flow.idle());
        if left.is_zero() {
            return;
        }
        let is_limited = active.policy.limits.bytes.is_some();
        tokio::time::sleep(if is_limited { left.min(TICK) } else { left }).await;
        if is_limited && shared.is_over_quota() {
            return;
        }
    }
}
