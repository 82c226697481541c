//! Connections that nobody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{OutsideAuthority, ProxyFixture, get, handshake, serve, soon, talk};

/// A server that speaks first, as SSH does, and says back what it hears.
fn banner() -> u16 {
    serve(|mut stream| async move {
        drop(stream.write_all(b"SSH-2.0-test\r\n").await);
        let (mut read, mut write) = stream.split();
        drop(tokio::io::copy(&mut read, &mut write).await);
    })
}

fn policy(port: u16, more: &str) -> String {
    format!("rules:\n- allow: a.org\n  ports: [{port}]\n{more}hosts: {{a.org: 127.0.0.2}}\n")
}

#[tokio::test]
async fn pass_untouched_both_ways_and_are_counted() {
    let port = banner();
    let world = ProxyFixture::new(&policy(port, ""), &[port]).await;
    let stream = world.dial("a.org", port).await;
    let (mut read, mut write) = stream.into_split();
    let sent: Vec<u8> = (0..4 << 20).map(|index: u32| index.to_le_bytes()[1]).collect();
    let copy = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&copy).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut all = Vec::new();
    soon(read.read_to_end(&mut all)).await.unwrap();
    writer.await.unwrap();
    assert!(all.starts_with(b"SSH-2.0-test\r\n") && all[14..] == sent);
    let end = world.noted(|note| note["decision"] == "end").await;
    assert_eq!(end["bytes_out"].as_u64(), Some(4 << 20));
    assert_eq!(end["bytes_in"].as_u64(), Some((4 << 20) + 14));
    assert_eq!(end["address"].as_str(), Some("127.0.0.2"));
}

#[tokio::test]
async fn are_reset_where_no_rule_allows_them() {
    let (port, other) = (banner(), banner());
    let more = format!("- allow: b.org\n  ports: [{other}]\n");
    let world = ProxyFixture::new(&policy(port, &more), &[port, other]).await;
    assert!(world.is_reset(world.address("b.org").await, port).await);
    let note = world.denied("no_rule").await;
    assert_eq!((note["host"].as_str(), note["port"].as_u64()), (Some("b.org"), Some(port.into())));
    // An address that stands for nobody.
    assert!(world.is_reset(std::net::Ipv4Addr::new(127, 65, 255, 255), port).await);
}

#[tokio::test]
async fn wait_while_as_many_are_carried_as_may_be() {
    let port = banner();
    let world = ProxyFixture::new(&policy(port, "limits: {connections: 1}\n"), &[port]).await;
    let mut first = world.dial("a.org", port).await;
    assert_eq!(soon(first.read_u8()).await.unwrap(), b'S');
    let mut second = world.dial("a.org", port).await;
    let waited =
        tokio::time::timeout(std::time::Duration::from_millis(200), second.read_u8()).await;
    assert!(waited.is_err());
    drop(first);
    assert_eq!(soon(second.read_u8()).await.unwrap(), b'S');
}

#[tokio::test]
async fn end_with_the_bytes_the_session_may_have() {
    let port = banner();
    let world = ProxyFixture::new(&policy(port, "limits: {bytes: 100}\n"), &[port]).await;
    let mut stream = world.dial("a.org", port).await;
    stream.write_all(&[7; 200]).await.unwrap();
    let mut all = Vec::new();
    drop(soon(stream.read_to_end(&mut all)).await);
    assert!(world.is_reset(world.address("a.org").await, port).await);
    world.denied("limit").await;
}

const TLS: &str = "rules:\n- allow: [a.org, b.org]\n  ports: [PORT]\n  protocol: tls\nhosts: {a.org: 127.0.0.2, b.org: 127.0.0.2}\n";

#[tokio::test]
async fn of_tls_must_name_whom_they_dialled() {
    let outside = OutsideAuthority::new();
    let port = outside.https("a.org", &[]);
    let world = ProxyFixture::new(&TLS.replace("PORT", &port.to_string()), &[port]).await;
    let stream = world.dial_tls("a.org", port, &outside.pem, &[]).await.unwrap();
    let said = talk(stream, &get("a.org", "/x", "")).await;
    assert!(said.contains("GET /x HTTP/1.1"), "{said}");
    // Another name, and none: the alert says so.
    for name in ["b.org", "192.0.2.1"] {
        let stream = world.dial("a.org", port).await;
        let error = handshake(stream, name, &outside.pem, &[]).await.unwrap_err();
        assert!(error.to_string().contains("AccessDenied"), "{name}: {error}");
    }
    let note = world.denied("sni_mismatch").await;
    assert_eq!(note["detail"].as_str(), Some("it names b.org"));
    world.denied("no_sni").await;
    // Something that is no TLS.
    let stream = world.dial("a.org", port).await;
    let said = talk(stream, "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n").await;
    assert!(!said.contains("GET"), "{said}");
}

#[tokio::test]
async fn of_tls_hear_an_alert_where_they_are_denied() {
    let port = banner();
    // No rule is about b.org and this port: it is not known to be TLS, and so reset.
    let policy = format!(
        "rules:\n- allow: a.org\n  ports: [{port}]\n  protocol: tls\n- allow: b.org\n  ports: [1]\n"
    );
    let world = ProxyFixture::new(&policy, &[port]).await;
    assert!(world.is_reset(world.address("b.org").await, port).await);
    let port = banner();
    let denied =
        format!("rules:\n- ask: a.org\n  ports: [{port}]\n  protocol: tls\nask_seconds: 1\n");
    let world = ProxyFixture::new(&denied, &[port]).await;
    let stream = world.dial("a.org", port).await;
    let error = handshake(stream, "a.org", "", &[]).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    world.denied("ask_timeout").await;
}

#[tokio::test]
async fn of_tls_to_an_address_name_no_host_that_is_denied_before_it() {
    let port = banner();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    // Whoever is carried is asked of the proxy.
    let proxy = serve(move |mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { drop(stream.shutdown().await) }
    });
    let policy = format!(
        "rules:\n- deny: b.org\n- allow: 127.0.0.5\n  ports: [{port}]\n  protocol: tls\n  sni: optional\n- deny: '*'\n\
         upstream: {{proxy: 'http://127.0.0.2:{proxy}'}}\n"
    );
    let world = ProxyFixture::new(&policy, &[port]).await;
    // By its address, as a program dials that learned it elsewhere.
    for (name, is_carried) in [("b.org", 0), ("B.ORG", 0), ("c.org", 1)] {
        let stream = TcpStream::connect(("127.0.0.5", port)).await.unwrap();
        assert!(handshake(stream, name, "", &[]).await.is_err());
        assert_eq!(asked.swap(0, Ordering::SeqCst), is_carried, "{name}");
    }
    let note = world.denied("rule").await;
    assert_eq!((note["rule"].as_u64(), note["detail"].as_str()), (Some(1), Some("it names b.org")));
}
