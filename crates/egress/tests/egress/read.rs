//! TLS that is read.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Outside, World, get, handshake, serve_tls, soon, status, talk};

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
    let outside = Outside::new();
    let port = outside.https("a.org", &[b"http/1.1"]);
    let world = World::with(&policy(port), &[port], &[], Some(outside.roots())).await;
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
    let outside = Outside::new();
    let port = outside.https("free.org", &[]);
    let world = World::with(&policy(port), &[port], &[], Some(outside.roots())).await;
    // What is not read is not answered by the session's authority, nor could it be.
    assert!(world.dial_tls("free.org", port, world.session_roots(), &[]).await.is_err());
    assert!(world.dial_tls("free.org", port, &outside.pem, &[]).await.is_ok());
    let stream = world.dial("a.org", port).await;
    assert!(handshake(stream, "free.org", world.session_roots(), &[]).await.is_err());
}

#[tokio::test]
async fn speaks_the_second_version_on_both_sides() {
    let outside = Outside::new();
    let port = outside.https("a.org", &[b"h2", b"http/1.1"]);
    let world = World::with(&policy(port), &[port], &[], Some(outside.roots())).await;
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
    let (outside, foreign) = (Outside::new(), Outside::new());
    for (config, what) in [
        (outside.server("a.org", true, &[]), "expired"),
        (outside.server("b.org", false, &[]), "name"),
        (foreign.server("a.org", false, &[]), "invalid peer certificate"),
    ] {
        let port = serve_tls(config);
        let world = World::with(&policy(port), &[port], &[], Some(outside.roots())).await;
        let stream = world.dial_tls("a.org", port, world.session_roots(), &[]).await.unwrap();
        let said = talk(stream, &get("a.org", "/ok/", "")).await;
        assert_eq!(status(&said), "502", "{what}: {said}");
        assert!(said.contains("upstream_tls") && said.contains(what), "{what}: {said}");
    }
}

#[tokio::test]
async fn goes_on_as_a_web_socket() {
    let outside = Outside::new();
    let port = outside.https("a.org", &[b"h2", b"http/1.1"]);
    let world = World::with(&policy(port), &[port], &[], Some(outside.roots())).await;
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
