//! What keeps a session from being less confined than the machine can have it.

use std::fs;
use std::process::Command;

use crate::harness::{Home, text};

/// A limit that cannot be set says nothing about what the machine has.
#[test]
fn never_stands_lower_for_a_limit_that_the_caller_may_not_have() {
    let home = Home::of_anybody_but_root();
    let cases = [
        ("--nproc=900", "--pids", "1000", "900"),
        ("--data=4096000000", "--memory", "5000000000", "4096000000"),
        ("--fsize=4096000000", "--disk", "5000000000", "4096000000"),
    ];
    for (limit, option, value, most) in cases {
        let mut around = Command::new("prlimit");
        around.arg(limit);
        let arguments = ["run", "-v", option, value, "--", "true"];
        let output = home.around(around, &arguments).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{option}: {stderr}");
        assert!(stderr.contains(&format!("to {value}")) && stderr.contains(most), "{stderr}");
        assert!(stderr.contains("hint:") && !stderr.contains("landlock"), "{option}: {stderr}");
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}

/// The error where owners cannot be shifted on the way, as on the root of a container.
#[test]
fn says_at_once_that_a_file_system_cannot_show_other_owners() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let home = Home::new();
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().to_str().unwrap();
    let below = top.path().join("below");
    fs::create_dir(&below).unwrap();
    let cases = [
        // The folder itself, and something mounted in it.
        (format!("mount -t ramfs none {folder} && mkdir {folder}/below"), "below", "lies on"),
        (format!("mount -t ramfs none {folder}/below"), "", "is mounted"),
    ];
    for (mount, beneath, said) in cases {
        let mut around = Command::new("unshare");
        around.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
        let workspace = top.path().join(beneath);
        let workspace = workspace.to_str().unwrap();
        let arguments = ["run", "-v", "--workspace", workspace, "--", "true"];
        let output = home.around(around, &arguments).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{stderr}");
        let words = [folder, "id-mapped", said];
        assert!(words.iter().all(|word| stderr.contains(word)), "{stderr}");
        assert!(!stderr.contains("timed out") && !stderr.contains("rung   "), "{stderr}");
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}

/// A machine that loses its power keeps names and loses what was never synced.
#[test]
fn resumes_on_the_rung_it_stood_on_though_the_note_of_it_is_lost() {
    for (lost, rung) in [("", "landlock"), ("", "namespaces"), ("removed", "landlock")] {
        let home = Home::new();
        let id = home.say(&["create", "--isolation", rung]).trim().to_owned();
        home.say(&["stop", &id]);
        let note = home.path().join("sessions").join(&id).join("rung");
        match lost {
            "" => fs::write(&note, "").unwrap(),
            _ => fs::remove_file(&note).unwrap(),
        }
        // Whoever asked by name has it by name. The session's own choice is what the record says.
        forget_what_was_asked(&home, &id);
        home.say(&["resume", &id]);
        assert_eq!(home.json(&["inspect", "--json", &id])["receipt"]["rung"], rung);
        home.say(&["rm", &id]);
    }
}

/// As if the session had been made with `--isolation auto`.
fn forget_what_was_asked(home: &Home, id: &str) {
    let path = home.path().join("sessions").join(id).join("machine.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["spec"]["isolation"] = serde_json::to_value(bastide::Isolation::Auto).unwrap();
    fs::write(path, record.to_string()).unwrap();
}

#[test]
fn says_what_helps_where_nobody_knows_the_rung() {
    let home = Home::new();
    let id = home.create();
    home.say(&["stop", &id]);
    fs::write(home.path().join("sessions").join(&id).join("rung"), "cellar").unwrap();
    let output = home.run(&["resume", &id]);
    let stderr = text(&output.stderr);
    assert_ne!(output.status.code(), Some(0));
    // `resume` has no option for it.
    assert!(stderr.contains("cellar") && !stderr.contains("--isolation"), "{stderr}");
    assert!(stderr.contains("bastide create --snapshot"), "{stderr}");
    home.say(&["rm", &id]);
}
