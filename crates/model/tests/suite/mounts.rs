//! Mounts from outside: what is known of them, and what never shows.

use std::time::{Duration, Instant};

use bastide_model::custom::CustomType;
use bastide_model::lax::{self, Dump as _};
use bastide_model::mount::{
    CustomStrategy, Exposure, MountPattern, MountSite, MountStep, MountStrategy, S3,
    sanitize_manifest,
};
use bastide_model::{Entry, EntryKind, ErrorClass, Manifest, Mount, PosixPath, Registry, Result};
use serde_json::{Map, Value, json};
use uuid::Uuid;

fn manifest(value: &Value) -> Result<Manifest> {
    lax::read(value)
}

/// One mount of each sort, without credentials, by each program that can mount it.
fn every_sort() -> Value {
    let rclone = json!({"type": "in_container", "pattern": {"type": "rclone"}});
    let fuse = json!({"type": "in_container", "pattern": {"type": "fuse"}});
    let mountpoint = json!({"type": "in_container", "pattern": {"type": "mountpoint"}});
    let s3files = json!({"type": "in_container", "pattern": {"type": "s3files"}});
    let volume = json!({"type": "docker_volume", "driver": "rclone"});
    json!({"entries": {
        "azure": {"type": "azure_blob_mount", "account": "a", "container": "c", "mount_strategy": fuse},
        "box": {"type": "box_mount", "mount_strategy": rclone},
        "gcs": {"type": "gcs_mount", "bucket": "b", "mount_strategy": mountpoint},
        "r2": {"type": "r2_mount", "bucket": "b", "account_id": "a", "mount_strategy": volume},
        "s3": {"type": "s3_mount", "bucket": "b", "mount_strategy": rclone},
        "files": {"type": "s3_files_mount", "file_system_id": "fs", "mount_strategy": s3files},
    }})
}

#[test]
fn every_field_of_every_sort_is_known() {
    let written = manifest(&every_sort()).unwrap().dump().unwrap();
    let sanitized = sanitize_manifest(written.clone(), Registry::builtin()).unwrap();
    assert_eq!(sanitized.value, written);
}

#[test]
fn a_mount_without_credentials_needs_nobodys_word() {
    let mut value = every_sort();
    let entries = value["entries"].as_object_mut().unwrap();
    // These two find credentials by themselves, and this one cannot do without.
    entries.retain(|key, _| !matches!(key.as_str(), "azure" | "files" | "box"));
    manifest(&value).unwrap().check_mount_boundaries(Some("docker")).unwrap();
}

fn with_key(strategy: &Value) -> Result<Manifest> {
    manifest(&json!({"entries": {"data": {
        "type": "s3_mount",
        "bucket": "b",
        "access_key_id": "AKIASECRET",
        "secret_access_key": "hunter2",
        "mount_strategy": strategy,
    }}}))
}

