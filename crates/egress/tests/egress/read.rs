//! TLS that is read.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::support::{
    OutsideAuthority, ProxyFixture, get, handshake, serve, serve_tls, soon, status, talk,
};

fn policy(port: u16) -> String {
    format!(
        "rules:
- allow: a.org
  ports: [{port}]
  protocol: tls
  http: [{{methods: [GET, POST], paths: ['/ok/**']}}]
- allow: free.org
  ports: [{port}]
  protocol: tls
hosts: {{a.org: 127.0.0.2, free.org: 127.0.0.2}}
"
    )
}

#[tokio::test]
async fn is_answered_by_the_sessions_authority_and_decided() {
    let outside = OutsideAuthority::new();
    let port = outside.https("a.org", &[b"http/1.1"]);
    let world = ProxyFixture::with(&policy(port), &[port], &[], Some(outside.roots())).await;
    let dial = || world.dial_tls("a.org", port, world.session_roots(), &[b"http/1.1"]);
    let said = talk(dial().await.unwrap(), &get("a.org", "/ok/1", "")).await;
    assert!(said.contains("GET /ok/1 HTTP/1.1"), "{said}");
    let said = talk(dial().await.unwrap(), &get("a.org", "/no", "")).await;
    assert!(status(&said) == "403" && said.contains("bastide-decision: deny"), "{said}");
    let said = talk(dial().await.unwrap(), &get("free.org", "/ok/1", "")).await;
    assert_eq!(status(&said), "421", "{said}");
    let note = world.noted(|note| note["decision"] == "allow").await;
    assert_eq!(note["intercepted"].as_bool(), Some(true));
    // The outside's own certificate is not what programs inside see.
    assert!(world.dial_tls("a.org", port, &outside.pem, &[]).await.is_err());
}

#[tokio::test]
async fn has_an_authority_for_its_hosts_alone() {
    let outside = OutsideAuthority::new();
    let port = outside.https("free.org", &[]);
    let world = ProxyFixture::with(&policy(port), &[port], &[], Some(outside.roots())).await;
    // What is not read is not answered by the session's authority, nor could it be.
    assert!(world.dial_tls("free.org", port, world.session_roots(), &[]).await.is_err());
    assert!(world.dial_tls("free.org", port, &outside.pem, &[]).await.is_ok());
    let stream = world.dial("a.org", port).await;
    assert!(handshake(stream, "free.org", world.session_roots(), &[]).await.is_err());
}

#[tokio::test]
async fn speaks_the_second_version_on_both_sides() {
    let outside = OutsideAuthority::new();
    let port = outside.https("a.org", &[b"h2", b"http/1.1"]);
    let world = ProxyFixture::with(&policy(port), &[port], &[], Some(outside.roots())).await;
    let stream = world.dial_tls("a.org", port, world.session_roots(), &[b"h2"]).await.unwrap();
    let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for (method, path) in [("GET", "/ok/1"), ("POST", "/ok/2"), ("GET", "/no"), ("DELETE", "/ok/3")]
    {
        let mut sender = sender.clone();
        answers.push(tokio::spawn(async move {
            let uri = format!("https://a.org{path}");
            let request = http::Request::builder().method(method).uri(uri);
            let body = Full::new(Bytes::from_static(b"hello"));
            let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
            let code = response.status().as_u16();
            let text = response.into_body().collect().await.unwrap().to_bytes();
            (code, String::from_utf8(text.to_vec()).unwrap())
        }));
    }
    let mut said = Vec::new();
    for answer in answers {
        said.push(soon(answer).await.unwrap());
    }
    assert_eq!(said.iter().map(|(code, _)| *code).collect::<Vec<_>>(), [200, 200, 403, 403]);
    assert!(said[1].1.contains("POST https://a.org/ok/2 HTTP/2.0"), "{}", said[1].1);
    assert!(said[1].1.contains("body: hello"), "{}", said[1].1);
}

#[tokio::test]
async fn is_never_carried_to_a_server_nobody_vouches_for() {
    let (outside, foreign) = (OutsideAuthority::new(), OutsideAuthority::new());
    for (config, what) in [
        (outside.server("a.org", true, &[]), "expired"),
        (outside.server("b.org", false, &[]), "name"),
        (foreign.server("a.org", false, &[]), "invalid peer certificate"),
        (self_signed("a.org"), "invalid peer certificate"),
    ] {
        let port = serve_tls(config);
        let world = ProxyFixture::with(&policy(port), &[port], &[], Some(outside.roots())).await;
        let stream = world.dial_tls("a.org", port, world.session_roots(), &[]).await.unwrap();
        let said = talk(stream, &get("a.org", "/ok/", "")).await;
        assert_eq!(status(&said), "502", "{what}: {said}");
        assert!(said.contains("upstream_tls") && said.contains(what), "{what}: {said}");
    }
}

/// A server that vouches for itself.
fn self_signed(name: &str) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let own = params.self_signed(&key).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    Arc::new(config.with_single_cert(vec![own.der().clone()], key).unwrap())
}

type Called = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// A call of gRPC: what came, said back, and its status behind it.
async fn call(request: http::Request<Incoming>) -> Result<http::Response<Called>, Infallible> {
    let te = request.headers().get("te").cloned();
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    if let Some(te) = te {
        trailers.insert("x-te", te);
    }
    let body = Full::new(body.unwrap_or_default()).with_trailers(async { Some(Ok(trailers)) });
    let response = http::Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body.boxed()).unwrap())
}

#[tokio::test]
async fn carries_calls_of_grpc_with_their_trailers() {
    let outside = OutsideAuthority::new();
    let config = outside.server("a.org", false, &[b"h2"]);
    let port = serve(move |stream| {
        let config = Arc::clone(&config);
        async move {
            let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else { return };
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            drop(server.serve_connection(TokioIo::new(stream), service_fn(call)).await);
        }
    });
    let world = ProxyFixture::with(&policy(port), &[port], &[], Some(outside.roots())).await;
    let stream = world.dial_tls("a.org", port, world.session_roots(), &[b"h2"]).await.unwrap();
    let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let message = Bytes::from_static(b"\0\0\0\0\x05hello");
    let request = http::Request::post("https://a.org/ok/Greeter/Greet")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(Full::new(message.clone()))
        .unwrap();
    let response = soon(sender.send_request(request)).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let body = soon(response.into_body().collect()).await.unwrap();
    let trailers = body.trailers().cloned().unwrap();
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-te"]),
        (&"0".parse().unwrap(), &"trailers".parse().unwrap())
    );
    assert_eq!(body.to_bytes(), message);
    // What is denied is no call.
    let request = http::Request::post("https://a.org/no/Greeter/Greet");
    let response = soon(sender.send_request(request.body(Full::default()).unwrap())).await.unwrap();
    assert_eq!(response.status().as_u16(), 403);
}

#[tokio::test]
async fn goes_on_as_a_web_socket() {
    let outside = OutsideAuthority::new();
    let port = outside.https("a.org", &[b"h2", b"http/1.1"]);
    let world = ProxyFixture::with(&policy(port), &[port], &[], Some(outside.roots())).await;
    let roots = world.session_roots();
    let mut stream = world.dial_tls("a.org", port, roots, &[b"http/1.1"]).await.unwrap();
    let request =
        "GET /ok/ws HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream.write_all(b"frames").await.unwrap();
    let mut back = [0; 6];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"frames");
}
