//! Area `snapshot`: snapshots, and how a session knows its workspace again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bastide_model::checksum::sha256_hex;
use bastide_model::error::raise;
use bastide_model::lax::{self, Dump as _};
use bastide_model::merge::deep_merge;
use bastide_model::snapshot::{
    FingerprintRecord, LocalSnapshot, Platform, STALE_AFTER_SECONDS, Snapshot, SnapshotSpec,
    StaleSnapshots, default_local_snapshot_base_dir, resume_manifest_digest, resume_manifest_text,
};
use bastide_model::{Manifest, PosixPath, Result};
use serde_json::{Value, json};

use super::case::malformed;
use super::tree::{self, Modes};
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("snapshot_spec_parse", |case| lax::read::<SnapshotSpec>(case.get("spec"))?.dump()),
    ("snapshot_parse", |case| lax::read::<Snapshot>(case.get("snapshot"))?.dump()),
    ("resolve_snapshot", resolve_snapshot),
    ("local_snapshot_path", |case| {
        let base_path = PosixPath::new(case.text("base_path")?);
        Ok(LocalSnapshot { id: case.text("id")?.to_owned(), base_path }.path()?.as_str().into())
    }),
    ("local_snapshot_ops", local_snapshot_ops),
    ("noop_snapshot_restore", |case| {
        let snapshot = SnapshotSpec::Noop.build(case.text("id")?);
        snapshot.never_restorable().map_or(Ok(Value::Null), Err)
    }),
    ("default_local_snapshot_base_dir", default_base_dir),
    ("cleanup_stale_snapshots", cleanup_stale),
    ("resume_manifest_digest", |case| {
        let manifest: Manifest = lax::read(case.get("manifest"))?;
        let length = resume_manifest_text(&manifest)?.len();
        Ok(json!({"digest": resume_manifest_digest(&manifest)?, "length": length}))
    }),
    ("parse_fingerprint_record", |case| {
        let payload = match case.get("payload_b64") {
            Value::Null => case.text("payload")?.as_bytes().to_vec(),
            _ => case.bytes("payload_b64")?,
        };
        let record = FingerprintRecord::parse(&payload)?;
        Ok(json!({"fingerprint": record.fingerprint, "version": record.version}))
    }),
    ("sha256_stream", |case| {
        let digest = sha256_hex(case.bytes("data_b64")?.as_slice());
        digest.map(Value::from).map_err(|error| raise::runtime_error(error.to_string()))
    }),
    ("deep_merge", |case| Ok(deep_merge(case.object("a")?, case.object("b")?).into())),
];

fn resolve_snapshot(case: &Case<'_>) -> Result<Value> {
    let spec = case.get("spec");
    let snapshot = match spec {
        Value::Null => SnapshotSpec::default().build(case.text("snapshot_id")?),
        _ if spec.get("id").is_some() => lax::read(spec)?,
        _ => lax::read::<SnapshotSpec>(spec)?.build(case.text("snapshot_id")?),
    };
    snapshot.dump()
}

/// Does to a local snapshot what its rules say, with plain file operations.
fn local_snapshot_ops(case: &Case<'_>) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.list("tree")?)?;
    let base_path = PosixPath::new(&scratch.join("snap").to_string_lossy());
    let snapshot = LocalSnapshot { id: case.text("id")?.to_owned(), base_path };
    let mut results = Vec::new();
    for op in case.list("ops")? {
        let path = PathBuf::from(snapshot.path()?.as_str());
        results.push(match (op.as_str(), op.get("persist").and_then(Value::as_str)) {
            (Some("restorable"), _) => path.is_file().into(),
            (Some("restore"), _) => match fs::read_to_string(&path) {
                Ok(content) => content.into(),
                Err(error) => return Err(snapshot.restore_error()?.with_source(error)),
            },
            (_, Some(content)) => {
                let temporary = PathBuf::from(snapshot.temporary_path("0")?.as_str());
                let folder = Path::new(snapshot.base_path.as_str());
                let written = fs::create_dir_all(folder)
                    .and_then(|()| fs::write(&temporary, content))
                    .and_then(|()| fs::rename(&temporary, &path));
                if let Err(error) = written {
                    return Err(snapshot.persist_error()?.with_source(error));
                }
                Value::Null
            }
            _ => return Err(malformed("ops", "operations")),
        });
    }
    Ok(json!({"results": results, "tree": tree::list(scratch, Modes::Hidden)?}))
}

fn default_base_dir(case: &Case<'_>) -> Result<Value> {
    let platform = match (case.optional_text("platform")?, case.optional_text("os_name")?) {
        (Some("darwin"), _) => Platform::Mac,
        (_, Some("nt")) => Platform::Windows,
        _ => Platform::Other,
    };
    let env = case.get("env");
    let variable = |name: &str| env.get(name).and_then(Value::as_str);
    let home = PosixPath::new(case.text("home")?);
    Ok(default_local_snapshot_base_dir(&home, variable, platform).as_str().into())
}

fn cleanup_stale(case: &Case<'_>) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.list("tree")?)?;
    let now = case.get("now").as_f64().ok_or_else(|| malformed("now", "a time"))?;
    let max_age = match case.get("max_age_seconds") {
        Value::Null => STALE_AFTER_SECONDS,
        _ => case.integer("max_age_seconds")?,
    };
    if let Some(stale) = StaleSnapshots::before(now, max_age) {
        remove_stale(&scratch.join("snap"), stale)
            .map_err(|error| raise::runtime_error(error.to_string()))?;
    }
    let paths = tree::list(scratch, Modes::Hidden)?;
    Ok(paths.into_iter().map(|node| node["path"].clone()).collect())
}

fn remove_stale(folder: &Path, stale: StaleSnapshots) -> std::io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let age = metadata.modified()?.duration_since(UNIX_EPOCH);
        let modified = age.map_or(0.0, |age| age.as_secs_f64());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if metadata.is_file() && stale.covers(&name, modified) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
