//! Secrets that never come inside.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide_proto::egress::EgressSecret;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{OutsideAuthority, ProxyFixture, get, http, soon, status, talk};

const VALUE: &str = "value-of-the-secret-0123456789";
const PLACEHOLDER: &str = "bst-secret-0123456789abcdef0123456789abcdef";

fn secrets() -> Vec<EgressSecret> {
    let secret = |name: &str, placeholder: Option<&str>| EgressSecret {
        name: name.into(),
        value: VALUE.into(),
        placeholder: placeholder.map(str::to_owned),
    };
    vec![secret("GH", None), secret("KEY", Some(PLACEHOLDER))]
}

fn policy(port: u16, clear: u16) -> String {
    format!(
        "rules:
- allow: git.org
  ports: [{port}]
  protocol: tls
  inject: [{{header: Authorization, value: 'Basic ${{GH|basic:me}}'}}]
- allow: api.org
  ports: [{port}]
  protocol: tls
- allow: other.org
  ports: [{port}]
  protocol: tls
  http: [{{methods: [GET]}}]
- allow: api.org
  ports: [{clear}]
  protocol: http
secrets:
  GH: {{from: 'env:GH'}}
  KEY: {{from: 'env:KEY', env: KEY, hosts: [api.org]}}
hosts: {{git.org: 127.0.0.2, api.org: 127.0.0.2, other.org: 127.0.0.2}}
"
    )
}

async fn ask(world: &ProxyFixture, host: &str, port: u16, path: &str, headers: &str) -> String {
    let roots = world.session_roots();
    let stream = world.dial_tls(host, port, roots, &[b"http/1.1"]).await.unwrap();
    talk(stream, &get(host, path, headers)).await
}

#[tokio::test]
async fn are_injected_and_do_not_come_back() {
    let outside = OutsideAuthority::new();
    let port = outside.https("git.org", &[b"http/1.1"]);
    let world =
        ProxyFixture::with(&policy(port, 1), &[port], &secrets(), Some(outside.roots())).await;
    let said =
        ask(&world, "git.org", port, "/", "Authorization: mine\r\nAccept-Encoding: gzip\r\n").await;
    assert_eq!(status(&said), "200", "{said}");
    // The server heard it, and said it back, in its text and in a header.
    assert!(said.contains("authorization: Basic [secret GH]"), "{said}");
    assert!(said.contains("x-reflected: Basic [secret GH]"), "{said}");
    assert!(said.contains("accept-encoding: identity") && !said.contains("mine"), "{said}");
    let encoded = STANDARD.encode(format!("me:{VALUE}"));
    assert!(!said.contains(VALUE) && !said.contains(&encoded), "{said}");
    let note = world.noted(|note| note["decision"] == "allow").await;
    assert_eq!(note["secrets"], serde_json::json!(["GH"]));
    let notes = std::fs::read_to_string(world.folder.path().join("notes")).unwrap();
    assert!(!notes.contains(VALUE) && !notes.contains(&encoded));
}

#[tokio::test]
async fn take_the_place_of_their_placeholders() {
    let outside = OutsideAuthority::new();
    let port = outside.https("api.org", &[b"http/1.1"]);
    let world =
        ProxyFixture::with(&policy(port, 1), &[port], &secrets(), Some(outside.roots())).await;
    let bearer = format!("Authorization: Bearer {PLACEHOLDER}\r\n");
    let said = ask(&world, "api.org", port, "/", &bearer).await;
    assert!(said.contains(&format!("authorization: Bearer {PLACEHOLDER}")), "{said}");
    assert!(said.contains("accept-encoding: identity") && !said.contains(VALUE), "{said}");
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("u:{PLACEHOLDER}")));
    let said = ask(&world, "api.org", port, "/", &basic).await;
    assert!(said.contains(&format!("authorization: Basic {PLACEHOLDER}")), "{said}");
    // Nothing of it without a placeholder.
    let said = ask(&world, "api.org", port, "/", "X-A: b\r\n").await;
    assert!(status(&said) == "200" && !said.contains("accept-encoding"), "{said}");
}

#[tokio::test]
async fn go_to_their_hosts_alone() {
    let outside = OutsideAuthority::new();
    let (port, clear) = (outside.https("other.org", &[b"http/1.1"]), http());
    let world =
        ProxyFixture::with(&policy(port, clear), &[port, clear], &secrets(), Some(outside.roots()))
            .await;
    let header = format!("X-Key: {PLACEHOLDER}\r\n");
    let said = ask(&world, "other.org", port, "/", &header).await;
    assert!(status(&said) == "403" && said.contains("secret_exfiltration"), "{said}");
    let said = ask(&world, "other.org", port, &format!("/?k={PLACEHOLDER}"), "").await;
    assert!(status(&said) == "403" && said.contains("secret_exfiltration"), "{said}");
    let said = talk(world.dial("api.org", clear).await, &get("api.org", "/", &header)).await;
    assert!(status(&said) == "403" && said.contains("in the clear"), "{said}");
    let note = world.denied("secret_exfiltration").await;
    assert!(!note.to_string().contains(VALUE), "{note}");
}

#[tokio::test]
async fn do_not_come_back_by_a_web_socket() {
    let outside = OutsideAuthority::new();
    let port = outside.https("api.org", &[b"http/1.1"]);
    let world =
        ProxyFixture::with(&policy(port, 1), &[port], &secrets(), Some(outside.roots())).await;
    let roots = world.session_roots();
    let mut stream = world.dial_tls("api.org", port, roots, &[b"http/1.1"]).await.unwrap();
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: api.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\nX-Key: {PLACEHOLDER}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && !head.contains(VALUE), "{head}");
    assert!(head.contains(&format!("x-reflected: {PLACEHOLDER}")), "{head}");
    // What is compressed could not be looked through.
    assert!(!head.contains("deflate"), "{head}");
    let mut first = vec![0; VALUE.len()];
    soon(stream.read_exact(&mut first)).await.unwrap();
    assert_eq!(first, vec![b'*'; VALUE.len()], "frames stay as long as they say");
    // Also in pieces, and what only begins like it comes through.
    let (beginning, rest) = VALUE.split_at(9);
    for part in [beginning, rest, beginning] {
        stream.write_all(part.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut back = vec![0; VALUE.len() + beginning.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();
    let (masked, plain) = back.split_at(VALUE.len());
    assert_eq!(masked, vec![b'*'; VALUE.len()]);
    assert_eq!(plain, beginning.as_bytes());
}
