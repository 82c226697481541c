//! Every way out that somebody may think of, and a listener at its end that must hear nothing.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bastide::Session;
use rustix::process::{Pid, Signal, kill_process};

use super::{Greeter, own_address, policy, session};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    lets_nobody_out_by_other_addresses_ports_or_protocols,
    lets_nobody_out_by_what_a_request_says,
    lets_nobody_out_while_the_proxy_stands_still,
];

/// A server of HTTP that counts the requests that reach it.
struct Pages {
    port: u16,
    received: Arc<AtomicUsize>,
}

impl Pages {
    fn start() -> Result<Self, TrialError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let received = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&received);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                // Requests here are short, and come at once.
                if stream.read(&mut request).is_ok_and(|count| count > 0) {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                let page =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n";
                drop(stream.write_all(page));
            }
        });
        Ok(Self { port, received })
    }
}

/// A policy by which `front.test` may be reached by HTTP, and the canary's port is listened to for somebody else.
fn with_front(pages: &Pages, canary: &Greeter) -> String {
    format!(
        "rules:\n- allow: front.test\n  ports: [{}]\n  protocol: http\n  http: [{{methods: [GET], paths: ['/ok/**']}}]\n- allow: [other.test, '*.wild.test']\n  ports: [{}]\nhosts: {{front.test: 127.0.0.1}}\n",
        pages.port, canary.port
    )
}

/// Ways below requests. Each is told with what it must come to.
async fn by_the_network(session: &Session, canary: &Greeter) -> Outcome {
    let port = canary.port.to_string();
    let own = own_address().map_or_else(|| "192.0.2.1".to_owned(), |own| own.ip().to_string());
    // An address of nobody's, this host's own, its loopback, a cloud's metadata.
    for host in ["203.0.113.7", own.as_str(), "127.0.0.1", "169.254.169.254", "198.18.0.1"] {
        for port in [port.as_str(), "22", "853", "8080"] {
            let said = attempt(session, "dial", &[host, port]).await?;
            assert!(!said.contains("welcome"), "{host}:{port}: {said}");
        }
        let said = attempt(session, "datagram", &[&format!("{host}:{port}")]).await?;
        assert!(!said.contains("heard"), "datagrams to {host}: {said}");
    }
    // The sixth version, also around an address of the fourth.
    for host in [format!("[::ffff:{own}]"), "[::1]".to_owned(), "[2001:db8::1]".to_owned()] {
        let said = attempt(session, "dial", &[&host, &port]).await?;
        assert!(!said.contains("welcome"), "{host}: {said}");
    }
    assert_eq!(attempt(session, "raw-sockets", &[]).await?, "");
    let families = attempt(session, "families", &[]).await?;
    let plain = "stream: done\ndatagram: done\nsix: done\nunix: done\nnetlink: done\n";
    assert_eq!(families, plain, "and no other");
    assert_eq!(canary.count(), 0);
    Ok(())
}

async fn lets_nobody_out_by_other_addresses_ports_or_protocols(context: Context) -> Outcome {
    let (pages, canary) = (Pages::start()?, Greeter::anywhere()?);
    let session = session(&context, policy(&with_front(&pages, &canary))?).await?;
    by_the_network(&session, &canary).await?;
    // Names that carry something: whom they are asked of, nobody is told.
    for server in ["198.18.0.1", "203.0.113.53"] {
        let said = attempt(&session, "ask-name", &[server, "s3cret.evil.test"]).await?;
        assert!(said.starts_with("code 3, 0 answers"), "{said}");
    }
    assert_eq!((canary.count(), pages.received.load(Ordering::SeqCst)), (0, 0));
    Ok(session.delete().await?)
}

