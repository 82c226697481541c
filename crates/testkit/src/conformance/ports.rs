//! Ports inside that are reached from the host.

use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Command, CreateOptions, ExposedPort, NetworkAccess, Process, Session};
use serde_json::json;

use crate::escape::probe;
use crate::suite::{Context, Outcome, Trial, TrialError, skip, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t20_publishes_a_server_inside_under_an_address_that_survives_reconnect,
    reaches_a_server_on_either_loopback_address,
    carries_many_connections_and_large_ones_exactly,
    refuses_connections_where_nobody_listens,
    resolves_only_ports_that_were_declared_or_exposed,
    names_the_port_itself_on_the_hosts_network,
];

/// The longest wait for anything here.
const SOON: Duration = Duration::from_secs(20);

/// Starts a server inside that sends everything back; it is ready when this returns.
async fn serve(session: &Session, address: &str) -> Result<Process, TrialError> {
    let command = Command::new(["./probe", probe::FLAG, "echo", address]).timeout(SOON * 3);
    let mut server = session.spawn(command).await?;
    match server.next().await? {
        bastide::OutputEvent::Stdout(said) if &said[..] == b"listening\n" => Ok(server),
        event => Err(format!("the server said {event:?}").into()),
    }
}

async fn session(context: &Context, options: CreateOptions) -> Result<Session, TrialError> {
    if context.backend.expose().is_none() {
        return Err(skip("this backend publishes no ports"));
    }
    Ok(context.client().create(&with_probe(Manifest::default())?, options).await?)
}

fn connect(to: &ExposedPort) -> Result<TcpStream, TrialError> {
    let stream = TcpStream::connect((to.host.as_str(), u16::try_from(to.port)?))?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    Ok(stream)
}

/// Sends `bytes`, says that this is all, and reads what comes back.
fn talk(to: &ExposedPort, bytes: &[u8]) -> Result<Vec<u8>, TrialError> {
    let mut stream = connect(to)?;
    let mut writer = stream.try_clone()?;
    let sent = bytes.to_vec();
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    writing.join().map_err(|_| "the writer panicked")??;
    Ok(received)
}

async fn t20_publishes_a_server_inside_under_an_address_that_survives_reconnect(
    context: Context,
) -> Outcome {
    let options = CreateOptions::default().exposed_ports([8765, 8765]).detached();
    let first = session(&context, options).await?;
    let server = serve(&first, "127.0.0.1:8765").await?;
    let endpoint = first.compat().resolve_exposed_port(8765).await?;
    assert_eq!((endpoint.host.as_str(), endpoint.tls), ("127.0.0.1", false));
    assert!(endpoint.url_for("http")?.starts_with("http://127.0.0.1:"));
    assert_eq!(talk(&endpoint, b"hello")?, b"hello");
    // A connection that is open while everybody else leaves and comes back stays open.
    let mut held = connect(&endpoint)?;
    held.write_all(b"before ")?;

    let mut server = server;
    server.detach().await?;
    let id = first.id().clone();
    drop((server, first));
    let second = context.client().attach(&id).await?;
    assert_eq!(
        second.compat().resolve_exposed_port(8765).await?,
        endpoint,
        "the address is the same"
    );
    assert_eq!(second.expose(8765).await?, endpoint);
    assert_eq!(talk(&endpoint, b"again")?, b"again");
    held.write_all(b"and after")?;
    held.shutdown(Shutdown::Write)?;
    let mut received = String::new();
    held.read_to_string(&mut received)?;
    assert_eq!(received, "before and after");

    second.delete().await?;
    // Nobody listens there any more once the session is gone.
    assert!(connect(&endpoint).is_err());
    Ok(())
}

async fn reaches_a_server_on_either_loopback_address(context: Context) -> Outcome {
    let session = session(&context, CreateOptions::default()).await?;
    for (number, address) in ["127.0.0.1", "0.0.0.0", "[::1]", "[::]"].into_iter().enumerate() {
        let port = 9000 + u16::try_from(number)?;
        let server = serve(&session, &format!("{address}:{port}")).await?;
        let endpoint = session.expose(port).await?;
        assert_eq!(talk(&endpoint, b"hello")?, b"hello", "{address}");
        drop(server);
    }
    Ok(session.delete().await?)
}

async fn carries_many_connections_and_large_ones_exactly(context: Context) -> Outcome {
    let session = session(&context, CreateOptions::default()).await?;
    let server = serve(&session, "127.0.0.1:9100").await?;
    let endpoint = session.expose(9100).await?;
    let large: Vec<u8> = (0..=u8::MAX).cycle().take(context.count(50_000_000)).collect();
    let calls: Vec<_> = (0..200_usize)
        .map(|number| {
            let endpoint = endpoint.clone();
            let bytes = if number == 0 { large.clone() } else { vec![b'x'; number * 37] };
            tokio::task::spawn_blocking(move || {
                let received = talk(&endpoint, &bytes)?;
                if received == bytes { Ok(()) } else { Err(TrialError::from("bytes were changed")) }
            })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    drop(server);
    Ok(session.delete().await?)
}

async fn refuses_connections_where_nobody_listens(context: Context) -> Outcome {
    let session = session(&context, CreateOptions::default()).await?;
    let endpoint = session.expose(9200).await?;
    let started = Instant::now();
    let mut refused = connect(&endpoint)?;
    let received = refused.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(received, Err(IoErrorKind::ConnectionReset));
    assert!(started.elapsed() < SOON);
    // And works as soon as somebody does.
    let server = serve(&session, "127.0.0.1:9200").await?;
    assert_eq!(talk(&endpoint, b"hello")?, b"hello");
    drop(server);
    Ok(session.delete().await?)
}

async fn resolves_only_ports_that_were_declared_or_exposed(context: Context) -> Outcome {
    let options = CreateOptions::default().exposed_ports([8765]);
    let session = context.client().create(&Manifest::default(), options).await?;
    let error =
        session.compat().resolve_exposed_port(80).await.map(drop).err().ok_or("80 was resolved")?;
    assert_eq!(error.code(), "exposed_port_unavailable");
    assert_eq!(error.to_string(), "port 80 is not configured for host exposure");
    assert_eq!(error.op(), Some("resolve_exposed_port"));
    assert_eq!(error.is_retryable(), Some(false));
    let context_want = json!({"port": 80, "exposed_ports": [8765], "reason": "not_configured"});
    assert_eq!(json!(error.context()), context_want);
    let exposed = session.expose(80).await?;
    assert_eq!(session.compat().resolve_exposed_port(80).await?, exposed);

    session.shutdown().await?;
    let down = session.compat().resolve_exposed_port(80).await.map(drop).err();
    assert_eq!(down.map(|error| json!(error.context())), Some(context_want));

    let wrong = CreateOptions::default().exposed_ports([0]);
    let refused = context.client().create(&Manifest::default(), wrong).await;
    assert!(refused.is_err(), "0 is no port");
    session.delete().await?;
    Ok(())
}

async fn names_the_port_itself_on_the_hosts_network(context: Context) -> Outcome {
    let options = CreateOptions::default().network(NetworkAccess::Host).exposed_ports([8765]);
    let session = context.client().create(&Manifest::default(), options).await?;
    assert_eq!(session.compat().resolve_exposed_port(8765).await?.port, 8765);
    assert_eq!(session.expose(9999).await?.port, 9999);
    assert_eq!(session.compat().resolve_exposed_port(9999).await?.port, 9999);
    assert!(session.compat().resolve_exposed_port(80).await.is_err());
    Ok(session.delete().await?)
}
