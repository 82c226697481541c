//! Policies that change while the session lives, and what somebody is asked about.

use std::time::Duration;

use bastide_proto::egress::{Answer, EgressReport, EgressRequest, EgressResponse, PendingFlow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ProxyFixture, get, http, serve, set, soon, status, talk};

fn echo() -> u16 {
    serve(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        drop(tokio::io::copy(&mut read, &mut write).await);
    })
}

fn policy(action: &str, hosts: &str, port: u16) -> String {
    format!(
        "rules:\n- {action}: {hosts}\n  ports: [{port}]\nhosts: {{a.org: 127.0.0.2, b.org: 127.0.0.2}}\n"
    )
}

#[tokio::test]
async fn end_what_they_no_longer_allow_at_once() {
    let port = echo();
    let world = ProxyFixture::new(&policy("allow", "[a.org, b.org]", port), &[port]).await;
    let (mut a, mut b) = (world.dial("a.org", port).await, world.dial("b.org", port).await);
    for stream in [&mut a, &mut b] {
        stream.write_all(b"x").await.unwrap();
        assert_eq!(soon(stream.read_u8()).await.unwrap(), b'x');
    }
    let EgressResponse::Status(shown) = world.ask(EgressRequest::Show).await else { panic!() };
    assert_eq!((shown.flows.len(), shown.allowed), (2, 2));
    assert!(shown.ports.contains(&port));
    assert_eq!(world.ask(set(&policy("allow", "b.org", port))).await, EgressResponse::Done);
    assert!(soon(a.read_u8()).await.is_err());
    b.write_all(b"y").await.unwrap();
    assert_eq!(soon(b.read_u8()).await.unwrap(), b'y');
    // The warden knows what the next program starts with.
    let (report, fds) = soon(world.channel.receive::<EgressReport>()).await.unwrap().unwrap();
    assert!(
        matches!(report, EgressReport::Changed { policy, .. } if !policy.contains("\"a.org\"],"))
    );
    assert_eq!(fds.len(), 1);
    let refused = world.ask(EgressRequest::Set { policy: "{".into(), secrets: Vec::new() }).await;
    assert!(matches!(refused, EgressResponse::Refused { .. }), "{refused:?}");
}

/// Whoever went away was told that nothing was changed.
#[tokio::test]
async fn change_nothing_for_whoever_no_longer_waits() {
    let port = echo();
    let world = ProxyFixture::new(&policy("allow", "a.org", port), &[port]).await;
    world.ask_and_leave(set(&policy("allow", "[a.org, b.org]", port))).await;
    let refused = world.ask(EgressRequest::Set { policy: "{".into(), secrets: Vec::new() }).await;
    assert!(matches!(refused, EgressResponse::Refused { .. }), "{refused:?}");
    assert_eq!(world.ask(set(&policy("deny", "b.org", port))).await, EgressResponse::Done);
    let (report, _) = soon(world.channel.receive::<EgressReport>()).await.unwrap().unwrap();
    let EgressReport::Changed { policy, .. } = report else { panic!("{report:?}") };
    assert!(policy.contains("deny") && !policy.contains("a.org\"]"), "{policy}");
}

#[tokio::test]
async fn count_what_was_open_before() {
    let port = echo();
    let limited = |most: u32| {
        let limits = format!("limits: {{connections: {most}}}\n");
        policy("allow", "a.org", port) + &limits
    };
    let world = ProxyFixture::new(&limited(2), &[port]).await;
    let carry = async |stream: &mut TcpStream| {
        stream.write_all(b"x").await.unwrap();
        assert_eq!(soon(stream.read_u8()).await.unwrap(), b'x');
    };
    let wait = async |stream: &mut TcpStream| {
        stream.write_all(b"x").await.unwrap();
        let answer = tokio::time::timeout(Duration::from_millis(300), stream.read_u8()).await;
        assert!(answer.is_err(), "it waits for one of those before to end");
    };
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = world.dial("a.org", port).await;
        carry(&mut stream).await;
        open.push(stream);
    }
    // Another policy with the same number is no room for as many again.
    assert_eq!(world.ask(set(&limited(2))).await, EgressResponse::Done);
    world.changed().await;
    let mut third = world.dial("a.org", port).await;
    wait(&mut third).await;
    // One more is room for one.
    assert_eq!(world.ask(set(&limited(3))).await, EgressResponse::Done);
    world.changed().await;
    assert_eq!(soon(third.read_u8()).await.unwrap(), b'x');
    // With fewer, what is open goes on, and what comes waits until enough of it has ended.
    assert_eq!(world.ask(set(&limited(1))).await, EgressResponse::Done);
    world.changed().await;
    carry(&mut third).await;
    drop(open);
    let mut fourth = world.dial("a.org", port).await;
    wait(&mut fourth).await;
    drop(third);
    assert_eq!(soon(fourth.read_u8()).await.unwrap(), b'x');
}