async fn lets_nobody_out_by_what_a_request_says(context: Context) -> Outcome {
    let (pages, canary) = (Pages::start()?, Greeter::anywhere()?);
    let session = session(&context, policy(&with_front(&pages, &canary))?).await?;
    let (port, elsewhere) = (pages.port.to_string(), canary.port);
    let host = format!("Host: front.test:{port}\\r\\n");
    for (request, code) in [
        // Another host than was dialled, behind the same front.
        ("GET /ok/x HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n".to_owned(), "421"),
        // As if it were a proxy.
        (format!("GET http://127.0.0.1:{elsewhere}/ok/ HTTP/1.1\\r\\n{host}\\r\\n"), "400"),
        (format!("CONNECT 127.0.0.1:{elsewhere} HTTP/1.1\\r\\n{host}\\r\\n"), "400"),
        // Two readings of one message.
        (
            format!(
                "GET /ok/x HTTP/1.1\\r\\n{host}Content-Length: 4\\r\\nContent-Length: 5\\r\\n\\r\\n"
            ),
            "400",
        ),
        (
            format!(
                "GET /ok/x HTTP/1.1\\r\\n{host}Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
            ),
            "400",
        ),
        (format!("GET /ok/x HTTP/1.1\\n{host}\\r\\n"), "400"),
        (format!("GET /ok/x HTTP/1.1\\r\\n{host}X: a\\r\\n folded\\r\\n\\r\\n"), "400"),
        // Another path than it looks like.
        (format!("GET /ok/../no HTTP/1.1\\r\\n{host}\\r\\n"), "403"),
        (format!("GET /ok/%2e%2e/no HTTP/1.1\\r\\n{host}\\r\\n"), "403"),
        (format!("GET /ok/..%2fno HTTP/1.1\\r\\n{host}\\r\\n"), "400"),
        (format!("GET /ok//no HTTP/1.1\\r\\n{host}\\r\\n"), "400"),
        (format!("GET /ok/a;b HTTP/1.1\\r\\n{host}\\r\\n"), "400"),
        (format!("GET /ok/%00 HTTP/1.1\\r\\n{host}\\r\\n"), "400"),
        (format!("POST /ok/x HTTP/1.1\\r\\n{host}Content-Length: 0\\r\\n\\r\\n"), "403"),
    ] {
        let said = attempt(&session, "talk", &["front.test", &port, &request]).await?;
        assert!(said.contains(&format!("HTTP/1.1 {code} ")), "{request}: {said}");
    }
    assert_eq!((canary.count(), pages.received.load(Ordering::SeqCst)), (0, 0));
    let request = format!("GET /ok/x HTTP/1.1\\r\\n{host}Connection: close\\r\\n\\r\\n");
    let said = attempt(&session, "talk", &["front.test", &port, &request]).await?;
    assert!(said.contains("HTTP/1.1 200 "), "{said}");
    assert_eq!(pages.received.load(Ordering::SeqCst), 1, "and what may, does");
    Ok(session.delete().await?)
}

async fn lets_nobody_out_while_the_proxy_stands_still(context: Context) -> Outcome {
    let (pages, canary) = (Pages::start()?, Greeter::anywhere()?);
    let session = session(&context, policy(&with_front(&pages, &canary))?).await?;
    let proxy = context.client().egress_status(session.id()).await?.pid;
    let proxy = i32::try_from(proxy).ok().and_then(Pid::from_raw).ok_or("no process")?;
    kill_process(proxy, Signal::STOP)?;
    let sent = while_stopped(&context, &session, &pages, &canary).await;
    let counts = (canary.count(), pages.received.load(Ordering::SeqCst));
    kill_process(proxy, Signal::CONT)?;
    for said in sent? {
        assert!(!said.contains("welcome") && !said.contains("heard"), "{said}");
    }
    assert_eq!(counts, (0, 0));
    Ok(session.delete().await?)
}

/// What every way out comes to while nobody accepts anything.
async fn while_stopped(
    context: &Context,
    session: &Session,
    pages: &Pages,
    canary: &Greeter,
) -> Result<Vec<String>, TrialError> {
    let own = own_address().map_or_else(|| "192.0.2.1".to_owned(), |own| own.ip().to_string());
    let mut said = Vec::new();
    let port = canary.port.to_string();
    // Ports that nobody listens to, addresses of every kind, other protocols: refused at once.
    for host in [own.as_str(), "203.0.113.7", "127.0.0.1", "169.254.169.254"] {
        for port in ["22", "853", "8080"] {
            said.push(attempt(session, "dial", &[host, port]).await?);
        }
        said.push(attempt(session, "datagram", &[&format!("{host}:{port}")]).await?);
    }
    for host in [format!("[::ffff:{own}]"), "[::1]".to_owned(), "[2001:db8::1]".to_owned()] {
        said.push(attempt(session, "dial", &[&host, "8080"]).await?);
    }
    said.push(attempt(session, "raw-sockets", &[]).await?);
    let families = attempt(session, "families", &[]).await?;
    assert!(families.ends_with("netlink: done\n"), "{families}");
    said.push(say(session, "cat /proc/net/route | wc -l").await?);
    // What a socket listens to that nobody accepts on takes its time, so these are few.
    let host = format!("Host: front.test:{}\\r\\n", pages.port);
    let mut requests = vec![format!("GET /ok/x HTTP/1.1\\r\\n{host}\\r\\n")];
    if context.full {
        requests.push(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n{host}\\r\\n"));
        requests.push(format!("GET /ok/../no HTTP/1.1\\r\\n{host}\\r\\n"));
        requests.push("GET /ok/x HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n".to_owned());
        said.push(attempt(session, "dial", &[&own, "443"]).await?);
        said.push(attempt(session, "dial", &[&own, &port]).await?);
    }
    // By an address that may stand for a name: nobody answers for names now.
    for request in requests {
        let pages = pages.port.to_string();
        said.push(attempt(session, "talk", &["198.18.0.77", &pages, &request]).await?);
    }
    let asked = attempt(session, "ask-name", &["198.18.0.1", "s3cret.evil.test"]).await;
    said.push(asked.unwrap_or_default());
    Ok(said)
}
