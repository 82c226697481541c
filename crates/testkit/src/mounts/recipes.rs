//! The recipes of `docs/mounts.md` that mount from outside, with the addresses of servers of ours in them.

use std::collections::BTreeSet;

use bastide::CreateOptions;
use bastide::model::Manifest;
use bastide::model::document::{Document, Format};
use bastide::secrets::resolve_mount_keys;
use serde_json::{Value, json};

use super::servers::{AZURITE_KEY, Kind, shared};
use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![the_recipes_of_the_page_are_mounted];

const PAGE: &str = include_str!("../../../../docs/mounts.md");

/// Every entry of every recipe.
fn recipes() -> Result<Vec<Value>, TrialError> {
    let mut found = Vec::new();
    for block in PAGE.split("```yaml\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let indented: String = block.lines().map(|line| format!("  {line}\n")).collect();
        let whole = match block.starts_with("entries:") {
            true => block.to_owned(),
            false => format!("entries:\n{indented}"),
        };
        let document = Document::parse("recipe", &whole, Format::Yaml)?;
        let entries = document.value()["entries"].as_object().cloned().unwrap_or_default();
        found.extend(entries.into_iter().map(|(_, entry)| entry));
    }
    Ok(found)
}

/// Leads a recipe to a server on this machine; says which it is.
fn lead(entry: &mut Value) -> Result<&'static str, TrialError> {
    let is_native = entry.get("service_account_credentials").is_some();
    let (name, kind) = match entry["type"].as_str().unwrap_or_default() {
        "s3_mount" => ("s3", Kind::Moto),
        "r2_mount" => ("r2", Kind::Moto),
        "gcs_mount" if is_native => ("gcs", Kind::Gcs),
        "gcs_mount" => ("gcs by HMAC", Kind::Moto),
        "azure_blob_mount" => ("azure_blob", Kind::Azurite),
        other => return Err(format!("nobody mounts {other} from outside").into()),
    };
    let endpoint: Value = shared(kind)?.endpoint().into();
    match name {
        "r2" => entry["custom_domain"] = endpoint,
        "azure_blob" => {
            entry["endpoint"] = endpoint;
            entry["account"] = "devstoreaccount1".into();
            entry["container"] = "data".into();
            return Ok(name);
        }
        _ => entry["endpoint_url"] = endpoint,
    }
    entry["bucket"] = "data".into();
    if let Some(fields) = entry.as_object_mut().filter(|_| is_native) {
        // The emulator issues no tokens, and asks for none.
        fields.remove("service_account_credentials");
    }
    Ok(name)
}

async fn the_recipes_of_the_page_are_mounted(context: Context) -> Outcome {
    let mut mounted = BTreeSet::new();
    for mut entry in recipes()? {
        if entry["mount_strategy"]["type"] != "host" {
            continue;
        }
        let name = lead(&mut entry)?;
        let env = |key: &str| {
            let secret = if name == "azure_blob" { AZURITE_KEY } else { "s3cr3t" };
            Some(if key.ends_with("ID") { "AKID" } else { secret }.to_owned())
        };
        let is_file = |from: &str| from.starts_with("file:");
        if entry["secret_access_key"]["from"].as_str().is_some_and(is_file) {
            entry["secret_access_key"] = json!({"from": "env:KEY"});
        }
        let mut whole = json!({"entries": {"data": entry}});
        resolve_mount_keys(&mut whole, &[], &env).await?;
        let manifest: Manifest = bastide::model::lax::read(&whole)?;
        let session = match context.client().create(&manifest, CreateOptions::default()).await {
            Err(error) if error.message().contains("/dev/fuse") => {
                return Err(skip(error.message()));
            }
            made => made?,
        };
        say(&session, "ls data > /dev/null && grep -q ' fuse.bastide ' /proc/self/mountinfo")
            .await?;
        session.delete().await?;
        mounted.insert(name);
    }
    let all = ["azure_blob", "gcs", "gcs by HMAC", "r2", "s3"];
    assert_eq!(mounted.into_iter().collect::<Vec<_>>(), all);
    Ok(())
}
