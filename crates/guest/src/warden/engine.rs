//! Asking a container engine for something, without waiting for more than whether it was done.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long the engine may take for one thing.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest first line of an answer.
const MOST_LINE: usize = 256;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineOutcome {
    /// It was done.
    Yes,
    /// There was nothing to do it to.
    Nothing,
}

/// Asks the engine that listens on `socket` for one thing.
pub(super) fn ask(socket: &Path, method: &str, path: &str) -> io::Result<EngineOutcome> {
    let mut engine = UnixStream::connect(socket)?;
    engine.set_read_timeout(Some(TIMEOUT))?;
    engine.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n");
    engine.write_all(request.as_bytes())?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MOST_LINE && byte != *b"\n" {
        engine.read_exact(&mut byte)?;
        line.extend_from_slice(&byte);
    }
    match status(&line) {
        // Not running any more is what whoever asks for an end wants; gone is better.
        Some(304 | 404 | 409) => Ok(EngineOutcome::Nothing),
        Some(200..=299) => Ok(EngineOutcome::Yes),
        Some(status) => Err(io::Error::other(format!("{method} {path}: {status}"))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn status(line: &[u8]) -> Option<u16> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_status_and_nothing_else() {
        let cases: [(&[u8], Option<u16>); 5] = [
            (b"HTTP/1.0 204 No Content\r\n", Some(204)),
            (b"HTTP/1.1 404 Not Found\r\n", Some(404)),
            (b"HTTP/2 200\r\n", None),
            (b"\xff\xff", None),
            (b"", None),
        ];
        for (line, want) in cases {
            assert_eq!(status(line), want, "{line:?}");
        }
    }
}
