//! Types that a program brings itself.

use bastide_model::custom::{Custom, CustomType};
use bastide_model::entry::{Entry, EntryFields, EntryKind, EntryShape};
use bastide_model::error::raise;
use bastide_model::lax::{Checked, Context, Dump, Input, Object};
use bastide_model::mount::{
    CustomMount, CustomStrategy, Mount, MountSource, MountStrategy, PatternKind, read_mount,
};
use bastide_model::snapshot::{CustomSnapshot, Snapshot};
use bastide_model::{ErrorClass, Manifest, Registry, Result};
use serde_json::{Map, Value, json};

#[derive(Debug, PartialEq)]
struct Archive {
    url: String,
}

impl CustomType for Archive {
    fn type_name(&self) -> &str {
        "archive"
    }

    fn fields(&self) -> Result<Map<String, Value>> {
        let mut out = Object::new();
        out.put("url", &self.url)?;
        Ok(out.into_map())
    }
}

fn archive(input: Input<'_>) -> Checked<Entry> {
    let mut fields = input.fields("Archive")?;
    let common = EntryFields::read(&mut fields, EntryShape::Folder);
    let url = fields.required("url");
    fields.build(|| Some(common?.entry(EntryKind::Custom(Custom::new(Archive { url: url? })))))
}

/// Storage that is mounted by rclone or by a strategy of its own.
#[derive(Debug)]
struct Tape {
    reel: i128,
}

impl CustomType for Tape {
    fn type_name(&self) -> &str {
        "tape_mount"
    }

    fn fields(&self) -> Result<Map<String, Value>> {
        let mut out = Object::new();
        out.put("reel", &self.reel)?;
        Ok(out.into_map())
    }
}

fn tape(input: Input<'_>) -> Checked<Entry> {
    read_mount(input, "Tape", |fields| {
        let reel = fields.required("reel")?;
        Some(MountSource::Custom(CustomMount {
            value: Custom::new(Tape { reel }),
            patterns: vec![PatternKind::Rclone],
            drivers: vec!["tape"],
        }))
    })
}

#[derive(Debug)]
struct Robot;

impl CustomType for Robot {
    fn type_name(&self) -> &str {
        "robot"
    }

    fn fields(&self) -> Result<Map<String, Value>> {
        Ok(Map::new())
    }
}

impl CustomStrategy for Robot {
    fn check(&self, mount: &Mount) -> Result<()> {
        match mount.type_name() {
            "tape_mount" => Ok(()),
            other => {
                Err(raise::mount_config("the robot only fetches tapes").with_context("type", other))
            }
        }
    }
}

fn registry() -> Result<Registry> {
    Registry::builtin()
        .clone()
        .with_entry("archive", "Archive", archive)?
        .with_entry("tape_mount", "Tape", tape)?
        .with_mount_strategy("robot", "Robot", |input| {
            let mut fields = input.fields("Robot")?;
            fields.accept("type");
            fields.build(|| Some(MountStrategy::custom(Robot)))
        })
}

#[test]
fn reads_and_writes_types_of_its_own() {
    let registry = registry().unwrap();
    let input = json!({"entries": {
        "a": {"type": "archive", "url": "https://example.org/a.tar", "ephemeral": true},
        "t": {"type": "tape_mount", "reel": "7", "mount_strategy": {"type": "robot"}},
    }});
    let manifest: Manifest = Context::with(&registry).read(&input).unwrap();
    let EntryKind::Custom(custom) = &manifest.entries["a"].kind else {
        panic!("{:?}", manifest.entries["a"]);
    };
    let want = Archive { url: "https://example.org/a.tar".to_owned() };
    assert_eq!(custom.downcast::<Archive>(), Some(&want));
    assert!(manifest.entries["a"].ephemeral && manifest.entries["a"].is_dir);
    let written = manifest.dump().unwrap();
    assert_eq!(written["entries"]["t"]["reel"], 7);
    assert_eq!(written["entries"]["t"]["mount_strategy"], json!({"type": "robot"}));
    assert_eq!(manifest.mount_targets().unwrap()[0].path.to_string(), "/workspace/t");
    let again: Manifest = Context::with(&registry).read(&written).unwrap();
    assert_eq!(again, manifest);
}

