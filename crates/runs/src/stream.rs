//! What an agent says while it works: lines, filters, and a word when it says nothing for long.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bastide::{Receipt, SessionId};

/// After how long a silence somebody is told, unless said otherwise.
pub const IDLE: Duration = Duration::from_secs(30);

/// The longest line; a longer one is cut into several.
const MAX_LINE: usize = 1 << 20;

/// Which stream a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl StreamName {
    /// The reference's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Something that happens in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunEvent {
    /// The session is there in which the agent will work.
    Prepared {
        /// Its id.
        session: SessionId,
        /// What is in force in it.
        receipt: Box<Receipt>,
    },
    /// The agent's command starts.
    Started {
        /// The command.
        command: Vec<String>,
    },
    /// The agent said a line, and the filter let this of it through.
    Line {
        /// Where.
        stream: StreamName,
        /// The line, without its end.
        text: String,
    },
    /// The agent has said nothing for a while.
    Idle {
        /// How long it has been running.
        running: Duration,
    },
    /// The agent's command is over.
    Ended {
        /// Its exit code.
        returncode: i32,
    },
}

/// Says what of a line is shown: `None` for nothing, else this text. What is captured is not filtered.
pub trait StreamFilter: Send + Sync {
    /// The line has no end.
    fn filter(&mut self, line: &str, stream: StreamName) -> Option<String>;
}

impl<F: FnMut(&str, StreamName) -> Option<String> + Send + Sync> StreamFilter for F {
    fn filter(&mut self, line: &str, stream: StreamName) -> Option<String> {
        self(line, stream)
    }
}

/// Who listens to a run.
#[derive(Default)]
pub struct Listener<'l> {
    filter: Option<Box<dyn StreamFilter + 'l>>,
    receiver: Option<Box<dyn FnMut(RunEvent) + Send + 'l>>,
    /// After how long a silence it is told.
    pub(crate) idle: Option<Duration>,
    stop: Option<Pin<Box<dyn Future<Output = i32> + Send + 'l>>>,
    /// The signal that came.
    stopped: Option<i32>,
}

impl fmt::Debug for Listener<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl<'l> Listener<'l> {
    /// Nobody.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Somebody who is told everything.
    pub fn new(receiver: impl FnMut(RunEvent) + Send + 'l) -> Self {
        Self { receiver: Some(Box::new(receiver)), idle: Some(IDLE), ..Self::default() }
    }

    /// The same; lines go through this filter first.
    #[must_use]
    pub fn with_filter(mut self, filter: impl StreamFilter + 'l) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// The same; told after so long a silence, or never.
    #[must_use]
    pub fn with_idle(mut self, idle: Option<Duration>) -> Self {
        self.idle = idle;
        self
    }

    /// The same; the command is ended when this is over, with the signal whose number it says. What it did
    /// until then is collected all the same.
    #[must_use]
    pub fn with_stop(mut self, stop: impl Future<Output = i32> + Send + 'l) -> Self {
        self.stop = Some(Box::pin(stop));
        self
    }

    /// Waits until the command is to end: the number of the signal. It can be waited for again.
    pub(crate) async fn stopped(&mut self) -> i32 {
        if let (None, Some(stop)) = (self.stopped, &mut self.stop) {
            self.stopped = Some(stop.await);
        }
        match self.stopped {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }

    /// Tells of something.
    pub fn notify(&mut self, event: RunEvent) {
        if let Some(receiver) = &mut self.receiver {
            receiver(event);
        }
    }

    /// Tells of a line, if the filter lets it through.
    pub fn line(&mut self, line: &str, stream: StreamName) {
        let text = match &mut self.filter {
            Some(filter) => filter.filter(line, stream),
            None => Some(line.to_owned()),
        };
        if let Some(text) = text {
            self.notify(RunEvent::Line { stream, text });
        }
    }
}

/// Cuts a stream into lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// The lines that are whole with this piece, without their ends.
    pub fn add(&mut self, chunk: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") || self.rest.len() >= MAX_LINE {
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> Option<String> {
        let mut line = std::mem::take(&mut self.rest);
        if line.is_empty() {
            return None;
        }
        for end in [b'\n', b'\r'] {
            if line.last() == Some(&end) {
                line.pop();
            }
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_lines_wherever_pieces_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.add(b"one\ntw"), ["one"]);
        assert_eq!(lines.add(b"o\r\n\nthree"), ["two", ""]);
        assert_eq!(lines.finish().as_deref(), Some("three"));
        assert_eq!(lines.finish(), None);
        let long = vec![b'x'; MAX_LINE + 1];
        assert_eq!(Lines::default().add(&long).len(), 1);
    }

    #[test]
    fn shows_what_the_filter_lets_through() {
        let mut received = Vec::new();
        let mut listener = Listener::new(|event| received.push(event)).with_filter(
            |line: &str, stream: StreamName| {
                (stream == StreamName::Stdout).then(|| line.to_uppercase())
            },
        );
        listener.line("a", StreamName::Stdout);
        listener.line("b", StreamName::Stderr);
        drop(listener);
        assert_eq!(received, [RunEvent::Line { stream: StreamName::Stdout, text: "A".to_owned() }]);
    }
}
