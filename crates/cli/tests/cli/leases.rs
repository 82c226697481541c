//! Sessions that end by themselves, and what sessions use.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Home, count, text, until};

fn state(home: &Home, id: &str) -> String {
    let all = home.json(&["ls", "--json"]);
    let found = all.as_array().unwrap().iter().find(|one| one["id"] == id);
    found.map_or_else(|| "gone".to_owned(), |one| one["state"].as_str().unwrap().to_owned())
}

#[test]
fn expires_with_every_client_killed() {
    let home = Home::new();
    // A session of processes of its own, all of which are killed, the maker included.
    let line = "\"$0\" create --ttl 2s; \"$0\" create --idle 2s --then delete; kill -KILL 0";
    let mut shell = Command::new("setsid");
    shell.args(["sh", "-c", line]).arg(env!("CARGO_BIN_EXE_bastide"));
    let output = home.wrapped(shell, &[]).output().unwrap();
    let said = text(&output.stdout);
    let (stopped, deleted) = said.trim().split_once('\n').unwrap();
    until("it has expired", || state(&home, stopped) == "expired");
    until("it is gone", || state(&home, deleted) == "gone");
    assert_eq!(home.json(&["inspect", "--json", stopped])["end"]["reason"], "expired");
    let refused = home.run(&["exec", stopped, "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    let said = text(&refused.stderr);
    assert!(said.contains("has expired") && said.contains("bastide resume"), "{said}");
    until("nothing of it runs", || home.processes().is_empty());
    // Neither is garbage.
    assert_eq!(home.sweep(), Vec::<String>::new());
    home.say(&["sweep", "--ended"]);
    assert_eq!(state(&home, stopped), "expired");
}

#[test]
fn a_session_that_its_lease_deletes_is_on_record_and_leaves_nothing() {
    let home = Home::new();
    let id = home.say(&["create", "--ttl", "1h", "--then", "delete"]).trim().to_owned();
    home.say(&["exec", &id, "--", "sh", "-c", "echo kept > file"]);
    home.say(&["checkpoint", &id]);
    // What is kept of it while it is stopped stays when it goes on.
    home.say(&["stop", &id]);
    home.say(&["resume", &id]);
    assert!(home.say(&["snapshot", "ls"]).contains(&id));
    let points = home.path().join("snapshots/points").join(&id);
    assert!(points.is_dir(), "it has a point");
    home.say(&["lease", &id, "1ms"]);
    let folder = home.path().join("sessions").join(&id);
    until("its folder is gone", || !folder.exists());
    // Who looks without putting anything on record leaves that to whoever does.
    let mut unrecorded = home.command(&["ls"]);
    assert!(unrecorded.env("BASTIDE_AUDIT", "off").output().unwrap().status.success());
    let ends = |said: &str| {
        let records = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let states = records.filter_map(|record| {
            let data = &record["data"];
            let word = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
            Some((record["state"].as_str()?.to_owned(), word("reason"), word("by")))
        });
        let last = ["ended", "deleted"];
        states.filter(|(state, ..)| last.contains(&state.as_str())).collect::<Vec<_>>()
    };
    let want = [
        ("ended".to_owned(), "expired".to_owned(), String::new()),
        ("deleted".to_owned(), String::new(), "lease".to_owned()),
    ];
    assert_eq!(ends(&home.say(&["events", "--json", &id])), want);
    assert_eq!(ends(&home.say(&["events", "--json", &id])), want, "once");
    assert!(home.say(&["audit", "verify", &id]).contains("good"));
    assert!(!home.say(&["snapshot", "ls"]).contains(&id));
    assert!(!points.exists());
    assert_eq!(std::fs::read_dir(home.path().join("deleted")).unwrap().count(), 0);
}

/// Sessions of their own process group, all clients of which are killed: each with the milliseconds between which it was
/// made, and when it ended.
fn ends_of_many(home: &Home, sessions: usize, create: &str) -> Vec<(u64, u64, u64)> {
    let line = format!(
        "for i in $(seq {sessions}); do
           b=$(date +%s%3N); id=$(\"$0\" create {create}) || exit 1; echo \"$b $(date +%s%3N) $id\"
         done; kill -KILL 0"
    );
    let mut shell = Command::new("setsid");
    shell.args(["sh", "-c", &line]).arg(env!("CARGO_BIN_EXE_bastide"));
    let mut shell = home.wrapped(shell, &[]);
    if let Some(host) = std::env::var_os("BASTIDE_TEST_DOCKER") {
        shell.env("DOCKER_HOST", host);
    }
    let said = text(&shell.output().unwrap().stdout);
    let made: Vec<Vec<&str>> = said.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(made.len(), sessions, "{said}");
    let number = |text: &str| text.parse::<u64>().unwrap();
    let ended = |id: &str| {
        until("it has expired", || state(home, id) == "expired");
        let end = home.json(&["inspect", "--json", id])["end"].clone();
        assert_eq!(end["reason"], "expired", "{end}");
        end["at_ms"].as_u64().unwrap()
    };
    made.iter().map(|made| (number(made[0]), number(made[1]), ended(made[2]))).collect()
}

/// As many sessions as asked for end within a second of their time, with nobody there.
pub(crate) fn many_expire_in_time(home: &Home, create: &str) {
    const TTL: u64 = 4000;
    // A machine that does much else is late with everything.
    let (sessions, late) = match count(10) {
        10 => (50, 1000),
        _ => (5, 10_000),
    };
    for (before, after, end) in ends_of_many(home, sessions, &format!("--ttl 4s {create}")) {
        let due = before + TTL..=after + TTL + late;
        assert!(due.contains(&end), "{end} is not in {due:?}");
    }
}

#[test]
fn many_expire_in_time_with_every_client_killed() {
    many_expire_in_time(&Home::new(), "");
}

#[test]
fn changes_and_shows_a_lease() {
    let home = Home::new();
    let id = home.say(&["create", "--ttl", "1h", "--idle", "30m"]).trim().to_owned();
    let lease = home.json(&["inspect", "--json", &id])["lease"].clone();
    assert_eq!((&lease["idle_ms"], &lease["then"]), (&1_800_000.into(), &"stop".into()));
    let lease = home.json(&["lease", "--json", &id, "30m", "--then", "delete"]);
    assert!(lease["remaining_ms"].as_u64().unwrap() <= 1_800_000, "{lease}");
    assert_eq!(lease["then"], "delete");
    let lease = home.json(&["lease", "--json", &id, "1s", "--at-least"]);
    assert!(lease["remaining_ms"].as_u64().unwrap() > 60_000, "{lease}");
    let lease = home.json(&["lease", "--json", "--none", &id]);
    assert!(lease["remaining_ms"].is_null() && lease["idle_ms"].is_null(), "{lease}");
    assert!(home.json(&["inspect", "--json", &id])["lease"].is_null());
    for wrong in [
        &["create", "--ttl", "0s"][..],
        &["create", "--idle", "soon"],
        &["create", "--then", "delete"],
    ] {
        assert_eq!(home.run(wrong).status.code(), Some(125), "{wrong:?}");
    }
    let forked = home.say(&["fork", &id]).trim().to_owned();
    assert!(home.json(&["inspect", "--json", &forked])["lease"].is_null(), "its origin has none");
    // Whoever stops a session wants it kept.
    home.say(&["exec", &id, "--", "sh", "-c", "head -c 64m /dev/urandom > f"]);
    home.json(&["lease", "--json", &id, "100ms", "--then", "delete"]);
    if home.run(&["stop", &id]).status.code() == Some(0) {
        home.say(&["resume", &id]);
        assert_eq!(home.say(&["exec", &id, "--", "sh", "-c", "wc -c < f"]).trim(), "67108864");
    }
    let forever = home.say(&["create"]).trim().to_owned();
    home.say(&["exec", "--timeout", "1e19s", &forever, "--", "true"]);
    home.say(&["exec", &forever, "--", "true"]);
    let run = home.run(&["run", "--ttl", "1s", "--", "sleep", "7900@"]);
    assert_eq!(run.status.code(), Some(125));
    assert!(text(&run.stderr).contains("its lease ran out"), "{}", text(&run.stderr));
}

#[test]
fn tells_what_commands_and_sessions_use() {
    let home = Home::new();
    let report = home.json(&["run", "--json", "--", "sh", "-c", "head -c 1000000 /dev/zero > f"]);
    let usage = &report["usage"];
    assert!(usage["written_bytes"].is_u64() && usage["read_bytes"].is_u64(), "{usage}");
    assert!(usage["peak_memory_bytes"].as_u64().unwrap() > 0, "{usage}");
    assert_eq!(usage["source"], "rusage");
    let id = home.create();
    home.say(&["exec", &id, "--", "sh", "-c", "head -c 1000000 /dev/zero > f"]);
    let stats = home.json(&["stats", "--json"]);
    let own = &stats[&id];
    assert!(
        own["written_bytes"].is_u64() && own["peak_memory_bytes"].as_u64() > Some(0),
        "{stats}"
    );
    assert!(own["cpu_seconds"].is_number() && own["source"].is_string(), "{stats}");
    assert!(home.say(&["stats", &id]).starts_with(&id));
    assert!(home.json(&["inspect", "--json", &id])["usage"]["read_bytes"].is_number());
    let process = home.say(&["exec", "-d", &id, "--", "sleep", "7901@"]);
    let listed = home.json(&["ps", "--json", &id]);
    let listed = listed.as_array().unwrap().iter();
    let mut listed = listed.filter(|one| one["process"] == process.trim().parse::<u64>().unwrap());
    assert!(listed.next().unwrap()["usage"]["cpu_seconds"].is_number());
    home.say(&["stop", &id]);
    assert_eq!(home.json(&["stats", "--json"]), serde_json::json!({}));
    assert_eq!(home.run(&["stats", &id]).status.code(), Some(125));
}

#[test]
fn says_how_long_the_queue_is() {
    let home = Home::new();
    std::fs::write(home.path().join("config.toml"), "max_sessions = 1\n").unwrap();
    let id = home.create();
    let refused = home.run(&["create"]);
    assert_eq!(refused.status.code(), Some(125));
    let said = text(&refused.stderr);
    assert!(said.contains("1 run, and 0 more wait") && said.contains("--wait"), "{said}");
    // Two who wait; the first is killed, and loses nothing but its place.
    let mut first = home.command(&["create", "--wait", "1m"]).spawn().unwrap();
    let tickets = || std::fs::read_dir(home.path().join("queue")).map_or(0, Iterator::count);
    until("the first waits", || tickets() == 1);
    let second = home.command(&["create", "--wait", "1m"]).spawn().unwrap();
    until("the second waits", || tickets() == 2);
    let said = text(&home.run(&["create", "--wait", "100ms"]).stderr);
    assert!(said.contains("2 more wait"), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    home.say(&["stop", &id]);
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(tickets(), 0);
    // What was stopped has no room to go on until there is some.
    assert_eq!(home.run(&["resume", &id]).status.code(), Some(125));
    // Whoever waits to resume a session keeps nobody from what they want of it.
    let waits = home.command(&["resume", "--wait", "1m", &id]).spawn().unwrap();
    until("it waits", || tickets() == 1);
    home.say(&["stop", &id]);
    home.say(&["rm", text(&output.stdout).trim()]);
    assert_eq!(waits.wait_with_output().unwrap().status.code(), Some(0));
    let waits = home.command(&["create", "--wait", "1m"]).spawn().unwrap();
    until("it waits", || tickets() == 1);
    home.say(&["stop", &id]);
    assert_eq!(waits.wait_with_output().unwrap().status.code(), Some(0));
    let waits = home.command(&["resume", "--wait", "1m", &id]).spawn().unwrap();
    until("it waits", || tickets() == 1);
    home.say(&["rm", &id]);
    let output = waits.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "it is gone, and waits no longer");
    assert_eq!(tickets(), 0);
}

#[test]
fn every_command_says_that_its_session_expired() {
    let home = Home::new();
    let id = home.say(&["create", "--ttl", "1h"]).trim().to_owned();
    let process = home.say(&["exec", "-d", &id, "--", "sleep", "7902@"]);
    let attached = home.command(&["attach", &id, process.trim()]).spawn().unwrap();
    let line = "echo here > f; sleep 7903@";
    let runs = home.command(&["exec", &id, "--", "sh", "-c", line]).spawn().unwrap();
    until("it runs", || home.run(&["files", "cat", &id, "f"]).status.success());
    home.say(&["lease", &id, "1ms"]);
    for command in [attached, runs] {
        let output = command.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("its lease ran out"), "{}", text(&output.stderr));
    }
}
