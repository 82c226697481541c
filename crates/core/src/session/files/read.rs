//! Reading files.

use bastide_model::PosixPath;
use bastide_model::events::Operation;
use bastide_proto::files::{FileOp, Opened, PassFd, Read};
use bytes::{Bytes, BytesMut};
use serde_json::json;

use super::call::{self, CallItem};
use super::files_error::{FilesError, is_missing};
use super::path::{Target, shown};
use super::{Files, MAX_WHOLE, SILENCE, WORTH_PASSING};
use crate::compat::raise;
use crate::events::Finished;
use crate::link::fault::refused;
use crate::link::{Access, ReceivedFile, Stream, broken};
use crate::{Error, ErrorClass, ErrorKind, Result};

/// How much of a passed file is read at a time.
const CHUNK: u64 = 1 << 20;

/// A file that is being read. Dropping it ends the call.
#[derive(Debug)]
pub struct FileReader {
    given: String,
    size: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Link(Stream),
    Passed { file: ReceivedFile, offset: u64, left: u64 },
    Done,
}

impl Files<'_> {
    /// Reads a whole file of at most 256 MiB; [`open`](Self::open) reads any.
    ///
    /// # Errors
    ///
    /// `WorkspaceReadNotFoundError` if it does not exist, `WorkspaceArchiveReadError` if it cannot
    /// be read or is not a regular file, `InvalidManifestPathError` if its path leads out, and
    /// [`LimitExceeded`](ErrorKind::LimitExceeded) if it is larger.
    pub async fn read(&self, path: &str) -> Result<Bytes> {
        let scope = self.operation_scope(|user| Operation::Read {
            path: shown(path),
            user,
            max_bytes: None,
        });
        let work = async {
            let mut reader = self.open_unrecorded(path, 0, None).await?;
            let too_large = || {
                let message = format!("{path} is larger than {MAX_WHOLE} bytes");
                Error::new(ErrorKind::LimitExceeded, message)
                    .with_hint("read it piece by piece with `open`")
            };
            if reader.size > MAX_WHOLE {
                return Err(too_large());
            }
            match reader.rest(MAX_WHOLE + 1).await? {
                whole if whole.len() as u64 > MAX_WHOLE => Err(too_large()),
                whole => Ok(whole),
            }
        };
        scope.record(work, |read| Finished::done().with("size", read.len())).await
    }

    /// Reads the beginning of a file for somebody who would refuse a longer one; told and failing as
    /// [`read`](Self::read).
    pub(crate) async fn read_beginning(&self, path: &str, most: u64) -> Result<Bytes> {
        let scope = self.operation_scope(|user| Operation::Read {
            path: shown(path),
            user,
            max_bytes: None,
        });
        let work = async { self.open_unrecorded(path, 0, Some(most)).await?.rest(most).await };
        scope.record(work, |read| Finished::done().with("size", read.len())).await
    }

    /// Reads the first `max_bytes` bytes of a file, or all of a shorter one.
    ///
    /// # Errors
    ///
    /// `ValueError` if `max_bytes` is 0, `WorkspaceReadNotFoundError` if the file does not exist,
    /// else `WorkspaceArchiveReadError`, whose cause says more.
    pub async fn read_bounded(&self, path: &str, max_bytes: u64) -> Result<Bytes> {
        let scope = self.operation_scope(|user| {
            let max_bytes = Some(max_bytes);
            Operation::Read { path: shown(path), user, max_bytes }
        });
        let work = async {
            if max_bytes == 0 {
                return Err(raise::value_error("max_bytes must be positive"));
            }
            let given = PosixPath::new(path);
            let read = async {
                let most = max_bytes.min(MAX_WHOLE);
                let mut reader = self.open_unrecorded(path, 0, Some(most)).await?;
                reader.rest(most).await
            };
            match read.await {
                Err(error) if error.class() == Some(ErrorClass::WorkspaceReadNotFoundError) => {
                    Err(raise::workspace_read_not_found(&given))
                }
                Err(error) if error.class().is_some() => {
                    // The reason is all that is told: what went wrong may quote the file.
                    let failed = raise::workspace_archive_read(&given)
                        .with_context("reason", "bounded_read_failed");
                    Err(failed.with_source(error))
                }
                read => read,
            }
        };
        scope.record(work, |read| Finished::done().with("size", read.len())).await
    }

    /// Opens a file to be read piece by piece.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), of any size.
    pub async fn open(&self, path: &str) -> Result<FileReader> {
        self.open_range(path, 0, None).await
    }

    /// Opens a part of a file to be read: from `offset`, at most `max` bytes.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub async fn open_range(
        &self,
        path: &str,
        offset: u64,
        max: Option<u64>,
    ) -> Result<FileReader> {
        let scope = self.extension("open", || json!({"path": path, "offset": offset, "max": max}));
        let work = self.open_unrecorded(path, offset, max);
        scope.record(work, |reader| Finished::done().with("size", reader.size)).await
    }

    async fn open_unrecorded(
        &self,
        path: &str,
        offset: u64,
        max: Option<u64>,
    ) -> Result<FileReader> {
        let target = Target::new(self.policy, path, raise::workspace_read_not_found)?;
        let opened = self.try_open(&target, offset, max).await;
        opened.map_err(|failure| {
            failure.into_error(self.policy, &target, |fault| match is_missing(&fault) {
                true => raise::workspace_read_not_found(&target.given).with_source(refused(fault)),
                false => raise::workspace_archive_read(&target.given).with_source(refused(fault)),
            })
        })
    }

    async fn try_open(
        &self,
        target: &Target,
        offset: u64,
        max: Option<u64>,
    ) -> Result<FileReader, FilesError> {
        // A part that is small anyway is not worth a descriptor.
        let worth = max.is_none_or(|max| max >= WORTH_PASSING);
        let mut ticket = self.link.side().filter(|_| worth).and_then(|side| side.expect());
        let pass = ticket
            .as_ref()
            .map(|ticket| PassFd { ticket: ticket.number(), at_least: WORTH_PASSING });
        let read = Read { path: target.path.clone(), offset, max, pass };
        let mut stream = self.open_call(FileOp::Read(read)).await?;
        let Opened { size, passed } = call::item(&mut stream).await?;
        let source = match (passed, &mut ticket) {
            (false, _) => Source::Link(stream),
            (true, Some(ticket)) => {
                let file = ticket.file(self.link, Access::Read, SILENCE).await?;
                call::end(&mut stream).await?;
                let left = size.saturating_sub(offset).min(max.unwrap_or(u64::MAX));
                Source::Passed { file, offset, left }
            }
            (true, None) => return Err(broken("a descriptor nobody asked for").into()),
        };
        Ok(FileReader { given: target.given.to_string(), size, source })
    }
}

