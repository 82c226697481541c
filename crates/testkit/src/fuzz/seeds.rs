//! Inputs to start from, out of the recorded cases.

use std::fs;

use serde_json::Value;

use crate::vectors::default_dir;

/// Longer seeds crowd out the others.
const MAX_SEED: usize = 8 << 10;

/// What stands under `key` in the inputs of an area's cases.
pub(super) fn recorded(area: &str, key: &str) -> Vec<Value> {
    let file = default_dir().join(format!("{area}.jsonl"));
    let text = fs::read_to_string(file).unwrap_or_default();
    let cases = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    cases.filter_map(|case| case["input"].get(key).cloned()).collect()
}

/// The same as bytes: text as it is, anything else as JSON.
pub(super) fn recorded_bytes(area: &str, key: &str) -> Vec<Vec<u8>> {
    let bytes = recorded(area, key).into_iter().map(|value| match value {
        Value::String(text) => text.into_bytes(),
        other => other.to_string().into_bytes(),
    });
    bytes.filter(|bytes| bytes.len() <= MAX_SEED).collect()
}
