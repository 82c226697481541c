//! `bastide agent`: runs, what comes of them, and what is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bastide_sbx_stand_in::StandIn;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Home, text, until};

/// Git as a user runs it in a folder, but for the user's own configuration.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    git.current_dir(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(["-c", "user.name=Test", "-c", "user.email=test@example.com"]);
    let output = git.args(["-c", "init.defaultBranch=main"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

/// A home, and beside it a repository that has one commit.
pub(crate) struct Setting {
    pub(crate) home: Home,
    pub(crate) folder: TempDir,
    pub(crate) work: PathBuf,
}

impl Setting {
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().canonicalize().unwrap().join("work");
        fs::create_dir(&work).unwrap();
        git(&work, &["init", "-q", "--template="]);
        fs::write(work.join("README.md"), "one\ntwo\n").unwrap();
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-qm", "first"]);
        Self { home, folder, work }
    }

    /// Where runs are kept.
    pub(crate) fn agents(&self) -> PathBuf {
        PathBuf::from(format!("{}-agents", self.home.path().display()))
    }

    pub(crate) fn work(&self) -> &str {
        self.work.to_str().unwrap()
    }

    pub(crate) fn arguments<'a>(&'a self, options: &[&'a str], line: &'a str) -> Vec<&'a str> {
        let mut all = vec!["agent", "run", "shell", "--workspace", self.work()];
        all.extend(options);
        all.extend(["--", line]);
        all
    }

    pub(crate) fn run(&self, options: &[&str], line: &str) -> Output {
        self.home.run(&self.arguments(options, line))
    }

    /// The report of a run, which must end well.
    pub(crate) fn report(&self, options: &[&str], line: &str) -> Value {
        let options = [&["--json"], options].concat();
        let output = self.run(&options, line);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn agent_file(&self, content: &str) -> String {
        let file = self.folder.path().join("agent.toml");
        fs::write(&file, content).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// What a run must not leave: sessions, processes, folders, work trees, locks.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.home.folders(), Vec::<String>::new());
        until("processes end", || self.home.processes().is_empty());
        let runs = self.agents().join("runs");
        let left: Vec<_> = fs::read_dir(runs).into_iter().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(git(&self.work, &["worktree", "list"]).lines().count(), 1);
        assert_eq!(locks(&self.work.join(".git")), Vec::<PathBuf>::new());
        git(&self.work, &["fsck", "--strict"]);
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(self.agents()));
    }
}

fn locks(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(locks(&path));
        } else if path.extension().is_some_and(|end| end == "lock") {
            found.push(path);
        }
    }
    found
}

const CHANGE: &str = "echo three >> README.md; mkdir d; echo new > d/new";

#[test]
fn a_change_is_the_same_wherever_the_agent_works() {
    let mut diffs = Vec::new();
    for mode in ["in-place", "worktree", "clone"] {
        let scene = Setting::new();
        let report = scene.report(&["--mode", mode, "--output", "d/new"], CHANGE);
        let keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
        let mut want = [
            "exit_code",
            "reason",
            "duration_seconds",
            "diff",
            "changed_files",
            "artifacts",
            "log",
            "usage",
            "branch",
        ];
        want.sort_unstable();
        let mut keys = keys;
        keys.sort_unstable();
        assert_eq!(keys, want);
        assert_eq!((&report["exit_code"], &report["reason"]), (&0.into(), &"exited".into()));
        let files = serde_json::json!([
            {"path": "README.md", "old_path": null, "status": "modified", "additions": 1, "deletions": 0},
            {"path": "d/new", "old_path": null, "status": "added", "additions": 1, "deletions": 0},
        ]);
        assert_eq!(report["changed_files"], files, "{mode}");
        let collected = report["artifacts"]["file"][0].as_str().unwrap();
        assert_eq!(fs::read_to_string(collected).unwrap(), "new\n");
        match (mode, report["branch"].as_str()) {
            ("worktree", Some(branch)) => {
                assert_eq!(git(&scene.work, &["show", &format!("{branch}:d/new")]), "new");
            }
            ("worktree", None) => panic!("the change is on no branch"),
            (_, branch) => assert_eq!(branch, None),
        }
        let is_here = scene.work.join("d/new").exists();
        assert_eq!(is_here, mode == "in-place");
        scene.assert_clean();
        diffs.push(report["diff"].as_str().unwrap().to_owned());
    }
    assert!(diffs.iter().all(|diff| *diff == diffs[0]), "{diffs:?}");
    let fresh = Setting::new();
    fs::write(fresh.folder.path().join("patch"), &diffs[0]).unwrap();
    git(&fresh.work, &["apply", "../patch"]);
    assert_eq!(fs::read_to_string(fresh.work.join("d/new")).unwrap(), "new\n");
}

