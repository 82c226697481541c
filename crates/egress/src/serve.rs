//! The life of the program: what its warden hands it, and what hosts ask of it.

use std::io;
use std::net::TcpListener as StdListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bastide_model::policy::{DecisionReason, Policy};
use bastide_proto::egress::{
    Answer, EgressCommand, EgressListener, EgressReport, EgressRequest, EgressResponse,
    EgressSecret, EgressStart, MAX_EGRESS_MESSAGE, MAX_POLICY, PendingFlow, Transport,
};
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket, UnixStream};
use tokio::sync::Semaphore;

use crate::confine::confine;
use crate::control::{Channel, sealed, unsealed};
use crate::dns;
use crate::http::MAX_SHOWN_PATH;
use crate::notes::{Note, Notes};
use crate::package_cache::PackageCache;
use crate::relay::relay_connection;
use crate::secrets::Secrets;
use crate::state::{ActivePolicy, ProxyState};
use crate::tls::{Authority, AuthorityFile};

/// How long a host may take to say what it wants.
const SPEAK: Duration = Duration::from_secs(5);

/// How many connections ask for names at a time.
const MAX_DNS_STREAMS: usize = 16;

/// How long nothing is accepted after that failed, as without descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Within how long equal denials are one.
const REPEATED: Duration = Duration::from_secs(1);

/// Where systems keep the certificates of authorities.
const ROOTS: [&str; 7] = [
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/lib/ssl",
    "/usr/share/pki",
];

/// Carries a session's connections until the warden ends.
///
/// # Errors
///
/// If the warden cannot be heard.
pub fn run(warden: OwnedFd) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let warden = Arc::new(Channel::new(warden)?);
        let Some((order, fds)) = warden.receive::<EgressCommand>().await? else { return Ok(()) };
        let EgressCommand::Start(start) = order else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let shared = match begin(*start, fds) {
            Ok(shared) => Arc::new(shared),
            Err(message) => return warden.send(&EgressReport::Failed { message }, &[]).await,
        };
        let proxy = Proxy { shared, warden, names: Arc::new(Semaphore::new(MAX_DNS_STREAMS)) };
        proxy.report_ready().await?;
        tokio::spawn(settle(Arc::clone(&proxy.shared)));
        proxy.handle_orders().await
    })
}

/// Takes everything in, and gives everything up that is not needed any more.
fn begin(start: EgressStart, fds: Vec<OwnedFd>) -> Result<ProxyState, String> {
    let mut fds = fds.into_iter();
    let unreadable = |what: &str, error: io::Error| format!("the {what} cannot be read: {error}");
    let mut next = |is_there: bool| if is_there { fds.next() } else { None };
    let (secrets, earlier) = (next(start.has_secrets), next(start.has_authority));
    let secrets: Vec<EgressSecret> = match secrets {
        Some(file) => unsealed(file).map_err(|error| unreadable("secrets", error))?,
        None => Vec::new(),
    };
    let earlier: Option<AuthorityFile> =
        earlier.map(unsealed).transpose().map_err(|error| unreadable("authority", error))?;
    let notes = Notes::open(&start.notes).map_err(|error| {
        format!("decisions cannot be noted in {}: {error}", start.notes.display())
    })?;
    let earlier = earlier.map(Authority::restore).transpose()?.map(Arc::new);
    let active = active(&start, &start.policy, secrets, earlier.as_ref())?;
    check_roots(&start, &active)?;
    let mut readable: Vec<&Path> = vec![&start.resolv_conf, &start.hosts];
    // Libraries of a statically linked program may have no other way to random numbers.
    readable.extend(["/dev/urandom", "/dev/random"].map(Path::new));
    match &start.roots {
        Some(roots) => readable.push(roots),
        None => readable.extend(ROOTS.map(Path::new)),
    }
    readable.extend(active.policy.upstream.roots.as_deref().map(Path::new));
    let cache = start.package_cache.as_deref().map(PackageCache::open).transpose();
    let cache = cache.map_err(|error| format!("packages cannot be kept: {error}"))?;
    confine(&readable, start.package_cache.as_deref())
        .map_err(|error| format!("the program cannot be confined: {error}"))?;
    Ok(ProxyState::new(start, notes, active, cache))
}

