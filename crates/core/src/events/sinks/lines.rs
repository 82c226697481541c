//! Events as lines, for whoever prints them.

use std::fmt;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::events::Event;

use crate::events::{Sink, SinkOptions};
use crate::{Error, ErrorKind, Result};

type WriteLine = dyn Fn(&str) -> io::Result<()> + Send + Sync;

/// Passes each event on as a line of JSON, such as to standard output.
pub struct LineSink {
    print: Box<WriteLine>,
    pub(super) options: SinkOptions,
}

impl LineSink {
    /// Writes by calling `print` with a line, its line end included.
    pub fn new(print: impl Fn(&str) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { print: Box::new(print), options: SinkOptions::sync() }
    }
}

#[async_trait]
impl Sink for LineSink {
    fn kind(&self) -> &'static str {
        "LineSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let lines: String = events.iter().map(|event| event.json_line()).collect();
        (self.print)(&lines).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot print events: {error}")).with_source(error)
        })
    }
}

impl fmt::Debug for LineSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineSink").finish_non_exhaustive()
    }
}
