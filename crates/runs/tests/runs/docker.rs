//! The reference's plain Docker sandbox, against a stand-in for the `docker` program: a script that notes
//! how it was called, and runs the command here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide::SessionId;
use bastide_local::LocalBackend;
use bastide_model::lax;
use bastide_runs::agents::{Agent, AgentSpec, Skill};
use bastide_runs::reference::DockerRun;
use bastide_runs::stream::Listener;
use bastide_runs::{DockerSandbox, RunBackend, RunConfig, RunHome, RunResult, Sandbox, run};
use serde_json::{Value, json};

use crate::repository::*;

/// It has one container at a time, whose process is noted; `rm` and `kill` end it.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
{ printf '%s\n' "$@"; echo --; } >> "$here/calls"
case $1 in
version) echo 1 ;;
ps) cat "$here/container" 2>/dev/null; true ;;
rm|kill) pid=$(cat "$here/container"); rm -f "$here/container"; kill -9 -"$pid" ;;
run)
    while [ "$1" != img ]; do shift; done
    shift
    cd "$here/work" || exit 125
    command -v "$1" >/dev/null || { echo "OCI runtime create failed: no $1" >&2; exit 127; }
    setsid sh -c 'echo $$ > "$0/container"; exec "$@"' "$here" "$@"
    code=$?
    rm -f "$here/container"
    exit $code ;;
esac
"#;

struct Setting {
    folder: Folder,
    home: RunHome,
}

impl Setting {
    fn new() -> Self {
        let folder = Folder::on_disk();
        small_repository(&folder.join("work"));
        fs::write(folder.join("docker"), STAND_IN).unwrap();
        set_executable(&folder.join("docker"), true);
        Self { home: RunHome::at(folder.join("runs")).unwrap(), folder }
    }

    fn sandbox(&self, more: Value) -> DockerSandbox {
        let mut wanted = json!({"workspace": self.folder.join("work"), "image": "img"});
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let wanted: DockerRun = lax::read(&wanted).unwrap();
        DockerSandbox::new(wanted, self.home.clone()).program(self.folder.join("docker"))
    }

    async fn run(&self, more: Value, line: &str, config: &RunConfig) -> RunResult {
        let sandbox = self.sandbox(more);
        run(&shell(), &sandbox, line, config, &mut Listener::none()).await.unwrap()
    }

    /// How `docker run` was called with a command that has this word.
    fn call(&self, word: &str) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.join("calls")).unwrap();
        let found = calls.split("--\n").find(|call| call.starts_with("run") && call.contains(word));
        found.unwrap().lines().map(str::to_owned).collect()
    }

    fn left(&self) -> Vec<PathBuf> {
        let runs = fs::read_dir(self.folder.join("runs/runs")).unwrap();
        let mut left: Vec<_> = runs.map(|entry| entry.unwrap().path()).collect();
        let container = self.folder.join("container");
        left.extend(container.exists().then_some(container));
        left
    }
}

fn shell() -> Agent {
    Agent::new(AgentSpec::named("shell").unwrap())
}

