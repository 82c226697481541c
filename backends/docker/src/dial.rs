//! A stream to the guest where no socket can be shared: the streams of one command in the container.

use std::io;

use bastide::Result;
use bastide::backend::Duplex;
use bastide_proto::container::GUEST_PATH;
use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures::{StreamExt, future};
use tokio_util::io::StreamReader;

use crate::engine::{Engine, LARGE};

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
