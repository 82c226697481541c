//! Area `mount_security`: the credential boundary, sanitizing, rebinding.

use bastide_model::lax::{self, Dump};
use bastide_model::mount::{
    Exposure, Sanitized, absolute_manifest_path, analyze_rclone_args, is_safe_remote_name,
    sanitize_manifest, sanitize_run_state,
};
use bastide_model::{Manifest, Registry, Result};
use serde_json::{Value, json};

use super::case::malformed;
use super::rclone_config::with_mount;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("validate_mount_boundaries", validate_mount_boundaries),
    ("acknowledge_exposure", acknowledge_exposure),
    ("acknowledges_exposure", acknowledges_exposure),
    ("configured_mount_authority_fields", |case| {
        with_mount(case, |mount| Ok(mount.authority_fields().into()))
    }),
    ("manifest_has_configured_authority", |case| {
        Ok(lax::read::<Manifest>(case.get("manifest"))?.holds_mount_authority().into())
    }),
    ("sanitize_raw_manifest", |case| {
        let Sanitized { value, redacted } =
            sanitize_manifest(case.get("manifest").clone(), Registry::builtin())?;
        Ok(json!({ "manifest": value, "redacted": redacted }))
    }),
    ("sanitize_manifest", |case| {
        let manifest: Manifest = lax::read(case.get("manifest"))?;
        let Sanitized { value, redacted } = manifest.sanitized(Registry::builtin())?;
        Ok(json!({ "manifest": value.dump()?, "redacted": redacted }))
    }),
    ("sanitize_run_state_sandbox", |case| {
        let Sanitized { value, redacted } =
            sanitize_run_state(case.get("sandbox").clone(), Registry::builtin())?;
        Ok(json!({ "sandbox": value, "redacted": redacted }))
    }),
    ("rebind_manifest", rebind_manifest),
    ("rclone_extra_args_analysis", rclone_extra_args_analysis),
    ("rclone_remote_name_is_safe", rclone_remote_name_is_safe),
    ("absolute_manifest_path", |case| {
        Ok(absolute_manifest_path(case.text("root")?, case.text("value")?).into())
    }),
    ("manifest_materializes_path", |case| {
        let manifest: Manifest = lax::read(case.get("manifest"))?;
        Ok(manifest.materializes_path(case.text("target")?)?.into())
    }),
];

/// The manifest under `key`, with the acknowledgements of the case.
pub(crate) fn acknowledged(case: &Case<'_>, key: &str) -> Result<Manifest> {
    let mut manifest: Manifest = lax::read(case.get(key))?;
    for exposure in [Exposure::MountScoped, Exposure::Broad] {
        let paths = case.get("ack").get(word(exposure)).and_then(Value::as_array);
        let paths: Vec<&str> = paths.into_iter().flatten().filter_map(Value::as_str).collect();
        if !paths.is_empty() {
            manifest = manifest.with_mount_exposure_acknowledged(exposure, &paths)?;
        }
    }
    Ok(manifest)
}

fn word(exposure: Exposure) -> &'static str {
    match exposure {
        Exposure::MountScoped => "mount_scoped",
        Exposure::Broad => "broad",
    }
}

fn exposure(case: &Case<'_>) -> Result<Exposure> {
    match case.text("authority")? {
        "mount_scoped" => Ok(Exposure::MountScoped),
        "broad" => Ok(Exposure::Broad),
        _ => Err(malformed("authority", "a known word")),
    }
}

fn validate_mount_boundaries(case: &Case<'_>) -> Result<Value> {
    let manifest = acknowledged(case, "manifest")?;
    manifest.check_mount_boundaries(case.optional_text("backend")?)?;
    Ok("ok".into())
}

fn acknowledge_exposure(case: &Case<'_>) -> Result<Value> {
    let manifest: Manifest = lax::read(case.get("manifest"))?;
    let paths = case.texts("paths")?;
    let manifest = manifest.with_mount_exposure_acknowledged(exposure(case)?, &paths)?;
    let exposed = &manifest.mount_exposure;
    Ok(json!({ "mount_scoped": exposed.mount_scoped, "broad": exposed.broad }))
}

fn acknowledges_exposure(case: &Case<'_>) -> Result<Value> {
    let manifest = acknowledged(case, "manifest")?;
    Ok(manifest.acknowledges_mount_exposure(case.text("path")?, exposure(case)?)?.into())
}

fn rebind_manifest(case: &Case<'_>) -> Result<Value> {
    let persisted: Manifest = lax::read(case.get("persisted"))?;
    let trusted = acknowledged(case, "trusted")?;
    persisted.with_mount_authority_of(&trusted, case.text("backend")?, Registry::builtin())?.dump()
}

fn rclone_extra_args_analysis(case: &Case<'_>) -> Result<Value> {
    let args = analyze_rclone_args(case.list("extra_args")?.iter().map(Value::as_str));
    Ok(json!({
        "safe": args.safe,
        "config_paths": args.config_files,
        "invalid_config_path": args.nameless_config_file,
    }))
}

fn rclone_remote_name_is_safe(case: &Case<'_>) -> Result<Value> {
    Ok(match case.get("remote_name") {
        Value::Null => true,
        Value::String(name) => is_safe_remote_name(name),
        _ => false,
    }
    .into())
}
