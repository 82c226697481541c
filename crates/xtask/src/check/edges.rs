//! Which way dependencies point between our own crates.

use serde_json::Value;

use crate::shell::{Outcome, cargo, read, say};

/// Every crate, and the crates of ours it may depend on. Tests may use the test kit besides.
const ALLOWED: [(&str, &[&str]); 24] = [
    ("bastide-archive", &["bastide-model"]),
    ("bastide-model", &[]),
    ("bastide-proto", &[]),
    ("bastide-wire", &[]),
    ("bastide-guest", &["bastide-proto", "bastide-wire"]),
    ("bastide-guest-bin", &[]),
    ("bastide-loader", &[]),
    ("bastide-egress", &["bastide-model", "bastide-proto"]),
    ("bastide-mount", &["bastide-proto"]),
    ("bastide-sidecar", &["bastide-egress", "bastide-mount"]),
    ("bastide-sidecar-bin", &["bastide-guest-bin"]),
    ("bastide", &["bastide-archive", "bastide-model", "bastide-proto", "bastide-wire"]),
    (
        "bastide-local",
        &["bastide", "bastide-guest-bin", "bastide-proto", "bastide-sidecar-bin", "bastide-wire"],
    ),
    ("bastide-docker", &["bastide", "bastide-guest-bin", "bastide-proto", "bastide-sidecar-bin"]),
    ("bastide-sbx", &["bastide", "bastide-guest-bin", "bastide-proto"]),
    ("bastide-kubernetes", &["bastide", "bastide-guest-bin", "bastide-proto"]),
    ("bastide-sbx-stand-in", &["bastide", "bastide-local"]),
    ("bastide-remote", &["bastide"]),
    ("bastide-runs", &["bastide", "bastide-model"]),
    (
        "bastide-cli",
        &[
            "bastide",
            "bastide-docker",
            "bastide-kubernetes",
            "bastide-local",
            "bastide-remote",
            "bastide-runs",
            "bastide-sbx",
        ],
    ),
    ("bastide-python", &["bastide", "bastide-docker", "bastide-guest-bin", "bastide-local"]),
    (
        "bastide-testkit",
        &[
            "bastide",
            "bastide-archive",
            "bastide-egress",
            "bastide-model",
            "bastide-proto",
            "bastide-test-servers",
        ],
    ),
    ("bastide-test-servers", &[]),
    ("xtask", &["bastide-test-servers"]),
];

/// What cargo knows about this workspace.
pub(crate) fn metadata() -> Outcome<Value> {
    let text = read(&mut cargo(&["metadata", "--format-version", "1", "--locked"]))?;
    Ok(serde_json::from_str(&text)?)
}

/// Fails on an edge that is not allowed, and on a crate nobody placed.
pub(crate) fn check(metadata: &Value) -> Outcome {
    let mut wrong = Vec::new();
    let mut edges = 0;
    for package in members(metadata) {
        let name = text(package, "name");
        let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
            wrong.push(format!("{name} has no place in the table of crate edges"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = text(dependency, "name");
            let ours = to == "bastide" || to.starts_with("bastide-");
            // A test may use what the crate itself may not.
            if !ours || dependency["kind"] == "dev" {
                continue;
            }
            edges += 1;
            if !allowed.contains(&to) {
                wrong.push(format!("{name} must not depend on {to}"));
            }
        }
    }
    if wrong.is_empty() {
        say(&format!("{edges} edges between our crates, all allowed"));
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let ids = metadata["workspace_members"].as_array();
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(move |package| ids.into_iter().flatten().any(|id| *id == package["id"]))
}

/// A field that is text.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}