#[test]
fn exits_as_the_agent_does_and_leaves_nothing() {
    let scene = Setting::new();
    let cases: &[(&[&str], &str, i32)] = &[
        (&[], "exit 3", 3),
        (&[], "kill -TERM $$", 143),
        (&["--timeout", "300ms"], "sleep 7700@", 124),
        (&["--mode", "clone", "--branch", "b", "--memory", "512m", "--pids", "50"], "true", 0),
    ];
    for (options, line, want) in cases {
        let output = scene.run(options, line);
        assert_eq!(output.status.code(), Some(*want), "{line}: {}", text(&output.stderr));
    }
    scene.assert_clean();
}

#[test]
fn shows_steps_as_they_come_and_a_table_at_the_end() {
    let scene = Setting::new();
    let file = scene.agent_file(
        "name = \"steps\"\n[command]\nprogram = \"sh\"\nargs = [\"-c\"]\nversion = [\"echo\", \"steps 7\"]\n\
         json = [\"-u\"]\n[stream]\nformat = \"jsonl\"\nusage = [\"usage\"]\ncost = [\"cost\"]\n\
         [[stream.steps]]\nwhen = { tool = \"*\" }\nshow = \"tool: {tool}\"\n",
    );
    let line = "echo '{\"tool\":\"edit\\u001b[2J\"}'; echo '{\"quiet\":1}'; echo x > f; \
                echo '{\"usage\":{\"tokens\":5},\"cost\":0.25}'";
    let agent = ["agent", "run", "--agent-file", &file, "--workspace", scene.work()];
    let output = scene.home.run(&[&agent[..], &["--", line]].concat());
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(said, "tool: edit\\x1b[2J\n");
    for want in ["exit\t0\texited", "changed\t1\t+1 -0", "added\tf\t+1 -0", "cost\t0.25", "log\t"] {
        assert!(shown.contains(want), "{want}: {shown}");
    }
    assert!(shown.contains("usage\t{\"tokens\":5}"), "{shown}");
    let log = shown.lines().find_map(|line| line.strip_prefix("log\t")).unwrap().trim();
    assert!(fs::read_to_string(log).unwrap().contains("{\"quiet\":1}"));
    let record = fs::read(Path::new(log).with_file_name("result.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["metadata"]["agent_version"], "steps 7");
    assert_eq!(record["command"][0], "sh");
    fs::remove_file(scene.work.join("f")).unwrap();
    let output = scene.home.run(&[&agent[..], &["-q", "--", line]].concat());
    assert_eq!(text(&output.stderr), "");
    let output = scene.home.run(&[&agent[..], &["-q", "-v", "--", "true"]].concat());
    assert!(text(&output.stderr).contains("network  none"), "{}", text(&output.stderr));
}

#[test]
fn a_missing_program_is_127_and_what_to_install() {
    let scene = Setting::new();
    let file = scene.agent_file(
        "name = \"gone\"\n[command]\nprogram = \"no-such-agent\"\ninstall = \"npm install it\"\n",
    );
    for json in [&[][..], &["--json"]] {
        let agent = ["agent", "run", "gone", "--agent-file", &file, "--workspace", scene.work()];
        let output = scene.home.run(&[&agent[..], json, &["--", "x"]].concat());
        assert_eq!(output.status.code(), Some(127));
        let said = text(&output.stderr);
        assert!(said.contains("no-such-agent is not installed"), "{said}");
        assert!(said.contains("npm install it"), "{said}");
        assert!(text(&output.stdout).contains("not_started"));
    }
}

#[test]
fn a_missing_key_is_named_before_anything_starts_and_one_that_is_passed_is_said() {
    let scene = Setting::new();
    let file = scene.agent_file(
        "name = \"keyed\"\nhosts = [\"api.example:443\"]\n[command]\nprogram = \"sh\"\nargs = [\"-c\"]\n\
         [[credentials]]\nenv = \"SOME_KEY\"\nservice = \"some\"\nrequired = true\n",
    );
    let agent = ["agent", "run", "--agent-file", &file, "--workspace", scene.work()];
    let line = ["--", "echo key=$SOME_KEY; touch ran"];
    let output = scene.home.run(&[&agent[..], &line].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("needs SOME_KEY inside") && said.contains("--pass-env SOME_KEY"),
        "{said}"
    );
    assert!(!scene.work.join("ran").exists());
    assert_eq!(fs::read_dir(scene.agents().join("results")).unwrap().count(), 0);
    let passing = [&agent[..], &["--pass-env", "SOME_KEY"], &line].concat();
    let output = scene.home.run(&passing);
    assert!(text(&output.stderr).contains("SOME_KEY is not set"), "{}", text(&output.stderr));
    let output = scene.home.command(&passing).env("SOME_KEY", "k1").output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("SOME_KEY is inside") && said.contains("key=k1"), "{said}");
    assert!(said.contains("api.example:443, and has no network"), "{said}");
    let given = [&agent[..], &["--env", "SOME_KEY=k2"], &line].concat();
    let output = scene.home.run(&given);
    assert!(text(&output.stderr).contains("key=k2"), "{}", text(&output.stderr));
}

/// Places and keys of an agent's file are the policy of its network, with their ports as every agent here names them.
#[test]
fn an_agent_reaches_what_its_file_names_and_its_key_stays_outside() {
    let scene = Setting::new();
    let file = scene.agent_file(
        "name = \"keyed\"\nhosts = [\"docs.example:443\"]\n[command]\nprogram = \"sh\"\nargs = [\"-c\"]\n\
         [[credentials]]\nenv = \"SOME_KEY\"\nservice = \"some\"\nhosts = [\"api.example:443\"]\nrequired = true\n",
    );
    let line = "echo key=$SOME_KEY; env | grep -c kept-outside; \
                for name in docs api other; do getent hosts $name.example || echo no $name; done";
    let arguments = [
        "agent",
        "run",
        "--agent-file",
        &file,
        "--workspace",
        scene.work(),
        "--network",
        "policy",
        "--",
        line,
    ];
    let output = scene.home.command(&arguments).env("SOME_KEY", "kept-outside").output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("key=bst-secret-") && !said.contains("kept-outside"), "{said}");
    for host in ["docs.example", "api.example"] {
        let is_answer = |line: &str| line.contains("198.1") && line.ends_with(host);
        assert!(said.lines().any(is_answer), "{host}: {said}");
    }
    assert!(said.contains("no other") && !said.contains("no api"), "{said}");
    assert!(!said.contains("SOME_KEY is inside"), "{said}");
    scene.assert_clean();
}

