//! Snapshots, as a script would use them, and whatever is killed meanwhile.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::chaos::random;
use crate::harness::{Home, count, pass, text, until};

/// Runs a shell command in a session.
fn sh(home: &Home, id: &str, line: &str) -> String {
    home.say(&["exec", id, "--", "sh", "-c", line])
}

fn names(home: &Home) -> Vec<String> {
    let listed = home.json(&["snapshot", "ls", "--json"]);
    let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn saves_lists_verifies_and_removes_snapshots() {
    let home = Home::new();
    assert_eq!(home.say(&["snapshot", "ls"]), "");
    assert!(!home.path().join("snapshots").exists(), "looking makes nothing");
    let id = home.create();
    sh(&home, &id, "mkdir a; echo one > a/file; mkfifo pipe; ln -s /nowhere link");
    let saved = home.json(&["snapshot", "save", &id[..12], "--name", "first", "--json"]);
    assert_eq!((&saved["entries"], &saved["bytes"]), (&5.into(), &4.into()));
    let fingerprint = saved["fingerprint"].as_str().unwrap().to_owned();
    // The same again is the same.
    let again = home.say(&["snapshot", "save", &id, "--name", "second"]);
    assert_eq!(again.trim(), fingerprint);
    assert_eq!(names(&home), ["first", "second"]);
    let line = home.say(&["snapshot", "ls"]);
    assert!(line.starts_with("first\t") && line.contains(&fingerprint[..16]), "{line}");
    assert_eq!(home.say(&["snapshot", "verify"]), "first: whole\nsecond: whole\n");
    assert_eq!(home.json(&["snapshot", "verify", "first", "--json"])["whole"], true);

    sh(&home, &id, "rm -rf a; echo changed > other");
    home.say(&["snapshot", "restore", &id, "first"]);
    assert_eq!(sh(&home, &id, "ls; cat a/file"), "a\nlink\npipe\none\n");

    home.say(&["snapshot", "rm", "first"]);
    assert_eq!(names(&home), ["second"]);
    for bad in [&["snapshot", "rm", "first"][..], &["snapshot", "verify", "first"]] {
        let failed = home.run(bad);
        assert_eq!(failed.status.code(), Some(125), "{bad:?}");
        assert!(text(&failed.stderr).contains("there is no snapshot first"), "{bad:?}");
    }
    let bad = home.run(&["snapshot", "save", &id, "--name", "../up"]);
    assert_eq!(bad.status.code(), Some(125), "{}", text(&bad.stderr));
    home.say(&["snapshot", "rm", "second"]);
    let freed = home.json(&["snapshot", "gc", "--json"]);
    assert!(freed["bytes_removed"].as_u64().unwrap() > 0, "{freed}");
    assert_eq!(fs::read_dir(home.path().join("snapshots/packs")).unwrap().count(), 0);
}

#[test]
fn starts_sessions_from_a_snapshot() {
    let home = Home::new();
    let id = home.create();
    sh(&home, &id, "echo kept > file; chmod 600 file");
    home.say(&["snapshot", "save", &id, "--name", "base"]);
    let run = ["run", "--snapshot", "base", "--", "sh", "-c", "cat file; echo more >> file"];
    assert_eq!(home.say(&run), "kept\n");
    let other = home.say(&["create", "--snapshot", "base"]).trim().to_owned();
    assert_eq!(sh(&home, &other, "stat -c %a file; cat file"), "600\nkept\n");
    assert_eq!(names(&home), ["base"], "what one starts from stays as it is");
    let missing = home.run(&["run", "--snapshot", "nothing", "--", "true"]);
    assert_eq!(missing.status.code(), Some(125));
    assert!(text(&missing.stderr).contains("there is no snapshot nothing"));
    assert_eq!(home.folders().len(), 2, "nothing is left of what could not be made");
}

/// Where its files were removed behind its back, as by whoever clears temporary files.
#[test]
fn resumes_what_was_saved_where_the_files_are_gone() {
    let home = Home::new();
    let mut kinds: Vec<&[&str]> =
        vec![&["--isolation", "namespaces"], &["--isolation", "landlock"]];
    if rustix::process::geteuid().is_root() {
        kinds.push(&["--isolation", "namespaces", "--disk", "64M"]);
    }
    for kind in kinds {
        let made = home.run(&[&["create"], kind].concat());
        let id = text(&made.stdout).trim().to_owned();
        sh(&home, &id, "echo kept > file");
        home.say(&["stop", &id]);
        let folder = home.path().join("sessions").join(&id);
        for place in [folder.clone(), format!("/tmp/bastide-{id}").into()] {
            drop(fs::remove_file(place.join("work.img")));
            let is_image = kind.contains(&"--disk") && place == folder;
            if !is_image {
                drop(fs::remove_dir_all(place.join("work")));
            }
        }
        home.say(&["resume", &id]);
        assert_eq!(sh(&home, &id, "cat file"), "kept\n", "{kind:?}");
        home.say(&["stop", &id]);
        home.say(&["resume", &id]);
        assert_eq!(sh(&home, &id, "cat file"), "kept\n", "{kind:?}: saved again");
        home.say(&["rm", &id]);
    }
}

#[test]
fn exports_and_imports_archives() {
    let home = Home::new();
    let id = home.create();
    let make = "mkdir -p d/e; echo one > d/one; ln d/one d/two; ln -s one d/link; mkfifo p; \
                chmod 4711 d/one; touch -d '2001-02-03 04:05:06.123456789' d/e; printf x > \"$(printf 'n\\377')\"";
    sh(&home, &id, make);
    let saved = home.say(&["snapshot", "save", &id, "--name", "all"]);
    home.say(&["snapshot", "export", "all", "all.tar"]);
    let imported = home.say(&["snapshot", "import", "all.tar", "--name", "back"]);
    assert_eq!(imported, saved, "an archive holds everything");
    let archive = home.run(&["snapshot", "export", "all"]).stdout;
    assert_eq!(archive, fs::read(home.path().join("all.tar")).unwrap());
    let fed = home.feed(&["snapshot", "import", "-", "--name", "fed", "--json"], &archive);
    let fed: Value = serde_json::from_slice(&fed.stdout).unwrap();
    assert_eq!(fed["fingerprint"], saved.trim());
    let cut = home.feed(&["snapshot", "import", "-", "--name", "cut"], &archive[..700]);
    assert_eq!(cut.status.code(), Some(125), "{}", text(&cut.stderr));
    assert_eq!(names(&home), ["all", "back", "fed"]);
}

#[test]
fn t7_keeps_the_old_snapshot_however_a_save_is_killed() {
    let home = Home::new();
    let id = home.create();
    let many = "for d in $(seq 20); do mkdir $d; for f in $(seq 50); do echo $d $f > $d/$f; done; done; \
                dd if=/dev/urandom of=large bs=100000 count=20 2>/dev/null";
    sh(&home, &id, many);
    let mut known = home.say(&["snapshot", "save", &id, "--name", "kept"]).trim().to_owned();
    let mut replaced = 0;
    for round in 0..count(200) {
        let line =
            format!("for f in $(seq 25); do echo {round} > $f/new 2>/dev/null; done; date > large");
        sh(&home, &id, &format!("{line}; true"));
        let mut child = home.command(&["snapshot", "save", &id, "--name", "kept"]).spawn().unwrap();
        pass(Duration::from_micros(random(120_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let listed = home.json(&["snapshot", "ls", "--json"]);
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(listed[0]["name"], "kept", "{listed}");
        let now = listed[0]["fingerprint"].as_str().unwrap().to_owned();
        replaced += usize::from(now != known);
        known = now;
        if round % 10 == 0 {
            assert_eq!(home.say(&["snapshot", "verify"]), "kept: whole\n");
            home.say(&["snapshot", "gc"]);
        }
    }
    home.say(&["snapshot", "gc"]);
    assert_eq!(home.say(&["snapshot", "verify"]), "kept: whole\n");
    let left = fs::read_dir(home.path().join("snapshots/temporary")).unwrap().count();
    assert_eq!(left, 0, "{replaced} of the saves came to their end");
    let last = home.say(&["snapshot", "save", &id, "--name", "kept"]);
    assert_eq!(home.json(&["snapshot", "ls", "--json"])[0]["fingerprint"], last.trim());
}

#[test]
fn loses_nothing_however_a_restore_is_killed() {
    let home = Home::new();
    let id = home.create();
    let many =
        "for d in $(seq 20); do mkdir $d; for f in $(seq 50); do echo $d $f > $d/$f; done; done";
    sh(&home, &id, many);
    // Everything but the time of the folder at the top: that changes when something beside it comes
    // and goes.
    let look = || {
        // Saving waits until the guest has put everything in its place, or cleared it away.
        home.say(&["snapshot", "save", &id, "--name", "now"]);
        sh(
            &home,
            &id,
            "find . -mindepth 1 -exec stat -c '%n %a %Y %s' {} + | sort; cat */* other 2>&1; true",
        )
    };
    home.say(&["snapshot", "save", &id, "--name", "one"]);
    let mut wanted = vec![look()];
    sh(&home, &id, "rm -rf 1 2 3; echo other > other; mkdir 30; echo x > 30/x");
    home.say(&["snapshot", "save", &id, "--name", "two"]);
    wanted.push(look());
    for round in 0..count(200) {
        let name = ["one", "two"][round % 2];
        let mut child = home.command(&["snapshot", "restore", &id, name]).spawn().unwrap();
        pass(Duration::from_micros(random(150_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wanted.contains(&look()), "round {round}: neither of both");
    }
    home.say(&["snapshot", "restore", &id, "one"]);
    until("nothing is left beside", || {
        sh(&home, &id, "ls -A | grep -c '^[.]bastide' || true") == "0\n"
    });
    assert_eq!(look(), wanted[0]);
}
