//! How far a log was when it was last signed, kept outside the log's own folder: whoever cuts the log back
//! to an earlier state, however well signed, has to find this, too, and cannot write another.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::key::{AuditKey, AuditPublicKey};
use super::record::Digest;
use crate::backend::SessionId;
use crate::host::{make_private, sync_folder};

/// The folder of signed heads, beside the logs. No session is called so.
const HEADS: &str = ".heads";

/// What was last signed of a log.
#[derive(Debug, Clone)]
pub(super) struct SignedHead {
    pub(super) seq: u64,
    pub(super) hash: Digest,
    pub(super) key: AuditPublicKey,
}

/// What is known of the last signature.
#[derive(Debug, Clone)]
pub(super) enum KnownHead {
    /// Nothing.
    None,
    /// There is something, and it is not signed by the key it names.
    Bad,
    Signed(Box<SignedHead>),
}

/// Where the head of a log is kept.
pub(super) fn path(log: &Path, id: &SessionId) -> PathBuf {
    log.with_file_name(HEADS).join(id.as_str())
}

/// The sessions of which a head is kept.
pub(super) fn all(audit: &Path) -> Vec<SessionId> {
    let entries = fs::read_dir(audit.join(HEADS)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Reads the head of a log, and checks that the key it names signed it.
pub(super) fn read(log: &Path, id: &SessionId) -> io::Result<KnownHead> {
    let text = match fs::read_to_string(path(log, id)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KnownHead::None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(KnownHead::Bad),
        Err(error) => return Err(error),
    };
    let signed = || -> Option<SignedHead> {
        let value: Value = serde_json::from_str(&text).ok()?;
        let word = |key: &str| value.get(key).and_then(Value::as_str);
        let (seq, hash) = (value.get("seq")?.as_u64()?, Digest::from_hex(word("hash")?)?);
        let key: AuditPublicKey = word("key")?.parse().ok()?;
        key.signed(id, seq, &hash, word("sig")?).then_some(SignedHead { seq, hash, key })
    };
    Ok(signed().map_or(KnownHead::Bad, |head| KnownHead::Signed(Box::new(head))))
}

/// Keeps what was signed, unless more is kept already. Whoever calls this holds the log's lock.
pub(super) fn write(
    log: &Path,
    id: &SessionId,
    (seq, hash): (u64, Digest),
    key: &AuditKey,
) -> io::Result<()> {
    if let KnownHead::Signed(kept) = read(log, id)?
        && kept.key == key.public()
        && kept.seq >= seq
    {
        return Ok(());
    }
    let path = path(log, id);
    let folder = path.parent().unwrap_or(log);
    if make_private(folder)? {
        sync_above(folder)?;
    }
    let next = path.with_extension("next");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    let (of, sig) = (hash.to_string(), key.sign(id, seq, &hash));
    let text = json!({"seq": seq, "hash": of, "key": key.public().to_string(), "sig": sig});
    file.write_all(format!("{text}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&next, &path)?;
    sync_folder(folder)
}

/// Forgets the head of a log that goes away with it.
pub(super) fn remove(log: &Path, id: &SessionId) -> io::Result<()> {
    match fs::remove_file(path(log, id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Puts a new folder on the disk: its name, and those of the two above it, which may be new, too.
pub(super) fn sync_above(folder: &Path) -> io::Result<()> {
    let above = folder.ancestors().skip(1).take(3).filter(|above| !above.as_os_str().is_empty());
    above.into_iter().try_for_each(|above| match sync_folder(above) {
        // One that may not be read was not made by us.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    })
}
