//! Area `manifest_render`: manifests as text.

use bastide_model::manifest::{MAX_DESCRIPTION_CHARS, render_description, truncate_description};
use bastide_model::{Manifest, Result, lax};
use serde_json::Value;

use super::case::malformed;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("manifest_describe", manifest_describe),
    ("render_manifest_description", render_manifest_description),
    ("truncate_manifest_description", truncate_manifest_description),
];

/// A limit: `null` is none, absence is `usual`.
fn limit(case: &Case<'_>, key: &str, usual: i64) -> Result<Option<i64>> {
    match case.input.get(key) {
        None => Ok(Some(usual)),
        Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| malformed(key, "a whole number")),
    }
}

fn manifest_describe(case: &Case<'_>) -> Result<Value> {
    let manifest: Manifest = lax::read(case.get("manifest"))?;
    Ok(manifest.describe(limit(case, "depth", 1)?)?.into())
}

fn render_manifest_description(case: &Case<'_>) -> Result<Value> {
    let manifest: Manifest = lax::read(case.get("manifest"))?;
    let entries = manifest.validated_entries()?;
    let depth = limit(case, "depth", 1)?;
    let max_chars = limit(case, "max_chars", MAX_DESCRIPTION_CHARS)?;
    Ok(render_description(&manifest.root, entries, depth, max_chars)?.into())
}

fn truncate_manifest_description(case: &Case<'_>) -> Result<Value> {
    let max_chars = limit(case, "max_chars", MAX_DESCRIPTION_CHARS)?;
    Ok(truncate_description(case.text("description")?, max_chars).into())
}
