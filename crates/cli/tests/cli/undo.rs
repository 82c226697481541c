//! Points of a session from the command line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::chaos::random;
use crate::harness::{Home, SOMEBODY, count, pass, text};

fn journaled(home: &Home) -> String {
    home.say(&["create", "--journal"]).trim().to_owned()
}

/// The blocks of `docs/undo.md`, one after the other.
#[test]
fn the_blocks_of_the_page_work() {
    let home = Home::new();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/undo.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut lines = String::from("set -eu\nbastide() { \"$TOOL\" \"$@\"; }\n");
    for line in blocks.flat_map(str::lines) {
        lines.push_str(line.strip_prefix("$ ").unwrap_or(line));
        lines.push('\n');
    }
    assert!(lines.matches("bastide ").count() > 15, "{lines}");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(&lines);
    let mut shell = home.wrapped(shell, &[]);
    let output = shell.env("TOOL", env!("CARGO_BIN_EXE_bastide")).output().unwrap();
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}\n{said}");
    assert!(shown.ends_with("\t0\tsh -c echo broken > other\n"), "{shown}");
}

#[test]
fn names_the_command_that_broke_a_test() {
    let home = Home::new();
    let id = journaled(&home);
    for number in 1..=9 {
        let line = if number == 6 { "rm works" } else { &format!("echo {number} >> works") };
        home.say(&["exec", &id, "--", "sh", "-c", line]);
        if number == 6 {
            home.say(&["exec", &id, "--", "sh", "-c", "mkdir works"]);
            break;
        }
    }
    let before = home.say(&["exec", &id, "--", "ls", "-l"]);
    let found = home.json(&["bisect", "--json", &id, "--", "test", "!", "-d", "works"]);
    assert_eq!(found["broke"]["label"], "sh -c mkdir works");
    let found = home.say(&["bisect", &id, "--", "sh", "-c", "test ! -e works -o -f works"]);
    assert_eq!(found, "7\t0\tsh -c mkdir works\n");
    assert_eq!(home.say(&["exec", &id, "--", "ls", "-l"]), before);
    assert!(home.folders().iter().eq([&id]), "no fork is left");
    let refused = home.run(&["bisect", &id, "--", "false"]);
    assert!(text(&refused.stderr).contains("at the oldest point already"), "{refused:?}");
    let refused = home.run(&["bisect", &id, "--", "true"]);
    assert!(text(&refused.stderr).contains("passes at the last point"), "{refused:?}");
}

/// One clear error each, and nothing half done.
#[test]
fn does_nothing_to_a_session_that_is_stopped_or_not_there() {
    let home = Home::new();
    let id = journaled(&home);
    home.say(&["exec", &id, "--", "touch", "file"]);
    home.say(&["stop", &id]);
    let stopped = format!("session {id} is stopped");
    let resume = format!("`bastide resume {id}`");
    let missing = ["there is no session nobody", "`bastide ls`"];
    for (session, words) in
        [(id.as_str(), [stopped.as_str(), resume.as_str()]), ("nobody", missing)]
    {
        let verbs: [&[&str]; 7] = [
            &["checkpoint", session],
            &["diff", session],
            &["undo", session],
            &["redo", session],
            &["restore", session, "file@1"],
            &["fork", session],
            &["merge", session, session],
        ];
        for verb in verbs {
            let output = home.run(verb);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{verb:?}: {said}");
            assert!(words.iter().all(|word| said.contains(word)), "{verb:?}: {said}");
        }
    }
    assert!(home.folders().iter().eq([&id]), "no fork was begun");
    home.say(&["resume", &id]);
    assert_eq!(home.say(&["log", &id]).lines().count(), 1);
    home.say(&["undo", &id]);
    assert_eq!(home.say(&["exec", &id, "--", "ls"]), "");
}

