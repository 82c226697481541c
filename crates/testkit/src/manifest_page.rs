//! The page of every field of a manifest, from its schema.

mod examples;

use bastide_model::schema;
use serde_json::{Map, Value};

const HEAD: &str = "# Manifests\n\nA manifest says what is in a workspace: JSON, YAML or TOML. `bastide init` writes one to start from, and \
                    `reference/manifest.schema.json` is its schema, for editors. Every example here is laid out by a test, but for those \
                    that need a network, which are checked. This page is written by `cargo xtask docs`.\n\nPaths of the host are relative \
                    to the folder the manifest lies in. Fields that are not given have the default; a field that is not listed is refused, \
                    with the line it is on.\n";

/// The parts of the page, in order: what each is called, and the name of its definition.
const PARTS: [(&str, &str); 28] = [
    ("A manifest", ""),
    ("`environment`", "environment"),
    ("A variable with a description", "env_entry"),
    ("A variable with a type", "env_value"),
    ("`users`", "user"),
    ("`groups`", "group"),
    ("`extra_path_grants`", "path_grant"),
    ("`permissions` of an entry", "permissions"),
    ("Entry `dir`", "dir"),
    ("Entry `file`", "file"),
    ("Entry `local_file`", "local_file"),
    ("Entry `local_dir`", "local_dir"),
    ("Entry `git_repo`", "git_repo"),
    ("Mount `s3_mount`", "s3_mount"),
    ("Mount `r2_mount`", "r2_mount"),
    ("Mount `gcs_mount`", "gcs_mount"),
    ("Mount `azure_blob_mount`", "azure_blob_mount"),
    ("Mount `box_mount`", "box_mount"),
    ("Mount `s3_files_mount`", "s3_files_mount"),
    ("Strategy `host`", "host"),
    ("Strategy `in_container`", "in_container"),
    ("Strategy `docker_volume`", "docker_volume"),
    ("Pattern `rclone`", "rclone"),
    ("Pattern `mountpoint`", "mountpoint"),
    ("Pattern `fuse`", "fuse"),
    ("Pattern `s3files`", "s3files"),
    ("Any entry", "entry"),
    ("Any strategy", "mount_strategy"),
];

/// The page.
#[must_use]
pub fn page() -> String {
    let schema = &schema::manifest();
    let mut text = HEAD.to_owned();
    for (title, name) in PARTS {
        let part = if name.is_empty() { schema } else { &schema["$defs"][name] };
        text.push_str(&format!("\n## {title}\n"));
        if let Some(about) = part["description"].as_str() {
            text.push_str(&format!("\n{about}\n"));
        }
        text.push_str(&fields(part));
        if let Some(example) = examples::of(name) {
            text.push_str(&format!("\n```yaml\n{example}```\n"));
        }
    }
    text
}

fn fields(part: &Value) -> String {
    let nothing = Map::new();
    let properties = part["properties"].as_object().unwrap_or(&nothing);
    let required: Vec<_> = part["required"].as_array().into_iter().flatten().collect();
    let mut text = "\n| field | is | default | |\n|---|---|---|---|\n".to_owned();
    for (name, field) in properties {
        let is_required = required.iter().any(|one| *one == name);
        let default = match (field.get("default"), is_required) {
            (_, true) => "must be given".to_owned(),
            (Some(default), false) => format!("`{default}`"),
            (None, false) => String::new(),
        };
        let about = field["description"].as_str().unwrap_or_default();
        text.push_str(&format!("| `{name}` | {} | {default} | {about} |\n", kind(field)));
    }
    text
}

/// What a field is, in a few words.
fn kind(field: &Value) -> String {
    if let Some(value) = field.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    if let Some(reference) = field["$ref"].as_str() {
        return reference.trim_start_matches("#/$defs/").replace('_', " ");
    }
    if let Some(kinds) = field["anyOf"].as_array() {
        let kinds: Vec<_> = kinds.iter().map(kind).filter(|kind| kind != "null").collect();
        return kinds.join(" or ");
    }
    match &field["type"] {
        Value::String(kind) if kind == "array" => {
            format!("list of {}", self::kind(&field["items"]))
        }
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds.collect::<Vec<_>>().join(" or ")
        }
        _ => "anything".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_page_of_manifests_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manifest.md");
        if std::env::var_os("BASTIDE_TEST_UPDATE").is_some() {
            fs::write(path, page()).unwrap();
        }
        assert!(fs::read_to_string(path).unwrap() == page(), "run `cargo xtask docs`");
    }
}
