//! A stream to the guest where no socket can be shared: the streams of one command in the container.

use std::io;
use std::time::Duration;

use bastide::backend::{Connection, Duplex};
use bastide::link::conduit::resumable;
use bastide::{Booted, Error, ErrorKind, Result};
use bastide_proto::CONDUIT_VERSION;
use bastide_proto::container::GUEST_PATH;
use bastide_proto::hello::Token;
use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures::{StreamExt, future};
use tokio_util::io::StreamReader;

use crate::engine::{Engine, LARGE};

/// A connection over a stream that `dial` gave, and over others where that breaks: there is a network between. Guests of
/// before know only one stream.
pub(crate) async fn connection(
    stream: Box<dyn Duplex>,
    token: Token,
    engine: &Engine,
    container: &str,
    protocol: u32,
) -> Result<Connection> {
    if protocol < CONDUIT_VERSION {
        return Ok(direct(stream, token));
    }
    let (engine, container) = (engine.clone(), container.to_owned());
    let again = move || {
        let (engine, container) = (engine.clone(), container.clone());
        async move { dial(&engine, &container).await.map_err(unreached) }
    };
    resumable(stream, &token, again).await
}

/// A machine whose connection goes on over another stream where the one it was booted by breaks.
pub(crate) async fn resumable_boot(
    mut booted: Booted,
    engine: &Engine,
    container: &str,
) -> Result<Booted> {
    if let Some(Connection { stream, token, .. }) = booted.connection.take() {
        let protocol = booted.machine.protocol;
        booted.connection = Some(connection(stream, token, engine, container, protocol).await?);
    }
    Ok(booted)
}

/// A connection that ends with its stream.
pub(crate) fn direct(stream: Box<dyn Duplex>, token: Token) -> Connection {
    Connection { stream, token, side: None, greeted: false, outage: Duration::ZERO }
}

/// A container that is gone, or has ended, is not waited for.
fn unreached(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound | ErrorKind::Conflict => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Starts `dial` in a container and gives its streams.
pub(crate) async fn dial(engine: &Engine, container: &str) -> Result<Box<dyn Duplex>> {
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        cmd: Some(vec![GUEST_PATH.to_owned(), "dial".to_owned()]),
        ..ExecConfig::default()
    };
    let what = "start a command in the container";
    let made = engine.ask(LARGE, what, engine.docker.create_exec(container, config)).await?;
    let options = StartExecOptions { detach: false, tty: false, output_capacity: None };
    let started =
        engine.ask(LARGE, what, engine.docker.start_exec(&made.id, Some(options))).await?;
    let StartExecResults::Attached { output, input } = started else {
        let message = "the engine started a command and kept its streams";
        return Err(bastide::Error::new(bastide::ErrorKind::Io, message));
    };
    // Nothing of ours writes to standard error; what comes there is not the guest's.
    let data = output.filter_map(|said| {
        future::ready(match said {
            Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    Ok(Box::new(tokio::io::join(StreamReader::new(data), input)))
}
