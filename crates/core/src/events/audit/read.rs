//! Reading a log.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::log::{segment_path, segments};
use super::record::{Line, MAX_LINE};
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result};

/// How much is read at a time.
const CHUNK: usize = 4 * MAX_LINE;

/// One record of an audit log.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Its number in the log.
    pub seq: u64,
    /// Its fields.
    pub fields: Map<String, Value>,
}

impl AuditRecord {
    /// The field `key`, if it is text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key).and_then(Value::as_str)
    }
}

/// Reads the records of a session, also while they are being written.
#[derive(Debug)]
pub struct AuditReader {
    folder: PathBuf,
    segment: u64,
    file: Option<File>,
    offset: u64,
    waiting: Vec<u8>,
}

impl AuditReader {
    /// Reads the log of a session from its beginning.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no log of that session.
    pub fn open(home: &Path, id: &SessionId) -> Result<Self> {
        let folder = super::audit_folder(home, id);
        let segments = segments(&folder).map_err(|error| unreadable(&folder, error))?;
        let segment = match segments.first() {
            Some(segment) => *segment,
            // Its first record is not written yet.
            None if folder.exists() => 1,
            None => {
                let message = format!("there is no audit log of session {id}");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
        };
        Ok(Self { folder, segment, file: None, offset: 0, waiting: Vec::new() })
    }

    /// The records that were added since the last call. Lines that are no records are skipped;
    /// [`verify`](super::verify) reports them.
    ///
    /// # Errors
    ///
    /// Fails if the log cannot be read.
    pub fn more(&mut self) -> Result<Vec<AuditRecord>> {
        let folder = self.folder.clone();
        self.try_next().map_err(|error| unreadable(&folder, error))
    }

    fn try_next(&mut self) -> io::Result<Vec<AuditRecord>> {
        loop {
            let file = match &mut self.file {
                Some(file) => file,
                none => match File::open(segment_path(&self.folder, self.segment)) {
                    Ok(file) => none.insert(file),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                    Err(error) => return Err(error),
                },
            };
            let mut chunk = vec![0; CHUNK];
            let read = file.read_at(&mut chunk, self.offset)?;
            if read == 0 {
                if !segment_path(&self.folder, self.segment + 1).exists() {
                    return Ok(Vec::new());
                }
                (self.segment, self.file, self.offset) = (self.segment + 1, None, 0);
                self.waiting.clear();
                continue;
            }
            self.offset += read as u64;
            self.waiting.extend_from_slice(&chunk[..read]);
            let records = self.take_lines();
            if !records.is_empty() {
                return Ok(records);
            }
        }
    }

    fn take_lines(&mut self) -> Vec<AuditRecord> {
        let Some(end) = self.waiting.iter().rposition(|byte| *byte == b'\n') else {
            // No record is that long.
            if self.waiting.len() > 2 * MAX_LINE {
                self.waiting.clear();
            }
            return Vec::new();
        };
        let rest = self.waiting.split_off(end + 1);
        let whole = std::mem::replace(&mut self.waiting, rest);
        let lines = whole.split(|byte| *byte == b'\n').filter_map(Line::parse);
        lines.map(|line| AuditRecord { seq: line.seq, fields: line.fields }).collect()
    }
}

pub(super) fn unreadable(folder: &Path, error: io::Error) -> Error {
    let message = format!("cannot read the audit log {}: {error}", folder.display());
    Error::new(ErrorKind::Io, message).with_source(error)
}
