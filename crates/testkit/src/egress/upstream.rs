//! Networks whose outside is reached by a proxy of a company's, which is all that leads out there.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Greeter, policy, session};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![reaches_the_outside_by_a_proxy];

/// A proxy that knows where one name leads, refuses all others, and remembers what it was asked.
struct CompanyProxy {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl CompanyProxy {
    fn start(knows: &'static str) -> Result<Self, TrialError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let received = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let received = Arc::clone(&received);
                // Whoever goes away early is not missed.
                std::thread::spawn(move || drop(serve(&stream, knows, &received)));
            }
        });
        Ok(Self { port, asked })
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn serve(stream: &TcpStream, knows: &str, received: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    let place = first.split(' ').nth(1).unwrap_or_default().to_owned();
    received.lock().unwrap_or_else(PoisonError::into_inner).push(place.clone());
    let known = first.starts_with("CONNECT ").then(|| place.strip_prefix(knows)).flatten();
    let Some(port) = known.and_then(|port| port.strip_prefix(':')?.parse::<u16>().ok()) else {
        return (&*stream).write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n");
    };
    let outside = TcpStream::connect(("127.0.0.1", port))?;
    (&*stream).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (mut from, mut to) = (outside.try_clone()?, stream.try_clone()?);
    let back = std::thread::spawn(move || {
        drop(io::copy(&mut from, &mut to));
        drop(to.shutdown(Shutdown::Write));
    });
    drop(io::copy(&mut reader, &mut &outside));
    drop(outside.shutdown(Shutdown::Write));
    drop(back.join());
    Ok(())
}

async fn reaches_the_outside_by_a_proxy(context: Context) -> Outcome {
    let (server, direct, canary) = (Greeter::start()?, Greeter::start()?, Greeter::anywhere()?);
    let proxy = CompanyProxy::start("allowed.test")?;
    let text = |proxy: u16| {
        format!(
            "rules:\n- allow: [allowed.test, unknown.test]\n  ports: [{}]\n- allow: in.corp.test\n  ports: [{}]\n  private: \
             true\nhosts: {{in.corp.test: 127.0.0.1}}\nupstream: {{proxy: 'http://127.0.0.1:{proxy}', no_proxy: [corp.test]}}\n",
            server.port, direct.port
        )
    };
    let session = session(&context, policy(&text(proxy.port))?).await?;
    let (port, place) = (server.port.to_string(), format!("allowed.test:{}", server.port));
    // Where the name leads, only the proxy knows.
    let said = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert_eq!((said.as_str(), server.count()), ("heard \"welcome\"\n", 1));
    assert_eq!(proxy.asked(), [place]);
    // What the proxy refuses is not reached by another way, and what is denied is not asked of it.
    let said = attempt(&session, "dial", &["unknown.test", &port]).await?;
    assert!(!said.contains("welcome"), "{said}");
    assert_eq!(proxy.asked(), [format!("unknown.test:{port}")]);
    let canary_port = canary.port.to_string();
    for host in ["denied.test", "allowed.test", "127.0.0.1"] {
        let said = attempt(&session, "dial", &[host, &canary_port]).await?;
        assert!(!said.contains("welcome"), "{host}: {said}");
    }
    // What is said to be near is reached without it.
    let direct_port = direct.port.to_string();
    let said = attempt(&session, "dial", &["in.corp.test", &direct_port]).await?;
    assert_eq!((said.as_str(), proxy.asked().len()), ("heard \"welcome\"\n", 0));
    // Without the proxy there is no way out.
    let gone = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    super::client(&context).set_egress_policy(session.id(), &policy(&text(gone))?).await?;
    let said = attempt(&session, "dial", &["allowed.test", &port]).await?;
    assert!(!said.contains("welcome"), "{said}");
    assert_eq!((server.count(), canary.count()), (1, 0));
    Ok(session.delete().await?)
}
