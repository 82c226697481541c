//! Everything at once: eight processes on ten sessions, and one of them is killed, now and then with the warden of a
//! session. No session is lost that nobody removed, and none is left that somebody removed.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use crate::chaos::{moment, random};
use crate::harness::{Home, kill, parent, pass, text, until};

/// How many sessions there are, and how many processes work on them at a time.
const SESSIONS: usize = 10;
const PROCESSES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Stop,
    Resume,
    Exec,
    Save,
    Restore,
    Gc,
    Fork,
    Lease,
    Sweep,
    Rm,
}

impl Verb {
    /// Removals are rare, so that sessions come to have a past.
    fn any() -> Self {
        match random(28) {
            0..=4 => Self::Stop,
            5..=10 => Self::Resume,
            11..=12 => Self::Exec,
            13..=15 => Self::Save,
            16..=17 => Self::Restore,
            18 => Self::Gc,
            19..=20 => Self::Fork,
            21..=22 => Self::Lease,
            23..=26 => Self::Sweep,
            _ => Self::Rm,
        }
    }
}

/// Where the sessions of a trial run, and how many rounds there are.
struct Scene {
    home: Home,
    rung: Option<&'static str>,
    rounds: usize,
}

/// What is known about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionState {
    /// Nobody ever removed it.
    Whole,
    /// Somebody began to, and was killed.
    Doubtful,
    /// Somebody did, to the end.
    Gone,
}

impl Scene {
    fn new(home: Home, rung: Option<&'static str>, rounds: usize) -> Self {
        let is_full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
        Self { home, rung, rounds: if is_full { 10_000 } else { rounds } }
    }

    /// Starts one process of a round.
    fn start(&self, verb: Verb, id: &str) -> Child {
        let name = format!("shot-{id}");
        let arguments: &[&str] = match verb {
            Verb::Stop => &["stop", id],
            Verb::Resume => &["resume", id],
            Verb::Exec => &["exec", id, "--", "cat", "file"],
            Verb::Save => &["snapshot", "save", id, "--name", &name],
            Verb::Restore => &["snapshot", "restore", id, &name],
            Verb::Gc => &["snapshot", "gc"],
            Verb::Fork => &["fork", id],
            Verb::Lease => &["lease", id, "20ms"],
            Verb::Sweep => &["sweep", "--json"],
            Verb::Rm => &["rm", id],
        };
        self.home.command(arguments).spawn().unwrap()
    }

    /// Makes a session with a file that says which one it is.
    fn make(&self) -> String {
        let mut create = vec!["create"];
        create.extend(self.rung.iter().flat_map(|rung| ["--isolation", rung]));
        let id = self.home.say(&create).trim().to_owned();
        self.home.say(&["exec", &id, "--", "sh", "-c", &format!("echo {id} > file")]);
        id
    }

    fn folder(&self, id: &str) -> PathBuf {
        self.home.path().join("sessions").join(id)
    }

    /// The file of a session, as the host sees it.
    fn file(&self, id: &str) -> PathBuf {
        match fs::read_to_string(self.folder(id).join("outside")) {
            Ok(around) => Path::new(&around).join("work/file"),
            Err(_) => self.folder(id).join("work/file"),
        }
    }

    /// Kills the warden of a session, if it has one.
    fn kill_warden(&self, id: &str) {
        let inspected = self.home.run(&["inspect", "--json", id]);
        let found: Option<serde_json::Value> = serde_json::from_slice(&inspected.stdout).ok();
        let guest = found.and_then(|found| found["guest"]["pid"].as_i64());
        let alive = self.home.processes();
        // Each has ended by itself if it is none of those that run a guest of this home.
        let Some(guest) = guest.and_then(|pid| i32::try_from(pid).ok()) else { return };
        if !alive.contains(&guest) {
            return;
        }
        let warden = parent(parent(guest));
        if alive.contains(&warden) {
            kill(warden, "KILL");
        }
    }
}

/// What somebody who was not killed may say.
fn check(verb: Verb, id: &str, output: &Output, round: usize) {
    let (code, stderr) = (output.status.code(), text(&output.stderr));
    let reported = format!("round {round}: {verb:?} of {id}: {code:?} {stderr}");
    assert!(!stderr.contains("panicked"), "{reported}");
    match verb {
        // One that runs has its own file; one that is stopped or gone says so.
        Verb::Exec if code == Some(0) => {
            assert_eq!(text(&output.stdout), format!("{id}\n"), "{reported}");
        }
        Verb::Rm => assert_eq!(code, Some(0), "{reported}"),
        Verb::Sweep => {
            assert_eq!(code, Some(0), "{reported}");
            let swept: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(swept["unclear"].as_array().is_none_or(Vec::is_empty), "{reported} {swept}");
        }
        _ => assert!(matches!(code, Some(0 | 125)), "{reported}"),
    }
}

