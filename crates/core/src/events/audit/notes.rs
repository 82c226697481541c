//! What processes beside a session noted until it is in the log: changes in stores that are mounted from outside, and
//! what a network with a policy let out or refused.
//!
//! Those processes live as long as the session and cannot write the log; whoever writes the log next takes
//! over what they noted, under the lock of the file. A process that is killed in between has it taken over twice,
//! never not at all. It lies beside the logs, because the last of it is written while the session's folder goes.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::audit_folder;
use crate::backend::SessionId;

/// More than anybody ever notes.
const MAX_BYTES: u64 = 64 << 20;

/// Whose notes they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoteKind {
    /// The keeper's of the mounts.
    Mounts,
    /// The proxy's of the network.
    Egress,
}

impl NoteKind {
    pub(super) const ALL: [Self; 2] = [Self::Mounts, Self::Egress];

    /// The folder of such notes, beside the logs. No session is called so.
    fn folder(self) -> &'static str {
        match self {
            Self::Mounts => ".mounts",
            Self::Egress => ".egress",
        }
    }

    /// What they are in the log.
    pub(super) fn record(self) -> &'static str {
        match self {
            Self::Mounts => "mount",
            Self::Egress => "egress",
        }
    }
}

/// Where changes to the mounted stores of a session are noted until they are in its audit log.
#[must_use]
pub fn mount_notes(home: &Path, id: &SessionId) -> PathBuf {
    path(&audit_folder(home, id), NoteKind::Mounts)
}

/// Where the proxy of a session's network notes what it decides until it is in the session's audit log.
#[must_use]
pub fn egress_notes(home: &Path, id: &SessionId) -> PathBuf {
    path(&audit_folder(home, id), NoteKind::Egress)
}

fn path(log: &Path, kind: NoteKind) -> PathBuf {
    log.with_file_name(kind.folder()).join(log.file_name().unwrap_or_default())
}

/// Notes that nobody else reads or writes meanwhile.
pub(super) struct Notes(File);

impl Notes {
    /// The notes of a session; none if there are none, or if somebody else is at them.
    pub(super) fn take(log: &Path, kind: NoteKind) -> io::Result<Option<Self>> {
        let file = match File::options().read(true).write(true).open(path(log, kind)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Every note. A line that is none, as somebody leaves who is killed while it writes, is kept as text.
    pub(super) fn read(&self) -> Vec<Value> {
        let mut text = Vec::new();
        // What cannot be read stays where it is, and is noticed when the file is emptied.
        drop((&self.0).take(MAX_BYTES).read_to_end(&mut text));
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let note = |line: &[u8]| {
            serde_json::from_slice(line)
                .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(line).into_owned()))
        };
        lines.map(note).collect()
    }

    /// Forgets them: they are in the log.
    pub(super) fn empty(self) -> io::Result<()> {
        // Whoever waits for the lock goes on with this file, so it has to stay.
        self.0.set_len(0)
    }
}

/// Removes notes that are in the log, when nobody writes any more: the session is gone.
pub(super) fn remove_empty(log: &Path) {
    for kind in NoteKind::ALL {
        let Ok(Some(notes)) = Notes::take(log, kind) else { continue };
        if notes.0.metadata().is_ok_and(|found| found.len() == 0) {
            // One that stays is empty.
            drop(fs::remove_file(path(log, kind)));
        }
    }
}

/// Removes the notes of a log that is removed.
pub(super) fn remove(log: &Path) -> io::Result<()> {
    for kind in NoteKind::ALL {
        match fs::remove_file(path(log, kind)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
