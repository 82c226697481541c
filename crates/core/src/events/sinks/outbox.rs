//! Events in a file of the host.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide_model::events::Event;

use crate::events::{Sink, SinkOptions};
use crate::{Error, ErrorKind, Result};

/// How long to wait for somebody else who writes to the file.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long before looking again whether they are done.
const AGAIN: Duration = Duration::from_millis(2);

/// Appends each event as a line of JSON to a file of the host, for somebody else to collect.
#[derive(Debug)]
pub struct JsonlOutbox {
    path: PathBuf,
    pub(super) options: SinkOptions,
}

impl JsonlOutbox {
    /// Appends to `path`; missing folders are created.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), options: SinkOptions::best_effort() }
    }
}

#[async_trait]
impl Sink for JsonlOutbox {
    fn kind(&self) -> &'static str {
        "JsonlOutboxSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let lines: String = events.iter().map(|event| event.json_line()).collect();
        append(&self.path, lines).await
    }
}

/// Appends whole lines to a file, by one write. Others who do the same are waited for a while; one who
/// never lets go does not keep a line away.
pub(in crate::events) async fn append(path: &Path, lines: String) -> Result<()> {
    let failed = |error: io::Error| {
        let message = format!("cannot write events to {}: {error}", path.display());
        Error::new(ErrorKind::Io, message).with_source(error)
    };
    let place = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || open(&place)).await;
    let file = opened.unwrap_or_else(|gone| Err(io::Error::other(gone))).map_err(failed)?;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        if tokio::time::Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(AGAIN).await;
    }
    let written = tokio::task::spawn_blocking(move || (&file).write_all(lines.as_bytes())).await;
    written.unwrap_or_else(|gone| Err(io::Error::other(gone))).map_err(failed)
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().append(true).create(true).open(path)
}
