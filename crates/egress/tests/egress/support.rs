//! A session's network in the test's own process, and servers for it.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine;
use bastide_egress::{Channel, sealed};
use bastide_proto::egress::{
    EgressCommand, EgressListener, EgressReport, EgressRequest, EgressResponse, EgressSecret,
    EgressStart, Transport,
};
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use bytes::Bytes;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Where servers of the outside are.
pub(crate) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// No wait in these tests is longer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for something that must come.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.expect("it takes too long")
}

/// A listener whose port others may listen on too, on other addresses.
pub(crate) fn listener(address: Ipv4Addr, port: u16) -> StdListener {
    try_listener(address, port).unwrap()
}

fn try_listener(address: Ipv4Addr, port: u16) -> std::io::Result<StdListener> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(IpAddr::V4(address), port))?;
    rustix::net::listen(&socket, 128)?;
    let listener = StdListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A listener outside, on a port that is free on every other address, too: the session listens there.
fn outside_listener() -> StdListener {
    let tries = std::iter::repeat_with(|| listener(OUTSIDE, 0)).take(100);
    let mut free = tries.filter(|listener| {
        let port = listener.local_addr().unwrap().port();
        try_listener(Ipv4Addr::UNSPECIFIED, port).is_ok()
    });
    free.next().expect("no port is free on every address")
}

/// A server outside that does the same with every connection.
pub(crate) fn serve<F>(work: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::from_std(outside_listener()).unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(work(stream));
        }
    });
    port
}

/// A session's network.
pub(crate) struct ProxyFixture {
    pub(crate) channel: Channel,
    pub(crate) folder: TempDir,
    pub(crate) certificate: Option<String>,
    dns: SocketAddr,
    dns_stream: SocketAddr,
    proxy: JoinHandle<std::io::Result<()>>,
}

impl ProxyFixture {
    /// Ends it. Another one that listens on the same ports has all connections then.
    pub(crate) async fn end(self) {
        let Self { channel, proxy, .. } = self;
        drop(channel);
        let ended = tokio::task::spawn_blocking(move || proxy.join());
        soon(ended).await.unwrap().unwrap().unwrap();
    }

    /// One with a policy; `PORT` in it is the port.
    pub(crate) async fn new(policy: &str, ports: &[u16]) -> Self {
        Self::with(policy, ports, &[], None).await
    }

    pub(crate) async fn with(
        policy: &str,
        ports: &[u16],
        secrets: &[EgressSecret],
        roots: Option<PathBuf>,
    ) -> Self {
        Self::with_packages(policy, ports, secrets, roots, None).await
    }

