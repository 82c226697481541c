//! Events for a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide_model::events::Event;

use super::append;
use crate::Result;
use crate::compat::raise;
use crate::events::http_post::HttpPost;
use crate::events::{Sink, SinkOptions};

/// Posts events to a server.
///
/// One request carries one event as JSON, as in the reference; with [`batch`](Self::batch) it
/// carries several, one a line. A request that fails is retried with increasing delays, and then
/// written to the [spool](Self::spool), if there is one.
#[derive(Debug)]
pub struct HttpSink {
    post: HttpPost,
    batch: usize,
    spool: Option<PathBuf>,
    pub(super) options: SinkOptions,
}

impl HttpSink {
    /// Posts to `endpoint`.
    ///
    /// # Errors
    ///
    /// Fails if this is not the URL of a server.
    pub fn new(endpoint: &str) -> Result<Self> {
        Ok(Self {
            post: HttpPost::new(endpoint)?,
            batch: 1,
            spool: None,
            options: SinkOptions::best_effort(),
        })
    }

    /// Adds a header to each request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.post.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the timeout of one attempt; 5 seconds by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.post.timeout = timeout;
        self
    }

    /// Sets how often a request is attempted; 3 times by default.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.post.attempts = attempts.max(1);
        self
    }

    /// Sends up to this many events in one request, one a line.
    #[must_use]
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events.max(1);
        self
    }

    /// Compresses requests.
    #[must_use]
    pub fn gzip(mut self) -> Self {
        self.post.gzip = true;
        self
    }

    /// Writes events that could not be sent to a file of the host, one a line.
    #[must_use]
    pub fn spool(mut self, path: impl Into<PathBuf>) -> Self {
        self.spool = Some(path.into());
        self
    }

    async fn send(&self, events: &[Arc<Event>]) -> Result<()> {
        let (content_type, body) = match (events, self.batch) {
            ([event], 1) => ("application/json", event.http_body()),
            _ => {
                let lines = events.iter().map(|event| event.http_body() + "\n");
                ("application/x-ndjson", lines.collect())
            }
        };
        let Err(error) = self.post.send(content_type, body.into_bytes()).await else {
            return Ok(());
        };
        if let Some(spool) = &self.spool {
            let lines = events.iter().map(|event| event.json_line()).collect();
            append(spool, lines).await?;
        }
        let message = format!("http proxy sink POST failed: {error}");
        Err(raise::runtime_error(message).with_source(error))
    }
}

#[async_trait]
impl Sink for HttpSink {
    fn kind(&self) -> &'static str {
        "HttpProxySink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let mut first = Ok(());
        for batch in events.chunks(self.batch) {
            // One that fails is no reason to keep the others back.
            let sent = self.send(batch).await;
            first = first.and(sent);
        }
        first
    }
}
