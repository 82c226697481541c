//! Changes to stores, noted for the audit log: the process that writes the log comes and goes, the keeper stays.
//!
//! One line of JSON for each change, in a file that whoever has the log empties into it, under the file's lock.

use std::cell::Cell;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use serde_json::json;

use super::now_ms;
use crate::control::Event;

/// How many bytes wait for somebody to put them into the log.
const MAX_BYTES: u64 = 16 << 20;

/// How many of them are kept for saying that there is no room for more.
const RESERVE: u64 = 64 << 10;

/// How often somebody who empties the file is waited for.
const TRIES: usize = 100;

/// The notes of one mount.
pub(super) struct Notes {
    file: PathBuf,
    mount: String,
    /// Changes that could not be noted.
    lost: Cell<u64>,
}

impl Notes {
    pub(super) fn new(file: PathBuf, mount: String) -> Self {
        Self { file, mount, lost: Cell::new(0) }
    }

    /// Notes a change. If it cannot be noted, the next one that can says so.
    pub(super) fn add(&self, event: &Event) {
        let lost = self.lost.get();
        match self.append(&self.line(event, lost), MAX_BYTES - RESERVE) {
            Ok(()) => self.lost.set(0),
            Err(error) => {
                self.lost.set(lost + 1);
                // Nobody may come to say it later.
                if lost == 0 && error.kind() == io::ErrorKind::StorageFull {
                    let last = Event {
                        op: "not_noted".into(),
                        path: event.path.chars().take(256).collect(),
                        to: None,
                        size: 0,
                        outcome: "too many changes at once: those from here on may be missing"
                            .into(),
                        ..event.clone()
                    };
                    drop(self.append(&self.line(&last, 0), MAX_BYTES));
                }
            }
        }
    }

    fn line(&self, event: &Event, lost: u64) -> String {
        let note = json!({
            "ts_ms": now_ms(),
            "mount": self.mount,
            "op": event.op,
            "path": event.path,
            "to": event.to,
            "size": event.size,
            "outcome": event.outcome,
            "lost_before": lost,
        });
        format!("{note}\n")
    }

    fn append(&self, line: &str, most: u64) -> io::Result<()> {
        let mut file = File::options().append(true).create(true).mode(0o600).open(&self.file)?;
        let mut tries = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < TRIES => {
                    tries += 1;
                    std::thread::yield_now();
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        if file.metadata()?.len() + line.len() as u64 > most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(op: &str) -> Event {
        Event {
            mount: "m".into(),
            op: op.into(),
            path: "a".into(),
            to: None,
            size: 3,
            outcome: "ok".into(),
        }
    }

    #[test]
    fn says_how_many_changes_were_not_noted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes");
        let notes = Notes::new(file.clone(), "/workspace/data".into());
        notes.add(&event("write"));
        let held = File::open(&file).unwrap();
        held.lock().unwrap();
        notes.add(&event("delete"));
        notes.add(&event("delete"));
        drop(held);
        notes.add(&event("mkdir"));
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let said =
            |index: usize| (lines[index]["op"].as_str(), lines[index]["lost_before"].as_u64());
        assert_eq!(lines.len(), 2);
        assert_eq!((said(0), said(1)), ((Some("write"), Some(0)), (Some("mkdir"), Some(2))));
    }

    #[test]
    fn says_that_there_is_no_room_for_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes");
        let notes = Notes::new(file.clone(), "/workspace/data".into());
        File::create(&file).unwrap().set_len(MAX_BYTES - RESERVE).unwrap();
        notes.add(&event("delete"));
        notes.add(&event("delete"));
        let text = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&text[usize::try_from(MAX_BYTES - RESERVE).unwrap()..]);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("not_noted"), "{text}");
    }
}
