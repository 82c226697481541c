//! Writing files.

use std::fmt;

use bastide_model::PosixPath;
use bastide_model::events::Operation;
use bastide_model::paths::PathUse;
use bastide_proto::files::{FileOp, Write, WriteReady};
use bastide_proto::frame::MAX_DATA;
use bastide_proto::{End, FaultKind, GuestPathError};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::call;
use super::files_error::{FilesError, path_of, read_only};
use super::path::{Target, shown};
use super::{Files, SILENCE, WORTH_PASSING};
use crate::compat::raise;
use crate::link::fault::{agent_lost, refused};
use crate::link::{Access, FdTicket, Incoming, ReceivedFile, Sender, Stream, broken};
use crate::{Error, ErrorClass, ErrorKind, Result};

/// How much of a stream is read at a time.
const CHUNK: usize = 1 << 20;

/// What to write.
pub enum Content<'a> {
    /// These bytes.
    Bytes(Bytes),
    /// Whatever comes from here, to its end.
    Stream(Box<dyn AsyncRead + Send + Unpin + 'a>),
}

impl<'a> Content<'a> {
    /// The content of a stream, to its end.
    pub fn stream(stream: impl AsyncRead + Send + Unpin + 'a) -> Self {
        Self::Stream(Box::new(stream))
    }

    /// How long it is, where that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::Stream(_) => None,
        }
    }
}

impl<T: Into<Bytes>> From<T> for Content<'_> {
    fn from(bytes: T) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.debug_tuple("Bytes").field(&bytes.len()).finish(),
            Self::Stream(_) => f.debug_tuple("Stream").finish_non_exhaustive(),
        }
    }
}

/// How to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// The permission bits the file gets. If none, those of the file it replaces, or 644.
    pub mode: Option<u32>,
    /// Whether a file that exists already is an error; a link in its place is one, too.
    pub new: bool,
}

impl WriteOptions {
    /// Sets the permission bits the file gets.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Makes a file that exists already an error.
    #[must_use]
    pub fn new_file(mut self) -> Self {
        self.new = true;
        self
    }
}

/// The error of a file that should have been new.
fn exists(place: &str) -> Error {
    let message = format!("{place} exists already");
    Error::new(ErrorKind::Conflict, message)
        .with_class(ErrorClass::FileExistsError)
        .with_context("path", place)
}

impl Files<'_> {
    /// Writes a file; missing parents are made. The file is there whole, or as it was before; it
    /// keeps its permissions and its owner. A link is followed, and stays.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveWriteError` if it cannot be written, is a folder, or lies where only reading
    /// is granted; `InvalidManifestPathError` if its path leads out.
    pub async fn write(&self, path: &str, content: impl Into<Content<'_>>) -> Result<()> {
        self.write_with(path, content, WriteOptions::default()).await
    }

    /// As [`write`](Self::write), with options.
    ///
    /// # Errors
    ///
    /// As `write`; `FileExistsError` for a file that should have been new.
    pub async fn write_with(
        &self,
        path: &str,
        content: impl Into<Content<'_>>,
        options: WriteOptions,
    ) -> Result<()> {
        self.write_recorded(path, &shown(path), content.into(), options).await
    }

    /// As [`write_with`](Self::write_with); events call the file `called`.
    pub(super) async fn write_recorded(
        &self,
        path: &str,
        called: &str,
        content: Content<'_>,
        options: WriteOptions,
    ) -> Result<()> {
        let scope = self.operation_scope(|user| {
            let bytes = content.length();
            Operation::Write { path: called.to_owned(), user, bytes }
        });
        let work = async {
            let (target, leads) = match options.new {
                false => {
                    let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
                    (target.clone(), target)
                }
                // A new file's own name is not followed: it is its folder that may lead out.
                true => self.new_target(path)?,
            };
            let written = self.try_write(&target, content, options).await;
            written.map_err(|failure| match failure {
                FilesError::Fault(fault) if options.new && fault.kind == FaultKind::Exists => {
                    exists(&path_of(&fault, &target)).with_source(refused(fault))
                }
                FilesError::Fault(fault) if fault.kind == FaultKind::Escape => leads.escape(),
                FilesError::Fault(fault) if options.new && fault.kind == FaultKind::ReadOnly => {
                    read_only(self.policy, &split(&path_of(&fault, &target)).0)
                }
                failure => failure.into_write_error(self.policy, &target),
            })
        };
        scope.record_unit(work).await
    }

    /// The place of a new file, and its folder.
    fn new_target(&self, path: &str) -> Result<(Target, Target)> {
        let (parent, name) = split(path);
        let folder = Target::new(self.policy, &parent, raise::workspace_archive_write)?;
        let given = PosixPath::new(path);
        let path = format!("{}/{name}", folder.path.as_str().trim_end_matches('/'));
        if matches!(name.as_str(), "" | ".") {
            // The folder itself, and that is there; unless it is none of ours.
            self.policy.normalize_path(&given, PathUse::Write)?;
            return Err(exists(folder.path.as_str()));
        }
        let path = match path.parse() {
            Ok(path) if name != ".." => path,
            Err(GuestPathError::Nul) => return Err(raise::value_error("embedded null byte")),
            _ => return Err(raise::invalid_manifest_path(path, "absolute")),
        };
        Ok((Target { given, path }, folder))
    }

    async fn try_write(
        &self,
        target: &Target,
        content: Content<'_>,
        options: WriteOptions,
    ) -> Result<(), FilesError> {
        let (head, tail) = begin(content).await.map_err(|error| source_failed(target, error))?;
        let is_large = tail.is_some() || head.len() as u64 >= WORTH_PASSING;
        let mut ticket = self.link.side().filter(|_| is_large).and_then(|side| side.expect());
        let write = Write {
            path: target.path.clone(),
            mode: options.mode,
            new: options.new,
            size: tail.is_none().then_some(head.len() as u64),
            pass: ticket.as_ref().map(FdTicket::number),
        };
        let mut stream = self.open_call(FileOp::Write(write)).await?;
        let mut file = None;
        if let Some(ticket) = &mut ticket
            && call::item::<WriteReady>(&mut stream).await?.passed
        {
            file = Some(ticket.file(self.link, Access::Write, SILENCE).await?);
        }
        let sent = match file {
            Some(file) => fill(file, target, head, tail).await,
            None => {
                let Stream { to_guest, from_guest, .. } = &mut stream;
                // A guest that fails in the middle stops listening, and what it does not take would be
                // waited for.
                tokio::select! {
                    biased;
                    sent = send(to_guest, target, head, tail) => sent,
                    reply = from_guest.next() => Err(early(reply)),
                }
            }
        };
        match sent {
            Ok(()) => {}
            // The source failed: the call is dropped, and with it the file that is not whole.
            Err(FilesError::Other(error)) if error.kind() != ErrorKind::AgentLost => {
                return Err(error.into());
            }
            Err(fault @ FilesError::Fault(_)) => return Err(fault),
            // A guest that fails in the middle says why and stops listening: its word is worth more
            // than the broken pipe it leaves behind.
            Err(lost) => return Err(early_error(&mut stream).await.unwrap_or(lost)),
        }
        match stream.to_guest.input_end().await {
            Ok(()) => call::end(&mut stream).await,
            Err(error) => Err(early_error(&mut stream).await.unwrap_or_else(|| error.into())),
        }
    }
}