async fn pending(world: &ProxyFixture) -> PendingFlow {
    soon(async {
        loop {
            let EgressResponse::Pending(mut all) = world.ask(EgressRequest::Pending).await else {
                panic!()
            };
            if let Some(first) = all.pop() {
                return first;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

async fn answer(world: &ProxyFixture, id: u64, answer: Answer) {
    let response = world.ask(EgressRequest::Answer { id, answer }).await;
    assert_eq!(response, EgressResponse::Done);
}

#[tokio::test]
async fn hold_what_somebody_is_asked_about() {
    let port = echo();
    let world = ProxyFixture::new(&policy("ask", "'*'", port), &[port]).await;
    let mut stream = world.dial("a.org", port).await;
    stream.write_all(b"x").await.unwrap();
    let waiting = pending(&world).await;
    assert_eq!((waiting.host.as_str(), waiting.port), ("a.org", port));
    answer(&world, waiting.id, Answer::Once).await;
    assert_eq!(soon(stream.read_u8()).await.unwrap(), b'x');
    // Once is once.
    let mut stream = world.dial("a.org", port).await;
    answer(&world, pending(&world).await.id, Answer::Deny).await;
    assert!(soon(stream.read_u8()).await.is_err());
    let mut stream = world.dial("a.org", port).await;
    answer(&world, pending(&world).await.id, Answer::Session).await;
    stream.write_all(b"y").await.unwrap();
    assert_eq!(soon(stream.read_u8()).await.unwrap(), b'y');
    let mut stream = world.dial("a.org", port).await;
    stream.write_all(b"z").await.unwrap();
    assert_eq!(soon(stream.read_u8()).await.unwrap(), b'z');
    let gone = world.ask(EgressRequest::Answer { id: 99, answer: Answer::Once }).await;
    assert!(matches!(gone, EgressResponse::Refused { .. }), "{gone:?}");
}

#[tokio::test]
async fn ask_about_requests_one_by_one() {
    let port = http();
    let text = format!(
        "rules:\n- ask: a.org\n  ports: [{port}]\n  protocol: http\nhosts: {{a.org: 127.0.0.2}}\nask_seconds: 30\n"
    );
    let world = ProxyFixture::new(&text, &[port]).await;
    let stream = world.dial("a.org", port).await;
    let said = tokio::spawn(async move { talk(stream, &get("a.org", "/q", "")).await });
    let waiting = pending(&world).await;
    assert_eq!((waiting.method.as_deref(), waiting.path.as_deref()), (Some("GET"), Some("/q")));
    answer(&world, waiting.id, Answer::Once).await;
    assert_eq!(status(&said.await.unwrap()), "200");
}

#[tokio::test]
async fn approve_no_more_than_was_asked_about() {
    let port = http();
    let text = format!(
        "rules:\n- ask: a.org\n  ports: [{port}]\n  protocol: http\nhosts: {{a.org: 127.0.0.2}}\nask_seconds: 60\n"
    );
    let world = ProxyFixture::new(&text, &[port]).await;
    // Asks, and gives what waits for the answer.
    #[expect(clippy::async_yields_async, reason = "what is waited for here is the connection")]
    let ask = async |request: String| {
        let stream = world.dial("a.org", port).await;
        tokio::spawn(async move { talk(stream, &request).await })
    };
    let said = ask(get("a.org", "/q", "")).await;
    answer(&world, pending(&world).await.id, Answer::Session).await;
    world.changed().await;
    assert_eq!(status(&said.await.unwrap()), "200");
    let said = ask(get("a.org", "/q", "")).await;
    assert_eq!(status(&soon(said).await.unwrap()), "200", "the same needs nobody");
    let post = "POST /q HTTP/1.1\r\nHost: a.org\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    for other in [get("a.org", "/other", ""), get("a.org", "/q/", ""), post.to_owned()] {
        let said = ask(other).await;
        answer(&world, pending(&world).await.id, Answer::Deny).await;
        assert_eq!(status(&said.await.unwrap()), "403");
    }
}

#[tokio::test]
async fn hold_nothing_past_a_policy_that_forbids_it() {
    let port = http();
    let text = |action: &str| {
        format!(
            "rules:\n- {action}: a.org\n  ports: [{port}]\n  protocol: http\nhosts: {{a.org: 127.0.0.2}}\nask_seconds: 60\n"
        )
    };
    let world = ProxyFixture::new(&text("ask"), &[port]).await;
    let stream = world.dial("a.org", port).await;
    let said = tokio::spawn(async move { talk(stream, &get("a.org", "/held", "")).await });
    let waiting = pending(&world).await;
    assert_eq!(world.ask(set(&text("deny"))).await, EgressResponse::Done);
    world.changed().await;
    answer(&world, waiting.id, Answer::Once).await;
    let said = said.await.unwrap();
    assert!(status(&said) == "403" && !said.contains("body:"), "{said}");
}

#[tokio::test]
async fn end_web_sockets_that_a_new_policy_forbids() {
    let port = http();
    let text = |path: &str| {
        format!(
            "rules:\n- allow: a.org\n  ports: [{port}]\n  protocol: http\n  http: [{{paths: ['{path}']}}]\nhosts: {{a.org: 127.0.0.2}}\n"
        )
    };
    let world = ProxyFixture::new(&text("/ws"), &[port]).await;
    let mut stream = world.dial("a.org", port).await;
    let request =
        "GET /ws HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    stream.write_all(b"x").await.unwrap();
    assert_eq!(soon(stream.read_u8()).await.unwrap(), b'x');
    assert_eq!(world.ask(set(&text("/other"))).await, EgressResponse::Done);
    world.changed().await;
    assert!(soon(stream.read_u8()).await.is_err());
}

#[tokio::test]
async fn are_refused_with_roots_that_the_program_cannot_read() {
    let port = echo();
    let world = ProxyFixture::new(&policy("allow", "a.org", port), &[port]).await;
    let outside = tempfile::tempdir().unwrap();
    let roots = outside.path().join("roots.pem");
    std::fs::write(&roots, crate::support::OutsideAuthority::new().pem).unwrap();
    let text =
        format!("{}upstream: {{roots: {}}}\n", policy("allow", "b.org", port), roots.display());
    let refused = world.ask(set(&text)).await;
    let EgressResponse::Refused { message } = refused else { panic!("{refused:?}") };
    assert!(message.contains("roots.pem") && message.contains("resume"), "{message}");
    // And nothing is changed.
    let mut stream = world.dial("a.org", port).await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(soon(stream.read_u8()).await.unwrap(), b'x');
}
