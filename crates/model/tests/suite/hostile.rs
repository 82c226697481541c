//! Inputs that nobody sends by mistake: they must cost little and end in an answer.

use bastide_model::lax;
use bastide_model::{Entry, ErrorKind, Manifest};
use serde_json::{Value, json};

#[test]
fn a_path_of_many_names_is_described_without_drawing_all_of_them() {
    let path = "a/".repeat(20_000);
    let mut manifest = Manifest::default();
    manifest.entries.insert(path, Entry::file("x"));
    let description = manifest.describe(None).unwrap();
    assert!(description.chars().count() <= 5000);
    assert!(description.contains("(truncated "));
}

#[test]
fn a_path_longer_than_any_file_system_takes_is_refused() {
    let mut manifest = Manifest::default();
    manifest.entries.insert("a/".repeat(1_000_000), Entry::file("x"));
    let error = manifest.validated_entries().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn many_entries_below_a_long_path_are_walked_one_at_a_time() {
    let children = (0..20_000).map(|index| (index.to_string(), Entry::file("x")));
    let mut manifest = Manifest::default();
    manifest.entries.insert("a/".repeat(1_000), Entry::dir(children));
    assert_eq!(manifest.walk().unwrap().count(), 20_001);
}

#[test]
fn entries_nested_without_end_are_refused() {
    let mut entry = json!({"type": "dir"});
    for _ in 0..2_000 {
        let mut outer = json!({"type": "dir", "children": {}});
        outer["children"]["a"] = entry;
        entry = outer;
    }
    let error = lax::read::<Entry>(&entry).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    dismantle(entry);
}

/// Takes the value apart from the outside: dropping it at once would recurse.
fn dismantle(mut value: Value) {
    while let Some(inner) = value.pointer_mut("/children/a").map(Value::take) {
        value = inner;
    }
}