/// The folder and the last name of a path, as text.
fn split(path: &str) -> (String, String) {
    let path = PosixPath::new(path);
    let root = match path.as_str() {
        text if text.starts_with("//") => "//",
        text if text.starts_with('/') => "/",
        _ => "",
    };
    let (parent, name) = match path.as_str()[root.len()..].rsplit_once('/') {
        Some((parent, name)) => (format!("{root}{parent}"), name),
        None => (root.to_owned(), &path.as_str()[root.len()..]),
    };
    let parent = if parent.is_empty() { ".".to_owned() } else { parent };
    (parent, name.to_owned())
}

/// The failure a guest told before it stopped listening.
async fn early_error(stream: &mut Stream) -> Option<FilesError> {
    match call::next(stream).await {
        Err(failure @ FilesError::Fault(_)) => Some(failure),
        _ => None,
    }
}

/// What a guest said before all was sent: why it will not take the rest.
fn early(reply: Result<Incoming>) -> FilesError {
    match reply {
        Ok(Incoming::End(End::Failed(fault))) => FilesError::Fault(fault),
        Ok(_) => broken("a word in the middle of a file").into(),
        Err(error) => error.into(),
    }
}

type Source<'a> = Box<dyn AsyncRead + Send + Unpin + 'a>;

/// The content, if it is small or here already; else its first part and the rest.
async fn begin(content: Content<'_>) -> std::io::Result<(Bytes, Option<Source<'_>>)> {
    let mut stream = match content {
        Content::Bytes(bytes) => return Ok((bytes, None)),
        Content::Stream(stream) => stream,
    };
    let worth = usize::try_from(WORTH_PASSING).unwrap_or(CHUNK);
    let mut head = BytesMut::with_capacity(64 * 1024);
    while head.len() < worth {
        head.reserve(64 * 1024);
        if stream.read_buf(&mut head).await? == 0 {
            return Ok((head.freeze(), None));
        }
    }
    Ok((head.freeze(), Some(stream)))
}

fn source_failed(target: &Target, error: std::io::Error) -> Error {
    raise::workspace_archive_write(&target.path).with_source(error)
}

/// Writes the content into the file the guest passed.
async fn fill(
    file: ReceivedFile,
    target: &Target,
    mut head: Bytes,
    mut tail: Option<Source<'_>>,
) -> Result<(), FilesError> {
    let mut offset = 0;
    loop {
        while !head.is_empty() {
            let chunk = head.split_to(head.len().min(ReceivedFile::CHUNK));
            let length = chunk.len() as u64;
            let written = file.write(offset, chunk).await;
            written.map_err(|error| source_failed(target, error))?;
            offset += length;
        }
        let Some(source) = &mut tail else { return Ok(()) };
        head = read_some(source).await.map_err(|error| source_failed(target, error))?;
        if head.is_empty() {
            return Ok(());
        }
    }
}

/// Sends the content over the link.
async fn send(
    to_guest: &mut Sender,
    target: &Target,
    mut head: Bytes,
    mut tail: Option<Source<'_>>,
) -> Result<(), FilesError> {
    loop {
        while !head.is_empty() {
            let chunk = head.split_to(head.len().min(MAX_DATA));
            input(to_guest, chunk).await?;
        }
        let Some(source) = &mut tail else { return Ok(()) };
        head = read_some(source).await.map_err(|error| source_failed(target, error))?;
        if head.is_empty() {
            return Ok(());
        }
    }
}

/// Sends a piece, which must not take too long.
pub(super) async fn input(to_guest: &mut Sender, chunk: Bytes) -> Result<()> {
    match tokio::time::timeout(SILENCE, to_guest.queue_input(chunk)).await {
        Ok(sent) => sent,
        Err(_) => Err(agent_lost("the guest takes no more of a file")),
    }
}

async fn read_some(source: &mut Source<'_>) -> std::io::Result<Bytes> {
    let mut chunk = BytesMut::with_capacity(CHUNK);
    while chunk.len() < CHUNK {
        if source.read_buf(&mut chunk).await? == 0 {
            break;
        }
    }
    Ok(chunk.freeze())
}
