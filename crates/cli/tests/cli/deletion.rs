//! What is removed is what somebody asked for, and nothing else: whatever a sweep meets, whatever is killed,
//! and whatever was copied.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::chaos::{moment, state, warden_and_init};
use crate::harness::{Home, count, end, kill, pass, text, until};

/// Makes a session with a file in it.
fn with_file(home: &Home) -> String {
    let id = home.create();
    home.say(&["exec", &id, "--", "sh", "-c", "echo kept > file"]);
    id
}

/// Goes on with a session, which has its file.
fn assert_whole(home: &Home, id: &str) {
    home.say(&["resume", id]);
    assert_eq!(home.say(&["exec", id, "--", "cat", "file"]), "kept\n");
}

fn folder(home: &Home, id: &str) -> PathBuf {
    home.path().join("sessions").join(id)
}

/// The entries of a list in what a sweep says that are about a session.
fn about<'a>(swept: &'a Value, list: &str, id: &str) -> Vec<&'a Value> {
    swept[list].as_array().unwrap().iter().filter(|swept| swept["id"] == id).collect()
}

#[test]
fn keeps_a_session_that_is_stopped_while_others_sweep() {
    let home = Home::new();
    let id = with_file(&home);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let swept = home.json(&["sweep", "--ended", "--json"]);
                    assert_eq!(about(&swept, "removed", &id), Vec::<&Value>::new());
                }
            });
        }
        let stopping = scope.spawn(|| {
            for _ in 0..count(100) {
                home.say(&["stop", &id]);
                assert_whole(&home, &id);
            }
        });
        let stopped = stopping.join();
        is_over.store(true, Ordering::Release);
        stopped.unwrap();
    });
    home.say(&["rm", &id]);
}

/// Runs the tool and kills it at some moment of what it usually takes.
fn run_and_kill(home: &Home, arguments: &[&str], usual: Duration) {
    let mut child = home.command(arguments).spawn().unwrap();
    pass(moment(usual));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// How long the tool takes.
fn time(home: &Home, arguments: &[&str]) -> Duration {
    let begun = Instant::now();
    home.say(arguments);
    begun.elapsed()
}

#[test]
fn keeps_a_session_however_its_stop_or_resume_is_killed() {
    let home = Home::new();
    let id = with_file(&home);
    let usual = time(&home, &["stop", &id]).max(time(&home, &["resume", &id]));
    for round in 0..count(300) {
        let verb = if round % 2 == 0 { "stop" } else { "resume" };
        run_and_kill(&home, &[verb, &id], usual);
        let swept = home.json(&["sweep", "--json"]);
        assert_eq!(about(&swept, "removed", &id), Vec::<&Value>::new(), "round {round}: {swept}");
        assert_eq!(swept["failed"], serde_json::json!([]), "round {round}");
        if round % 5 == 4 {
            assert_whole(&home, &id);
        }
    }
    assert_whole(&home, &id);
    home.say(&["rm", &id]);
    assert_eq!(home.folders(), Vec::<String>::new());
}

/// All that is left of a session may be what is on record and what was saved.
#[test]
fn keeps_a_session_without_a_workspace_though_its_resume_is_killed() {
    let home = Home::new();
    let id = with_file(&home);
    home.say(&["stop", &id]);
    let usual = time(&home, &["resume", &id]);
    home.say(&["stop", &id]);
    for round in 0..count(300) {
        drop(fs::remove_dir_all(folder(&home, &id).join("work")));
        run_and_kill(&home, &["resume", &id], usual);
        until("nothing of it runs, or all of it does", || {
            assert!(folder(&home, &id).join("machine.json").exists(), "round {round}");
            home.processes().is_empty() || state(&home, &id) == "running"
        });
        home.say(&["stop", &id]);
    }
    home.say(&["rm", &id]);
}

/// Copies a home as people do.
fn copy(home: &Home) -> Home {
    let copy = Home::new();
    let (from, to) = (home.path().join("."), copy.path().join("."));
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).output().unwrap();
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    copy
}

