//! `--backend sbx`, and `bastide sbx`, on the stand-in for Docker's `sbx`.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use bastide_sbx_stand_in::StandIn;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Home, SOON, count, end, fed, pass, text};

/// A home, a stand-in and a repository with one commit.
struct Setting {
    home: Home,
    folder: TempDir,
    stand_in: StandIn,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stand_in = StandIn::install(&folder.path().join("sbx"), "0.45.1").unwrap();
        let scene = Self { home: Home::new(), folder, stand_in };
        fs::create_dir(scene.work()).unwrap();
        scene.git(&["init", "-q", "--template="]);
        fs::write(scene.work().join("README.md"), "one\n").unwrap();
        scene.git(&["add", "-A"]);
        scene.git(&["commit", "-qm", "first"]);
        scene
    }

    fn work(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("work")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=n", "-c", "user.email=e"]).args(arguments);
        let output = git.current_dir(self.work()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(arguments);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.stand_in.bin().display());
        command.env("PATH", path).env("SOME_KEY", "the-real-key").current_dir(self.work());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    }

    /// How much `sbx` has stored: sandboxes, secrets, rules.
    fn left(&self) -> usize {
        let size = |name: &str| match self.stand_in.stored(name).unwrap() {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        };
        ["sandboxes", "secrets", "rules"].into_iter().map(size).sum()
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(Command::new(self.stand_in.program()).args(["rm", "-f", "--all"]).output());
        drop(fs::remove_dir_all(format!("{}-agents", self.home.path().display())));
    }
}

