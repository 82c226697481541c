//! Every operation on a file that a verb makes in its home fails once, in every way it can: no panic, no
//! session lost that nobody removed, the true reason, and the verb works once the fault is gone.

mod journal;

use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Home, text};
use crate::inject::{self, Call, Fault, Outcome, Traced};

/// How many faults of a verb a plain run injects.
const SAMPLE: usize = 10;

/// How a call can fail: every one in each of these ways, whether a kernel of today would say so or not.
fn failures(call: &Call) -> &'static [i32] {
    match call.name {
        "flock" => &[libc::ENOSPC, libc::EIO, libc::EMFILE, libc::EACCES, libc::ENOLCK],
        _ => &[libc::ENOSPC, libc::EIO, libc::EMFILE, libc::EACCES],
    }
}

/// A home with a session that nobody removes, which has something to lose.
struct Setting {
    home: Home,
    witness: String,
}

impl Setting {
    fn new() -> Self {
        let home = Home::new();
        let witness = home.create();
        home.say(&["exec", &witness, "--", "sh", "-c", "echo witness > file"]);
        Self { home, witness }
    }

    fn traced(&self, verb: &[String], fault: Option<Fault>) -> Traced {
        let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
        let within = self.home.path().canonicalize().unwrap();
        inject::run(&mut self.home.command(&verb), &within, fault)
    }

    /// A verb, and the calls it makes where nothing is injected.
    fn counted(&self, prepare: impl Fn(&Self) -> Vec<String>) -> (Vec<String>, Traced) {
        let verb = prepare(self);
        let counted = self.traced(&verb, None);
        assert_eq!(counted.output.status.code(), Some(0), "{}", text(&counted.output.stderr));
        (verb, counted)
    }

    /// The states of all sessions there are.
    fn states(&self) -> Vec<(String, String)> {
        let listed = self.home.json(&["ls", "--json"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let listed = listed.as_array().unwrap().iter();
        listed.map(|one| (text(&one["id"]), text(&one["state"]))).collect()
    }

    fn state(&self, id: &str) -> Option<String> {
        self.states().into_iter().find(|(known, _)| known == id).map(|(_, state)| state)
    }

    /// A session with a file.
    fn subject(&self, content: &str) -> String {
        let id = self.home.create();
        self.write(&id, content);
        id
    }

    fn write(&self, id: &str, content: &str) {
        let put = self.home.feed(&["files", "put", id, "file"], content.as_bytes());
        assert_eq!(put.status.code(), Some(0), "{}", text(&put.stderr));
    }

    fn content(&self, id: &str) -> String {
        self.home.say(&["files", "cat", id, "file"])
    }

    /// What a message may call the thing at fault: the file, a path around it, the session whose it is, or what
    /// the verb is about.
    fn names(&self, verb: &[String], call: Option<&Call>) -> Vec<String> {
        let file = call.and_then(|call| call.path.file_name());
        let file = file.map(|name| name.to_string_lossy().into_owned());
        let sessions = self.home.path().join("sessions");
        let within = call.and_then(|call| call.path.strip_prefix(sessions).ok());
        let session = within.and_then(|path| path.iter().next());
        let session = session.map(|id| id.to_string_lossy().into_owned());
        let home = self.home.path().display().to_string();
        let verb = verb.iter().skip(1).cloned();
        file.into_iter().chain(session).chain([home]).chain(verb).collect()
    }

    /// Whoever was not meant noticed nothing.
    fn check_witness(&self, reported: &str) {
        assert_eq!(self.state(&self.witness).as_deref(), Some("running"), "{reported}");
        assert_eq!(self.content(&self.witness), "witness\n", "{reported}");
    }
}

/// Whether it succeeded. If not, it said why: with the reason that was injected, and one of the names of what was at
/// fault.
fn is_done(output: &Output, errno: i32, names: &[String], reported: &str) -> bool {
    let said = text(&output.stderr);
    assert!(!said.contains("panicked"), "{reported}: {said}");
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 125)), "{reported}: {:?}: {said}", output.status);
    if code == Some(0) {
        return true;
    }
    let reason = io::Error::from_raw_os_error(errno).to_string();
    let reason = reason.split(" (os error").next().unwrap();
    assert!(said.contains(reason), "{reported}: no word of `{reason}` in {said:?}");
    let is_named = names.iter().any(|name| said.contains(name));
    assert!(is_named, "{reported}: none of {names:?} in {said:?}");
    false
}