#[test]
fn what_cannot_be_is_refused_with_the_reason_and_changes_nothing() {
    let scene = Setting::new();
    let bare = scene.folder.path().join("bare");
    git(&scene.work, &["clone", "-q", "--bare", scene.work(), bare.to_str().unwrap()]);
    let plain = scene.folder.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let unknown = scene.agent_file("name = \"x\"\n[command]\nprogram = \"sh\"\ncolour = 1\n");
    let manifest = scene.folder.path().join("m.yaml");
    fs::write(&manifest, "entries:\n  a: {type: file, content: x}\n").unwrap();
    let (bare, plain) = (bare.to_str().unwrap(), plain.to_str().unwrap());
    let manifest = manifest.to_str().unwrap();
    let work = scene.work();
    let cases: &[(&[&str], &str)] = &[
        (&["nobody", "--workspace", work], "there is no agent \"nobody\""),
        (
            &["--agent-file", &unknown, "--workspace", work],
            "agent.toml:4:1: command: unknown key `colour`",
        ),
        (&["y", "--agent-file", &unknown, "--workspace", work], "unknown key `colour`"),
        (&["shell", "--workspace", "/no/such/folder"], "cannot work in /no/such/folder"),
        (&["shell", "--workspace", bare], "is a bare repository"),
        (&["shell", "--workspace", bare], "use `--mode clone`"),
        (
            &["shell", "--workspace", plain, "--mode", "worktree"],
            "is not the top of a git repository",
        ),
        (&["shell", "--workspace", plain, "--mode", "clone"], "is not the top of a git repository"),
        (&["shell", "--workspace", work, "--branch", "b"], "not on a branch"),
        (&["shell", "--workspace", work, "--mode", "worktree", "--branch", "main"], "main"),
        (&["shell", "--workspace", work, "--mode", "clone", "--branch", "a..b"], "a..b"),
        (&["shell", "--workspace", work, "--output", "../x"], "escapes workspace"),
        (&["shell", "--workspace", work, "--snapshot", "s"], "--snapshot"),
        (&["shell", "--workspace", work, "--manifest", manifest], "entries"),
        (&["shell", "--workspace", work, "--image", "i"], "--image"),
        (&["shell", "--workspace", work, "--backend", "kube"], "--backend"),
        (&["shell", "--workspace", work, "--best-of", "2"], "--check"),
        (&["shell", "--workspace", work, "--check", "true"], "--best-of"),
        (
            &[
                "shell",
                "--workspace",
                work,
                "--best-of",
                "2",
                "--check",
                "true",
                "--mode",
                "worktree",
            ],
            "--mode",
        ),
    ];
    let before = git(&scene.work, &["for-each-ref"]);
    for (options, want) in cases {
        let output = scene.home.run(&[&["agent", "run"], *options, &["--", "true"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{options:?}: {said}");
        assert!(said.contains(want), "{options:?}: {said}");
    }
    let output = scene.home.run(&["agent", "run", "shell", "--workspace", work, "--", ""]);
    assert!(text(&output.stderr).contains("Prompt required"), "{}", text(&output.stderr));
    assert_eq!(git(&scene.work, &["for-each-ref"]), before);
    scene.assert_clean();
}

#[test]
fn odd_folders_work() {
    let scene = Setting::new();
    let plain = scene.folder.path().join("plain");
    fs::create_dir(&plain).unwrap();
    fs::write(plain.join("a"), "x\n").unwrap();
    let line = "echo y >> a; printf '\\0\\1' > b";
    let all =
        ["agent", "run", "shell", "--json", "--workspace", plain.to_str().unwrap(), "--", line];
    let report = scene.home.json(&all);
    assert_eq!(report["changed_files"].as_array().unwrap().len(), 2, "{report}");
    assert!(report["diff"].as_str().unwrap().contains("GIT binary patch"));
    assert!(!plain.join(".git").exists());
    // Work that is not committed is taken along, or the run is refused; it is never lost.
    fs::write(scene.work.join("dirty"), "mine\n").unwrap();
    let report = scene.report(&["--mode", "clone"], "cat dirty; echo 2 >> dirty");
    assert_eq!(report["changed_files"][0]["status"], "modified", "{report}");
    assert_eq!(fs::read_to_string(scene.work.join("dirty")).unwrap(), "mine\n");
    let refused = scene.run(&["--mode", "clone", "--committed-only"], "true");
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    git(&scene.work, &["checkout", "-q", "--detach"]);
    for mode in ["in-place", "worktree", "clone"] {
        let report = scene.report(&["--mode", mode], "echo z > z; rm -f z");
        assert_eq!(report["changed_files"], serde_json::json!([]), "{mode}");
    }
    scene.assert_clean();
}

/// Agents keep transcripts, settings and caches in the home of their user.
#[test]
fn what_an_agent_keeps_for_itself_is_no_part_of_the_change() {
    let scene = Setting::new();
    let line = "echo state > ~/.state && cat ~/.state && case $HOME in $PWD*) exit 9;; esac";
    for mode in ["in-place", "worktree", "clone"] {
        let report = scene.report(&["--mode", mode], line);
        assert_eq!(report["changed_files"], serde_json::json!([]), "{mode}");
    }
    let report = scene.report(&["--env", "HOME=/tmp"], "echo x > ~/y && test $HOME = /tmp");
    assert_eq!(report["changed_files"], serde_json::json!([]));
    scene.assert_clean();
}

/// A home that was asked for is the agent's, and a command's.
#[test]
fn a_home_that_was_asked_for_is_the_home() {
    let scene = Setting::new();
    scene.report(&["--env", "HOME=/tmp/mine"], "printf %s \"$HOME\" > told");
    assert_eq!(fs::read_to_string(scene.work.join("told")).unwrap(), "/tmp/mine");
    let line = ["sh", "-c", "printf %s \"$HOME\""];
    let said = scene.home.say(&[&["run", "--env", "HOME=/tmp/mine", "--"][..], &line].concat());
    assert_eq!(said, "/tmp/mine");
    let usual = scene.home.say(&[&["run", "--"][..], &line].concat());
    assert_eq!(usual, "/workspace");
}

#[test]
fn agents_are_listed_and_shown() {
    let home = Home::new();
    let listed = home.say(&["agent", "ls"]);
    for name in ["aider", "claude", "codex", "gemini", "goose", "opencode", "shell"] {
        assert!(listed.lines().any(|line| line.starts_with(&format!("{name}\t"))), "{listed}");
        assert_eq!(home.json(&["agent", "show", name, "--json"])["name"], name);
    }
    let all = home.json(&["agent", "ls", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), 7);
    let shown = home.say(&["agent", "show", "claude"]);
    assert!(shown.contains("key\tANTHROPIC_API_KEY (anthropic, needed)"), "{shown}");
    assert!(shown.contains("install\tnpm install"), "{shown}");
    let wrong = home.run(&["agent", "show", "nobody"]);
    assert_eq!(wrong.status.code(), Some(125));
}

/// The recipes of `docs/agents.md`, one after the other in a fresh repository.
/// A search path with what the page calls and a test has not: agents, and Docker's `sbx`.
fn stand_ins(folder: &Path) -> String {
    let sbx = StandIn::install(&folder.join("sbx"), "0.45.1").unwrap();
    let agents = sbx.programs();
    fs::create_dir(&agents).unwrap();
    for name in ["claude", "codex"] {
        let script = format!("#!/bin/sh\ntest \"$1\" = --version || echo {name} >> fixed-by\n");
        fs::write(agents.join(name), script).unwrap();
        fs::set_permissions(agents.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{}:/usr/local/bin:/usr/bin:/bin", sbx.bin().display(), agents.display())
}

#[test]
fn the_recipes_of_the_page_work() {
    let scene = Setting::new();
    let programs = stand_ins(scene.folder.path());
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agents.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut lines = String::from("set -eu\nbastide() { \"$TOOL\" \"$@\"; }\n");
    for line in blocks.flat_map(str::lines) {
        lines.push_str(line.strip_prefix("$ ").unwrap_or(line));
        lines.push('\n');
    }
    assert!(lines.matches("bastide agent run").count() >= 6, "{lines}");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(&lines);
    let mut shell = scene.home.wrapped(shell, &[]);
    shell.env("TOOL", env!("CARGO_BIN_EXE_bastide")).current_dir(&scene.work);
    shell.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_PAGER", "cat");
    shell.env("PATH", programs).env("ANTHROPIC_API_KEY", "one").env("OPENAI_API_KEY", "another");
    let output = shell.output().unwrap();
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}\n{said}");
    assert!(said.contains("edit: a"), "{said}");
    assert!(scene.work.join("a").exists() && scene.work.join("notes.txt").exists());
    let fixed = fs::read_to_string(scene.work.join("fixed-by")).unwrap();
    assert_eq!(fixed, "claude\ncodex\ncodex\n");
    let branches = git(&scene.work, &["branch", "--list", "try-*", "fix"]);
    assert_eq!(branches.lines().count(), 3, "{branches}");
}
