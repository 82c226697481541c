//! Reading the files of a workspace, each once and within bounds.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustix::fs::readlinkat;

use super::oid::{HashKind, Oid};
use super::open::{may_be_there, open_folder, open_regular, split};
use super::scan::FileMode;

/// What is larger than this is not compared line by line.
pub(super) const MAX_TEXT: u64 = 16 << 20;

/// How often a file is read that is cut short each time.
const MOST_READ: usize = 10;

/// One version of a file.
#[derive(Debug)]
pub(super) enum Content {
    /// All of it.
    Whole(Vec<u8>),
    /// Deflated already, because it is large.
    Deflated { data: File, size: u64, oid: Oid },
    /// Nobody has it any more; it had this name.
    Unknown(Oid),
}

impl Content {
    pub(super) fn oid(&self, hash: HashKind) -> Oid {
        match self {
            Self::Whole(content) => hash.of_blob(content),
            Self::Deflated { oid, .. } | Self::Unknown(oid) => *oid,
        }
    }

    pub(super) fn whole(&self) -> Option<&[u8]> {
        match self {
            Self::Whole(content) => Some(content),
            Self::Deflated { .. } | Self::Unknown(_) => None,
        }
    }
}

/// A file of the workspace as it is now. `None` if it is not there any more as what it was.
pub(super) fn read(
    root: &OwnedFd,
    path: &[u8],
    mode: FileMode,
    hash: HashKind,
    scratch: &Path,
) -> io::Result<Option<Content>> {
    let Some(file) = (match open(root, path, mode)? {
        OpenedEntry::Link(target) => return Ok(Some(Content::Whole(target))),
        OpenedEntry::File(file) => Some(file),
        OpenedEntry::Gone => None,
    }) else {
        return Ok(None);
    };
    let mut content = Vec::new();
    (&file).take(MAX_TEXT + 1).read_to_end(&mut content)?;
    if content.len() as u64 <= MAX_TEXT {
        return Ok(Some(Content::Whole(content)));
    }
    drop(content);
    deflate(file, hash, scratch).map(Some)
}

/// Deflates a large file and names it on the way, so that both are of the same bytes. A file that is cut
/// short meanwhile is read again.
fn deflate(mut file: File, hash: HashKind, scratch: &Path) -> io::Result<Content> {
    for _ in 0..MOST_READ {
        if let Some(content) = deflate_once(&mut file, hash, scratch)? {
            return Ok(content);
        }
    }
    Err(io::Error::other("it is cut short again and again while it is read"))
}

/// How long it is must be said before it is named; a file that grows meanwhile is taken as long as it
/// was. `None` if it was cut short.
fn deflate_once(file: &mut File, hash: HashKind, scratch: &Path) -> io::Result<Option<Content>> {
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = hash.object("blob", size);
    let mut encoder = ZlibEncoder::new(tempfile::tempfile_in(scratch)?, Compression::fast());
    let mut left = size;
    let mut buffer = vec![0u8; 256 << 10];
    while left > 0 {
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = file.read(buffer.get_mut(..room).unwrap_or_default())?;
        if count == 0 {
            return Ok(None);
        }
        let chunk = buffer.get(..count).unwrap_or_default();
        hasher.update(chunk);
        encoder.write_all(chunk)?;
        left -= count as u64;
    }
    let mut data = encoder.finish()?;
    data.seek(SeekFrom::Start(0))?;
    Ok(Some(Content::Deflated { data, size, oid: hasher.finish() }))
}

/// The name of what is in a file of the workspace now. `None` if it is not there any more.
pub(super) fn name(
    root: &OwnedFd,
    path: &[u8],
    mode: FileMode,
    hash: HashKind,
) -> io::Result<Option<Oid>> {
    match open(root, path, mode)? {
        OpenedEntry::Link(target) => Ok(Some(hash.of_blob(&target))),
        OpenedEntry::Gone => Ok(None),
        OpenedEntry::File(mut file) => {
            let size = file.metadata()?.len();
            // What is written to at this moment has no name yet; it differs from any that is known.
            Ok(Some(hash.of_stream(size, &mut file)?.unwrap_or_else(|| hash.zero())))
        }
    }
}

enum OpenedEntry {
    File(File),
    Link(Vec<u8>),
    Gone,
}

fn open(root: &OwnedFd, path: &[u8], mode: FileMode) -> io::Result<OpenedEntry> {
    let (folder, name) = split(path);
    let opened = open_folder(root, folder).and_then(|folder| match mode {
        FileMode::Link => {
            Ok(OpenedEntry::Link(readlinkat(&folder, name, Vec::new())?.into_bytes()))
        }
        FileMode::Plain | FileMode::Executable => {
            Ok(OpenedEntry::File(open_regular(&folder, name)?))
        }
    });
    match opened {
        Ok(opened) => Ok(opened),
        Err(error) if may_be_there(&error) => {
            let message = format!("{}: {error}", String::from_utf8_lossy(path));
            Err(io::Error::new(error.kind(), message))
        }
        // It went, or became something else, since it was found.
        Err(_) => Ok(OpenedEntry::Gone),
    }
}