    /// One that keeps packages in a folder.
    pub(crate) async fn with_packages(
        policy: &str,
        ports: &[u16],
        secrets: &[EgressSecret],
        roots: Option<PathBuf>,
        package_cache: Option<PathBuf>,
    ) -> Self {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let proxy = std::thread::spawn(move || bastide_egress::run(theirs));
        let channel = Channel::new(ours).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("resolv.conf"), "").unwrap();
        std::fs::write(folder.path().join("hosts"), "").unwrap();
        let start = EgressStart {
            session_id: "s1".into(),
            policy: json_of(policy),
            has_secrets: true,
            has_authority: false,
            notes: folder.path().join("notes"),
            resolv_conf: folder.path().join("resolv.conf"),
            hosts: folder.path().join("hosts"),
            roots,
            name_range: (Ipv4Addr::new(127, 64, 0, 0), 15),
            lease_seconds: 3600,
            package_cache,
        };
        let memory = sealed(&secrets.to_vec()).unwrap();
        channel.send(&EgressCommand::Start(Box::new(start)), &[memory.as_fd()]).await.unwrap();
        let (report, _) = soon(channel.receive::<EgressReport>()).await.unwrap().unwrap();
        let certificate = match report {
            EgressReport::Ready { certificate, .. } => certificate,
            other => panic!("{other:?}"),
        };
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let stream = StdListener::bind("127.0.0.1:0").unwrap();
        let world = Self {
            channel,
            folder,
            certificate,
            dns: datagrams.local_addr().unwrap(),
            dns_stream: stream.local_addr().unwrap(),
            proxy,
        };
        world.hand(53, Transport::Udp, datagrams.into()).await;
        world.hand(53, Transport::Tcp, stream.into()).await;
        for port in ports {
            world.hand(*port, Transport::Tcp, listener(Ipv4Addr::UNSPECIFIED, *port).into()).await;
        }
        world
    }

    async fn hand(&self, port: u16, transport: Transport, fd: OwnedFd) {
        let order = EgressCommand::Listeners(vec![EgressListener { port, transport }]);
        self.channel.send(&order, &[fd.as_fd()]).await.unwrap();
    }

    /// What a host is answered.
    pub(crate) async fn ask(&self, request: EgressRequest) -> EgressResponse {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        self.channel.send(&EgressCommand::Caller, &[theirs.as_fd()]).await.unwrap();
        drop(theirs);
        ours.set_nonblocking(true).unwrap();
        let mut ours = UnixStream::from_std(ours).unwrap();
        let bytes = bastide_proto::encode_prefixed(&request).unwrap();
        soon(ours.write_all(&bytes)).await.unwrap();
        let mut prefix = [0; LENGTH_BYTES];
        soon(ours.read_exact(&mut prefix)).await.unwrap();
        let mut body = vec![0; prefixed_length(prefix, 1 << 20).unwrap()];
        soon(ours.read_exact(&mut body)).await.unwrap();
        bastide_proto::decode(&body).unwrap()
    }

    /// Asks for something, and is gone before anybody reads it.
    pub(crate) async fn ask_and_leave(&self, request: EgressRequest) {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let bytes = bastide_proto::encode_prefixed(&request).unwrap();
        std::io::Write::write_all(&mut ours, &bytes).unwrap();
        drop(ours);
        self.channel.send(&EgressCommand::Caller, &[theirs.as_fd()]).await.unwrap();
    }

    /// Hears what the warden is told of a change.
    pub(crate) async fn changed(&self) {
        let (report, _) = soon(self.channel.receive::<EgressReport>()).await.unwrap().unwrap();
        assert!(matches!(report, EgressReport::Changed { .. }), "{report:?}");
    }

    /// The answer to a question about a name.
    pub(crate) async fn query(&self, name: &str, kind: RecordType) -> Message {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.set_edns(Edns::new());
        let reply = self.exchange(&message.to_vec().unwrap()).await;
        let reply = Message::from_vec(&reply).unwrap();
        assert_eq!(reply.metadata.id, message.metadata.id);
        reply
    }

    /// The answer to a datagram.
    pub(crate) async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        // Connected: an answer from another address would not arrive.
        socket.connect(self.dns).await.unwrap();
        socket.send(bytes).await.unwrap();
        let mut buffer = vec![0; 4096];
        let length = soon(socket.recv(&mut buffer)).await.unwrap();
        buffer.truncate(length);
        buffer
    }

    pub(crate) async fn dns_stream(&self) -> TcpStream {
        TcpStream::connect(self.dns_stream).await.unwrap()
    }

    /// The address that stands for a name.
    pub(crate) async fn address(&self, name: &str) -> Ipv4Addr {
        let reply = self.query(&format!("{name}."), RecordType::A).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{name}");
        match &reply.answers[0].data {
            RData::A(address) => address.0,
            other => panic!("{other:?}"),
        }
    }

    /// A connection, as a program inside makes it.
    pub(crate) async fn dial(&self, name: &str, port: u16) -> TcpStream {
        soon(TcpStream::connect((self.address(name).await, port))).await.unwrap()
    }

    /// Whether a connection is reset, at once or when it is read.
    pub(crate) async fn is_reset(&self, address: Ipv4Addr, port: u16) -> bool {
        match soon(TcpStream::connect((address, port))).await {
            Ok(mut stream) => soon(stream.read_u8()).await.is_err(),
            Err(_) => true,
        }
    }

    /// TLS with whoever answers, who must be trusted by `roots` (PEM).
    pub(crate) async fn dial_tls(
        &self,
        name: &str,
        port: u16,
        roots: &str,
        alpn: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = self.dial(name, port).await;
        handshake(stream, name, roots, alpn).await
    }

    /// The session's certificate.
    pub(crate) fn session_roots(&self) -> &str {
        self.certificate.as_deref().unwrap()
    }

    /// What is on record, once something is that fits.
    pub(crate) async fn noted(
        &self,
        fits: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        soon(async {
            loop {
                let text = std::fs::read_to_string(self.folder.path().join("notes")).unwrap();
                let mut all = text.lines().filter_map(|line| serde_json::from_str(line).ok());
                if let Some(found) = all.find(|note| fits(note)) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// A record of a denial with this reason.
    pub(crate) async fn denied(&self, why: &str) -> serde_json::Value {
        self.noted(|note| note["decision"] == "deny" && note["why"] == why).await
    }
}

fn json_of(policy: &str) -> String {
    use bastide_model::document::Format;
    use bastide_model::policy::Policy;
    Policy::parse("policy.yaml", policy, Format::Yaml).unwrap().to_value().to_string()
}

/// The policy as the program takes it.
pub(crate) fn set(policy: &str) -> EgressRequest {
    EgressRequest::Set { policy: json_of(policy), secrets: Vec::new() }
}

pub(crate) async fn handshake(
    stream: TcpStream,
    name: &str,
    roots: &str,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut store = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots.as_bytes()) {
        store.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    soon(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

/// Sends bytes and reads everything until the other side ends.
pub(crate) async fn talk<I: AsyncRead + AsyncWrite + Unpin>(mut io: I, bytes: &str) -> String {
    soon(io.write_all(bytes.as_bytes())).await.unwrap();
    let mut all = Vec::new();
    // TLS that ends without a farewell is an end all the same.
    drop(soon(io.read_to_end(&mut all)).await);
    String::from_utf8_lossy(&all).into_owned()
}

/// A request with `connection: close`.
pub(crate) fn get(host: &str, path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n")
}

/// An authority of the outside.
pub(crate) struct OutsideAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
    folder: TempDir,
}

impl OutsideAuthority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "outside");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let text = base64::engine::general_purpose::STANDARD.encode(certificate.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("roots.pem"), &pem).unwrap();
        Self { issuer: Issuer::new(params, key), pem, folder }
    }

    /// The file of it.
    pub(crate) fn roots(&self) -> PathBuf {
        self.folder.path().join("roots.pem")
    }

    /// How a server answers for a name.
    pub(crate) fn server(&self, name: &str, is_expired: bool, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        if is_expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    /// A server of HTTPS that answers what it was asked; its port.
    pub(crate) fn https(&self, name: &str, alpn: &'static [&'static [u8]]) -> u16 {
        serve_tls(self.server(name, false, alpn))
    }
}

pub(crate) fn serve_tls(config: Arc<ServerConfig>) -> u16 {
    serve(move |stream| {
        let config = Arc::clone(&config);
        async move {
            let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else { return };
            let is_two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            serve_http(stream, is_two).await;
        }
    })
}

/// A server of HTTP that answers what it was asked; its port.
pub(crate) fn http() -> u16 {
    serve(|stream| serve_http(stream, false))
}

async fn serve_http<I>(io: I, is_two: bool)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(io);
    if is_two {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(server.serve_connection(io, service_fn(echo)).await);
    } else {
        let server = hyper::server::conn::http1::Builder::new();
        drop(server.serve_connection(io, service_fn(echo)).with_upgrades().await);
    }
}

