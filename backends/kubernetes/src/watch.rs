//! What happens to objects, as it happens. Each event holds the whole state; whoever missed some asks anew.

use bastide::Result;
use bytes::Bytes;
use futures::Stream;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::{ANSWER, Cluster, api_error, encoded};
use crate::failure::{ApiStatus, innermost, malformed, refused, silent, unreachable};
use crate::objects::Pod;

/// The longest event.
const MOST_EVENT: usize = 4 << 20;

/// How long the server keeps a watch open.
const SECONDS: u64 = 300;

/// What happened to a pod.
#[derive(Debug, Clone)]
pub(crate) enum PodEvent {
    /// It is like this now.
    Changed(Box<Pod>),
    /// It is gone; this is how it was last.
    Gone(Box<Pod>),
}

/// A watch over some pods of a namespace.
pub(crate) struct PodWatch {
    body: Body,
    buffer: Vec<u8>,
    server: String,
    by: String,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

const WHAT: &str = "watch pods";

impl Cluster {
    /// Watches over the pods with these labels. First comes how each of them is.
    pub(crate) async fn watch_pods(&self, selector: &str) -> Result<PodWatch> {
        let path = self.path("/api/v1", "pods");
        let path = format!(
            "{path}?watch=true&timeoutSeconds={SECONDS}&labelSelector={}",
            encoded(selector)
        );
        let opening = async {
            let response = self.send(WHAT, Request::get(path).body(Body::empty())).await?;
            let status = response.status();
            if !status.is_success() {
                let body = self.body(WHAT, response).await?;
                return Err(api_error(WHAT, status, &body));
            }
            Ok(response)
        };
        let opened = tokio::time::timeout(ANSWER, opening).await;
        let response = opened.unwrap_or_else(|_| Err(silent(&self.server, WHAT)))?;
        let (server, by) = (self.server.clone(), self.access.described());
        Ok(PodWatch { body: response.into_body(), buffer: Vec::new(), server, by })
    }
}

impl PodWatch {
    /// What happens until it is closed, or out of date.
    pub(crate) fn events(self) -> impl Stream<Item = PodEvent> + Send {
        futures::stream::unfold(self, |mut watch| async move {
            let event = watch.next().await.ok().flatten()?;
            Some((event, watch))
        })
    }

    /// The next event; `None` when the server has closed the watch, as it does after a while. May be dropped and
    /// called again.
    async fn next(&mut self) -> Result<Option<PodEvent>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                match self.read(&line)? {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            if self.buffer.len() > MOST_EVENT {
                return Err(malformed(&self.server, WHAT, "an event has no end"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self
                    .buffer
                    .extend_from_slice(&frame.into_data().unwrap_or_else(|_| Bytes::new())),
                Some(Err(error)) => {
                    return Err(unreachable(&self.server, &self.by, &innermost(&error)));
                }
            }
        }
    }

    fn read(&self, line: &[u8]) -> Result<Option<PodEvent>> {
        let wrong = |error: serde_json::Error| malformed(&self.server, WHAT, &error.to_string());
        let event: Event = serde_json::from_slice(line).map_err(wrong)?;
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => {
                Ok(Some(PodEvent::Changed(serde_json::from_value(event.object).map_err(wrong)?)))
            }
            "DELETED" => {
                Ok(Some(PodEvent::Gone(serde_json::from_value(event.object).map_err(wrong)?)))
            }
            "ERROR" => {
                let status: ApiStatus = serde_json::from_value(event.object).map_err(wrong)?;
                Err(refused(WHAT, status.code, &status))
            }
            // Bookmarks, and whatever comes after this was written.
            _ => Ok(None),
        }
    }
}