#[test]
fn credentials_show_in_no_error_and_no_debug_text() {
    let mountpoint = json!({"type": "in_container", "pattern": {"type": "mountpoint"}});
    let trusted = with_key(&mountpoint).unwrap();
    let trusted =
        trusted.with_mount_exposure_acknowledged(Exposure::MountScoped, &["data"]).unwrap();
    let site = MountSite {
        manifest: &trusted,
        session_id: Uuid::nil(),
        backend: "docker",
        has_volumes: true,
    };
    let target = trusted.mount_targets().unwrap().remove(0);
    let mounting = target.mount.mounting(site, target.path).unwrap();
    let plan = mounting.plan(None).unwrap();
    let Some(MountStep::Run(run)) = plan.steps.last() else { panic!("nothing is run") };
    let failed = run.failed(b"403: hunter2 is not the key of AKIASECRET");
    assert_eq!(failed.context()["stderr"], "403: REDACTED is not the key of REDACTED");
    let shown = failed.redacted_if(trusted.holds_mount_authority());
    assert_eq!((shown.code(), shown.context().len()), ("mount_failed", 0));
    for text in [format!("{plan:?}"), format!("{shown:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn a_key_stays_out_of_the_sandbox_unless_somebody_says_otherwise() {
    let rclone = json!({"type": "in_container", "pattern": {"type": "rclone"}});
    let closed = with_key(&rclone).unwrap();
    assert!(closed.check_mount_boundaries(Some("docker")).is_err());
    let open = closed.with_mount_exposure_acknowledged(Exposure::MountScoped, &["data"]).unwrap();
    open.check_mount_boundaries(Some("docker")).unwrap();
    // The word is the program's and is never written down.
    assert_eq!(open.dump().unwrap(), closed.dump().unwrap());
    with_key(&json!({"type": "docker_volume", "driver": "rclone"}))
        .unwrap()
        .check_mount_boundaries(Some("docker"))
        .unwrap();
}

/// Means of a program's own.
#[derive(Debug)]
struct Tunnel;

impl CustomType for Tunnel {
    fn type_name(&self) -> &str {
        "tunnel"
    }

    fn fields(&self) -> Result<Map<String, Value>> {
        Ok(Map::new())
    }
}

impl CustomStrategy for Tunnel {
    fn check(&self, _: &Mount) -> Result<()> {
        Ok(())
    }
}

#[test]
fn means_of_a_programs_own_stop_at_the_boundary() {
    let mount = Mount::new(S3::new("b"), MountStrategy::custom(Tunnel));
    let entry = Entry::new(EntryKind::Mount(Box::new(mount)));
    let manifest = Manifest { entries: [("t".to_owned(), entry)].into(), ..Manifest::default() };
    assert!(manifest.holds_mount_authority());
    let error = manifest.check_mount_boundaries(None).unwrap_err();
    assert!(error.message().starts_with("custom mount strategies"), "{error}");
    assert!(manifest.sanitized(Registry::builtin()).is_err());
}

#[test]
fn an_address_with_credentials_never_becomes_an_argument() {
    let options = json!({"endpoint_url": "https://u:hunter2@h"});
    let pattern: MountPattern =
        lax::read(&json!({"type": "mountpoint", "options": options})).unwrap();
    let mount = Mount::new(S3::new("b"), MountStrategy::in_container(pattern));
    let manifest = Manifest::default();
    let site = MountSite {
        manifest: &manifest,
        session_id: Uuid::nil(),
        backend: "docker",
        has_volumes: true,
    };
    assert!(mount.mounting(site, PosixPath::new("/workspace/b")).is_err());
}

#[test]
fn many_credential_files_among_many_entries_are_checked_quickly() {
    let mut entries = Map::new();
    for index in 0..5_000 {
        let file = format!("secrets/{index}.json");
        entries.insert(format!("f{index}"), json!({"type": "file", "content": "x"}));
        entries.insert(
            format!("m{index}"),
            json!({
                "type": "gcs_mount",
                "bucket": "b",
                "service_account_file": file,
                "mount_strategy": {"type": "docker_volume", "driver": "rclone"},
            }),
        );
    }
    let value = json!({ "entries": entries });
    let started = Instant::now();
    manifest(&value).unwrap().check_mount_boundaries(Some("docker")).unwrap();
    sanitize_manifest(value, Registry::builtin()).unwrap();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn keeps_what_snapshots_leave_out_apart_from_mounts() {
    let manifest = manifest(&json!({"entries": {"data": {"type": "dir", "children": {
        "remote": {"type": "s3_mount", "bucket": "b",
            "mount_strategy": {"type": "in_container", "pattern": {"type": "rclone"}}}}}}}));
    let manifest = manifest.unwrap();
    for bad in ["data", "data/remote", "data/remote/below"] {
        let refused = manifest.snapshot_skip_path(bad).unwrap_err();
        assert_eq!(refused.class(), Some(ErrorClass::MountConfigError), "{bad}");
        assert_eq!(refused.context()["mount_path"], "data/remote", "{bad}");
    }
    for fine in ["data/remote2", "data/other", "elsewhere"] {
        assert_eq!(manifest.snapshot_skip_path(fine).unwrap().as_str(), fine);
    }
    for bad in ["", ".", "../up", "/absolute"] {
        assert!(manifest.snapshot_skip_path(bad).is_err(), "{bad:?}");
    }
}

/// What a reference stands for is the caller's business.
fn without_references(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) if map.len() == 1 && map.contains_key("from") => {
            *value = serde_json::json!("value");
        }
        serde_json::Value::Object(map) => map.values_mut().for_each(without_references),
        _ => {}
    }
}

#[test]
fn every_recipe_of_the_document_is_a_manifest() {
    use bastide_model::document::{Document, Format};
    let text = include_str!("../../../../docs/mounts.md");
    let mut seen = std::collections::BTreeSet::new();
    for block in text.split("```yaml\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let indented: String = block.lines().map(|line| format!("  {line}\n")).collect();
        let whole = match block.starts_with("entries:") {
            true => block.to_owned(),
            false => format!("entries:\n{indented}"),
        };
        let mut document = Document::parse("recipe", &whole, Format::Yaml).unwrap();
        document
            .edit(|value| {
                without_references(&mut value["entries"]);
                for entry in value["entries"].as_object_mut().unwrap().values_mut() {
                    without_references(entry);
                }
                Ok(())
            })
            .unwrap();
        let manifest = Manifest::of_document(&document, Registry::builtin()).unwrap().value;
        manifest.check_mount_targets().unwrap();
        for target in manifest.mount_targets().unwrap() {
            target.mount.check().unwrap();
            seen.insert(target.mount.type_name().to_owned());
        }
    }
    assert_eq!(seen.len(), 6, "each provider has one: {seen:?}");
}
