//! Names that the machine's own servers are asked for, by the program as it is shipped.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::connection_limit::{MEMORY, highest_memory};
use super::{Greeter, TIMEOUT, policy, session};
use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError};
use crate::trials;

pub(super) const TRIALS: &[Trial] =
    trials![asks_for_names_only_when_somebody_connects, bounds_a_million_names,];

/// How many bytes of a question come before its name.
const HEADER: usize = 12;

/// A name server that says of every name that it is this machine.
struct NameServer {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    fn start() -> Result<Self, TrialError> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let port = socket.local_addr()?.port();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut question = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                counted.fetch_add(1, Ordering::SeqCst);
                // Whoever does not hear it asks again.
                drop(answer(&question[..length]).map(|answer| socket.send_to(&answer, from)));
            }
        });
        Ok(Self { port, asked })
    }
}

/// One address of this machine for a question of type A, and none for any other.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let name = question.get(HEADER..)?.iter().position(|byte| *byte == 0)?;
    let end = HEADER + name + 5;
    let is_address = question.get(end - 4..end - 2)? == [0, 1];
    let mut said = question.get(..2)?.to_vec();
    said.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    said.extend(question.get(HEADER..end)?);
    if is_address {
        said.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(said)
}

async fn asks_for_names_only_when_somebody_connects(context: Context) -> Outcome {
    let (server, names) = (Greeter::start()?, NameServer::start()?);
    let text = format!(
        "rules:\n- allow: '*.wild.test'\n  ports: [{}]\n  private: true\nupstream: {{dns: '127.0.0.1:{}'}}\n",
        server.port, names.port
    );
    let session = session(&context, policy(&text)?).await?;
    let proxy = context.client().egress_status(session.id()).await?.pid;
    assert_eq!(names.asked.load(Ordering::SeqCst), 0);
    let port = server.port.to_string();
    for name in ["one.wild.test", "two.wild.test", "three.wild.test", "four.wild.test"] {
        assert_eq!(attempt(&session, "dial", &[name, &port]).await?, "heard \"welcome\"\n");
    }
    assert!(names.asked.load(Ordering::SeqCst) >= 4);
    assert_eq!(context.client().egress_status(session.id()).await?.pid, proxy, "none has died");
    Ok(session.delete().await?)
}

/// As many names as somebody likes to think of, all of which a rule could allow.
async fn bounds_a_million_names(context: Context) -> Outcome {
    let server = Greeter::start()?;
    let text = format!(
        "rules:\n- allow: ['**.wild.test', host.test]\n  ports: [{}]\nhosts: {{host.test: 127.0.0.1}}\n",
        server.port
    );
    let (session, neighbour) =
        (session(&context, policy(&text)?).await?, session(&context, policy(&text)?).await?);
    let proxy = context.client().egress_status(session.id()).await?.pid;
    let many = if context.full { "1000000" } else { "50000" };
    let said = attempt(&session, "ask-many", &["wild.test", many]).await?;
    assert!(said.starts_with(&format!("{many} asked, ")), "{said}");
    let memory = highest_memory(proxy)?;
    assert!(memory <= MEMORY, "{memory} KiB after {said}");
    // Whoever else has a network is served as before; and so is this one, once it has calmed down.
    let port = server.port.to_string();
    assert_eq!(attempt(&neighbour, "dial", &["host.test", &port]).await?, "heard \"welcome\"\n");
    let deadline = Instant::now() + TIMEOUT;
    while attempt(&session, "dial", &["host.test", &port]).await? != "heard \"welcome\"\n" {
        assert!(Instant::now() < deadline, "it is never served again");
    }
    assert_eq!(context.client().egress_status(session.id()).await?.pid, proxy, "none has died");
    neighbour.delete().await?;
    Ok(session.delete().await?)
}