/// Says what came; a WebSocket is answered byte by byte.
async fn echo(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        let reflected = request.headers().get("x-key").cloned();
        let first = reflected.clone();
        tokio::spawn(async move {
            let Ok(io) = upgrade.await else { return };
            let (mut read, mut write) = tokio::io::split(TokioIo::new(io));
            if let Some(value) = first {
                drop(write.write_all(value.as_bytes()).await);
            }
            drop(tokio::io::copy(&mut read, &mut write).await);
        });
        let mut response = Response::builder()
            .status(101)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket");
        if let Some(value) = reflected {
            response = response.header("x-reflected", value);
        }
        if let Some(value) = request.headers().get("sec-websocket-extensions") {
            response = response.header("sec-websocket-extensions", value);
        }
        return Ok(response.body(Full::default()).unwrap());
    }
    let mut said = format!("{} {} {:?}\n", request.method(), request.uri(), request.version());
    for (name, value) in request.headers() {
        said.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    let reflected = request.headers().get("authorization").cloned();
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    said.push_str(&format!("body: {}\n", String::from_utf8_lossy(&body.unwrap_or_default())));
    let mut response = Response::new(Full::from(said));
    if let Some(value) = reflected {
        response.headers_mut().insert("x-reflected", value);
    }
    Ok(response)
}

/// The status of a response, and its text.
pub(crate) fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or_default()
}
