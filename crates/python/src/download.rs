//! Files of a session that are copied to this machine, a piece at a time.

use std::io::SeekFrom;
use std::path::Path;

use bastide::{Error, ErrorKind, Result, Session};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

/// Copies a file. It is written beside, and has its name when it is whole; zeros become holes.
pub(crate) async fn download(
    session: &Session,
    path: &str,
    destination: &Path,
    most: Option<u64>,
) -> Result<()> {
    let files = session.files();
    let mut reader = files.open(path).await?;
    let refuse = |size: u64| {
        let message =
            format!("{path} has {size} bytes or more, and {} may be copied", most.unwrap_or(0));
        Error::new(ErrorKind::LimitExceeded, message).with_hint("raise max_bytes")
    };
    let most = most.unwrap_or(u64::MAX);
    if reader.size() > most {
        return Err(refuse(reader.size()));
    }
    let failed = |error: std::io::Error| {
        let message = format!("cannot write {}: {error}", destination.display());
        Error::new(ErrorKind::Io, message).with_source(error)
    };
    let folder = destination.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = tempfile::Builder::new()
        .prefix(".bastide-")
        .permissions(usual())
        .tempfile_in(folder.unwrap_or(Path::new(".")));
    let beside = beside.map_err(failed)?;
    let mut file = File::from_std(beside.reopen().map_err(failed)?);
    let mut length = 0;
    while let Some(chunk) = reader.next().await? {
        length += chunk.len() as u64;
        if length > most {
            return Err(refuse(length));
        }
        match chunk.iter().all(|byte| *byte == 0) {
            true => drop(file.seek(SeekFrom::Start(length)).await.map_err(failed)?),
            false => file.write_all(&chunk).await.map_err(failed)?,
        }
    }
    file.flush().await.map_err(failed)?;
    file.set_len(length).await.map_err(failed)?;
    drop(file);
    beside.persist(destination).map(drop).map_err(|error| failed(error.error))
}

/// The permissions of a file that nobody said anything about.
fn usual() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}
