//! Area `manifest_validate`: manifests, their paths, and environments; and what other areas ask about
//! manifests.

use bastide_model::lax::{self, Dump};
use bastide_model::manifest::{normalize_in_workspace, rel_path};
use bastide_model::{Entry, Environment, Manifest, PathGrant, PosixPath, Registry, Result};
use serde_json::{Value, json};

use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("manifest_validate", manifest_validate),
    ("manifest_parse", manifest_parse),
    ("manifest_iter_entries", manifest_iter_entries),
    ("manifest_mount_targets", manifest_mount_targets),
    ("manifest_ephemeral_paths", manifest_ephemeral_paths),
    ("environment_resolve", environment_resolve),
    ("coerce_manifest", coerce_manifest),
    ("coerce_rel_path", |case| rel_path(case.text("path")?)?.dump()),
    ("ephemeral_entries", ephemeral_entries),
    ("manifest_normalize_in_workspace_path", normalize_in_workspace_path),
    ("path_grant_validate", |case| lax::read::<PathGrant>(case.get("grant"))?.dump()),
];

fn manifest(case: &Case<'_>) -> Result<Manifest> {
    lax::read(case.get("manifest"))
}

fn manifest_validate(case: &Case<'_>) -> Result<Value> {
    let manifest = manifest(case)?;
    manifest.validated_entries()?;
    manifest.dump()
}

fn manifest_parse(case: &Case<'_>) -> Result<Value> {
    manifest(case)?.dump()
}

fn manifest_iter_entries(case: &Case<'_>) -> Result<Value> {
    let manifest = manifest(case)?;
    let mut entries = Vec::new();
    for step in manifest.walk()? {
        let (path, entry) = step?;
        entries.push(json!([path.to_string(), entry.type_name()]));
    }
    Ok(entries.into())
}

fn manifest_mount_targets(case: &Case<'_>) -> Result<Value> {
    let manifest = manifest(case)?;
    let targets = manifest.mount_targets()?;
    let targets = targets.iter().map(|target| {
        json!({
            "path": target.path.to_string(),
            "type": target.mount.type_name(),
            "read_only": target.mount.read_only,
        })
    });
    Ok(targets.collect())
}

fn manifest_ephemeral_paths(case: &Case<'_>) -> Result<Value> {
    fn texts<'a>(paths: impl IntoIterator<Item = &'a PosixPath>) -> Value {
        paths.into_iter().map(|path| Value::from(path.to_string())).collect()
    }
    let manifest = manifest(case)?;
    let entry_paths = texts(&manifest.ephemeral_entry_paths()?);
    let persistence_paths = texts(&manifest.ephemeral_persistence_paths()?);
    let targets = manifest.ephemeral_mount_targets()?;
    Ok(json!({
        "entry_paths": entry_paths,
        "persistence_paths": persistence_paths,
        "mount_targets": texts(targets.iter().map(|target| &target.path)),
    }))
}

fn environment_resolve(case: &Case<'_>) -> Result<Value> {
    let environment: Environment = lax::read(case.get("environment"))?;
    Ok(json!({
        "dump": environment.dump()?,
        "normalized": environment.normalized().dump()?,
        "resolved": environment.fixed().dump()?,
    }))
}

fn coerce_manifest(case: &Case<'_>) -> Result<Value> {
    let parameter = case.text("parameter_name")?;
    Manifest::coerce(case.get("manifest"), parameter, Registry::builtin())?.dump()
}

fn normalize_in_workspace_path(case: &Case<'_>) -> Result<Value> {
    let path = |key| case.text(key).map(PosixPath::new);
    normalize_in_workspace(&path("root")?, &path("path")?)?.dump()
}

fn ephemeral_entries(case: &Case<'_>) -> Result<Value> {
    let manifest = manifest(case)?;
    let entries = manifest.ephemeral_entries()?;
    let dump = |(path, entry): &(PosixPath, &Entry)| {
        Ok(json!({"path": path.to_string(), "entry": entry.dump()?}))
    };
    entries.iter().map(dump).collect()
}
