//! Points of a session from the command line.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Home, text};

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
    assert_eq!(home.folders(), [id.clone()], "no fork is left");
    let refused = home.run(&["bisect", &id, "--", "false"]);
    assert!(text(&refused.stderr).contains("at the oldest point already"), "{refused:?}");
    let refused = home.run(&["bisect", &id, "--", "true"]);
    assert!(text(&refused.stderr).contains("passes at the last point"), "{refused:?}");
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

/// The tool itself is killed, at any moment.
#[test]
fn is_before_or_after_when_the_tool_is_killed() {
    let home = Home::new();
    let id = journaled(&home);
    let make = "for n in $(seq 300); do echo $n > f$n; done";
    home.say(&["exec", &id, "--", "sh", "-c", make]);
    let look = || {
        let listed = home.json(&["files", "ls", "--json", &id, "."]);
        listed.as_array().map_or(0, Vec::len)
    };
    let full = look();
    for round in 0..10_u64 {
        home.say(&["exec", &id, "--", "sh", "-c", "rm f*; echo one > one"]);
        let left = look();
        assert!(left < full);
        let mut undo = home.command(&["undo", &id]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 13));
        undo.kill().unwrap();
        undo.wait().unwrap();
        // Whoever comes next finds one or the other, and the journal says which.
        let log: Value = home.json(&["log", "--json", &id]);
        assert!(log.as_array().is_some_and(|points| points.len() >= 2));
        let redo = home.run(&["redo", &id]);
        let now = look();
        match redo.status.code() {
            Some(0) => assert_eq!(now, left, "round {round}: it was undone, and redone"),
            _ => assert_eq!(now, left, "round {round}: {}", text(&redo.stderr)),
        }
        home.say(&["undo", &id]);
        assert_eq!(look(), full, "round {round}");
    }
}
