//! Networks that have a policy, against real servers on loopback: what is reached, and that nothing else is.

mod approvals;
mod bypass_attempts;
mod connection_limit;
mod names;
mod outcomes;
mod packages;
mod programs;
mod proxy_failures;
mod reach;
mod refusals;
mod secrets;
mod servers;
mod upstream;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bastide::egress::{EgressStatus, EnvironmentReader};
use bastide::model::Manifest;
use bastide::model::document::Format;
use bastide::model::policy::Policy;
use bastide::{Client, CreateOptions, Session};

use crate::suite::{Context, Trial, TrialError, with_probe};

pub use servers::PackageServer;

/// Every trial of networks that have a policy.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [
        approvals::TRIALS,
        proxy_failures::TRIALS,
        connection_limit::TRIALS,
        names::TRIALS,
        outcomes::TRIALS,
        packages::TRIALS,
        programs::TRIALS,
        reach::TRIALS,
        refusals::TRIALS,
        secrets::TRIALS,
        upstream::TRIALS,
        bypass_attempts::TRIALS,
    ]
    .concat()
}

/// Those that show that a session has such a network, however its base was made.
#[must_use]
pub fn trials_of_copies() -> Vec<Trial> {
    reach::TRIALS.to_vec()
}

/// Those of a rung that has no network of its own.
#[must_use]
pub fn trials_without() -> Vec<Trial> {
    refusals::WITHOUT.to_vec()
}

/// How long something may take that has to happen.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server of the host that greets whoever connects, and counts them.
struct Greeter {
    port: u16,
    received: Arc<AtomicUsize>,
}

impl Greeter {
    /// On loopback.
    fn start() -> Result<Self, TrialError> {
        Self::at(Ipv4Addr::LOCALHOST)
    }

    /// At every address of the host, for connections and datagrams: nobody may get here from inside.
    fn anywhere() -> Result<Self, TrialError> {
        Self::at(Ipv4Addr::UNSPECIFIED)
    }

    fn at(address: Ipv4Addr) -> Result<Self, TrialError> {
        let listener = TcpListener::bind((address, 0))?;
        let port = listener.local_addr()?.port();
        let received = Arc::new(AtomicUsize::new(0));
        let datagrams = UdpSocket::bind((address, port))?;
        let counted = Arc::clone(&received);
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while datagrams.recv(&mut bytes).is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        let counted = Arc::clone(&received);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                // Whoever is gone already heard nothing.
                drop(stream.write_all(b"welcome\n"));
            }
        });
        Ok(Self { port, received })
    }

    fn count(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }
}

/// A policy that lets commands reach `allowed.test`, which is this server, at its port.
fn policy_for(server: &Greeter) -> Result<Policy, TrialError> {
    policy(&format!(
        "rules:\n- allow: allowed.test\n  ports: [{}]\nhosts: {{allowed.test: 127.0.0.1}}\n",
        server.port
    ))
}

fn policy(text: &str) -> Result<Policy, TrialError> {
    Ok(Policy::parse("policy.yaml", text, Format::Yaml)?)
}

/// A client that finds one secret in its caller's environment.
fn client(context: &Context) -> Client {
    let secret = |name: &str| (name == SECRET_VARIABLE).then(|| SECRET.to_owned());
    context.client().with_environment(EnvironmentReader::new(secret))
}

const SECRET_VARIABLE: &str = "BASTIDE_TRIAL_SECRET";
const SECRET: &str = "bastide-canary-4f1a9c";

/// A session with that policy, and the probe in it.
async fn session(context: &Context, policy: Policy) -> Result<Session, TrialError> {
    let options = CreateOptions::default().policy(policy);
    Ok(client(context).create(&with_probe(Manifest::default())?, options).await?)
}

/// What the proxy says, once there is one that is not `before`.
async fn next_proxy(
    context: &Context,
    session: &Session,
    before: u32,
) -> Result<EgressStatus, TrialError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match context.client().egress_status(session.id()).await {
            Ok(status) if status.pid != before => return Ok(status),
            _ if Instant::now() > deadline => return Err("no other proxy was started".into()),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// An address of this host that is not loopback's, if it has one: no packet is sent to find out.
fn own_address() -> Option<SocketAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().filter(|own| !own.ip().is_loopback())
}
