//! How far long work is, for people who watch.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bastide::{Progress, ProgressListener};

use super::Ui;

/// What takes less is not worth a word.
const WORTH_A_WORD: Duration = Duration::from_millis(500);

/// How often something new is said.
const OFTEN: Duration = Duration::from_millis(100);

/// How far something is, shown on a terminal as long as this is held.
#[derive(Debug)]
pub(crate) struct ProgressLine(Option<ProgressListener>);

impl ProgressLine {
    /// One that nobody sees.
    pub(crate) fn unseen() -> Self {
        Self(None)
    }

    /// Whoever shows it; `None` where nobody watches.
    pub(crate) fn listener(&self) -> Option<ProgressListener> {
        self.0.clone()
    }

    /// Shows how far it is.
    pub(crate) fn on_progress(&self, progress: Progress) {
        if let Some(listener) = &self.0 {
            listener.on_progress(progress);
        }
    }
}

impl Drop for ProgressLine {
    /// Clears away what was shown, also where the work failed.
    fn drop(&mut self) {
        if self.0.is_some() {
            let mut stderr = io::stderr().lock();
            drop(stderr.write_all(b"\r\x1b[K").and_then(|()| stderr.flush()));
        }
    }
}

impl Ui {
    /// Shows how far something is on a terminal, once it takes long.
    pub(crate) fn progress(&self, what: &'static str) -> ProgressLine {
        if self.json || !self.stderr.is_terminal() {
            return ProgressLine(None);
        }
        let next = Mutex::new(Instant::now() + WORTH_A_WORD);
        ProgressLine(Some(ProgressListener::new(move |progress| {
            let Ok(mut next) = next.lock() else { return };
            if Instant::now() < *next {
                return;
            }
            *next = Instant::now() + OFTEN;
            let mut stderr = io::stderr().lock();
            drop(write!(stderr, "\r\x1b[K{}", line(what, progress)).and_then(|()| stderr.flush()));
        })))
    }
}

fn line(what: &str, progress: Progress) -> String {
    let mebibytes = progress.bytes >> 20;
    match progress.total_entries {
        Some(total) if total > 0 => {
            let filled = usize::try_from(progress.entries.min(total) * 20 / total).unwrap_or(0);
            let bar =
                format!("{}{}", "#".repeat(filled), " ".repeat(20_usize.saturating_sub(filled)));
            format!("{what} [{bar}] {} of {total} files, {mebibytes} MiB", progress.entries)
        }
        _ => format!("{what}: {} files, {mebibytes} MiB", progress.entries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_far_it_is() {
        let mut progress = Progress::default();
        (progress.entries, progress.bytes) = (5, 3 << 20);
        assert_eq!(line("copying", progress), "copying: 5 files, 3 MiB");
        progress.total_entries = Some(10);
        assert_eq!(
            line("copying", progress),
            "copying [##########          ] 5 of 10 files, 3 MiB"
        );
    }
}
