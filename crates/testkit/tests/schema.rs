//! The manifest's schema for editors: current, and true.

use std::fs;
use std::path::PathBuf;

use bastide_model::document::{Document, Format};
use bastide_model::lax::{self, Dump};
use bastide_model::{Manifest, Registry, schema};
use bastide_testkit::vectors;
use jsonschema::Validator;
use serde_json::Value;

const COMMITTED: &str = include_str!("../../../docs/reference/manifest.schema.json");
const EXAMPLE: &str = include_str!("../../../examples/every-entry.json");

fn validator() -> Validator {
    #[expect(clippy::expect_used, reason = "a test of this very thing")]
    jsonschema::validator_for(&schema::manifest()).expect("the schema is a schema")
}

#[test]
fn the_committed_schema_is_current() {
    let committed: Value = serde_json::from_str(COMMITTED).unwrap();
    assert_eq!(committed, schema::manifest(), "run `cargo xtask docs`");
}

#[test]
fn accepts_the_example_and_what_is_written_of_it() {
    let validator = validator();
    let example: Value = serde_json::from_str(EXAMPLE).unwrap();
    let written = lax::read::<Manifest>(&example).unwrap().dump().unwrap();
    for manifest in [&example, &written] {
        let errors: Vec<String> =
            validator.iter_errors(manifest).map(|error| error.to_string()).collect();
        assert_eq!(errors, [] as [&str; 0]);
    }
}

/// Whether `written` holds everything that `input` says, unchanged.
fn says_the_same(input: &Value, written: &Value) -> bool {
    match (input, written) {
        (Value::Object(input), Value::Object(written)) => input.iter().all(|(key, value)| {
            written.get(key).is_some_and(|written| says_the_same(value, written))
        }),
        (Value::Array(input), Value::Array(written)) => {
            input.len() == written.len()
                && input.iter().zip(written).all(|(input, written)| says_the_same(input, written))
        }
        _ => input == written,
    }
}

/// Every manifest that a recorded case holds.
fn recorded_manifests() -> Vec<Value> {
    let mut manifests = Vec::new();
    let files = fs::read_dir(vectors::default_dir()).into_iter().flatten().flatten();
    for path in files.map(|file| file.path()).collect::<Vec<PathBuf>>() {
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            let case: Value = serde_json::from_str(line).unwrap_or_default();
            manifests.extend(case["input"].get("manifest").cloned());
        }
    }
    manifests
}

#[test]
fn accepts_every_manifest_that_is_written_as_it_is_read() {
    let validator = validator();
    let (mut strict, mut written_forms) = (0, 0);
    for manifest in recorded_manifests() {
        let Ok(model) = lax::read::<Manifest>(&manifest) else { continue };
        let Ok(written) = model.dump() else { continue };
        written_forms += 1;
        assert!(validator.is_valid(&written), "written {written}");
        if says_the_same(&manifest, &written) {
            strict += 1;
            assert!(validator.is_valid(&manifest), "read {manifest}");
        }
    }
    assert!(strict > 200 && written_forms > 200, "{strict} of {written_forms} manifests");
}

#[test]
fn refuses_whatever_a_file_may_not_say() {
    let validator = validator();
    let mut refused = 0;
    for manifest in recorded_manifests() {
        let text = manifest.to_string();
        let Ok(document) = Document::parse("m.json", &text, Format::Json) else { continue };
        if document.read::<Manifest>(Registry::builtin()).is_ok() {
            continue;
        }
        // Rules about texts and about what fits together are beyond a schema.
        let shape_only = lax::read::<Manifest>(&manifest).is_ok();
        if shape_only {
            refused += 1;
            assert!(!validator.is_valid(&manifest), "unknown keys in {manifest}");
        }
    }
    assert!(refused > 0);
}

#[test]
fn has_exactly_the_fields_that_are_written() {
    let schema = schema::manifest();
    let example: Value = serde_json::from_str(EXAMPLE).unwrap();
    let manifest: Manifest = lax::read(&example).unwrap();
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
    };
    assert_eq!(keys(&schema["properties"]), keys(&manifest.dump().unwrap()));
    for step in manifest.walk().unwrap() {
        let (_, entry) = step.unwrap();
        let written = entry.dump().unwrap();
        let properties = &schema["$defs"][entry.type_name()]["properties"];
        assert_eq!(keys(properties), keys(&written), "{}", entry.type_name());
        if let Some(strategy) = written.get("mount_strategy") {
            let word = strategy["type"].as_str().unwrap();
            assert_eq!(keys(&schema["$defs"][word]["properties"]), keys(strategy), "{word}");
            if let Some(pattern) = strategy.get("pattern") {
                let word = pattern["type"].as_str().unwrap();
                assert_eq!(keys(&schema["$defs"][word]["properties"]), keys(pattern), "{word}");
            }
        }
    }
}
