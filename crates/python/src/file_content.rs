//! Whole files of a session.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use bastide::{Error, ErrorKind, Files, Result, Session};
use bytes::BytesMut;

/// Up to this size a file is read into memory.
const SMALL: u64 = 1 << 20;

/// The files of a session, as one of its users.
pub(crate) fn files<'a>(session: &'a Session, user: Option<&String>) -> Files<'a> {
    match user {
        Some(user) => session.files_as(user),
        None => session.files(),
    }
}

/// A whole file in memory, or a file without a name that it was copied to.
pub(crate) enum FileContent {
    Small(BytesMut),
    Large(File),
}

/// Reads a file.
pub(crate) async fn read(
    session: &Session,
    path: &str,
    user: Option<&String>,
) -> Result<FileContent> {
    let mut reader = files(session, user).open(path).await?;
    if reader.size() <= SMALL {
        let mut all = BytesMut::new();
        while let Some(chunk) = reader.next().await? {
            all.extend_from_slice(&chunk);
            if all.len() as u64 > 2 * SMALL {
                break;
            }
        }
        if (all.len() as u64) <= 2 * SMALL {
            return Ok(FileContent::Small(all));
        }
        reader = files(session, user).open(path).await?;
    }
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot keep a copy of {path}: {error}"))
    };
    let mut copy = tempfile::tempfile().map_err(failed)?;
    let mut length = 0;
    while let Some(chunk) = reader.next().await? {
        length += chunk.len() as u64;
        // Zeros become holes: a command can make a file of any size of nothing.
        match chunk.iter().all(|byte| *byte == 0) {
            true => drop(copy.seek(SeekFrom::Start(length)).map_err(failed)?),
            false => copy.write_all(&chunk).map_err(failed)?,
        }
    }
    copy.set_len(length).map_err(failed)?;
    copy.rewind().map_err(failed)?;
    Ok(FileContent::Large(copy))
}