/// Whatever becomes of a bisect, its forks go with it.
#[test]
fn leaves_no_fork_of_a_bisect_that_was_killed() {
    let home = Home::new();
    let id = journaled(&home);
    home.say(&["exec", &id, "--", "sh", "-c", "echo 1 > one"]);
    home.say(&["exec", &id, "--", "sh", "-c", "echo 2 > two"]);
    let mut child = home.command(&["bisect", &id, "--", "sleep", "7150"]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while home.folders().len() < 2 && Instant::now() < deadline {
        pass(Duration::from_millis(5));
    }
    assert_eq!(home.folders().len(), 2, "the test is tried in a fork");
    child.kill().unwrap();
    child.wait().unwrap();
    // It ends by itself, or is swept.
    while home.folders().len() > 1 && Instant::now() < deadline {
        home.sweep();
        pass(Duration::from_millis(20));
    }
    assert_eq!(home.folders(), [id]);
}

#[test]
fn says_what_conflicts_by_its_exit_code() {
    let home = Home::new();
    let id = home.create();
    home.say(&["exec", &id, "--", "sh", "-c", "echo 1 > file"]);
    let fork = home.say(&["fork", &id]).trim().to_owned();
    home.say(&["exec", &id, "--", "sh", "-c", "echo 2 > file"]);
    home.say(&["exec", &fork, "--", "sh", "-c", "echo 3 > file"]);
    let merged = home.run(&["merge", &id, &fork]);
    assert_eq!(merged.status.code(), Some(1), "{}", text(&merged.stderr));
    assert!(text(&merged.stderr).contains(&format!("file.fork-{fork}")), "{merged:?}");
    let both = home.say(&["exec", &id, "--", "sh", "-c", "cat file file.fork-*"]);
    assert_eq!(both, "2\n3\n");
    for arguments in [&["fork", &id][..], &["checkpoint", &id], &["undo", &id]] {
        home.run(&["stop", &id]);
        let refused = home.run(arguments);
        assert_eq!(refused.status.code(), Some(125), "{arguments:?}");
        assert!(text(&refused.stderr).contains("is stopped"), "{arguments:?}: {refused:?}");
    }
    assert!(!home.say(&["log", &id]).is_empty(), "a stopped session has its log");
}

#[test]
fn shows_what_only_ends_lines_and_names_that_are_odd() {
    let home = Home::new();
    let id = journaled(&home);
    home.say(&[
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        r"printf 'a\r\n' > 'odd
name'",
    ]);
    home.say(&[
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        r"printf 'a\n' > 'odd
name'",
    ]);
    let shown = home.say(&["diff", &id]);
    let text = "--- \"a/odd\\nname\"\n+++ \"b/odd\\nname\"\n@@ -1 +1 @@\n-a\\r\n+a\n";
    assert!(shown.ends_with(text), "{shown}");
}

/// What a redo, a restore or a merge did is in effect, and on record with what it changed.
#[test]
fn says_which_points_are_in_effect() {
    let home = Home::new();
    let id = journaled(&home);
    home.say(&["exec", &id, "--", "sh", "-c", "echo 1 > file"]);
    let fork = home.say(&["fork", &id]).trim().to_owned();
    let of = |arguments: &[&str]| home.json(arguments)["points"][0].clone();
    assert_eq!(of(&["undo", "--json", &id])["applied"], false);
    assert_eq!(of(&["redo", "--json", &id])["applied"], true);
    home.say(&["exec", &id, "--", "rm", "file"]);
    let restored = of(&["restore", "--json", &id, "file@1"]);
    assert_eq!((&restored["applied"], &restored["changes"]["added"]), (&true.into(), &1.into()));
    home.say(&["exec", &fork, "--", "sh", "-c", "echo 2 > two; rm file"]);
    let merged = of(&["merge", "--json", &id, &fork]);
    let changes = &merged["changes"];
    assert_eq!((&changes["added"], &changes["removed"]), (&1.into(), &1.into()), "{merged}");
    assert_eq!(merged["applied"], true);
    let log = home.say(&["log", &id]);
    assert!(log.lines().last().unwrap().contains("\t+1 -1\tmerge"), "{log}");
}

/// Starts the tool, and kills it at some moment.
fn killed(home: &Home, arguments: &[&str]) {
    let mut child = home.command(arguments).spawn().unwrap();
    pass(Duration::from_micros(random(200_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    // Whoever comes next waits until the guest is done, and finds out what became of it.
    home.say(&["diff", "--stat", arguments[1], "0.."]);
}

/// Whether the last point is in effect.
fn is_applied(home: &Home, id: &str) -> bool {
    let log: Value = home.json(&["log", "--json", id]);
    log.as_array().and_then(|points| points.last()).is_some_and(|last| last["applied"] == true)
}

fn names(home: &Home, id: &str) -> usize {
    home.json(&["files", "ls", "--json", id, "."]).as_array().map_or(0, Vec::len)
}

/// The tool itself is killed, at any moment.
#[test]
fn is_before_or_after_when_the_tool_is_killed() {
    let home = Home::new();
    let id = journaled(&home);
    let sh = |line: &str| home.say(&["exec", &id, "--", "sh", "-c", line]);
    sh("for n in $(seq 300); do echo $n > f$n; done");
    let full = names(&home, &id);
    for round in 0..count(100) {
        sh("rm f*; echo one > one");
        let left = names(&home, &id);
        killed(&home, &["undo", &id]);
        let now = names(&home, &id);
        let wanted = if is_applied(&home, &id) { left } else { full };
        assert_eq!(now, wanted, "round {round}: the journal says what the workspace is");
        if now == left {
            home.say(&["undo", &id]);
            assert_eq!(names(&home, &id), full, "round {round}");
        }
    }
    let fork = home.say(&["fork", &id]).trim().to_owned();
    home.say(&["exec", &fork, "--", "sh", "-c", "rm f1 f2; echo new > new"]);
    for round in 0..count(100) {
        killed(&home, &["checkpoint", &id]);
        assert_eq!(names(&home, &id), full, "round {round}");
        killed(&home, &["fork", &id]);
        assert_eq!(names(&home, &id), full, "round {round}");
        killed(&home, &["merge", &id, &fork]);
        let log: Value = home.json(&["log", "--json", &id]);
        let last = log.as_array().and_then(|points| points.last()).unwrap();
        let is_merged = last["kind"] == "merge" && last["applied"] == true;
        assert_eq!(names(&home, &id), if is_merged { full - 1 } else { full }, "round {round}");
        if is_merged {
            home.say(&["undo", &id]);
        }
        assert_eq!(names(&home, &id), full, "round {round}");
    }
    // A fork is whole, or it is swept.
    home.sweep();
    for other in home.folders().into_iter().filter(|other| *other != id && *other != fork) {
        assert_eq!(names(&home, &other), full);
    }
}

/// Points that were removed, and sessions that are gone, leave their content on the disk for a while only.
#[test]
fn what_points_had_goes_from_the_disk_with_them() {
    let home = Home::new();
    let id = home.say(&["create", "--journal", "--journal-keep", "2"]).trim().to_owned();
    for _ in 0..45 {
        home.say(&["exec", &id, "--", "sh", "-c", "head -c 200000 /dev/urandom > noise"]);
    }
    let sizes = |folder: &str| -> u64 {
        let folder = home.path().join("snapshots").join(folder);
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.metadata().unwrap().len()).sum()
    };
    let (packs, aside) = (sizes("packs"), sizes("aside"));
    assert!(packs + aside < 45 * 200_000 / 2, "{packs} + {aside} bytes of points that are gone");
    home.say(&["undo", &id, "-n", "2"]);
    home.say(&["snapshot", "verify"]);
}

/// A folder may hold what only somebody else can read: it stays, and keeps nobody from going back.
#[test]
fn goes_back_around_what_may_not_be_read() {
    let Some(home) = Home::of_somebody() else { return };
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("project");
    let at = |name: &str| folder.join(name);
    fs::create_dir_all(at("inner")).unwrap();
    for path in [outside.path().to_owned(), folder.clone(), at("inner")] {
        std::os::unix::fs::chown(path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    fs::write(at("inner/closed"), "of root").unwrap();
    fs::set_permissions(at("inner/closed"), fs::Permissions::from_mode(0o600)).unwrap();
    let workspace = folder.display().to_string();
    let id = home.say(&["create", "--journal", "--workspace", &workspace]).trim().to_owned();
    let made = home.run(&["checkpoint", &id]);
    let said = text(&made.stderr);
    assert!(said.contains("left out inner/closed: it may not be read"), "{said}");
    home.say(&["exec", &id, "--", "sh", "-c", "echo made > inner/made"]);
    home.say(&["undo", &id]);
    assert!(!at("inner/made").exists());
    assert_eq!(fs::read_to_string(at("inner/closed")).unwrap(), "of root");
}
