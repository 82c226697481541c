//! Events as spans and metrics of OpenTelemetry.

mod metrics;
mod spans;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bastide_model::events::Event;

use super::http_post::HttpPost;
use super::{BoundSession, Sink, SinkOptions};
use crate::Result;

use metrics::Metrics;

/// What OTLP messages are, on their way.
const CONTENT_TYPE: &str = "application/x-protobuf";

/// How long metrics gather before they are sent.
const INTERVAL: Duration = Duration::from_secs(10);

/// Sends spans and metrics to an OpenTelemetry collector, by OTLP over HTTP.
///
/// Each operation is a span `sandbox.<operation>` of the caller's trace; a session outside of any
/// trace is a trace of its own. Metrics count sessions, operations, commands, failures and bytes,
/// and measure the duration of operations.
#[derive(Debug, Clone)]
pub struct OtelSink {
    traces: HttpPost,
    metrics: HttpPost,
    options: SinkOptions,
    backend: Option<String>,
    gathered: Arc<Mutex<PendingMetrics>>,
}

#[derive(Debug)]
struct PendingMetrics {
    metrics: Metrics,
    sent: Instant,
}

impl OtelSink {
    /// Sends to the collector at `endpoint`, such as `http://localhost:4318`.
    ///
    /// # Errors
    ///
    /// Fails if this is not the URL of a collector.
    pub fn new(endpoint: &str) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        Ok(Self {
            traces: HttpPost::new(&format!("{endpoint}/v1/traces"))?,
            metrics: HttpPost::new(&format!("{endpoint}/v1/metrics"))?,
            options: SinkOptions::best_effort().extended(),
            backend: None,
            gathered: Arc::new(Mutex::new(PendingMetrics {
                metrics: Metrics::new(),
                sent: Instant::now(),
            })),
        })
    }

    /// Adds a header to each request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        for post in [&mut self.traces, &mut self.metrics] {
            post.headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Compresses requests.
    #[must_use]
    pub fn gzip(mut self) -> Self {
        self.traces.gzip = true;
        self.metrics.gzip = true;
        self
    }

    /// Sets its options as a sink.
    #[must_use]
    pub fn options(mut self, options: SinkOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds events to the metrics; gives the metrics if it is time to send them.
    fn gather(&self, events: &[Arc<Event>], now: bool) -> Option<Vec<u8>> {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().for_each(|event| gathered.metrics.add(event));
        let is_due = now || gathered.sent.elapsed() >= INTERVAL;
        if !is_due || gathered.metrics.is_empty() {
            return None;
        }
        gathered.sent = Instant::now();
        Some(gathered.metrics.message())
    }
}

#[async_trait]
impl Sink for OtelSink {
    fn kind(&self) -> &'static str {
        "OtelSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    fn bind(&self, session: &BoundSession) -> Result<Option<Arc<dyn Sink>>> {
        let backend = Some(session.backend().to_owned());
        Ok(Some(Arc::new(Self { backend, ..self.clone() })))
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let metrics = self.gather(events, false);
        let sent = match spans::message(events, self.backend.as_deref()) {
            Some(spans) => self.traces.send(CONTENT_TYPE, spans).await,
            None => Ok(()),
        };
        match metrics {
            Some(metrics) => sent.and(self.metrics.send(CONTENT_TYPE, metrics).await),
            None => sent,
        }
    }

    async fn flush(&self) -> Result<()> {
        match self.gather(&[], true) {
            Some(metrics) => self.metrics.send(CONTENT_TYPE, metrics).await,
            None => Ok(()),
        }
    }
}