/// What holds with a policy.
fn active(
    start: &EgressStart,
    policy: &str,
    secrets: Vec<EgressSecret>,
    earlier: Option<&Arc<Authority>>,
) -> Result<ActivePolicy, String> {
    if policy.len() > MAX_POLICY {
        return Err(format!("the policy has more than {MAX_POLICY} bytes"));
    }
    let policy = Policy::from_json(policy).map_err(|error| error.to_string())?;
    if let Some(preset) = policy.presets().first() {
        return Err(format!("the preset @{preset} was not resolved"));
    }
    let secrets = Secrets::new(secrets);
    if let Some(name) = secrets.missing(&policy) {
        return Err(format!("the secret {name} is missing"));
    }
    let hosts = policy.read_hosts();
    let authority = match earlier {
        _ if hosts.is_empty() => None,
        Some(earlier) if earlier.is_for(&hosts) => Some(Arc::clone(earlier)),
        Some(earlier) => Some(Arc::new(earlier.for_hosts(&hosts)?)),
        None => Some(Arc::new(Authority::make(&start.session_id, &hosts, start.lease_seconds)?)),
    };
    Ok(ActivePolicy::new(policy, secrets, authority))
}

/// Reads the authorities that a policy adds, so that whoever gave it hears of it if that fails.
fn check_roots(start: &EgressStart, active: &ActivePolicy) -> Result<(), String> {
    match active.policy.upstream.roots {
        Some(_) => active.client(start).map(drop),
        None => Ok(()),
    }
}

/// Notes what was repeated, a second after it began.
async fn settle(shared: Arc<ProxyState>) {
    loop {
        shared.denials.notified().await;
        tokio::time::sleep(REPEATED).await;
        shared.notes.settle();
    }
}

struct Proxy {
    shared: Arc<ProxyState>,
    warden: Arc<Channel>,
    names: Arc<Semaphore>,
}

impl Proxy {
    async fn report_ready(&self) -> io::Result<()> {
        let active = self.shared.active();
        let authority =
            active.authority.as_ref().map(|authority| sealed(authority.file())).transpose()?;
        let report = EgressReport::Ready {
            certificate: active.authority.as_ref().map(|authority| authority.certificate_pem()),
            ports: active.policy.ports(),
        };
        let fds: Vec<_> = authority.iter().map(AsFd::as_fd).collect();
        self.warden.send(&report, &fds).await
    }

    /// Does what the warden wants until it ends: its end is the session's.
    async fn handle_orders(&self) -> io::Result<()> {
        loop {
            let Some((order, fds)) = self.warden.receive::<EgressCommand>().await? else {
                return Ok(());
            };
            match order {
                EgressCommand::Listeners(listeners) => {
                    for (listener, fd) in listeners.into_iter().zip(fds) {
                        self.listen(listener, fd)?;
                    }
                }
                EgressCommand::Caller => {
                    for caller in fds {
                        let (shared, warden) = (Arc::clone(&self.shared), Arc::clone(&self.warden));
                        tokio::spawn(serve_caller(shared, warden, caller));
                    }
                }
                EgressCommand::Stop => return Ok(()),
                _ => {}
            }
        }
    }

    fn listen(&self, listener: EgressListener, fd: OwnedFd) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        match listener.transport {
            Transport::Udp => {
                let socket = std::net::UdpSocket::from(fd);
                socket.set_nonblocking(true)?;
                tokio::spawn(dns::serve_datagrams(shared, UdpSocket::from_std(socket)?));
            }
            Transport::Tcp => {
                let socket = StdListener::from(fd);
                socket.set_nonblocking(true)?;
                let socket = TcpListener::from_std(socket)?;
                let names = (listener.port == 53).then(|| Arc::clone(&self.names));
                tokio::spawn(accept(shared, socket, names));
            }
        }
        Ok(())
    }
}

/// Accepts one connection after the other. While as many are carried as may be, the next one waits, and those after it
/// wait in the kernel.
async fn accept(shared: Arc<ProxyState>, listener: TcpListener, names: Option<Arc<Semaphore>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let slots = names.clone().unwrap_or_else(|| Arc::clone(&shared.slots));
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        let slot = slots.acquire_owned().await;
        shared.waiting.fetch_sub(1, Ordering::Relaxed);
        let (shared, is_dns) = (Arc::clone(&shared), names.is_some());
        tokio::spawn(async move {
            if is_dns {
                dns::serve_stream(shared, stream).await;
            } else {
                relay_connection(shared, stream).await;
            }
            drop(slot);
        });
    }
}