/// Injects faults into a verb: all of them, or as many as fit a plain run, chosen by the seed.
///
/// `prepare` makes what the verb is about, and gives its arguments; `check` is told whether the verb
/// succeeded, and finds out whether that is true.
fn inject_all(
    prepare: impl Fn(&Setting) -> Vec<String>,
    check: impl Fn(&Setting, &[String], &Output, bool, &str),
) {
    let mut scene = Setting::new();
    let (verb, counted) = scene.counted(&prepare);
    check(&scene, &verb, &counted.output, true, "without a fault");
    let all: Vec<(usize, i32)> = (1..)
        .zip(&counted.calls)
        .flat_map(|(at, call)| failures(call).iter().map(move |errno| (at, *errno)))
        .collect();
    assert!(all.len() > SAMPLE, "{:?}", counted.calls);
    let wrong = sample(&all, |(at, errno), seed| {
        let verb = prepare(&scene);
        let traced = scene.traced(&verb, Some(Fault { at, outcome: Outcome::Errno(errno) }));
        let reason = io::Error::from_raw_os_error(errno);
        // Threads take turns as they like: it may be another call than was counted, or none.
        let call = traced.calls.get(at - 1).cloned();
        let names = scene.names(&verb, call.as_ref());
        let call = call.map(|Call { name, path }| format!("{name} of {}", path.display()));
        let reported = format!("seed {seed}: {verb:?} with {reason} at call {at}, {call:?}");
        let checked = panic::catch_unwind(AssertUnwindSafe(|| {
            let is_done = is_done(&traced.output, errno, &names, &reported);
            check(&scene, &verb, &traced.output, is_done, &reported);
            scene.check_witness(&reported);
        }));
        if checked.is_err() {
            // Others may be wrong in other ways.
            scene = Setting::new();
        }
        checked.is_ok()
    });
    assert_eq!(wrong, 0, "so many faults were reported or dealt with wrongly");
}

/// Kills the tool at each of its calls, or at as many as fit a plain run. `check` is told whether it came to its end all
/// the same.
fn kill_at_all(
    prepare: impl Fn(&Setting) -> Vec<String>,
    check: impl Fn(&Setting, &[String], bool, &str),
) {
    let mut scene = Setting::new();
    let (verb, counted) = scene.counted(&prepare);
    check(&scene, &verb, true, "without a kill");
    let all: Vec<usize> = (1..=counted.calls.len()).collect();
    let wrong = sample(&all, |at, seed| {
        let verb = prepare(&scene);
        let traced = scene.traced(&verb, Some(Fault { at, outcome: Outcome::Killed }));
        let call = traced.calls.get(at - 1);
        let call = call.map(|Call { name, path }| format!("{name} of {}", path.display()));
        let reported = format!("seed {seed}: {verb:?} killed at call {at}, {call:?}");
        let checked = panic::catch_unwind(AssertUnwindSafe(|| {
            check(&scene, &verb, traced.output.status.code() == Some(0), &reported);
            scene.check_witness(&reported);
        }));
        if checked.is_err() {
            scene = Setting::new();
        }
        checked.is_ok()
    });
    assert_eq!(wrong, 0, "so many kills lost something");
}

