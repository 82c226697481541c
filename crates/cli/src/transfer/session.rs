//! The side of a copy that is in a session.

use std::io;
use std::time::SystemTime;

use bastide::{Content, FileInfo, FileKind, FileReader, Files, Result, WriteOptions};
use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio_util::io::{InspectReader, StreamReader};

use super::{CopyEntry, CopyProgress, Kind, Sink, Source};

/// A file or folder of a session that is copied from.
pub(crate) struct SessionSource<'a> {
    files: Files<'a>,
    top: String,
}

/// A file or folder of a session that is copied to.
pub(crate) struct SessionSink<'a> {
    files: Files<'a>,
    top: String,
}

impl<'a> SessionSource<'a> {
    pub(crate) fn new(files: Files<'a>, top: &str) -> Self {
        Self { files, top: top.to_owned() }
    }

    pub(super) fn name(&self) -> &str {
        &self.top
    }

    pub(super) async fn top(&self) -> Result<CopyEntry> {
        let info = self.files.stat(&self.top).await?;
        Ok(CopyEntry {
            name: String::new(),
            kind: kind(&info),
            mode: mode(&info),
            modified: info.modified,
        })
    }

    /// What is in a folder. The guest says so, and is not believed: a name is one name.
    pub(super) async fn children(
        &self,
        path: &str,
        left_out: &mut Vec<String>,
    ) -> Result<Vec<CopyEntry>> {
        let mut children: Vec<CopyEntry> = Vec::new();
        for info in self.files.ls(&join(&self.top, path)).await? {
            let name = info.path.rsplit('/').next().unwrap_or_default();
            let shown = join(path, name);
            if info.raw_path.is_some() {
                left_out.push(format!("{shown}: its name is no text"));
            } else if matches!(name, "" | "." | "..") || name.contains('\0') {
                left_out.push(format!("{shown:?}: that is no name"));
            } else if children.last().is_some_and(|before| before.name == name) {
                left_out.push(format!("{shown}: there are two of that name"));
            } else {
                let (kind, mode) = (kind(&info), mode(&info));
                let (name, modified) = (name.to_owned(), info.modified);
                children.push(CopyEntry { name, kind, mode, modified });
            }
        }
        Ok(children)
    }

    pub(super) async fn open(&self, path: &str) -> Result<FileReader> {
        self.files.open(&join(&self.top, path)).await
    }
}

impl<'a> SessionSink<'a> {
    pub(crate) fn new(files: Files<'a>, top: &str) -> Self {
        Self { files, top: top.to_owned() }
    }
}

impl Sink<'_> {
    pub(super) async fn make_folder(&mut self, path: &str, mode: u32) -> Result<()> {
        match self {
            Self::Host(sink) => sink.make_folder(path, mode),
            Self::Session(sink) => {
                let path = join(&sink.top, path);
                sink.files.mkdir_all(&path).await?;
                sink.files.chmod(&path, mode | 0o700).await
            }
        }
    }

    pub(super) async fn write(
        &mut self,
        path: &str,
        from: &Source<'_>,
        node: &CopyEntry,
        meter: &CopyProgress<'_>,
    ) -> Result<()> {
        let sink = match (self, from) {
            (Self::Host(sink), Source::Host(source)) => {
                return sink.write_from_host(path, source.open(path).await?, node, meter).await;
            }
            (Self::Host(sink), Source::Session(source)) => {
                return sink.write_from_session(path, source.open(path).await?, node, meter).await;
            }
            (Self::Session(sink), _) => sink,
        };
        let count = |chunk: &[u8]| meter.bytes(chunk.len());
        let content = match from {
            Source::Host(source) => {
                Content::stream(InspectReader::new(source.open(path).await?, count))
            }
            Source::Session(source) => {
                Content::stream(InspectReader::new(stream(source.open(path).await?), count))
            }
        };
        let options = WriteOptions::default().mode(node.mode);
        let path = join(&sink.top, path);
        sink.files.write_with(&path, content, options).await?;
        sink.files.set_modified(&path, node.modified).await
    }

    pub(super) async fn link(
        &mut self,
        path: &str,
        target: &str,
        modified: SystemTime,
    ) -> Result<()> {
        match self {
            Self::Host(sink) => sink.link(path, target, modified),
            Self::Session(sink) => {
                let path = join(&sink.top, path);
                // A link that was there before makes room; a folder does not.
                drop(sink.files.rm(&path).await);
                sink.files.symlink(&path, target).await?;
                sink.files.set_modified(&path, modified).await
            }
        }
    }

    /// Sets when a folder of the copy was last changed.
    pub(super) async fn set_folder_time(&mut self, path: &str, modified: SystemTime) -> Result<()> {
        match self {
            Self::Host(sink) => sink.set_folder_time(path, modified),
            Self::Session(sink) => sink.files.set_modified(&join(&sink.top, path), modified).await,
        }
    }
}

/// A file of a session as a stream. A failure on the way is one of the stream, so that nobody takes a
/// part for the whole.
fn stream(reader: FileReader) -> impl AsyncRead + Send + Unpin {
    let chunks = futures::stream::unfold(reader, |mut reader| async {
        let next: Option<io::Result<Bytes>> = match reader.next().await {
            Ok(Some(chunk)) => Some(Ok(chunk)),
            Ok(None) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        };
        next.map(|chunk| (chunk, reader))
    });
    StreamReader::new(Box::pin(chunks))
}

fn join(top: &str, path: &str) -> String {
    match (top, path) {
        (top, "") => top.to_owned(),
        ("", path) => path.to_owned(),
        (top, path) => format!("{}/{path}", top.trim_end_matches('/')),
    }
}

fn kind(info: &FileInfo) -> Kind {
    match info.kind {
        FileKind::Dir => Kind::Folder,
        FileKind::File => Kind::File,
        FileKind::Symlink => {
            let target = info.target.clone().and_then(|target| String::from_utf8(target).ok());
            // What is no text cannot be checked either.
            target.map_or(Kind::Other, Kind::Link)
        }
        _ => Kind::Other,
    }
}

fn mode(info: &FileInfo) -> u32 {
    info.mode & 0o777
}