#[test]
fn a_session_lives_as_anywhere_else() {
    let scene = Setting::new();
    assert_eq!(scene.say(&["run", "--backend", "sbx", "--", "echo", "hello"]), "hello");
    assert_eq!(scene.left(), 0);
    let failed = scene.run(&["run", "--backend", "sbx", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
    let id = scene.say(&["create", "--backend", "sbx"]);
    scene.say(&["exec", &id, "--", "sh", "-c", "echo kept > file"]);
    assert!(scene.say(&["ls"]).contains("\tsbx\t"));
    scene.say(&["stop", &id]);
    scene.say(&["resume", &id]);
    assert_eq!(scene.say(&["files", "cat", &id, "file"]), "kept");
    let receipt: Value = serde_json::from_str(&scene.say(&["inspect", "--json", &id])).unwrap();
    assert!(receipt.to_string().contains("stand-in"), "{receipt}");
    scene.say(&["rm", &id]);
    assert_eq!(scene.left(), 0);
    for (option, value) in [("--network", "host"), ("--isolation", "landlock"), ("--image", "x")] {
        let refused = scene.run(&["run", "--backend", "sbx", option, value, "--", "true"]);
        assert_eq!(refused.status.code(), Some(125), "{option}: {}", text(&refused.stderr));
    }
    assert_eq!(scene.left(), 0);
}

#[test]
fn a_session_takes_room_until_it_is_stopped() {
    let scene = Setting::new();
    fs::write(scene.home.path().join("config.toml"), "max_sessions = 1\n").unwrap();
    let id = scene.say(&["create", "--backend", "sbx"]);
    let refused = scene.run(&["create"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("1 run"), "{}", text(&refused.stderr));
    scene.say(&["stop", &id]);
    let other = scene.say(&["create"]);
    assert_eq!(scene.run(&["resume", &id]).status.code(), Some(125), "there is one already");
    scene.say(&["rm", &other]);
    scene.say(&["resume", &id]);
    scene.say(&["rm", &id]);
}

#[test]
fn sbx_that_is_missing_is_said_with_how_to_install_it() {
    let home = Home::new();
    for arguments in [&["run", "--backend", "sbx", "--", "true"][..], &["sbx", "check"]] {
        let mut command = home.command(arguments);
        let refused = command.env("PATH", "/nowhere").output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains("brew install docker/tap/sbx"));
    }
}

const CHANGE: &str = "echo two >> README.md; mkdir d; echo new > d/new; printf '\\0' > b; exit 4";

/// What of a report does not depend on where it came from.
fn same(output: &Output) -> Value {
    let report = serde_json::from_slice(&output.stdout);
    assert!(report.is_ok(), "{}", text(&output.stderr));
    let mut report: Value = report.unwrap();
    let fields = report.as_object_mut().unwrap();
    for own in ["duration_seconds", "artifacts", "log"] {
        fields.remove(own);
    }
    report
}

#[test]
fn a_run_gives_the_same_on_every_backend() {
    let run = |backend: &[&str], docker: Option<&str>| {
        let scene = Setting::new();
        let words = [&["agent", "run", "shell", "--json"][..], backend, &["--", CHANGE]].concat();
        let mut command = scene.command(&words);
        if let Some(host) = docker {
            command.env("DOCKER_HOST", host);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{backend:?}: {}", text(&output.stderr));
        assert_eq!(scene.left(), 0);
        same(&output)
    };
    let local = run(&[], None);
    assert_eq!(local["changed_files"].as_array().map(Vec::len), Some(3), "{local}");
    assert_eq!(run(&["--backend", "sbx"], None), local);
    if let Some(host) = std::env::var_os("BASTIDE_TEST_DOCKER") {
        let docker = ["--backend", "docker", "--image", "bastide-test/base"];
        assert_eq!(run(&docker, Some(&host.to_string_lossy())), local);
    }
}

/// Wherever the runner is killed, a sweep leaves nothing at `sbx`, and the repository as it was.
#[test]
fn a_sweep_takes_back_what_a_killed_runner_left_at_sbx() {
    let scene = Setting::new();
    let rounds = u32::try_from(count(100)).unwrap();
    let line = "echo x > new; seq 1000 > many";
    let options = ["--sbx-secret", "openai=SOME_KEY", "--sbx-oauth", "openai"];
    let words = |mode| {
        let run = ["agent", "run", "shell", "--backend", "sbx", "--mode", mode];
        [&run[..], &options, &["--", line]].concat()
    };
    let begun = std::time::Instant::now();
    scene.say(&words("in-place"));
    let whole = begun.elapsed();
    assert_eq!(scene.left(), 0);
    scene.git(&["clean", "-fdq"]);
    let refs = scene.git(&["for-each-ref"]);
    for round in 0..rounds {
        let mode = ["in-place", "worktree", "clone"][usize::try_from(round % 3).unwrap()];
        let mut child = scene.command(&words(mode)).spawn().unwrap();
        pass(whole * round / rounds);
        child.kill().unwrap();
        end(&mut child);
        // A call to `sbx` that was under way comes to its end, and what it made is found then.
        let last = RefCell::new(String::new());
        let is_over = || {
            let output = scene.run(&["sweep", "--json"]);
            let swept: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let left = ["sandboxes", "secrets", "rules"].map(|name| scene.stand_in.stored(name));
            last.replace(format!("{round} {mode}: {swept} {} {left:?}", text(&output.stderr)));
            swept["runs"]["running"] == 0
                && swept["runs"]["unclear"].as_array().is_some_and(Vec::is_empty)
                && scene.left() == 0
        };
        let deadline = std::time::Instant::now() + SOON;
        while !is_over() {
            assert!(std::time::Instant::now() < deadline, "{}", last.borrow());
            pass(Duration::from_millis(50));
        }
        assert_eq!(scene.home.folders(), Vec::<String>::new(), "{}", last.borrow());
        scene.git(&["checkout", "-q", "."]);
        scene.git(&["clean", "-fdq"]);
        for branch in scene.git(&["branch", "--list", "bastide/*"]).lines() {
            // It had come to its end but for the removal of its sandbox.
            scene.git(&["branch", "-qD", branch.trim()]);
        }
        assert_eq!(scene.git(&["for-each-ref"]), refs, "{round}");
        scene.git(&["fsck", "--strict"]);
    }
    assert!(
        !fs::read_to_string(scene.stand_in.state().join("argv.log"))
            .unwrap()
            .contains("the-real-key")
    );
}

#[test]
fn secrets_of_the_machine_are_asked_for_by_that_name() {
    let scene = Setting::new();
    let none = scene.run(&["sbx", "secret", "has", "openai", "--json"]);
    assert_eq!(none.status.code(), Some(1), "{}", text(&none.stderr));
    let missing = scene.run(&["sbx", "secret", "check", "codex"]);
    assert!(
        text(&missing.stderr).contains("sbx secret set -g openai"),
        "{}",
        text(&missing.stderr)
    );
    let set = fed(&mut scene.command(&["sbx", "secret", "set", "openai"]), b"a-key\n");
    assert_eq!(set.status.code(), Some(0), "{}", text(&set.stderr));
    scene.say(&["sbx", "secret", "check", "codex"]);
    let from = ["--env", "anthropic=SOME_KEY"];
    scene.say(&[&["sbx", "secret", "ensure", "claude"][..], &from].concat());
    scene.say(&["sbx", "secret", "set", "openai", "--oauth"]);
    let stored = scene.stand_in.stored("secrets").unwrap();
    assert_eq!(stored.as_array().map(Vec::len), Some(2), "{stored}");
    let checked: Value = serde_json::from_str(&scene.say(&["sbx", "check", "--json"])).unwrap();
    assert_eq!(checked["stand_in"], true);
}
