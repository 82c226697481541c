//! Notes of wardens about sessions that their leases deleted.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bastide_proto::warden::DELETED_FOLDER;

use crate::backend::{MachineExit, SessionId};

/// The longest note.
const MOST: u64 = 4096;

/// A session that its lease deleted. Nobody else puts that on record while this is held.
#[derive(Debug)]
pub(crate) struct Deletion {
    pub(crate) id: SessionId,
    /// How it ended; nothing if the note cannot be read.
    pub(crate) end: Option<MachineExit>,
    path: PathBuf,
    _lock: File,
}

impl Deletion {
    /// Takes the note away: everything it was made for is done.
    pub(crate) fn finish(self) {
        // One that stays is looked at again.
        drop(fs::remove_file(&self.path));
    }
}

/// What somebody finds who wants to settle the deletion of a session.
#[derive(Debug)]
pub(crate) enum DeletionAttempt {
    /// There is nothing to settle.
    Missing,
    /// Somebody else does.
    Taken,
    /// Nobody did; now the caller does.
    Ours(Deletion),
}

/// Every such session that nobody else is busy with.
pub(super) fn all(home: &Path) -> io::Result<Vec<Deletion>> {
    let entries = match fs::read_dir(home.join(DELETED_FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let DeletionAttempt::Ours(deletion) = take(id, entry.path())? {
            found.push(deletion);
        }
    }
    Ok(found)
}

/// The one of this session.
pub(super) fn one(home: &Path, id: &SessionId) -> io::Result<DeletionAttempt> {
    take(id.clone(), home.join(DELETED_FOLDER).join(id.as_str()))
}

fn take(id: SessionId, path: PathBuf) -> io::Result<DeletionAttempt> {
    let mut lock = match File::open(&path) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(DeletionAttempt::Missing);
        }
        opened => opened?,
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(DeletionAttempt::Taken),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Whoever had the lock before may be done with it.
    if !path.try_exists()? {
        return Ok(DeletionAttempt::Missing);
    }
    let mut text = Vec::new();
    (&mut lock).take(MOST).read_to_end(&mut text)?;
    let end = serde_json::from_slice(&text).ok();
    Ok(DeletionAttempt::Ours(Deletion { id, end, path, _lock: lock }))
}

pub(super) fn forget(home: &Path, id: &SessionId) {
    // One that is not there is the rule; one that stays is looked at again.
    drop(fs::remove_file(home.join(DELETED_FOLDER).join(id.as_str())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_taken_by_one_at_a_time_and_gone_when_it_is_settled() {
        let home = tempfile::tempdir().unwrap();
        assert!(all(home.path()).unwrap().is_empty(), "nothing was ever deleted");
        let notes = home.path().join(DELETED_FOLDER);
        fs::create_dir(&notes).unwrap();
        let id = SessionId::random();
        let note = r#"{"at_ms":7,"reason":"expired","detail":"its lease ran out"}"#;
        fs::write(notes.join(id.as_str()), note).unwrap();
        fs::write(notes.join(format!(".{id}")), "{").unwrap();
        fs::write(notes.join("else"), "").unwrap();
        let mut held = all(home.path()).unwrap();
        assert!(all(home.path()).unwrap().is_empty(), "somebody else has it");
        let deletion = held.pop().unwrap();
        assert!(held.is_empty());
        assert_eq!((&deletion.id, deletion.end.as_ref().unwrap().at_ms), (&id, Some(7)));
        drop(deletion);
        // Whoever could not put it on record leaves it to the next.
        all(home.path()).unwrap().pop().unwrap().finish();
        assert!(all(home.path()).unwrap().is_empty());
    }
}
