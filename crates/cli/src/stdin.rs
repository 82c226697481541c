//! What is typed or piped into Bastide, handed on to a command.

use std::io::{ErrorKind, Read};

use bastide::{Error, ProcessWriter, Result};
use tokio::sync::mpsc;

/// How much is read at a time.
const CHUNK: usize = 64 * 1024;

/// How many pieces may wait for the command to read them.
const WAITING: usize = 4;

/// Standard input, piece by piece. A thread of its own reads it: a read from a terminal cannot be given
/// up, and must not keep anybody from going on.
#[derive(Debug)]
pub(crate) struct Stdin {
    chunks: mpsc::Receiver<Vec<u8>>,
}

impl Stdin {
    pub(crate) fn open() -> Result<Self> {
        let (to_reader, chunks) = mpsc::channel(WAITING);
        let reading = move || {
            let mut stdin = std::io::stdin().lock();
            loop {
                let mut chunk = vec![0; CHUNK];
                match stdin.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(count) => chunk.truncate(count),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => return,
                }
                if to_reader.blocking_send(chunk).is_err() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("stdin".to_owned()).spawn(reading);
        started.map_err(|error| {
            let message = format!("cannot start a thread to read standard input: {error}");
            Error::new(bastide::ErrorKind::Io, message)
        })?;
        Ok(Self { chunks })
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        self.chunks.recv().await
    }
}

/// Hands on everything there is, then says that this was all.
pub(crate) async fn feed(to: ProcessWriter, mut stdin: Stdin) {
    while let Some(chunk) = stdin.next().await {
        // A command that is gone says so itself.
        if to.write(chunk).await.is_err() {
            return;
        }
    }
    drop(to.close().await);
}
