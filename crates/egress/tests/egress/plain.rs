//! HTTP without TLS.

use crate::support::{ProxyFixture, get, http, serve, status, talk};

fn policy(port: u16) -> String {
    format!(
        "rules:
- allow: a.org
  ports: [{port}]
  protocol: http
  http: [{{methods: [GET], paths: ['/ok/**']}}]
- deny: a.org
  reason: ask Ops
- allow: b.org
  ports: [{port}]
  protocol: http
hosts: {{a.org: 127.0.0.2, b.org: 127.0.0.2}}
"
    )
}

#[tokio::test]
async fn is_decided_request_by_request() {
    let port = http();
    let world = ProxyFixture::new(&policy(port), &[port]).await;
    let first = format!("GET /ok/1 HTTP/1.1\r\nHost: a.org:{port}\r\n\r\n");
    let both = format!(
        "{first}POST /ok/2 HTTP/1.1\r\nHost: a.org\r\nContent-Length: 3\r\n\r\nabc{}",
        get("a.org", "/ok/3", "")
    );
    let said = talk(world.dial("a.org", port).await, &both).await;
    assert!(said.contains("GET /ok/1 HTTP/1.1") && said.contains("GET /ok/3 HTTP/1.1"), "{said}");
    assert!(said.contains("HTTP/1.1 403") && !said.contains("POST /ok/2 HTTP"), "{said}");
    for part in [
        "bastide-decision: deny",
        "application/problem+json",
        "\"method\":\"POST\"",
        "\"path\":\"/ok/2\"",
        "ask Ops",
        "\"rule\":2",
        "bastide net suggest s1",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let note = world.denied("rule").await;
    assert_eq!((note["rule"].as_u64(), note["status"].as_u64()), (Some(2), Some(403)));
    let note = world.noted(|note| note["decision"] == "allow").await;
    assert_eq!((note["path"].as_str(), note["status"].as_u64()), (Some("/ok/1"), Some(200)));
}

#[tokio::test]
async fn is_sent_in_the_form_it_was_decided_in() {
    let port = http();
    let world = ProxyFixture::new(&policy(port), &[port]).await;
    for (path, answer) in [
        ("/ok/x/../y?a=%2e%2e", "GET /ok/y?a=%2e%2e HTTP/1.1"),
        ("/no/%2e%2e/ok/%41", "GET /ok/A HTTP/1.1"),
        ("/ok/../no", "403"),
        ("/ok/%2e%2e/no", "403"),
        ("/ok/..%2fno", "400"),
        ("/ok//x", "400"),
        ("/ok/a;b", "400"),
        ("/ok/a%00", "400"),
        ("/ok/a\\b", "400"),
        ("/../ok/a", "400"),
    ] {
        let said = talk(world.dial("a.org", port).await, &get("a.org", path, "")).await;
        let found = if answer.len() == 3 { status(&said) == answer } else { said.contains(answer) };
        assert!(found, "{path}: {said}");
    }
    // Where no rule is about paths, what servers read in several ways is theirs to read.
    let said = talk(world.dial("b.org", port).await, &get("b.org", "/@a%2fb;c//d", "")).await;
    assert!(said.contains("GET /@a%2Fb;c//d HTTP/1.1"), "{said}");
}

#[tokio::test]
async fn is_refused_where_it_can_be_read_in_two_ways() {
    let port = http();
    let world = ProxyFixture::new(&policy(port), &[port]).await;
    let big = format!("GET /ok/ HTTP/1.1\r\nHost: b.org\r\nx: {}\r\n\r\n", "y".repeat(65 << 10));
    let signed = format!("GET /x HTTP/1.1\r\nHost: b.org:+{port}\r\n\r\n");
    for (request, code) in [
        (signed.as_str(), "421"),
        // The letter is another, which names of hosts take for the same.
        ("GET /x HTTP/1.1\r\nHost: \u{ff42}.org\r\n\r\n", "421"),
        ("GET /x HTTP/1.1\r\nHost: a.org\r\n\r\n", "421"),
        ("GET /x HTTP/1.1\r\nHost: b.org:1\r\n\r\n", "421"),
        ("GET /x HTTP/1.1\r\n\r\n", "400"),
        ("GET /x HTTP/1.1\r\nHost: b.org\r\nHost: a.org\r\n\r\n", "400"),
        ("GET http://a.org/x HTTP/1.1\r\nHost: b.org\r\n\r\n", "400"),
        ("CONNECT a.org:443 HTTP/1.1\r\nHost: b.org\r\n\r\n", "400"),
        (
            "POST /x HTTP/1.1\r\nHost: b.org\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400",
        ),
        (
            "POST /x HTTP/1.1\r\nHost: b.org\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            "400",
        ),
        ("GET /x HTTP/1.1\nHost: b.org\n\n", "400"),
        ("GET /x HTTP/1.1\r\nHost: b.org\r\n folded\r\n\r\n", "400"),
        ("GET /x HTTP/1.1\r\nHost: b.org\r\nUpgrade: h2c\r\n\r\n", "400"),
        ("get /x HTTP/1.1\r\nHost: b.org\r\nConnection: close\r\n\r\n", "400"),
        (
            "GET /x HTTP/1.1\r\nHost: b.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: x\r\n\r\n",
            "400",
        ),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
        ("SSH-2.0-x\r\n\r\n", "400"),
        (&big, "400"),
    ] {
        let said = talk(world.dial("b.org", port).await, request).await;
        assert_eq!(status(&said), code, "{:?}: {said}", request.get(..60));
        assert!(!said.contains("body:"), "it was sent: {said}");
    }
    world.denied("wrong_host").await;
    world.denied("bad_request").await;
}

#[tokio::test]
async fn streams_bodies_and_goes_on_as_a_web_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let port = http();
    let world = ProxyFixture::new(&policy(port), &[port]).await;
    let request = "POST /up HTTP/1.1\r\nHost: b.org\r\nConnection: close\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
    let said = talk(world.dial("b.org", port).await, request).await;
    assert!(said.starts_with("HTTP/1.1 100") && said.contains("body: abcdef"), "{said}");
    let mut stream = world.dial("b.org", port).await;
    let request =
        "GET /ws HTTP/1.1\r\nHost: b.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(crate::support::soon(stream.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    for word in [&b"hello\n\0"[..], b"again"] {
        stream.write_all(word).await.unwrap();
        let mut back = vec![0; word.len()];
        crate::support::soon(stream.read_exact(&mut back)).await.unwrap();
        assert_eq!(back, word);
    }
}

#[tokio::test]
async fn says_what_is_wrong_with_the_outside() {
    let closing = serve(|stream| async move { drop(stream) });
    let world = ProxyFixture::new(&policy(closing), &[closing]).await;
    let said = talk(world.dial("b.org", closing).await, &get("b.org", "/", "")).await;
    assert_eq!(status(&said), "502", "{said}");
    assert!(said.contains("upstream_unreachable"), "{said}");
}
