//! Workspaces as tar archives, in the reference's layout.
//!
//! What a session saves itself comes back with owners, times and extended attributes, wherever links
//! lead. As in the reference's archives, each name of a file is a file, and pipes are left out; the
//! store keeps both. An archive from elsewhere is held to the reference's rules.

mod pack;
mod restore;
mod scan;
pub(crate) mod unpack;

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

use bastide_model::snapshot::{FingerprintRecord, resume_manifest_digest};
use sha2::{Digest, Sha256};

use super::{Saved, Workspace};
use crate::compat::raise;
use crate::{Content, Error, ErrorKind, Result};

/// How fingerprints of tar archives are made.
const VERSION: &str = "workspace_tar_sha256_v2";

/// The error number of what is not there.
const NO_ENTRY: i32 = 2;

/// The note that says whose numbers the owners in an archive are: those of a session.
const OWNERS: (&str, &str) = ("BASTIDE.owners", "session");

/// A workspace as a tar archive.
#[derive(Debug)]
pub struct WorkspaceArchive {
    file: File,
    sha256: String,
    /// What is not in it although it was in the workspace: where, and why.
    pub left_out: Vec<(String, String)>,
}

impl WorkspaceArchive {
    /// The archive, from its start.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub fn into_content(self) -> io::Result<Content<'static>> {
        content(self.file)
    }

    /// The archive as a file without a name, at its start.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub fn into_file(mut self) -> io::Result<File> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(self.file)
    }

    /// The SHA-256 of the archive, in hexadecimal digits.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// How many bytes it has, if that can be told.
    pub(crate) fn length(&self) -> Option<u64> {
        self.file.metadata().ok().map(|file| file.len())
    }
}

/// The workspace as an archive, in a file without a name.
pub(crate) async fn archive_of(workspace: &Workspace<'_>) -> Result<WorkspaceArchive> {
    let file = tempfile::tempfile().map_err(|error| unreadable(workspace).with_source(error))?;
    let packed = pack(workspace, file).await?;
    Ok(WorkspaceArchive { file: packed.file, sha256: packed.sha256, left_out: packed.left_out })
}

/// An archive that was written.
struct Packed {
    file: File,
    sha256: String,
    left_out: Vec<(String, String)>,
}

/// Writes the workspace into a file.
async fn pack(workspace: &Workspace<'_>, file: File) -> Result<Packed> {
    let (packer, items) = pack::Packer::start(file, workspace.root().as_str());
    let scanned = scan::scan(workspace, items).await;
    let packed = packer.finish().await;
    // What the writer says is worth more than that it takes no more.
    let left_out = match (&packed, scanned) {
        (Err(_), _) => Vec::new(),
        (Ok(_), scanned) => scanned.map_err(|error| match error.kind() {
            ErrorKind::AgentLost => error,
            _ if is_missing(&error) => unreadable(workspace)
                .with_context("reason", "workspace_root_not_found")
                .with_source(error),
            _ => unreadable(workspace).with_source(error),
        })?,
    };
    let (file, sha256) = packed.map_err(|error| unreadable(workspace).with_source(error))?;
    Ok(Packed { file, sha256, left_out })
}

/// Whether the failure is that the workspace itself is gone.
fn is_missing(error: &Error) -> bool {
    error.is_not_found() || error.errno() == Some(NO_ENTRY)
}

/// Saves the workspace into a file.
pub(super) async fn save(workspace: &Workspace<'_>, file: File) -> Result<(File, Saved)> {
    let packed = pack(workspace, file).await?;
    let fingerprint = fingerprint_of(workspace, &packed.sha256);
    Ok((packed.file, Saved { fingerprint, left_out: packed.left_out }))
}

/// What the workspace looks like now.
pub(super) async fn fingerprint(workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
    let nowhere = File::options().write(true).open("/dev/null");
    let nowhere = nowhere.map_err(|error| unreadable(workspace).with_source(error))?;
    let packed = pack(workspace, nowhere).await?;
    Ok(fingerprint_of(workspace, &packed.sha256))
}

/// Makes the workspace what an archive of ours says. All of it is read before anything is touched.
pub(super) async fn restore(workspace: &Workspace<'_>, archive: File) -> Result<()> {
    let unpacked = unpack::whole(archive, workspace.root().as_str()).await?;
    restore::restore(workspace, unpacked).await
}

/// As [`restore`], for an archive that no keeper has.
pub(crate) async fn restore_archive(workspace: &Workspace<'_>, archive: File) -> Result<()> {
    restore(workspace, archive).await
}

/// A file from its start, to be read by whoever keeps it.
pub(super) fn content(mut file: File) -> io::Result<Content<'static>> {
    file.seek(SeekFrom::Start(0))?;
    Ok(Content::stream(tokio::fs::File::from_std(file)))
}

/// A manifest that cannot be written down has no fingerprint: nobody could say that it is the same.
fn fingerprint_of(workspace: &Workspace<'_>, sha256: &str) -> Option<FingerprintRecord> {
    let digest = resume_manifest_digest(workspace.manifest()).ok()?;
    let text = format!("{sha256}\n{digest}\n");
    let fingerprint = hex::encode(Sha256::digest(text.as_bytes()));
    Some(FingerprintRecord { fingerprint, version: VERSION.to_owned() })
}

fn unreadable(workspace: &Workspace<'_>) -> Error {
    raise::workspace_archive_read(workspace.root())
}