impl FileReader {
    /// How large the file was when it was opened.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveReadError` if it cannot be read any further.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let failed = raise::workspace_archive_read;
        match &mut self.source {
            Source::Done => Ok(None),
            Source::Passed { file, offset, left } => {
                let most = usize::try_from(CHUNK.min(*left)).unwrap_or(0);
                let chunk = file.read(*offset, most).await;
                let chunk = chunk.map_err(|error| failed(&self.given).with_source(error))?;
                let length = chunk.len() as u64;
                *offset += length;
                *left -= length;
                // A file that was cut off meanwhile ends where it ends.
                if *left == 0 || chunk.len() < most {
                    self.source = Source::Done;
                }
                Ok((!chunk.is_empty()).then_some(chunk))
            }
            Source::Link(stream) => match call::next(stream).await {
                Ok(CallItem::Data(data)) => Ok(Some(data)),
                Ok(CallItem::Done) => {
                    self.source = Source::Done;
                    Ok(None)
                }
                Ok(CallItem::Item(_)) => Err(broken("an item in the middle of a file")),
                Err(FilesError::Fault(fault)) => {
                    Err(failed(&self.given).with_source(refused(fault)))
                }
                Err(FilesError::Other(error)) => Err(error),
            },
        }
    }

    /// What is left of the file, at most so many bytes.
    pub(super) async fn rest(&mut self, most: u64) -> Result<Bytes> {
        if let Source::Passed { file, offset, left } = &self.source {
            let most = usize::try_from(most.min(*left)).unwrap_or(usize::MAX);
            let whole = file.read_whole(*offset, most).await;
            self.source = Source::Done;
            return whole
                .map_err(|error| raise::workspace_archive_read(&self.given).with_source(error));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut all = BytesMut::new();
        while let Some(chunk) = self.next().await? {
            let room = most.saturating_sub(all.len());
            all.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() >= room {
                break;
            }
        }
        Ok(all.freeze())
    }
}