/// Does what a host wants, and says what became of it.
async fn serve_caller(shared: Arc<ProxyState>, warden: Arc<Channel>, caller: OwnedFd) {
    let caller = StdStream::from(caller);
    if caller.set_nonblocking(true).is_err() {
        return;
    }
    let Ok(mut caller) = UnixStream::from_std(caller) else { return };
    let Ok(Ok(request)) = tokio::time::timeout(SPEAK, request(&mut caller)).await else { return };
    if has_left(&caller) {
        return;
    }
    let response = match respond(&shared, &warden, request).await {
        Ok(response) => response,
        Err(message) => EgressResponse::Refused { message },
    };
    if let Ok(bytes) = bastide_proto::encode_prefixed(&response) {
        // A host that went away asks again.
        drop(tokio::time::timeout(SPEAK, caller.write_all(&bytes)).await);
    }
}

/// Whether a host no longer waits for an answer. It was told that nothing became of what it wants: that may have been while
/// this process was stopped.
fn has_left(caller: &UnixStream) -> bool {
    match caller.try_read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

async fn request(caller: &mut UnixStream) -> io::Result<EgressRequest> {
    let mut prefix = [0; LENGTH_BYTES];
    caller.read_exact(&mut prefix).await?;
    let length = prefixed_length(prefix, MAX_EGRESS_MESSAGE).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    caller.read_exact(&mut body).await?;
    bastide_proto::decode(&body).map_err(io::Error::other)
}

async fn respond(
    shared: &ProxyState,
    warden: &Channel,
    request: EgressRequest,
) -> Result<EgressResponse, String> {
    match request {
        EgressRequest::Set { policy, secrets } => {
            change(shared, warden, &policy, secrets).await?;
            Ok(EgressResponse::Done)
        }
        EgressRequest::Show => Ok(EgressResponse::Status(Box::new(shared.status()))),
        EgressRequest::Pending => Ok(EgressResponse::Pending(shared.approvals.pending())),
        EgressRequest::Answer { id, answer } => {
            let gone = || format!("nothing waits under number {id}; see what does with `net show`");
            let waiting = shared.approvals.pending().into_iter().find(|flow| flow.id == id);
            let waiting = waiting.ok_or_else(gone)?;
            if answer == Answer::Session {
                let policy = with_rule(&shared.active().policy, &waiting)?;
                let secrets = shared.active().secrets.list().clone();
                change(shared, warden, &policy.to_value().to_string(), secrets).await?;
            }
            shared.approvals.answer(id, answer).ok_or_else(gone)?;
            let decision = if answer == Answer::Deny { "deny" } else { "allow" };
            let mut note = Note::new(decision, DecisionReason::Rule, &waiting.host, waiting.port);
            note.detail = Some(format!("answered by a host: {answer:?}").to_lowercase());
            (note.method, note.path) = (waiting.method, waiting.path);
            shared.note(note);
            Ok(EgressResponse::Done)
        }
        _ => Err("this program cannot do that".to_owned()),
    }
}

/// Goes by another policy, and has the warden remember it.
async fn change(
    shared: &ProxyState,
    warden: &Channel,
    policy: &str,
    secrets: Vec<EgressSecret>,
) -> Result<(), String> {
    let before = shared.active();
    let next = active(&shared.start, policy, secrets, before.authority.as_ref())?;
    if next.policy.rules.iter().any(|rule| rule.cache) && shared.cache.is_none() {
        // What this program may write to was settled when it began.
        return Err("packages are not kept by this session; to have them kept, stop it, set its policy, and resume it".to_owned());
    }
    check_roots(&shared.start, &next).map_err(|error| {
        // What this program may read was settled when it began.
        format!("{error}; to give a session other roots, stop it, set its policy, and resume it")
    })?;
    let failed = |error: io::Error| format!("the warden cannot be told: {error}");
    let mut files = vec![sealed(next.secrets.list()).map_err(failed)?];
    if let Some(authority) = &next.authority {
        files.push(sealed(authority.file()).map_err(failed)?);
    }
    let report = EgressReport::Changed {
        policy: policy.to_owned(),
        certificate: next.authority.as_ref().map(|authority| authority.certificate_pem()),
        ports: next.policy.ports(),
    };
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    // First: what the warden does not know would not hold after a new start.
    warden.send(&report, &fds).await.map_err(failed)?;
    shared.set_active(next);
    Ok(())
}

/// The policy with a rule that allows what waits.
fn with_rule(policy: &Policy, waiting: &PendingFlow) -> Result<Policy, String> {
    let request = waiting.method.as_deref().zip(waiting.path.as_deref());
    if request.is_some_and(|(_, path)| path.len() >= MAX_SHOWN_PATH) {
        return Err("its path cannot be that of a rule; approve it once".to_owned());
    }
    policy.approve(&waiting.host, waiting.port, request)
}