/// Tries all of them, or as many as fit a plain run, chosen by the seed; counts those that were wrong.
#[expect(clippy::print_stderr, reason = "a full run says how far it is")]
fn sample<T: Copy>(all: &[T], mut is_right: impl FnMut(T, usize) -> bool) -> usize {
    let is_full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let seed = std::env::var_os("BASTIDE_TEST_SEED");
    let seed = seed.and_then(|seed| seed.to_str()?.parse().ok());
    let seed: usize = seed.unwrap_or(std::process::id() as usize);
    let step = if is_full { 1 } else { all.len().div_ceil(SAMPLE) };
    let count = all.len();
    let chosen = all.iter().enumerate();
    let mut wrong = 0;
    for (number, one) in chosen.skip(if is_full { 0 } else { seed % step }).step_by(step) {
        if is_full && number % 100 == 0 {
            // It is long: whoever ends it learns how far it came.
            eprintln!("fault {number} of {count}, {wrong} wrong");
        }
        wrong += usize::from(!is_right(*one, seed));
    }
    wrong
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn creates_or_says_why_not() {
    inject_all(
        |_| owned(&["create"]),
        |scene, _, output, is_done, reported| {
            let id = text(&output.stdout).trim().to_owned();
            if is_done {
                assert_eq!(scene.state(&id).as_deref(), Some("running"), "{reported}");
                assert_eq!(
                    scene.home.say(&["exec", &id, "--", "echo", "up"]),
                    "up\n",
                    "{reported}"
                );
            } else {
                assert_eq!(id, "", "{reported}");
            }
            let others = scene.states().into_iter().filter(|(id, _)| *id != scene.witness);
            for (id, state) in others {
                assert!(is_done || state == "failed", "{reported}: {id} is {state}");
                scene.home.say(&["rm", &id]);
            }
            let again = scene.home.create();
            scene.home.say(&["rm", &again]);
        },
    );
}

#[test]
fn stops_or_says_why_not() {
    inject_all(
        |scene| {
            let others = scene.states().into_iter().find(|(id, _)| *id != scene.witness);
            let id = others.map_or_else(|| scene.subject(""), |(id, _)| id);
            scene.home.say(&["resume", &id]);
            scene.write(&id, "kept");
            vec!["stop".to_owned(), id]
        },
        |scene, verb, _, is_done, reported| {
            let id = verb[1].as_str();
            let state = scene.state(id);
            if is_done {
                assert_eq!(state.as_deref(), Some("stopped"), "{reported}");
            }
            assert!(state.is_some(), "{reported}");
            scene.home.say(&["stop", id]);
            scene.home.say(&["resume", id]);
            assert_eq!(scene.content(id), "kept", "{reported}");
        },
    );
}

#[test]
fn resumes_or_says_why_not() {
    inject_all(
        |scene| {
            let others = scene.states().into_iter().find(|(id, _)| *id != scene.witness);
            let id = others.map_or_else(|| scene.subject("kept"), |(id, _)| id);
            scene.home.say(&["stop", &id]);
            vec!["resume".to_owned(), id]
        },
        |scene, verb, _, is_done, reported| {
            let id = verb[1].as_str();
            let state = scene.state(id);
            if is_done {
                assert_eq!(state.as_deref(), Some("running"), "{reported}");
            }
            assert!(state.is_some(), "{reported}");
            scene.home.say(&["resume", id]);
            assert_eq!(scene.content(id), "kept", "{reported}");
        },
    );
}

#[test]
fn saves_or_says_why_not() {
    let round = std::cell::Cell::new(0);
    inject_all(
        |scene| {
            round.set(round.get() + 1);
            scene.write(&scene.witness, &format!("round {}", round.get()));
            owned(&["snapshot", "save", &scene.witness, "--name", "kept"])
        },
        |scene, _, _, is_done, reported| {
            let restored = |reported: &str| {
                scene.write(&scene.witness, "other");
                scene.home.say(&["snapshot", "restore", &scene.witness, "kept"]);
                let content = scene.content(&scene.witness);
                assert_eq!(content, format!("round {}", round.get()), "{reported}");
            };
            if is_done {
                restored(reported);
            }
            scene.write(&scene.witness, &format!("round {}", round.get()));
            scene.home.say(&["snapshot", "verify"]);
            scene.home.say(&["snapshot", "save", &scene.witness, "--name", "kept"]);
            restored(reported);
            scene.write(&scene.witness, "witness\n");
        },
    );
}

#[test]
fn restores_or_says_why_not() {
    inject_all(
        |scene| {
            scene.write(&scene.witness, "saved");
            scene.home.say(&["snapshot", "save", &scene.witness, "--name", "kept"]);
            scene.write(&scene.witness, "other");
            owned(&["snapshot", "restore", &scene.witness, "kept"])
        },
        |scene, _, _, is_done, reported| {
            let content = scene.content(&scene.witness);
            assert!(
                content == "saved" || (!is_done && content == "other"),
                "{reported}: {content}"
            );
            scene.home.say(&["snapshot", "verify"]);
            scene.home.say(&["snapshot", "restore", &scene.witness, "kept"]);
            assert_eq!(scene.content(&scene.witness), "saved", "{reported}");
            scene.write(&scene.witness, "witness\n");
        },
    );
}

#[test]
fn removes_or_says_why_not() {
    inject_all(
        |scene| {
            let others = scene.states().into_iter().find(|(id, _)| *id != scene.witness);
            let id = others.map_or_else(|| scene.subject("gone"), |(id, _)| id);
            vec!["rm".to_owned(), id]
        },
        |scene, verb, _, is_done, reported| {
            let id = verb[1].as_str();
            if is_done {
                assert_eq!(scene.state(id), None, "{reported}");
            }
            scene.home.say(&["rm", id]);
            assert_eq!(scene.state(id), None, "{reported}");
            assert_eq!(scene.home.folders(), [scene.witness.as_str()], "{reported}");
        },
    );
}

/// The tool with so few descriptors that it cannot open what it needs, at one point or another.
fn with_descriptors(home: &Home, count: u32, arguments: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$1\"; shift; exec \"$@\"", "sh", &count.to_string()]);
    shell.arg(env!("CARGO_BIN_EXE_bastide"));
    home.wrapped(shell, arguments).output().unwrap()
}

