//! Homes and sessions of other versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Home, text};

/// The variable that names a program of an earlier version, for tests with both.
const OLDER: &str = "BASTIDE_TEST_OLDER";

fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/homes");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "gz")).collect()
}

fn unpack(archive: &Path, home: &Home) -> Value {
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("--no-same-owner").arg("-p").arg("-C").arg(home.path());
    assert!(tar.status().unwrap().success());
    serde_json::from_str(&fs::read_to_string(home.path().join("fixture.json")).unwrap()).unwrap()
}

#[test]
fn opens_homes_of_every_earlier_version() {
    let archives = archives();
    assert!(!archives.is_empty());
    for archive in archives {
        let home = Home::new();
        let fixture = unpack(&archive, &home);
        let id = |key: &str| fixture[key].as_str().unwrap().to_owned();
        let (stopped, ended, snapshot) = (id("stopped"), id("ended"), id("snapshot"));
        let listed = home.say(&["ls"]);
        assert!(listed.contains(&format!("{stopped}\tstopped")), "{listed}");
        assert!(listed.contains(&format!("{ended}\tended")), "{listed}");
        assert!(home.say(&["snapshot", "ls"]).contains(&snapshot));
        home.say(&["snapshot", "verify"]);
        home.say(&["audit", "verify"]);
        assert!(home.say(&["log", &stopped]).contains("first"));
        // Nothing is swept for being old.
        assert_eq!(home.sweep(), Vec::<String>::new());

        home.say(&["resume", &stopped]);
        let line = "cat greeting.txt kept.txt; wc -l < deep/er/numbers";
        let said = home.say(&["exec", &stopped, "--", "sh", "-c", line]);
        assert!(said.contains("hello from before") && said.contains("changed"), "{said}");
        assert!(said.contains("1000"), "{said}");
        home.say(&["stop", &stopped]);
        home.say(&["resume", &ended]);
        assert_eq!(home.say(&["exec", &ended, "--", "cat", "second.txt"]), "of the second\n");
        let restored = home.say(&["run", "--snapshot", &snapshot, "--", "cat", "second.txt"]);
        assert_eq!(restored, "of the second\n");
        home.say(&["audit", "verify"]);
    }
}

#[test]
fn refuses_homes_of_later_versions_whole() {
    let home = Home::new();
    let id = home.create();
    assert_eq!(fs::read_to_string(home.path().join("format")).unwrap(), "1\n");
    fs::write(home.path().join("format"), "2\n").unwrap();
    let names = || {
        let entries = fs::read_dir(home.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let tried: &[&[&str]] = &[
        &["ls"],
        &["create"],
        &["run", "--", "true"],
        &["exec", &id, "--", "true"],
        &["stop", &id],
        &["rm", &id],
        &["sweep"],
        &["snapshot", "ls"],
        &["audit", "verify"],
        &["stats"],
    ];
    for arguments in tried {
        let refused = home.run(arguments);
        assert_eq!(refused.status.code(), Some(125), "{arguments:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("a later version wrote it"), "{arguments:?}: {said}");
    }
    assert_eq!(names(), before);
    fs::write(home.path().join("format"), "1\n").unwrap();
    assert_eq!(home.say(&["exec", &id, "--", "echo", "unharmed"]), "unharmed\n");
}

#[test]
fn two_versions_use_one_home() {
    let Some(older) = std::env::var_os(OLDER) else {
        eprintln!("skipped: {OLDER} names no program of an earlier version");
        return;
    };
    let home = Home::new();
    let old = |arguments: &[&str]| -> Output {
        home.wrapped(Command::new(&older), arguments).output().unwrap()
    };
    let old_say = |arguments: &[&str]| -> String {
        let output = old(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    // A session that the older one booted.
    let id = old_say(&["create"]).trim().to_owned();
    assert!(home.say(&["ls"]).contains(&format!("{id}\trunning")));
    let line = "echo both > file; cat file";
    assert_eq!(home.say(&["exec", &id, "--", "sh", "-c", line]), "both\n");
    let report = home.run(&["exec", "--json", &id, "--", "true"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(report["usage"].is_null(), "nobody there tells: {report}");
    home.say(&["ps", &id]);
    home.say(&["inspect", &id]);
    home.say(&["snapshot", "save", "--name", "both", &id]);
    assert_eq!(home.sweep(), Vec::<String>::new());
    // What it cannot do is refused with the commands that help.
    for arguments in [&["lease", &id, "1h"][..], &["stats", &id]] {
        let refused = home.run(arguments);
        assert_eq!(refused.status.code(), Some(125));
        let said = text(&refused.stderr);
        assert!(said.contains("earlier version"), "{said}");
        assert!(said.contains(&format!("bastide stop {id}")), "{said}");
    }
    home.say(&["stop", &id]);
    home.say(&["resume", &id]);
    assert_eq!(home.say(&["exec", &id, "--", "cat", "file"]), "both\n");
    home.say(&["lease", &id, "1h"]);
    // And the other way round: the newer one's guest speaks to the older host.
    assert_eq!(old_say(&["exec", &id, "--", "cat", "file"]), "both\n");
    assert!(old_say(&["ls"]).contains(&format!("{id}\trunning")));
    old_say(&["stop", &id]);
    old_say(&["resume", &id]);
    assert_eq!(home.say(&["exec", &id, "--", "cat", "file"]), "both\n");
    let other = home.create();
    assert_eq!(old_say(&["exec", &other, "--", "echo", "here"]), "here\n");
    old_say(&["sweep"]);
    assert_eq!(home.say(&["exec", &other, "--", "echo", "still"]), "still\n");
    old_say(&["rm", &other]);
}
