//! Everything at once: eight processes on ten sessions, and one of them is killed. No session is lost that
//! nobody removed, and none is left that somebody removed.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use crate::chaos::{moment, random};
use crate::harness::{Home, pass, text, until};

/// How many sessions there are, and how many processes work on them at a time.
const SESSIONS: usize = 10;
const PROCESSES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Stop,
    Resume,
    Exec,
    Save,
    Sweep,
    Rm,
}

impl Verb {
    /// Removals are rare, so that sessions come to have a past.
    fn any() -> Self {
        match random(20) {
            0..=4 => Self::Stop,
            5..=9 => Self::Resume,
            10..=11 => Self::Exec,
            12..=13 => Self::Save,
            14..=18 => Self::Sweep,
            _ => Self::Rm,
        }
    }
}

/// What is known about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nobody ever removed it.
    Whole,
    /// Somebody began to, and was killed.
    Doubtful,
    /// Somebody did, to the end.
    Gone,
}

/// Starts one process of a round.
fn start(home: &Home, verb: Verb, session: usize, id: &str) -> Child {
    let name = format!("shot-{session}");
    let arguments: &[&str] = match verb {
        Verb::Stop => &["stop", id],
        Verb::Resume => &["resume", id],
        Verb::Exec => &["exec", id, "--", "cat", "file"],
        Verb::Save => &["snapshot", "save", id, "--name", &name],
        Verb::Sweep => &["sweep", "--json"],
        Verb::Rm => &["rm", id],
    };
    home.command(arguments).spawn().unwrap()
}

/// Makes a session with a file that says which one it is.
fn make(home: &Home) -> String {
    let id = home.create();
    home.say(&["exec", &id, "--", "sh", "-c", &format!("echo {id} > file")]);
    id
}

/// What somebody who was not killed may say.
fn check(verb: Verb, id: &str, output: &Output, round: usize) {
    let (code, stderr) = (output.status.code(), text(&output.stderr));
    let told = format!("round {round}: {verb:?} of {id}: {code:?} {stderr}");
    assert!(!stderr.contains("panicked"), "{told}");
    match verb {
        // One that runs has its own file; one that is stopped or gone says so.
        Verb::Exec if code == Some(0) => {
            assert_eq!(text(&output.stdout), format!("{id}\n"), "{told}");
        }
        Verb::Rm => assert_eq!(code, Some(0), "{told}"),
        Verb::Sweep => {
            assert_eq!(code, Some(0), "{told}");
            let swept: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(swept["unclear"].as_array().is_none_or(Vec::is_empty), "{told} {swept}");
        }
        Verb::Stop | Verb::Resume | Verb::Exec | Verb::Save => {
            assert!(matches!(code, Some(0 | 125)), "{told}");
        }
    }
}

fn fates_after(home: &Home, round: usize, ids: &[String], fates: &HashMap<String, Fate>) {
    for id in ids {
        let folder = home.path().join("sessions").join(id);
        match fates[id] {
            Fate::Whole => {
                let file = fs::read_to_string(folder.join("work/file"));
                let is_whole = file.as_ref().is_ok_and(|file| *file == format!("{id}\n"));
                assert!(is_whole, "round {round}: session {id} was lost: {file:?}");
                assert!(!folder.join("unwanted").exists(), "round {round}: {id}");
            }
            Fate::Gone => {
                assert!(!folder.exists(), "round {round}: session {id} is left");
            }
            Fate::Doubtful => {}
        }
    }
}

fn rounds() -> usize {
    if std::env::var_os("BASTIDE_TEST_FULL").is_some() { 10_000 } else { 500 }
}

#[test]
fn loses_no_session_that_nobody_removed_and_leaves_none_that_somebody_did() {
    interleave(&Home::new());
}

#[test]
fn loses_and_leaves_none_of_an_ordinary_user() {
    match Home::of_somebody() {
        Some(home) => interleave(&home),
        None => eprintln!("skipped: this is an ordinary user already"),
    }
}

fn interleave(home: &Home) {
    let mut ids: Vec<String> = (0..SESSIONS).map(|_| make(home)).collect();
    let mut fates: HashMap<String, Fate> = ids.iter().map(|id| (id.clone(), Fate::Whole)).collect();
    // Whoever is killed may have come to anything, however busy the machine is.
    let mut usual = Duration::from_millis(50);
    for round in 0..rounds() {
        let begun = Instant::now();
        let mut works: Vec<(Verb, String, Child)> = (0..PROCESSES)
            .map(|_| {
                let session = usize::try_from(random(SESSIONS as u64)).unwrap();
                let (verb, id) = (Verb::any(), ids[session].clone());
                let child = start(home, verb, session, &id);
                (verb, id, child)
            })
            .collect();
        pass(moment(usual));
        let victim = usize::try_from(random(PROCESSES as u64)).unwrap();
        works[victim].2.kill().unwrap();
        for (verb, id, child) in works {
            let output = child.wait_with_output().unwrap();
            // One that ended by itself before it was killed has a code.
            let is_killed = output.status.code().is_none();
            if verb == Verb::Rm {
                let fate = fates.get_mut(&id).unwrap();
                *fate = match (is_killed, *fate) {
                    (true, Fate::Whole) => Fate::Doubtful,
                    (true, known) => known,
                    (false, _) => Fate::Gone,
                };
            }
            if !is_killed {
                check(verb, &id, &output, round);
            }
        }
        usual = (usual * 3 + begun.elapsed()) / 4;
        fates_after(home, round, &ids, &fates);
        for id in &mut ids {
            if fates[id] != Fate::Whole {
                if fates[id] == Fate::Doubtful {
                    // The same again finishes it, whatever was left.
                    home.say(&["rm", id]);
                    let fate = fates.get_mut(id).unwrap();
                    *fate = Fate::Gone;
                }
                *id = make(home);
                fates.insert(id.clone(), Fate::Whole);
            }
        }
    }
    for id in &ids {
        home.say(&["resume", id]);
        assert_eq!(home.say(&["exec", id, "--", "cat", "file"]), format!("{id}\n"));
    }
    home.say(&["sweep"]);
    let mut left = home.folders();
    left.sort_unstable();
    ids.sort_unstable();
    assert_eq!(left, ids, "nothing else is left");
    for id in &ids {
        home.say(&["rm", id]);
    }
    until("nothing of any session runs", || home.processes().is_empty());
    assert_eq!(home.folders(), Vec::<String>::new());
}