#[test]
fn takes_nothing_for_ended_that_it_cannot_look_at() {
    let scene = Setting::new();
    let mut refused = 0;
    for count in 3..40 {
        let listed = with_descriptors(&scene.home, count, &["ls", "--json"]);
        let said = text(&listed.stderr);
        assert!(!said.contains("panicked") && listed.status.code().is_some(), "{count}: {said}");
        if listed.status.code() == Some(0) {
            let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
            let states: Vec<_> = listed.as_array().unwrap().iter().collect();
            assert_eq!(states.len(), 1, "{count}: {listed}");
            let state = states[0]["state"].as_str().unwrap();
            assert!(matches!(state, "running" | "unknown"), "{count}: {listed}");
            refused += usize::from(state == "unknown");
        } else {
            refused += 1;
        }
        let swept = with_descriptors(&scene.home, count, &["sweep"]);
        assert!(!text(&swept.stderr).contains("panicked"), "{count}: {}", text(&swept.stderr));
        let stopped = with_descriptors(&scene.home, count, &["stop", &scene.witness]);
        let said = text(&stopped.stderr);
        assert!(!said.contains("panicked") && stopped.status.code().is_some(), "{count}: {said}");
        if stopped.status.code() == Some(0) {
            assert_eq!(scene.state(&scene.witness).as_deref(), Some("stopped"), "{count}: {said}");
        }
        scene.home.say(&["resume", &scene.witness]);
        scene.check_witness(&format!("with {count} descriptors"));
    }
    assert!(refused > 0, "there were always enough");
}

#[test]
fn says_that_a_session_with_a_damaged_state_is_not_saved() {
    let scene = Setting::new();
    let state = scene.home.path().join("sessions").join(&scene.witness).join("state.json");
    for damage in [Some("{\"type\": 7}"), Some(""), Some("{\"half\": "), None] {
        let good = fs::read(&state).unwrap();
        match damage {
            Some(text) => fs::write(&state, text).unwrap(),
            None => fs::remove_file(&state).unwrap(),
        }
        // Whoever only uses it needs none of that.
        assert_eq!(scene.content(&scene.witness), "witness\n", "{damage:?}");
        let stopped = scene.home.run(&["stop", &scene.witness]);
        let said = text(&stopped.stderr);
        assert_eq!(stopped.status.code(), Some(125), "{damage:?}: {said}");
        assert!(said.contains("cannot be saved"), "{damage:?}: {said}");
        fs::write(&state, good).unwrap();
        scene.home.say(&["resume", &scene.witness]);
        scene.check_witness(&format!("{damage:?}"));
    }
}
