//! How far long work is, for people who wait for it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bastide::Progress;

use crate::args::values::size_text;

/// Work that is done before this is not worth a word.
const PATIENCE: Duration = Duration::from_millis(400);

/// How often it is said again.
const EVERY: Duration = Duration::from_millis(100);

/// How wide a full bar is.
const WIDTH: usize = 24;

/// One line on standard error that says how far some work is; nothing where that is no terminal.
#[derive(Debug)]
pub(crate) struct Meter {
    doing: &'static str,
    begun: Instant,
    said: Mutex<Option<Instant>>,
    is_seen: bool,
}

impl Meter {
    pub(crate) fn new(doing: &'static str) -> Self {
        let is_seen = io::stderr().is_terminal();
        Self { doing, begun: Instant::now(), said: Mutex::default(), is_seen }
    }

    /// Says how far it is.
    pub(crate) fn show(&self, progress: Progress) {
        if !self.is_seen || self.begun.elapsed() < PATIENCE {
            return;
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_some_and(|said| said.elapsed() < EVERY) {
            return;
        }
        *said = Some(Instant::now());
        let text = line(self.doing, progress);
        // Where it cannot be said, nobody waits for it.
        drop(write!(io::stderr().lock(), "\r\x1b[2K{text}"));
    }

    /// Leaves nothing behind.
    pub(crate) fn clear(&self) {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_some() {
            drop(write!(io::stderr().lock(), "\r\x1b[2K"));
        }
    }
}

fn line(doing: &str, progress: Progress) -> String {
    let Progress { entries, bytes, total_bytes, .. } = progress;
    match total_bytes.filter(|total| *total > 0) {
        Some(total) => {
            let share = bytes.min(total).saturating_mul(100) / total;
            let filled = usize::try_from(share).unwrap_or(0) * WIDTH / 100;
            let bar = format!("{}{}", "#".repeat(filled), "-".repeat(WIDTH - filled));
            format!("{doing} [{bar}] {share} %, {} of {}", size_text(bytes), size_text(total))
        }
        None => format!("{doing} {entries} entries, {}", size_text(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_far_it_is() {
        let mut progress = Progress::default();
        (progress.entries, progress.bytes) = (12, 3 << 20);
        assert_eq!(line("saving", progress), "saving 12 entries, 3.0 MiB");
        progress.total_bytes = Some(6 << 20);
        let bar = "############------------";
        let want = format!("restoring [{bar}] 50 %, 3.0 MiB of 6.0 MiB");
        assert_eq!(line("restoring", progress), want);
    }
}
