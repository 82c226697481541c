//! Decisions, noted for the audit log: the process that writes the log comes and goes, this one stays.
//!
//! One line of JSON for each, in a file that whoever has the log empties into it, under the file's lock. A denial that is
//! repeated within a second is counted, and noted once more with its count.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bastide_model::policy::{DecisionReason, Protocol};
use serde::Serialize;

/// How many bytes wait for somebody to put them into the log.
const MAX_BYTES: u64 = 16 << 20;

/// How many of them are kept for saying that there is no room for more.
const RESERVE: u64 = 64 << 10;

/// How often somebody who empties the file is waited for.
const TRIES: usize = 100;

/// How many different denials are counted at a time.
const MAX_REPEATED: usize = 1024;

/// The longest path on record.
const MAX_PATH: usize = 1024;

/// A decision, or the end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Note {
    ts_ms: u64,
    pub(crate) decision: &'static str,
    pub(crate) why: &'static str,
    /// Counted from 1, as people count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<usize>,
    pub(crate) protocol: &'static str,
    pub(crate) host: String,
    pub(crate) port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
    pub(crate) intercepted: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) secrets: Vec<String>,
    /// What there is to say beside it, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    lost_before: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Note {
    pub(crate) fn new(decision: &'static str, why: DecisionReason, host: &str, port: u16) -> Self {
        Self {
            ts_ms: 0,
            decision,
            why: why.as_str(),
            rule: None,
            protocol: Protocol::Tcp.as_str(),
            host: host.to_owned(),
            port,
            address: None,
            method: None,
            path: None,
            status: None,
            bytes_in: None,
            bytes_out: None,
            duration_ms: None,
            intercepted: false,
            secrets: Vec::new(),
            detail: None,
            count: None,
            lost_before: 0,
        }
    }

    pub(crate) fn with_path(mut self, path: &str) -> Self {
        // Paths on record are in their normal form, which is ASCII.
        self.path = Some(path.chars().take(MAX_PATH).collect());
        self
    }
}

/// The notes of one session.
#[derive(Debug)]
pub(crate) struct Notes {
    file: File,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// What could not be noted.
    lost: u64,
    repeated: HashMap<String, (Note, u64)>,
}

impl Notes {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create(true).mode(0o600).open(path)?;
        Ok(Self { file, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something. If it cannot be noted, the next one that can says so.
    pub(crate) fn add(&self, note: Note) {
        let mut inner = self.inner();
        if note.decision == "deny" {
            let key = serde_json::to_string(&note).unwrap_or_default();
            if let Some((_, count)) = inner.repeated.get_mut(&key) {
                *count += 1;
                return;
            }
            if inner.repeated.len() < MAX_REPEATED {
                inner.repeated.insert(key, (note.clone(), 0));
            }
        }
        self.write(&mut inner, note);
    }

    /// Notes what was repeated since the last time; called every second.
    pub(crate) fn settle(&self) {
        let mut inner = self.inner();
        for (mut note, count) in std::mem::take(&mut inner.repeated).into_values() {
            if count > 0 {
                note.count = Some(count);
                self.write(&mut inner, note);
            }
        }
    }

    fn write(&self, inner: &mut Inner, mut note: Note) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        note.ts_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        note.lost_before = inner.lost;
        match self.append(&note, MAX_BYTES - RESERVE) {
            Ok(()) => inner.lost = 0,
            Err(error) => {
                inner.lost += 1;
                // Nobody may come to say it later.
                if inner.lost == 1 && error.kind() == io::ErrorKind::StorageFull {
                    note.detail = Some("too much at once: what follows may be missing".to_owned());
                    drop(self.append(&note, MAX_BYTES));
                }
            }
        }
    }

    fn append(&self, note: &Note, most: u64) -> io::Result<()> {
        let mut line = serde_json::to_vec(note)?;
        line.push(b'\n');
        let mut tries = 0;
        loop {
            match self.file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < TRIES => {
                    tries += 1;
                    std::thread::yield_now();
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let written = self.append_locked(&line, most);
        // The file stays open, so the lock does not go by itself.
        self.file.unlock().and(written)
    }

    fn append_locked(&self, line: &[u8], most: u64) -> io::Result<()> {
        if self.file.metadata()?.len() + line.len() as u64 > most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        (&self.file).write_all(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn counts_what_is_repeated_and_what_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        let notes = Notes::open(&path).unwrap();
        for _ in 0..5 {
            notes.add(Note::new("deny", DecisionReason::NoRule, "a.org", 443));
            notes.add(Note::new("allow", DecisionReason::Rule, "b.org", 443));
        }
        assert_eq!(lines(&path).len(), 6);
        notes.settle();
        let all = lines(&path);
        assert_eq!((all.len(), all[6]["count"].as_u64()), (7, Some(4)));
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        notes.add(Note::new("allow", DecisionReason::Rule, "b.org", 443));
        drop(held);
        notes.add(Note::new("allow", DecisionReason::Rule, "b.org", 443));
        assert_eq!(lines(&path)[7]["lost_before"].as_u64(), Some(1));
    }
}
