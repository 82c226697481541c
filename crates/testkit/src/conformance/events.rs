//! What sessions tell of themselves.

mod audit;
mod load;
mod sinks;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bastide::compat::raise;
use bastide::events::{Event, Sink, SinkOptions};

use crate::suite::{Trial, TrialError};

/// All of them.
pub(super) fn all() -> impl Iterator<Item = Trial> {
    [sinks::TRIALS, audit::TRIALS, load::TRIALS].into_iter().flatten().copied()
}

/// What something failed with, which must not succeed.
fn failure<T>(result: bastide::Result<T>) -> Result<bastide::Error, TrialError> {
    match result {
        Ok(_) => Err("it should have failed".into()),
        Err(error) => Ok(error),
    }
}

/// Keeps what it hears, or fails.
#[derive(Debug)]
pub(super) struct Listener {
    options: SinkOptions,
    recorded_events: Mutex<Vec<Arc<Event>>>,
    fails: fn(&Event) -> bool,
}

impl Listener {
    pub(super) fn new(options: SinkOptions) -> Arc<Self> {
        Self::failing(options, |_| false)
    }

    /// One that does not take some events.
    pub(super) fn failing(options: SinkOptions, fails: fn(&Event) -> bool) -> Arc<Self> {
        Arc::new(Self { options, recorded_events: Mutex::default(), fails })
    }

    pub(super) fn recorded_events(&self) -> Vec<Arc<Event>> {
        self.recorded_events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it heard, as the operations and their halves.
    pub(super) fn operations(&self) -> Vec<String> {
        self.recorded_events()
            .iter()
            .map(|event| format!("{} {}", event.op, event.phase()))
            .collect()
    }
}

#[async_trait]
impl Sink for Listener {
    fn kind(&self) -> &'static str {
        "Listener"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> bastide::Result<()> {
        for event in events {
            if (self.fails)(event) {
                return Err(raise::value_error("not that one"));
            }
            self.recorded_events
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Arc::clone(event));
        }
        Ok(())
    }
}
