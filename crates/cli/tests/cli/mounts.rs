//! Cloud storage, as the command line has it.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Home, text};

fn write(home: &Home, change: &Value) -> PathBuf {
    let mut mount = json!({"type": "s3_mount", "bucket": "b", "mount_strategy":
        {"type": "in_container", "pattern": {"type": "rclone"}}});
    for (key, value) in change.as_object().unwrap() {
        mount[key] = value.clone();
    }
    let path = home.path().join("town.json");
    std::fs::create_dir_all(home.path()).unwrap();
    std::fs::write(&path, json!({"entries": {"data": mount}}).to_string()).unwrap();
    path
}

fn refused(home: &Home, more: &[&str], change: &Value) -> String {
    let manifest = write(home, change);
    let mut arguments = vec!["create", "--manifest", manifest.to_str().unwrap()];
    arguments.extend(more);
    let output = home.run(&arguments);
    assert_ne!(output.status.code(), Some(0));
    text(&output.stderr)
}

#[test]
fn names_the_flag_that_accepts_exposure() {
    let home = Home::new();
    let keys = json!({"access_key_id": "AKIDHIDDEN", "secret_access_key": "hidden-key"});
    let said = refused(&home, &[], &keys);
    assert!(said.contains("--acknowledge-exposure /workspace/data"), "{said}");
    assert!(!said.contains("Manifest.with_") && !said.contains("hidden-key"), "{said}");
    // Accepted, it comes as far as the backend, which names the way out.
    let said = refused(&home, &["--acknowledge-exposure", "data"], &keys);
    assert!(said.contains("{type: host}") && !said.contains("hidden-key"), "{said}");
    let said = refused(&home, &["--acknowledge-exposure", "nowhere"], &keys);
    assert!(said.contains("there is no mount at nowhere"), "{said}");
    let said = refused(&home, &["--acknowledge-exposure", "data"], &json!({}));
    assert!(said.contains("exposes nothing"), "{said}");
    assert_eq!(home.json(&["ls", "--json"]), json!([]));
}

#[test]
fn takes_keys_by_reference_and_runs_no_command_for_a_manifest() {
    let home = Home::new();
    let said = refused(&home, &[], &json!({"access_key_id": {"from": "env:NOBODY_HAS_THIS"}}));
    assert!(
        said.contains("access_key_id of the mount data") && said.contains("NOBODY_HAS_THIS"),
        "{said}"
    );
    let mark = home.path().join("mark");
    let hostile = format!("cmd:touch {}", mark.display());
    let said = refused(&home, &[], &json!({"access_key_id": {"from": hostile}}));
    assert!(said.contains("a manifest cannot"), "{said}");
    assert!(!mark.exists(), "a manifest ran a command");
    let pair = [
        "--mount-key",
        "data:access_key_id=cmd:echo id",
        "--mount-key",
        "data:secret_access_key=cmd:echo key",
    ];
    let said = refused(&home, &pair, &json!({}));
    assert!(said.contains("--acknowledge-exposure"), "the pair was found: {said}");
}

#[test]
fn lists_the_mounts_of_a_session() {
    let home = Home::new();
    let id = home.create();
    assert_eq!(home.json(&["mounts", "--json", &id]), json!([]));
    let found = home.json(&["doctor", "--json"]);
    let strategies: Vec<_> =
        found["mounts"].as_array().unwrap().iter().map(|found| found["strategy"].clone()).collect();
    assert_eq!(strategies, [json!("host"), json!("in_container"), json!("docker_volume")]);
}
