//! Several sinks, one after the other.

use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::events::Event;

use crate::Result;
use crate::events::{BoundSession, Sink, SinkOptions};

/// Sinks that are served strictly in order: one has an event before the next one gets it. Each
/// keeps its own policy and its own [`OnError`](crate::events::OnError); its own
/// [`Delivery`](crate::events::Delivery) has no effect here.
#[derive(Debug)]
pub struct ChainedSink {
    sinks: Vec<Arc<dyn Sink>>,
    options: SinkOptions,
}

impl ChainedSink {
    /// A chain of these sinks, in this order.
    pub fn new(sinks: impl IntoIterator<Item = Arc<dyn Sink>>) -> Self {
        Self { sinks: sinks.into_iter().collect(), options: SinkOptions::sync() }
    }
}

#[async_trait]
impl Sink for ChainedSink {
    fn kind(&self) -> &'static str {
        "ChainedSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    fn bind(&self, session: &BoundSession) -> Result<Option<Arc<dyn Sink>>> {
        // Its sinks are bound one by one.
        let _ = session;
        Ok(None)
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        for event in events {
            for sink in &self.sinks {
                sink.handle(std::slice::from_ref(event)).await?;
            }
        }
        Ok(())
    }

    fn members(&self) -> Option<&[Arc<dyn Sink>]> {
        Some(&self.sinks)
    }
}
