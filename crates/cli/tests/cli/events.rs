//! What happened, as people and programs see it, and whether it can be believed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Home, count, pass, text};

/// A session that ran two commands and is gone.
fn story(home: &Home) -> String {
    let id = home.create();
    home.say(&["exec", &id, "--", "echo", "hello"]);
    assert_eq!(home.run(&["exec", &id, "--", "sh", "-c", "exit 3"]).status.code(), Some(3));
    home.say(&["files", "ls", &id, "."]);
    home.say(&["rm", &id]);
    id
}

#[test]
fn tells_the_story_of_a_session_that_is_gone() {
    let home = Home::new();
    let id = story(&home);
    let lines = home.say(&["events", &id]);
    let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split('\t').collect()).collect();
    let execs: Vec<_> = rows.iter().filter(|row| row[1] == "exec").collect();
    assert_eq!(execs.len(), 2, "{lines}");
    assert_eq!((execs[0][3], execs[0][4]), ("exit 0", "echo hello"));
    assert_eq!((execs[1][3], execs[1][4]), ("exit 3", "sh -c exit 3"));
    assert!(execs[0][2].ends_with("ms") || execs[0][2].ends_with(" s"), "{lines}");
    let words: Vec<_> = rows.iter().map(|row| row[1]).collect();
    for word in ["creating", "start", "running", "attached", "ls", "deleted"] {
        assert!(words.contains(&word), "{word} is not in {lines}");
    }
    assert_eq!(home.say(&["events", &id[..6], "--op", "exec"]).lines().count(), 2);
    let objects = home.say(&["events", &id, "--json", "--op", "exec"]);
    let objects: Vec<Value> =
        objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 4);
    assert_eq!(objects[1]["data"]["exit_code"], 0);
    assert_eq!(objects[0]["actor"]["name"], "bastide");
    // Without a name it is everybody's story.
    let other = story(&home);
    let all = home.say(&["events", "--op", "exec"]);
    assert_eq!(all.lines().count(), 4);
    assert!(all.contains(&id[..8]) && all.contains(&other[..8]), "{all}");
    assert_eq!(home.run(&["events", "0123"]).status.code(), Some(125));
}

#[test]
fn follows_what_happens() {
    let home = Home::new();
    let id = home.create();
    let mut child =
        home.command(&["events", "--follow", "--json", "--op", "exec", &id]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for number in 0..3 {
        let word = format!("word{number}");
        home.say(&["exec", &id, "--", "echo", &word]);
        for phase in ["start", "finish"] {
            let record: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(record["phase"], phase);
            assert_eq!(record["data"]["command"][1], word.as_str());
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    home.say(&["rm", &id]);
}

#[test]
fn verifies_and_proves_what_is_on_record() {
    let home = Home::new();
    let public = home.say(&["audit", "keygen", "key"]);
    let other = home.json(&["audit", "keygen", "--json", "other"]);
    assert_eq!(other["public_key"].as_str().unwrap().len(), public.trim().len(), "{other}");
    let mut create = home.command(&["create"]);
    create.env("BASTIDE_AUDIT_KEY", home.path().join("key"));
    let id = text(&create.output().unwrap().stdout).trim().to_owned();
    let mut exec = home.command(&["exec", &id, "--", "true"]);
    exec.env("BASTIDE_AUDIT_KEY", home.path().join("key"));
    assert_eq!(exec.output().unwrap().status.code(), Some(0));
    let good = home.say(&["audit", "verify", &id, "--key", public.trim()]);
    assert!(good.starts_with(&format!("{id}\tgood\t")) && good.contains("signed up to"), "{good}");
    let proof = home.say(&["audit", "prove", "3", &id]);
    fs::write(home.path().join("proof"), &proof).unwrap();
    let record = home.say(&["audit", "check", "proof", "--key", public.trim()]);
    assert!(record.starts_with("{\"seq\":3,"), "{record}");
    fs::write(home.path().join("proof"), proof.replace("start", "stop!")).unwrap();
    assert_eq!(home.run(&["audit", "check", "proof"]).status.code(), Some(125));
    home.say(&["rm", &id]);

    // A folder that was made and got no further stops nobody.
    let other = format!("{}{}", &id[..id.len() - 1], if id.ends_with('0') { '1' } else { '0' });
    fs::create_dir(home.path().join("audit").join(&other)).unwrap();
    let all = home.say(&["audit", "verify"]);
    assert_eq!(all.lines().filter(|line| line.contains("\tgood\t")).count(), 2, "{all}");
    fs::remove_dir(home.path().join("audit").join(&other)).unwrap();

    let path = home.path().join("audit").join(&id).join("000001.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() / 3;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let output = home.run(&["audit", "verify"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("TAMPERED"));
    let report: Value =
        serde_json::from_slice(&home.run(&["audit", "verify", "--json", &id]).stdout).unwrap();
    assert_eq!((&report[0]["good"], &report[0]["ended"]), (&false.into(), &true.into()));
    // What is gone for long may go; what is not, stays.
    assert_eq!(home.say(&["audit", "prune", "--older-than", "12h"]), "");
    assert_eq!(
        home.say(&["audit", "prune", "--older-than", "0s"]),
        format!("removed audit/{id}\n")
    );
    assert!(!path.exists());
}

#[test]
fn tells_whoever_the_environment_names() {
    let home = Home::new();
    let run = |name: &str, value: &str| {
        let mut command = home.command(&["run", "--", "echo", "hello"]);
        text(&command.env(name, value).output().unwrap().stdout)
    };
    assert_eq!(run("BASTIDE_AUDIT", "off"), "hello\n");
    assert!(!home.path().join("audit").exists());
    let said = run("BASTIDE_EVENTS", "-");
    let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ops: Vec<_> = events.map(|event| event["op"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ops, ["start", "start", "exec", "exec"], "{said}");
    assert_eq!(run("BASTIDE_EVENTS", "events.jsonl"), "hello\n");
    let written = fs::read_to_string(home.path().join("events.jsonl")).unwrap();
    assert_eq!(written.lines().count(), 4, "{written}");
    let mut wrong = home.command(&["run", "--", "true"]);
    assert_eq!(wrong.env("BASTIDE_AUDIT", "maybe").output().unwrap().status.code(), Some(125));
}

#[test]
fn is_one_whole_record_however_writers_are_killed() {
    let home = Home::new();
    let id = home.create();
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let (home, id) = (&home, &id);
            scope.spawn(move || {
                for round in 0..count(100) as u64 {
                    let mut child = home.command(&["exec", id, "--", "true"]).spawn().unwrap();
                    pass(Duration::from_micros((round * 1_700 + lane * 531) % 20_000));
                    child.kill().unwrap();
                    child.wait().unwrap();
                }
            });
        }
    });
    home.say(&["exec", &id, "--", "true"]);
    home.say(&["rm", &id]);
    let good = home.say(&["audit", "verify", &id]);
    assert!(good.starts_with(&format!("{id}\tgood\t")), "{good}");
}