/// `test_docker_command_mounts_workspace`, with what keeps the run in its bounds.
#[tokio::test]
async fn a_container_is_asked_for_as_the_reference_does() {
    let setting = Setting::new();
    let more = json!({"name": "n1", "env": {"A": "1", "PATH": "/bin:/usr/bin"},
        "docker_args": ["--init", "-u", "5"], "workdir": "/app"});
    let result = setting.run(more, "echo $A; echo x > new", &RunConfig::default()).await;
    assert_eq!((result.returncode, result.stdout.as_str()), (0, "1\n"), "{result:?}");
    assert_eq!(result.changed_files[0].path, "new");
    assert_eq!(
        (result.sandbox_backend.as_str(), result.sandbox_name.as_deref()),
        ("docker", Some("n1"))
    );
    let mut call = setting.call("echo x > new");
    let label = call.remove(3);
    assert!(label.starts_with("bastide.run="), "{label}");
    let work = setting.folder.join("work").display().to_string();
    let want = [
        "run",
        "--rm",
        "--label",
        "--network",
        "none",
        "--name",
        "n1",
        "-e",
        "A",
        "-e",
        "PATH=/bin:/usr/bin",
        "-v",
        &format!("{work}:/app"),
        "-v",
        &format!("{work}/.git:/app/.git:ro"),
        "-w",
        "/app",
        "--init",
        "-u",
        "5",
        "img",
        "sh",
        "-lc",
        "echo $A; echo x > new",
    ];
    assert_eq!(call, want);
    let plain = setting
        .run(
            json!({"docker_args": ["--network=host"], "remove_on_exit": false}),
            "true # 2",
            &RunConfig::default(),
        )
        .await;
    assert_eq!(plain.returncode, 0);
    let call = setting.call("true # 2");
    assert!(!call.contains(&"--rm".to_owned()) && !call.contains(&"none".to_owned()), "{call:?}");
    assert_eq!(setting.left(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_timeout_ends_the_container_and_not_only_the_program() {
    let setting = Setting::new();
    let config = RunConfig::default().timeout(Duration::from_secs(1));
    let line = "echo begun > begun; sleep 1000 & sleep 1000";
    let result = setting.run(json!({}), line, &config).await;
    assert_eq!((result.returncode, &result.metadata["reason"]), (124, &json!("timeout")));
    assert_eq!(result.changed_files[0].path, "begun");
    assert_eq!(setting.left(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn what_would_not_do_what_it_says_is_refused_by_name() {
    let setting = Setting::new();
    for (more, want) in [
        (json!({"docker_args": ["-dit"]}), "-dit"),
        (json!({"docker_args": ["--detach"]}), "--detach"),
        (json!({"workdir": "relative"}), "workdir"),
    ] {
        let sandbox = setting.sandbox(more);
        let refused = sandbox.prepare(&shell(), &RunConfig::default()).await.unwrap_err();
        assert!(refused.to_string().contains(want), "{refused}");
    }
    let sandbox = setting.sandbox(json!({})).program("/no/such/docker");
    let missing = sandbox.prepare(&shell(), &RunConfig::default()).await.unwrap_err();
    assert!(missing.to_string().contains("/no/such/docker"), "{missing}");
    let text =
        "name = \"gone\"\n[command]\nprogram = \"no-such-agent\"\ninstall = \"install it\"\n";
    let gone = Agent::new(AgentSpec::parse("gone.toml", text).unwrap());
    let sandbox = setting.sandbox(json!({}));
    let result =
        run(&gone, &sandbox, "x", &RunConfig::default(), &mut Listener::none()).await.unwrap();
    assert_eq!(result.returncode, 127);
    assert!(result.stderr.contains("install it"), "{}", result.stderr);
    assert_eq!(setting.left(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_run_that_was_prepared_and_killed_is_swept() {
    let setting = Setting::new();
    let sandbox = setting.sandbox(json!({}));
    sandbox.prepare(&shell(), &RunConfig::default()).await.unwrap();
    drop(sandbox);
    assert_eq!(setting.left().len(), 1);
    let journal = fs::read_to_string(setting.left()[0].join("run.json")).unwrap();
    assert!(journal.contains("bastide.run="), "{journal}");
    let backend = LocalBackend::new(setting.folder.join("sessions")).unwrap().without_spare();
    let swept =
        Sandbox::sweep(&backend, &setting.home, async |_: &SessionId| Ok(false)).await.unwrap();
    // Without a daemon nobody can tell whether its containers are gone.
    match swept.unclear.first() {
        Some((_, why)) => assert!(why.contains("docker"), "{why}"),
        None => assert_eq!(setting.left(), Vec::<PathBuf>::new()),
    }
}

/// A folder in which files can be made and not removed, as long as this lives.
struct AppendOnly(PathBuf);

impl AppendOnly {
    fn new(folder: PathBuf) -> Option<Self> {
        chattr("+a", &folder).then(|| Self(folder))
    }
}

impl Drop for AppendOnly {
    fn drop(&mut self) {
        chattr("-a", &self.0);
    }
}

fn chattr(change: &str, folder: &Path) -> bool {
    let mut command = std::process::Command::new("chattr");
    let changed = command.arg(change).arg(folder).stderr(std::process::Stdio::null()).status();
    changed.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn what_could_not_be_taken_back_is_swept_later() {
    let setting = Setting::new();
    let (work, page) = (setting.folder.join("work"), setting.folder.join("work/CLAUDE.md"));
    fs::create_dir_all(work.join(".claude/skills/own")).unwrap();
    fs::write(work.join(".claude/skills/own/SKILL.md"), "the user's").unwrap();
    let Some(closed) = AppendOnly::new(work) else {
        eprintln!("skipped: this user or this file system has no folders that only grow");
        return;
    };
    let mut agent = Agent::new(AgentSpec::named("claude").unwrap());
    agent.skills = vec![Skill::new("own", "Something else", "Do it.")];
    let sandbox = setting.sandbox(json!({}));
    let refused = sandbox.prepare(&agent, &RunConfig::default()).await.unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
    assert!(page.exists(), "it cannot be removed");
    assert_eq!(setting.left().len(), 1, "what is left is on record");
    drop(closed);
    let backend = LocalBackend::new(setting.folder.join("sessions")).unwrap().without_spare();
    Sandbox::sweep(&backend, &setting.home, async |_: &SessionId| Ok(false)).await.unwrap();
    assert!(!page.exists(), "it was put there by the run");
    assert_eq!(setting.left(), Vec::<PathBuf>::new());
    assert!(setting.folder.join("work/.claude/skills/own/SKILL.md").exists());
}

/// With a real daemon, where one was prepared: the same change, nothing planted, and nothing left.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "it says where the daemon is")]
async fn a_real_container_gives_the_change_and_ends_at_its_timeout() {
    let Ok(host) = std::env::var("BASTIDE_TEST_DOCKER") else {
        eprintln!("skipped: no Docker daemon was prepared; `cargo xtask test` starts one");
        return;
    };
    let setting = Setting::new();
    let program = setting.folder.join("docker");
    fs::write(&program, format!("#!/bin/sh\nexec docker -H '{host}' \"$@\"\n")).unwrap();
    let left = || {
        let mut ps = std::process::Command::new(&program);
        let said = ps.args(["ps", "-aq", "--filter", "label=bastide.run"]).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    let before = left();
    let more = json!({"image": "bastide-test/base", "env": {"KEY": "k"}});
    let line = "echo $KEY; echo new > new; echo planted > .git/config; ls /sys/class/net";
    let result = setting.run(more.clone(), line, &RunConfig::default()).await;
    assert_eq!(result.stdout, "k\nlo\n", "{result:?}");
    assert_eq!(result.changed_files.len(), 1, "{result:?}");
    assert!(result.stderr.contains("Read-only"), "{}", result.stderr);
    let config = RunConfig::default().timeout(Duration::from_secs(5));
    let result = setting.run(more, "echo begun > begun; sleep 1000", &config).await;
    assert_eq!((result.returncode, &result.metadata["reason"]), (124, &json!("timeout")));
    assert_eq!(result.changed_files[0].path, "begun");
    assert_eq!(left(), before);
    assert_eq!(setting.left(), Vec::<PathBuf>::new());
}