fn leaves_the_original_alone(create: &[&str]) {
    let home = Home::new();
    let made = home.run(create);
    if made.status.code() != Some(0) {
        // The machine does not have this rung; that it says so is all there is to see.
        assert!(text(&made.stderr).contains("landlock"), "{}", text(&made.stderr));
        return;
    }
    let running = text(&made.stdout).trim().to_owned();
    let stopped = home.say(create).trim().to_owned();
    for id in [&running, &stopped] {
        home.say(&["exec", id, "--", "sh", "-c", "echo kept > file"]);
    }
    home.say(&["stop", &stopped]);
    let unharmed = |what: &str| {
        let said = home.run(&["exec", &running, "--", "cat", "file"]);
        assert_eq!(text(&said.stdout), "kept\n", "after {what}: {}", text(&said.stderr));
    };
    // The copy of a session that runs does not: what runs is the original.
    let other = copy(&home);
    assert_eq!(state(&other, &running), "ended");
    assert_eq!(other.run(&["exec", &running, "--", "true"]).status.code(), Some(125));
    other.say(&["sweep", "--ended"]);
    unharmed("sweep --ended");
    let other = copy(&home);
    other.say(&["stop", &running]);
    unharmed("stop");
    other.say(&["rm", &running, &stopped]);
    assert_eq!(other.folders(), Vec::<String>::new());
    unharmed("rm");
    assert_whole(&home, &stopped);
    home.say(&["rm", &running, &stopped]);
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn removes_nothing_of_the_original_with_a_copy() {
    leaves_the_original_alone(&["create"]);
}

/// There, root's sessions have their files elsewhere.
#[test]
fn removes_nothing_of_the_original_with_a_copy_on_the_rung_landlock() {
    leaves_the_original_alone(&["create", "--isolation", "landlock"]);
}

#[test]
fn goes_on_with_a_copy_as_a_session_of_its_own() {
    let home = Home::new();
    let id = with_file(&home);
    let other = copy(&home);
    assert_whole(&other, &id);
    other.say(&["exec", &id, "--", "sh", "-c", "echo changed > file"]);
    assert_eq!(home.say(&["exec", &id, "--", "cat", "file"]), "kept\n");
    home.say(&["rm", &id]);
    assert_eq!(other.say(&["exec", &id, "--", "cat", "file"]), "changed\n");
    other.say(&["rm", &id]);
    assert!(other.folders().is_empty() && other.processes().is_empty());
}

/// Earlier versions did not have the lock say which file it is, but the record where it was.
#[test]
fn tells_copies_of_sessions_of_earlier_versions_from_them() {
    let home = Home::new();
    let id = with_file(&home);
    fs::write(folder(&home, &id).join("lock"), "").unwrap();
    assert_eq!(state(&home, &id), "running");
    let other = copy(&home);
    assert_eq!(state(&other, &id), "ended");
    other.say(&["rm", &id]);
    assert_eq!(other.folders(), Vec::<String>::new());
    assert_eq!(home.say(&["exec", &id, "--", "cat", "file"]), "kept\n");
    home.say(&["stop", &id]);
    assert_whole(&home, &id);
    home.say(&["rm", &id]);
    assert!(home.folders().is_empty() && home.processes().is_empty());
}

/// A home that was moved is the same home.
#[test]
fn finds_the_sessions_of_a_home_that_was_moved() {
    let home = Home::new();
    let id = with_file(&home);
    home.say(&["stop", &id]);
    let other = Home::new();
    for entry in fs::read_dir(home.path()).unwrap().flatten() {
        fs::rename(entry.path(), other.path().join(entry.file_name())).unwrap();
    }
    assert_eq!(state(&other, &id), "stopped");
    assert_whole(&other, &id);
    other.say(&["rm", &id]);
    assert!(other.folders().is_empty() && other.processes().is_empty());
}

/// Puts a directory where a file is: nobody can read that, also not root.
fn make_unreadable(path: &Path) {
    drop(fs::remove_file(path));
    fs::create_dir(path).unwrap();
}

#[test]
fn keeps_and_names_what_it_cannot_read() {
    let home = Home::new();
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("EOF", |folder| fs::write(folder.join("machine.json"), "").unwrap()),
        ("missing field", |folder| fs::write(folder.join("machine.json"), "{}").unwrap()),
        ("expected", |folder| fs::write(folder.join("machine.json"), "no json").unwrap()),
        ("form 99", |folder| {
            let record = fs::read_to_string(folder.join("machine.json")).unwrap();
            let later = record.replacen("\"form\":1", "\"form\":99,\"more\":true", 1);
            assert_ne!(later, record);
            fs::write(folder.join("machine.json"), later).unwrap();
        }),
        ("cannot be read", |folder| make_unreadable(&folder.join("machine.json"))),
        ("no record", |folder| fs::remove_file(folder.join("machine.json")).unwrap()),
        ("cannot lock", |folder| make_unreadable(&folder.join("lock"))),
    ];
    for (why, damage) in damages {
        let id = with_file(&home);
        home.say(&["stop", &id]);
        damage(&folder(&home, &id));
        for arguments in [&["sweep", "--json"][..], &["sweep", "--ended", "--json"]] {
            let swept = home.json(arguments);
            assert_eq!(about(&swept, "removed", &id), Vec::<&Value>::new(), "{why}: {swept}");
            let named = about(&swept, "unclear", &id);
            assert_eq!(named.len(), 1, "{why}: {swept}");
            assert!(named[0]["why"].as_str().unwrap().contains(why), "{why}: {swept}");
        }
        assert!(folder(&home, &id).join("work/file").exists(), "{why}");
        let said = home.run(&["sweep"]);
        assert!(text(&said.stderr).contains(&id), "{why}: {}", text(&said.stderr));
        let listed = home.json(&["ls", "--json"]);
        let listed = listed.as_array().unwrap().iter().find(|session| session["id"] == id.as_str());
        let listed = listed.unwrap_or_else(|| panic!("{why}: it is not listed"));
        if why != "cannot lock" {
            assert_eq!(listed["state"], "unknown", "{why}");
            assert!(listed["trouble"].as_str().unwrap().contains(why), "{why}: {listed}");
        }
        // Somebody who means it names it.
        if why == "cannot lock" {
            fs::remove_dir(folder(&home, &id).join("lock")).unwrap();
        }
        home.say(&["rm", &id]);
        assert_eq!(home.folders(), Vec::<String>::new(), "{why}");
    }
}

