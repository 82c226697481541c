//! Packages that are kept for other sessions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bastide_proto::egress::EgressResponse;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::support::{OutsideAuthority, ProxyFixture, get, serve, set, status, talk};

fn policy(port: u16, more: &str) -> String {
    format!(
        "rules:\n- allow: a.org\n  ports: [{port}]\n  protocol: tls\n  cache: true\nhosts: {{a.org: 127.0.0.2}}\n{more}"
    )
}

/// A server that counts what it is asked, and says in its answer what it was asked for.
fn counting(outside: &OutsideAuthority, headers: &'static str) -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let (config, asked) = (outside.server("a.org", false, &[]), Arc::clone(&count));
    let port = serve(move |stream| {
        let (config, asked) = (Arc::clone(&config), Arc::clone(&asked));
        async move {
            let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let said = String::from_utf8_lossy(&head).to_lowercase();
            let length = said.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut content = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            let Ok(_) = stream.read_exact(&mut content).await else { return };
            head.extend(content);
            asked.fetch_add(1, Ordering::SeqCst);
            let body = String::from_utf8_lossy(&head).into_owned();
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            drop(stream.write_all(answer.as_bytes()).await);
            drop(stream.shutdown().await);
        }
    });
    (port, count)
}

async fn session(
    outside: &OutsideAuthority,
    policy: &str,
    port: u16,
    folder: &Path,
) -> ProxyFixture {
    let folder = Some(PathBuf::from(folder));
    ProxyFixture::with_packages(policy, &[port], &[], Some(outside.roots()), folder).await
}

async fn fetch(world: &ProxyFixture, port: u16, path: &str, more: &str) -> String {
    let stream = world.dial_tls("a.org", port, world.session_roots(), &[]).await.unwrap();
    talk(stream, &get("a.org", path, more)).await
}

fn body(said: &str) -> &str {
    said.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn are_fetched_once_for_all_sessions_and_looked_at_again() {
    let outside = OutsideAuthority::new();
    let (port, asked) = counting(&outside, "Content-Type: application/gzip\r\n");
    let folder = tempfile::tempdir().unwrap();
    let count = || asked.load(Ordering::SeqCst);
    let first = session(&outside, &policy(port, ""), port, folder.path()).await;
    let evil = "X-Forwarded-Host: evil\r\nUser-Agent: mine\r\n";
    let fetched = fetch(&first, port, "/a-1.0.tgz", evil).await;
    assert_eq!((status(&fetched), count()), ("200", 1), "{fetched}");
    // Nothing that a program says is said to the server whose answer others get.
    assert!(!fetched.contains("evil") && !fetched.contains("mine"), "{fetched}");
    first.end().await;
    let second = session(&outside, &policy(port, ""), port, folder.path()).await;
    let again = fetch(&second, port, "/a-1.0.tgz", "").await;
    assert_eq!((body(&again), count()), (body(&fetched), 1), "it came from here");
    assert!(again.to_lowercase().contains("content-type: application/gzip"), "{again}");
    let note = second.noted(|note| note["detail"] == "from the package cache").await;
    assert_eq!(
        (note["decision"].as_str(), note["path"].as_str()),
        (Some("allow"), Some("/a-1.0.tgz"))
    );
    // What is not the same for everybody is asked for each time, as the program asks.
    for (path, more) in [
        ("/a-1.0.tgz", "Authorization: Basic eA==\r\n"),
        ("/a-1.0.tgz?x=1", ""),
        ("/a-1.0.tgz", "Range: bytes=0-3\r\n"),
        ("/index", ""),
    ] {
        let before = count();
        for _ in 0..2 {
            assert_eq!(status(&fetch(&second, port, path, more).await), "200");
        }
        assert_eq!(count(), before + 2, "{path} {more}");
    }
    // Another in its place is none, and neither is what came by another way.
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "package") {
            std::fs::write(entry.path(), "evil").unwrap();
        }
    }
    let before = count();
    assert_eq!(body(&fetch(&second, port, "/a-1.0.tgz", "").await), body(&fetched));
    assert_eq!(count(), before + 1);
    let other = policy(port, &format!("upstream: {{roots: '{}'}}\n", outside.roots().display()));
    second.end().await;
    let third = session(&outside, &other, port, folder.path()).await;
    fetch(&third, port, "/a-1.0.tgz", "").await;
    assert_eq!(count(), before + 2);
}

/// A server may answer by anything it is told, and others would get that answer.
#[tokio::test]
async fn are_not_changed_by_what_a_program_sends_along() {
    let outside = OutsideAuthority::new();
    let (port, asked) = counting(&outside, "");
    let folder = tempfile::tempdir().unwrap();
    let kept = || std::fs::read_dir(folder.path()).unwrap().count();
    let world = session(&outside, &policy(port, ""), port, folder.path()).await;
    let say = async |request: &str| {
        let stream = world.dial_tls("a.org", port, world.session_roots(), &[]).await.unwrap();
        talk(stream, request).await
    };
    for (more, content) in [("Content-Length: 4\r\n", "evil"), ("Private-Token: evil\r\n", "")] {
        let said = say(&format!("{}{content}", get("a.org", "/a-1.0.tgz", more))).await;
        assert_eq!((status(&said), kept()), ("200", 0), "{said}");
        assert!(said.contains("evil"), "it reaches the server as it was said: {said}");
    }
    // However a program writes the host, the server is told it in one way.
    let said = say(&get("A.Org.", "/a-1.0.tgz", "")).await;
    assert_eq!((status(&said), kept()), ("200", 2), "{said}");
    assert!(said.contains(&format!("host: a.org:{port}\r\n")), "{said}");
    // What follows a wish for something else than HTTP was not looked at, so it is not answered.
    let upgrade = "GET /a-1.0.tgz HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let said = say(&format!("{upgrade}GET / HTTP/1.1\nHost: a.org\nConnection: close\n\n")).await;
    assert_eq!(said.matches("HTTP/1.1 200").count(), 1, "{said}");
    assert_eq!((asked.load(Ordering::SeqCst), kept()), (4, 2));
    world.end().await;
    // What a rule says along is said.
    let injects = "  cache: true\n  inject: [{header: x-tenant, value: own}]\n";
    let policy = policy(port, "").replace("  cache: true\n", injects);
    let world = session(&outside, &policy, port, folder.path()).await;
    let said = fetch(&world, port, "/a-1.0.tgz", "").await;
    assert!(said.contains("x-tenant: own"), "{said}");
}

#[tokio::test]
async fn are_not_kept_where_the_server_does_not_want_it() {
    let outside = OutsideAuthority::new();
    let (port, asked) = counting(&outside, "Cache-Control: private\r\n");
    let folder = tempfile::tempdir().unwrap();
    let world = session(&outside, &policy(port, ""), port, folder.path()).await;
    for _ in 0..2 {
        assert_eq!(status(&fetch(&world, port, "/a-1.0.tgz", "").await), "200");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn are_kept_only_by_sessions_that_began_so() {
    let outside = OutsideAuthority::new();
    let (port, _) = counting(&outside, "");
    let plain = policy(port, "").replace("  cache: true\n", "");
    let world = ProxyFixture::with(&plain, &[port], &[], Some(outside.roots())).await;
    let refused = world.ask(set(&policy(port, ""))).await;
    let EgressResponse::Refused { message } = refused else { panic!("{refused:?}") };
    assert!(message.contains("packages are not kept"), "{message}");
}
