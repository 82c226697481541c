//! What a command said: all of it in the log, lines for whoever listens, and a bounded part for the
//! result.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use bastide::{Error, ErrorKind, Result};

use crate::stream::{Lines, Listener, StreamName};

/// The file with all that was said.
pub(crate) const LOG: &str = "log";

/// How much of each stream is held; the log has all of it.
const MAX_HELD: usize = 16 << 20;

/// Makes the folder that results are kept in.
pub(crate) fn make_results(results: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(results).map_err(|error| {
        let message = format!("cannot keep results in {}: {error}", results.display());
        Error::new(ErrorKind::Io, message)
    })
}

/// What was said so far.
pub(crate) struct Transcript {
    log: File,
    out: StreamLines,
    err: StreamLines,
}

impl Transcript {
    /// One that goes on with the log in this folder.
    pub(crate) fn open(results: &Path) -> Result<Self> {
        make_results(results)?;
        let log = File::options().append(true).create(true).open(results.join(LOG));
        let (out, err) =
            (StreamLines::new(StreamName::Stdout), StreamLines::new(StreamName::Stderr));
        Ok(Self { log: log.map_err(|error| not_logged(&error))?, out, err })
    }

    pub(crate) fn append(
        &mut self,
        stream: StreamName,
        chunk: &[u8],
        listener: &mut Listener<'_>,
    ) -> Result<()> {
        self.log.write_all(chunk).map_err(|error| not_logged(&error))?;
        let collected = match stream {
            StreamName::Stdout => &mut self.out,
            StreamName::Stderr => &mut self.err,
        };
        collected.append(chunk, listener);
        Ok(())
    }

    /// What is held of both streams.
    pub(crate) fn finish(self, listener: &mut Listener<'_>) -> (String, String) {
        (self.out.finish(listener), self.err.finish(listener))
    }
}

fn not_logged(error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot log: {error}"))
}

struct StreamLines {
    stream: StreamName,
    lines: Lines,
    held: Vec<u8>,
}

impl StreamLines {
    fn new(stream: StreamName) -> Self {
        Self { stream, lines: Lines::default(), held: Vec::new() }
    }

    fn append(&mut self, chunk: &[u8], listener: &mut Listener<'_>) {
        let room = MAX_HELD.saturating_sub(self.held.len()).min(chunk.len());
        self.held.extend_from_slice(chunk.get(..room).unwrap_or_default());
        for line in self.lines.add(chunk) {
            listener.line(&line, self.stream);
        }
    }

    fn finish(mut self, listener: &mut Listener<'_>) -> String {
        if let Some(line) = self.lines.finish() {
            listener.line(&line, self.stream);
        }
        String::from_utf8_lossy(&self.held).into_owned()
    }
}
