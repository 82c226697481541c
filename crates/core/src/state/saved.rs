//! What a session was when it was last started or saved, beside its record: the record says where it
//! runs, this says what it is.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;

use super::State;
use crate::backend::SessionId;
use crate::host::sync_folder;
use crate::workspace::mounts::MountRecord;
use crate::{Error, ErrorKind, Result};

/// The file it is in.
const NAME: &str = "state.json";

/// The file of what is mounted.
const MOUNTS: &str = "mounts.json";

/// The longest one. Most of it is the content of files that a manifest holds.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

impl State {
    /// Writes down what a session is, whole or not at all, and onto the disk if somebody may come back to
    /// it. A session that is gone is no failure.
    pub(crate) fn remember(&self, id: &SessionId, state: &Value, is_tied: bool) -> Result<()> {
        self.put(id, NAME, state, is_tied)
    }

    /// Writes down what is mounted in a session; nothing of that is a key.
    pub(crate) fn remember_mounts(&self, id: &SessionId, mounts: &[MountRecord]) -> Result<()> {
        let mounts = serde_json::to_value(mounts).map_err(|error| {
            let message = format!("cannot write down the mounts of session {id}: {error}");
            Error::new(ErrorKind::Io, message)
        })?;
        // A machine that ends without notice has no mounts any more.
        self.put(id, MOUNTS, &mounts, true)
    }

    /// What was mounted in a session, as far as that is on record.
    pub(crate) fn mounts(&self, id: &SessionId) -> Result<Vec<MountRecord>> {
        let path = self.path_of(id).join(MOUNTS);
        let text = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.and_then(|file| {
                let mut text = String::new();
                file.take(MAX_BYTES).read_to_string(&mut text).map(|_| text)
            }),
        };
        let mounts = text
            .map_err(|error| error.to_string())
            .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        mounts.map_err(|why| {
            let message = format!("the list of mounts of session {id} is damaged: {why}");
            Error::new(ErrorKind::InvalidInput, message)
                .with_context("path", path.display().to_string())
        })
    }

    fn put(&self, id: &SessionId, name: &str, state: &Value, is_tied: bool) -> Result<()> {
        let folder = self.path_of(id);
        let unique = uuid::Uuid::new_v4().simple();
        let unfinished = folder.join(format!("{name}.{unique}.new"));
        let write = || {
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(&serde_json::to_vec(state)?)?;
            if !is_tied {
                file.sync_all()?;
            }
            fs::rename(&unfinished, folder.join(name))?;
            if is_tied { Ok(()) } else { sync_folder(&folder) }
        };
        match write() {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                drop(fs::remove_file(&unfinished));
                Err(unwritten(id, &folder, &error))
            }
        }
    }

    /// Has what was written down of a session on the disk: that of one that ends with its maker is not waited for, until
    /// the session is to outlive it.
    pub(crate) fn sync_remembered(&self, id: &SessionId) -> Result<()> {
        let folder = self.path_of(id);
        let sync = || {
            File::open(folder.join(NAME))?.sync_all()?;
            sync_folder(&folder)
        };
        match sync() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(unwritten(id, &folder, &error))
            }
            _ => Ok(()),
        }
    }

    /// What a session was when it was last written down; `None` if it never was.
    pub(crate) fn remembered(&self, id: &SessionId) -> Result<Option<Value>> {
        let path = self.path_of(id).join(NAME);
        let damaged = |why: String| {
            let message = format!("the state of session {id} is damaged: {why}");
            Error::new(ErrorKind::InvalidInput, message)
                .with_context("path", path.display().to_string())
        };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| damaged(error.to_string()))?,
        };
        let mut text = String::new();
        let read = file.take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(|error| damaged(error.to_string()))?;
        serde_json::from_str(&text).map(Some).map_err(|error| damaged(error.to_string()))
    }
}

fn unwritten(id: &SessionId, folder: &Path, error: &io::Error) -> Error {
    let message = format!("cannot write the state of session {id}: {error}");
    Error::new(ErrorKind::Io, message).with_context("path", folder.display().to_string())
}
