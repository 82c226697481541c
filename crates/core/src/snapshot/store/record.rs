//! What is on record about a snapshot: the one file that makes it visible.
//!
//! ```text
//! bastide-snapshot 1 <BLAKE3 of what follows>
//! {"name":…, "root":…, "tree":[…], …}
//! ```

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::chunk::ChunkId;
use super::errors::{damaged, failed};
use crate::{Condition, Error, ErrorKind, Result};

/// How a record begins.
const MAGIC: &str = "bastide-snapshot 1 ";

/// The longest name of a snapshot.
const MAX_NAME: usize = 128;

/// The longest record that is read.
const MAX_RECORD: u64 = 64 << 20;

/// What the files of records end in.
const ENDING: &str = ".snapshot";

/// Information about a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// The hash of its content: equal trees have equal fingerprints.
    #[serde(rename = "root")]
    pub fingerprint: String,
    /// When it was saved, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// The session it was saved from, if any.
    pub session: Option<String>,
    /// The number of files, folders and other entries.
    pub entries: u64,
    /// The total size of its files.
    pub bytes: u64,
    /// What was in the workspace and is not in the snapshot: the path, and the reason. At most a
    /// thousand.
    pub left_out: Vec<(String, String)>,
    /// The chunks its list is made of.
    pub(crate) tree: Vec<String>,
}

impl SnapshotInfo {
    /// The chunks its list is made of.
    pub(crate) fn chunks(&self) -> Result<Vec<ChunkId>> {
        let bad = || damaged(format!("the record of snapshot {}", self.name));
        self.tree.iter().map(|id| id.parse().map_err(|_| bad())).collect()
    }
}

/// The fingerprint of a list that is made of these chunks.
pub(crate) fn fingerprint(tree: &[ChunkId]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"bastide tree 1\n");
    for id in tree {
        hasher.update(&id.0);
    }
    hasher.finalize().to_hex().to_string()
}

/// Refuses a name no snapshot can have.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_good);
    if is_name && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    let message = format!("{name:?} is no name for a snapshot");
    Err(Error::new(ErrorKind::InvalidInput, message).with_hint(
        "a name has letters, digits, `.`, `_` and `-`, does not begin with `.` or `-`, and is not longer than 128",
    ))
}

/// The file of a snapshot's record.
pub(crate) fn file_name(name: &str) -> String {
    format!("{name}{ENDING}")
}

/// The names of all snapshots in a folder.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>> {
    let reading = |error| failed("read", folder, error);
    let mut names = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
        Err(error) => return Err(reading(error)),
    };
    for entry in entries {
        let file = entry.map_err(reading)?.file_name();
        let name = file.to_str().and_then(|file| file.strip_suffix(ENDING));
        names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The bytes of a record.
pub(crate) fn encode(info: &SnapshotInfo) -> Result<Vec<u8>> {
    let json = serde_json::to_string(info)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let rest = format!("{json}\n");
    Ok(format!("{MAGIC}{}\n{rest}", ChunkId::of(rest.as_bytes())).into_bytes())
}

/// Reads the bytes of a record, which must be of the snapshot that is called `name`.
pub(crate) fn decode(bytes: &[u8], name: &str) -> Result<SnapshotInfo> {
    let bad = || damaged(format!("the record of snapshot {name} is not what was written"));
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or_else(bad)?;
    let (hash, rest) = rest.split_at_checked(64).ok_or_else(bad)?;
    let rest = rest.strip_prefix(b"\n").ok_or_else(bad)?;
    let hash: ChunkId =
        std::str::from_utf8(hash).ok().and_then(|hash| hash.parse().ok()).ok_or_else(bad)?;
    if ChunkId::of(rest) != hash {
        return Err(bad());
    }
    let info: SnapshotInfo = serde_json::from_slice(rest).map_err(|_| bad())?;
    let is_right = info.name == name && info.fingerprint == fingerprint(&info.chunks()?);
    if is_right { Ok(info) } else { Err(bad()) }
}

/// Reads a record.
pub(crate) fn read(folder: &Path, name: &str) -> Result<SnapshotInfo> {
    check_name(name)?;
    let path = folder.join(file_name(name));
    let length = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(name)),
        Err(error) => return Err(failed("read", &path, error)),
    };
    if length > MAX_RECORD {
        return Err(damaged(format!("the record of snapshot {name} is too long")));
    }
    match fs::read(&path) {
        Ok(bytes) => decode(&bytes, name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(name)),
        Err(error) => Err(failed("read", &path, error)),
    }
}

/// There is no such snapshot.
pub(crate) fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot {name}"))
        .with_condition(Condition::SnapshotMissing)
}
