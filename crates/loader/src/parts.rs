//! The parts of the guest, read one after another.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use ruzstd::io::{Error, ErrorKind, Read};

use crate::Failure;

/// How much is read at once.
const ROOM: usize = 64 * 1024;

/// Reads `part-0`, `part-1` and so on, up to the first that is not there.
pub(crate) struct Parts {
    folder: String,
    number: usize,
    file: Option<OwnedFd>,
    buffer: Vec<u8>,
    used: usize,
    /// What went wrong; whoever reads learns only that something did.
    pub(crate) failure: Option<Failure>,
}

impl Parts {
    /// The parts in a folder, of which there is one at least.
    pub(crate) fn open(folder: &str) -> Result<Self, Failure> {
        let mut parts = Self {
            folder: folder.into(),
            number: 0,
            file: None,
            buffer: Vec::new(),
            used: 0,
            failure: None,
        };
        let first = parts.open_part();
        parts.file = Some(first.map_err(|errno| parts.failed(errno))?);
        Ok(parts)
    }

    fn path(&self) -> String {
        format!("{}/part-{}", self.folder, self.number)
    }

    fn failed(&self, errno: Errno) -> Failure {
        Failure::Part { path: self.path(), errno }
    }

    fn open_part(&self) -> Result<OwnedFd, Errno> {
        open(self.path().as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Reads what there is next; nothing at the end of the last part.
    fn fill(&mut self) -> Result<(), Errno> {
        self.buffer.resize(ROOM, 0);
        self.used = 0;
        while let Some(file) = &self.file {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut self.buffer[..]))?;
            if read > 0 {
                self.buffer.truncate(read);
                return Ok(());
            }
            self.number += 1;
            self.file = match self.open_part() {
                Ok(next) => Some(next),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno),
            };
        }
        self.buffer.clear();
        Ok(())
    }
}

impl Read for Parts {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        if self.used == self.buffer.len()
            && let Err(errno) = self.fill()
        {
            self.failure = Some(self.failed(errno));
            return Err(Error::from(ErrorKind::Other));
        }
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        if rest.is_empty() && self.failure.is_none() {
            // More is wanted than there is: a part is missing at the end.
            self.failure = Some(self.failed(Errno::NOENT));
        }
        let count = rest.len().min(into.len());
        if let (Some(into), Some(rest)) = (into.get_mut(..count), rest.get(..count)) {
            into.copy_from_slice(rest);
        }
        self.used += count;
        Ok(count)
    }
}