impl Scene {
    fn fates_after(&self, round: usize, ids: &[String], fates: &HashMap<String, SessionState>) {
        for id in ids {
            let folder = self.folder(id);
            match fates[id] {
                SessionState::Whole => {
                    let file = fs::read_to_string(self.file(id));
                    let is_whole = file.as_ref().is_ok_and(|file| *file == format!("{id}\n"));
                    assert!(is_whole, "round {round}: session {id} was lost: {file:?}");
                    assert!(!folder.join("unwanted").exists(), "round {round}: {id}");
                }
                SessionState::Gone => {
                    assert!(!folder.exists(), "round {round}: session {id} is left");
                }
                SessionState::Doubtful => {}
            }
        }
    }

    /// Forks are whole and have the file of their origin, or were never made to their end.
    fn forks_after(&self, round: usize, ids: &[String], made: &HashMap<String, String>) {
        for (fork, origin) in made {
            let found = self.home.run(&["exec", fork, "--", "cat", "file"]);
            let (said, stderr) = (text(&found.stdout), text(&found.stderr));
            assert_eq!(said, format!("{origin}\n"), "round {round}: fork {fork}: {stderr}");
        }
        for folder in self.home.folders() {
            if folder.starts_with('.') || ids.contains(&folder) {
                continue;
            }
            // One whose maker was killed runs, or was never made.
            self.home.say(&["rm", &folder]);
            assert!(!self.folder(&folder).exists(), "round {round}: fork {folder} is left");
        }
    }

    /// One round: what came of it is put into the fates. Gives the forks that were made, and of what.
    fn round(
        &self,
        round: usize,
        usual: Duration,
        ids: &[String],
        fates: &mut HashMap<String, SessionState>,
    ) -> HashMap<String, String> {
        let any = || &ids[usize::try_from(random(SESSIONS as u64)).unwrap()];
        let mut works: Vec<(Verb, String, Child)> = (0..PROCESSES)
            .map(|_| {
                let (verb, id) = (Verb::any(), any());
                (verb, id.clone(), self.start(verb, id))
            })
            .collect();
        pass(moment(usual));
        let victim = usize::try_from(random(PROCESSES as u64)).unwrap();
        works[victim].2.kill().unwrap();
        if random(8) == 0 {
            self.kill_warden(any());
        }
        let mut forks = HashMap::new();
        for (verb, id, child) in works {
            let output = child.wait_with_output().unwrap();
            // One that ended by itself before it was killed has a code.
            let is_killed = output.status.code().is_none();
            if verb == Verb::Rm {
                let fate = fates.get_mut(&id).unwrap();
                *fate = match (is_killed, *fate) {
                    (true, SessionState::Whole) => SessionState::Doubtful,
                    (true, known) => known,
                    (false, _) => SessionState::Gone,
                };
            }
            if !is_killed {
                check(verb, &id, &output, round);
            }
            if verb == Verb::Fork && output.status.code() == Some(0) {
                forks.insert(text(&output.stdout).trim().to_owned(), id);
            }
        }
        forks
    }

    fn interleave(&self) {
        let home = &self.home;
        let mut ids: Vec<String> = (0..SESSIONS).map(|_| self.make()).collect();
        let mut fates: HashMap<String, SessionState> =
            ids.iter().map(|id| (id.clone(), SessionState::Whole)).collect();
        // Whoever is killed may have come to anything, however busy the machine is.
        let mut usual = Duration::from_millis(50);
        for round in 0..self.rounds {
            let begun = Instant::now();
            let forks = self.round(round, usual, &ids, &mut fates);
            usual = (usual * 3 + begun.elapsed()) / 4;
            self.fates_after(round, &ids, &fates);
            self.forks_after(round, &ids, &forks);
            for id in &mut ids {
                if fates[id] == SessionState::Whole {
                    continue;
                }
                if fates[id] == SessionState::Doubtful {
                    // The same again finishes it, whatever was left.
                    home.say(&["rm", id]);
                }
                // What was saved of it is nobody's.
                home.run(&["snapshot", "rm", &format!("shot-{id}")]);
                *id = self.make();
                fates.insert(id.clone(), SessionState::Whole);
            }
        }
        self.check_end(ids);
    }

    fn check_end(&self, mut ids: Vec<String>) {
        let home = &self.home;
        for id in &ids {
            home.say(&["resume", id]);
            assert_eq!(home.say(&["exec", id, "--", "cat", "file"]), format!("{id}\n"));
        }
        home.say(&["sweep"]);
        home.say(&["snapshot", "verify"]);
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
}

#[test]
fn loses_no_session_that_nobody_removed_and_leaves_none_that_somebody_did() {
    Scene::new(Home::new(), None, 500).interleave();
}

#[test]
fn loses_and_leaves_none_of_an_ordinary_user() {
    match Home::of_somebody() {
        Some(home) => Scene::new(home, None, 250).interleave(),
        None => eprintln!("skipped: this is an ordinary user already"),
    }
}

#[test]
fn loses_and_leaves_none_on_landlock() {
    Scene::new(Home::of_anybody_but_root(), Some("landlock"), 250).interleave();
}
