//! Ports whose publisher is gone: a program holds them, for as long as there is a session to hold them for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions, ExposedPort, Session};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for, say};
use bastide_testkit::trials;

use crate::until;

pub(crate) const TRIALS: &[Trial] = trials![
    holds_ports_for_as_long_as_the_session,
    holds_no_port_of_a_session_that_went_with_its_maker,
];

/// The word that makes this program one that holds ports.
const HOLD: &str = "hold-ports";

const SOON: Duration = Duration::from_secs(20);

/// Holds ports, if that is what this program was started for.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    let home = words.next().filter(|word| word == HOLD).and_then(|_| words.next())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let held = runtime.block_on(async {
        let backend = crate::backend(Path::new(&home))?;
        backend.hold_ports(tokio::io::stdin(), tokio::io::stdout()).await?;
        Ok::<_, TrialError>(())
    });
    runtime.shutdown_background();
    Some(if held.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A client whose ports are held by a program of their own.
fn client(home: &Path) -> Result<Client, TrialError> {
    let args = vec![HOLD.to_owned(), home.to_string_lossy().into_owned()];
    let backend = crate::backend(home)?.with_port_program(std::env::current_exe()?, args);
    Ok(client_for(Arc::new(backend)))
}

async fn serve(session: &Session) -> Outcome {
    let kubeconfig = bastide_testkit::kubernetes::for_tests()?;
    let cluster = kubeconfig.parent().and_then(Path::parent).ok_or("no folder of a cluster")?;
    let busybox = std::fs::read(cluster.join("packages/bin/busybox"))?;
    session.files().write("busybox", busybox).await?;
    say(session, "chmod 755 busybox && echo served > index.html").await?;
    let server = ["./busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/workspace"];
    session.launch(Command::new(server)).await?;
    Ok(())
}

fn fetch(from: &ExposedPort) -> Result<String, TrialError> {
    let mut stream = TcpStream::connect((from.host.as_str(), u16::try_from(from.port)?))?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

async fn is_served(at: &ExposedPort) -> Outcome {
    let served = || Ok(fetch(at).is_ok_and(|answer| answer.ends_with("served\n")));
    until(SOON, "the port is served", served).await?;
    Ok(())
}

fn is_closed(at: &ExposedPort) -> Result<bool, TrialError> {
    Ok(TcpStream::connect((at.host.as_str(), u16::try_from(at.port)?)).is_err())
}

async fn holds_ports_for_as_long_as_the_session(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let options = CreateOptions::default().detached();
    let client_of_then = client(home.path())?;
    let session = client_of_then.create(&Manifest::default(), options).await?;
    serve(&session).await?;
    let endpoint = session.expose(8080).await?;
    is_served(&endpoint).await?;
    let id = session.id().clone();
    // Whoever published it is gone; somebody else, who could hold none, finds it.
    drop((session, client_of_then));
    is_served(&endpoint).await?;
    let client = client_for(Arc::new(crate::backend(home.path())?));
    let session = client.attach(&id).await?;
    assert_eq!(session.expose(8080).await?, endpoint);
    drop(session);
    client.stop(&id).await?;
    assert!(is_closed(&endpoint)?, "it was stopped");
    let session = client.resume(&id).await?;
    serve(&session).await?;
    let endpoint = session.expose(8080).await?;
    is_served(&endpoint).await?;
    session.delete().await?;
    assert!(is_closed(&endpoint)?, "it was removed");
    Ok(())
}

async fn holds_no_port_of_a_session_that_went_with_its_maker(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let client = client(home.path())?;
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    serve(&session).await?;
    let endpoint = session.expose(8080).await?;
    is_served(&endpoint).await?;
    drop((session, client));
    until(SOON, "nobody listens", || is_closed(&endpoint)).await?;
    Ok(())
}