#[test]
fn holds_own_types_to_the_rules_of_mounts() {
    let registry = registry().unwrap();
    let read = |strategy: Value, kind: &str| {
        let mut entry = json!({"type": kind, "reel": 1, "bucket": "b"});
        entry["mount_strategy"] = strategy;
        Context::with(&registry).read::<Entry>(&entry).map(|_| ()).unwrap_err()
    };
    let fuse = json!({"type": "in_container", "pattern": {"type": "fuse"}});
    assert_eq!(read(fuse, "tape_mount").message(), "invalid mount_pattern type");
    let driver = json!({"type": "docker_volume", "driver": "rclone"});
    assert_eq!(read(driver, "tape_mount").message(), "invalid Docker volume driver");
    assert_eq!(read(json!({"type": "robot"}), "s3_mount").context()["type"], "s3_mount");
}

#[test]
fn a_word_has_one_owner_and_the_built_in_types_stay_as_they_are() {
    let taken = registry().unwrap().with_entry("archive", "Other", archive).unwrap_err();
    assert_eq!(
        taken.message(),
        "Artifact type `archive` is already registered to Archive; refusing to register Other"
    );
    let taken = Registry::builtin().clone().with_entry("dir", "Mine", archive).unwrap_err();
    assert_eq!(
        taken.message(),
        "Artifact type `dir` is already registered to Dir; refusing to register Mine"
    );
    assert!(Registry::builtin().entry_types().all(|word| word != "archive"));
    let unknown = Context::new().read::<Entry>(&json!({"type": "archive"})).unwrap_err();
    assert_eq!(unknown.class(), Some(ErrorClass::ValueError));
}

#[test]
fn warns_about_permissions_that_a_mount_cannot_have() {
    let input = json!({"entries": {"d": {"type": "dir", "children": {"m": {
        "type": "s3_mount", "bucket": "b", "permissions": {"owner": 6},
        "mount_strategy": {"type": "in_container", "pattern": {"type": "rclone"}},
    }}}}});
    let parsed = Context::new().parse::<Manifest>(&input).unwrap();
    let path: Vec<String> = parsed.warnings[0].path.iter().map(ToString::to_string).collect();
    assert_eq!(path, ["entries", "d", "children", "m"]);
    assert_eq!(parsed.warnings.len(), 1);
}

/// A snapshot on a shelf.
#[derive(Debug)]
struct Shelf {
    id: String,
    row: i128,
}

impl CustomType for Shelf {
    fn type_name(&self) -> &str {
        "shelf"
    }

    fn fields(&self) -> Result<Map<String, Value>> {
        let mut out = Object::new();
        out.put("row", &self.row)?;
        Ok(out.into_map())
    }
}

impl CustomSnapshot for Shelf {
    fn id(&self) -> &str {
        &self.id
    }
}

fn shelf(input: Input<'_>) -> Checked<Snapshot> {
    let mut fields = input.fields("Shelf")?;
    fields.accept("type");
    let id: Option<String> = fields.required("id");
    let row = fields.required("row");
    fields.build(|| Some(Snapshot::custom(Shelf { id: id?, row: row? })))
}

#[test]
fn reads_and_writes_snapshots_of_its_own() {
    let registry = Registry::builtin().clone().with_snapshot("shelf", "Shelf", shelf).unwrap();
    let payload = json!({"type": "shelf", "id": "a", "row": 3});
    let snapshot: Snapshot = Context::with(&registry).read(&payload).unwrap();
    assert_eq!(snapshot.dump().unwrap(), payload);
    assert_eq!((snapshot.id(), snapshot.type_name()), ("a", "shelf"));
    assert_eq!(snapshot.location().unwrap(), "<shelf>");
    let Snapshot::Custom(custom) = &snapshot else { panic!("{snapshot:?}") };
    assert_eq!(custom.downcast::<Shelf>().map(|shelf| shelf.row), Some(3));

    let unknown = bastide_model::lax::read::<Snapshot>(&payload).unwrap_err();
    assert!(unknown.to_string().contains("unknown snapshot type `shelf`"), "{unknown}");
    for (word, class) in [
        ("local", ErrorClass::TypeError),
        ("shelf", ErrorClass::TypeError),
        ("", ErrorClass::ValueError),
    ] {
        let refused = registry.clone().with_snapshot(word, "Mine", shelf).unwrap_err();
        assert_eq!(refused.class(), Some(class), "{word:?}: {refused}");
    }
}