/// Root reads everything.
#[test]
fn says_unknown_where_it_may_not_look() {
    let home = Home::of_anybody_but_root();
    let id = with_file(&home);
    home.say(&["stop", &id]);
    let lock = folder(&home, &id).join("lock");
    let mode = |mode| fs::set_permissions(&lock, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    assert_eq!(state(&home, &id), "unknown");
    let listed = home.json(&["ls", "--json"]);
    assert!(listed[0]["trouble"].as_str().unwrap().contains("lock"), "{listed}");
    let swept = home.json(&["sweep", "--ended", "--json"]);
    assert_eq!(about(&swept, "unclear", &id).len(), 1, "{swept}");
    mode(0o600);
    assert_whole(&home, &id);
    home.say(&["rm", &id]);
}

#[test]
fn keeps_what_crashed_unless_it_is_asked_for() {
    let home = Home::new();
    let id = with_file(&home);
    // What it was saved in goes with it, too.
    home.say(&["stop", &id]);
    home.say(&["resume", &id]);
    let crash = || {
        kill(warden_and_init(&home, &id).0, "KILL");
        until("the sandbox ends", || state(&home, &id) == "ended" && home.processes().is_empty());
    };
    crash();
    let swept = home.json(&["sweep", "--json"]);
    assert_eq!(about(&swept, "removed", &id), Vec::<&Value>::new());
    assert_eq!(about(&swept, "ended", &id).len(), 1, "{swept}");
    let said = home.run(&["sweep"]);
    assert!(text(&said.stderr).contains("--ended"), "{}", text(&said.stderr));
    assert_whole(&home, &id);
    crash();
    let would = home.json(&["sweep", "--ended", "--dry-run", "--json"]);
    assert_eq!(about(&would, "removed", &id).len(), 1, "{would}");
    assert!(folder(&home, &id).join("work/file").exists());
    let swept = home.json(&["sweep", "--ended", "--json"]);
    assert_eq!(about(&swept, "removed", &id).len(), 1, "{swept}");
    assert_eq!(home.folders(), Vec::<String>::new());
    assert_eq!(home.say(&["snapshot", "ls"]), "");
}

#[test]
fn says_what_it_would_remove_and_removes_nothing() {
    let home = Home::new();
    let id = with_file(&home);
    home.say(&["stop", &id]);
    let path = folder(&home, &id).join("machine.json");
    let record = fs::read_to_string(&path).unwrap();
    fs::write(&path, record.replace("\"stage\":\"stopped\"", "\"stage\":\"starting\"")).unwrap();
    let gone = home.path().join("sessions/.gone-0123456789abcdef0123456789abcdef.1");
    fs::create_dir(&gone).unwrap();
    let said = home.say(&["sweep", "--dry-run"]);
    assert!(said.contains(&format!("would remove session {id}")), "{said}");
    assert!(said.contains(".gone-"), "{said}");
    assert!(folder(&home, &id).join("work/file").exists() && gone.exists());
    let said = home.say(&["sweep"]);
    assert!(said.contains(&format!("removed session {id}")), "{said}");
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn finishes_a_removal_that_was_killed() {
    let home = Home::new();
    let other = with_file(&home);
    let usual = time(&home, &["rm", &home.create()]);
    for round in 0..count(200) {
        let id = home.create();
        let line = "for i in 1 2 3 4 5; do mkdir -p $i/a/b; for j in 1 2 3 4 5 6 7 8 9; do echo > $i/a/b/$j; done; done";
        home.say(&["exec", &id, "--", "sh", "-c", line]);
        if round % 2 == 0 {
            home.say(&["stop", &id]);
        }
        run_and_kill(&home, &["rm", &id], usual);
        let is_announced = folder(&home, &id).join("unwanted").exists();
        if is_announced {
            let refused = home.run(&["resume", &id]);
            // Unless its warden is just finishing it.
            if refused.status.code() == Some(125) && home.folders().contains(&id) {
                assert!(text(&refused.stderr).contains("removed"), "{}", text(&refused.stderr));
            }
        }
        match (is_announced, round % 3) {
            (true, 0) => drop(home.say(&["sweep"])),
            _ => drop(home.say(&["rm", &id])),
        }
        until("it is gone", || !home.folders().iter().any(|name| name.contains(&id)));
        assert!(home.run(&["exec", &id, "--", "true"]).status.code() == Some(125));
    }
    assert_whole(&home, &other);
    home.say(&["rm", &other]);
    until("nothing of any session runs", || home.processes().is_empty());
}

/// A stage is on record before the act it announces, so whoever comes upon it can tell what was meant.
#[test]
fn can_finish_or_take_back_a_stop_that_never_came_to_its_act() {
    let home = Home::new();
    let id = with_file(&home);
    let path = folder(&home, &id).join("machine.json");
    let announce = || {
        let record = fs::read_to_string(&path).unwrap();
        let stopping = record.replace("\"stage\":\"running\"", "\"stage\":\"stopping\"");
        assert_ne!(stopping, record);
        fs::write(&path, stopping).unwrap();
    };
    announce();
    assert_eq!(state(&home, &id), "stopping");
    let refused = home.run(&["exec", &id, "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("is being stopped"), "{}", text(&refused.stderr));
    assert_whole(&home, &id);
    announce();
    home.say(&["stop", &id]);
    assert_eq!(state(&home, &id), "stopped");
    assert!(home.processes().is_empty());
    assert_whole(&home, &id);
    home.say(&["rm", &id]);
}

/// Whoever waits for somebody who stands still is told so, and nothing is half done.
#[test]
fn does_not_mistake_a_look_for_a_life() {
    let home = Home::new();
    let id = with_file(&home);
    home.say(&["stop", &id]);
    let lock = fs::File::open(folder(&home, &id).join("lock")).unwrap();
    lock.try_lock_shared().unwrap();
    let mut resume = home.command(&["resume", &id]).spawn().unwrap();
    let swept = home.json(&["sweep", "--ended", "--json"]);
    assert_eq!(
        swept["removed"].as_array().unwrap().iter().filter(|one| one["id"] == id.as_str()).count(),
        0
    );
    drop(lock);
    assert!(end(&mut resume).success());
    assert_whole(&home, &id);
    home.say(&["rm", &id]);
}

#[test]
fn goes_on_with_the_others_where_one_cannot_be_removed() {
    let home = Home::new();
    let ids: Vec<String> = (0..4).map(|_| with_file(&home)).collect();
    let stuck = [&ids[0], &ids[2]];
    // Nothing can be announced there: what has the name is a folder.
    let marks = stuck.map(|id| folder(&home, id).join("unwanted"));
    marks.iter().for_each(|mark| fs::create_dir(mark).unwrap());
    let words: Vec<&str> = ["rm"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    let removed = home.run(&words);
    let said = text(&removed.stderr);
    assert_eq!(removed.status.code(), Some(125), "{said}");
    assert!(stuck.iter().all(|id| said.contains(id.as_str())), "each is named: {said}");
    let mut left = home.folders();
    left.sort_unstable();
    let mut expected: Vec<String> = stuck.map(String::clone).to_vec();
    expected.sort_unstable();
    assert_eq!(left, expected);
    marks.iter().for_each(|mark| fs::remove_dir(mark).unwrap());
    stuck.iter().for_each(|id| assert_whole(&home, id));
    home.say(&words);
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn waits_for_nobody_who_keeps_the_index_locked() {
    let home = Home::new();
    let id = with_file(&home);
    let lock = fs::File::options().write(true).open(home.path().join("state.lock")).unwrap();
    lock.lock().unwrap();
    for arguments in [&["ls"][..], &["stop", &id], &["resume", &id], &["rm", &id]] {
        let mut child = home.command(arguments).spawn().unwrap();
        let status = end(&mut child);
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}
