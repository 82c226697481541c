//! Whole runs in sandboxes on this machine.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bastide::{Backend, ErrorKind, Isolation, Rung, SessionId};
use bastide_local::LocalBackend;
use bastide_runs::agents::{Agent, AgentSpec};
use bastide_runs::stream::{Listener, RunEvent};
use bastide_runs::workspace::{WorkspaceMode, WorkspaceOptions};
use bastide_runs::{
    RunBackend, RunConfig, RunHome, RunResult, RunSweep, Sandbox, SandboxOptions, run,
};

use crate::repository::*;

struct Setting {
    folder: Folder,
    backend: Arc<dyn Backend>,
    home: RunHome,
}

impl Setting {
    fn new() -> Self {
        let folder = Folder::on_disk();
        let backend = LocalBackend::new(folder.join("sessions")).unwrap().without_spare();
        small_repository(&folder.join("work"));
        let home = RunHome::at(folder.join("runs")).unwrap();
        Self { backend: Arc::new(backend), home, folder }
    }

    fn options(&self, mode: WorkspaceMode) -> SandboxOptions {
        let given = WorkspaceOptions::default().mode(mode);
        SandboxOptions::new(self.folder.join("work")).given(given)
    }

    fn sandbox(&self, options: SandboxOptions) -> Sandbox {
        Sandbox::new(Arc::clone(&self.backend), self.home.clone(), options)
    }

    async fn shell(&self, options: SandboxOptions, line: &str) -> RunResult {
        let sandbox = self.sandbox(options);
        let config = RunConfig::default();
        run(&agent("shell"), &sandbox, line, &config, &mut Listener::none()).await.unwrap()
    }

    async fn sweep(&self) -> RunSweep {
        let client = bastide::Client::new(Arc::clone(&self.backend));
        let remove = async |id: &SessionId| client.delete(id).await;
        Sandbox::sweep(self.backend.as_ref(), &self.home, remove).await.unwrap()
    }

    async fn sessions(&self) -> usize {
        bastide::Client::new(Arc::clone(&self.backend)).list().await.unwrap().len()
    }

    fn left(&self) -> usize {
        fs::read_dir(self.folder.join("runs/runs")).unwrap().count()
    }
}

fn agent(name: &str) -> Agent {
    Agent::new(AgentSpec::named(name).unwrap())
}

const WORK: &str =
    "echo changed >> README.md; mkdir -p d; echo new > d/new; rm src/main.rs; ln -s x link";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_gives_the_same_change_in_every_mode() {
    let mut diffs = Vec::new();
    for mode in [WorkspaceMode::InPlace, WorkspaceMode::Worktree, WorkspaceMode::Clone] {
        let setting = Setting::new();
        let work = setting.folder.join("work");
        let fresh = setting.folder.join("fresh");
        copy(&work, &fresh);
        let result = setting.shell(setting.options(mode.clone()), WORK).await;
        assert_eq!(result.returncode, 0, "{mode:?}: {result:?}");
        assert_eq!(result.changed_files.len(), 4);
        assert_eq!(result.branch.is_some(), mode == WorkspaceMode::Worktree);
        let diff = result.diff.clone().unwrap();
        apply(&fresh, diff.as_bytes()).unwrap();
        match mode {
            WorkspaceMode::InPlace => assert_eq!(tree(&work), tree(&fresh)),
            _ => assert_eq!(git(&work, &["status", "--porcelain"]), ""),
        }
        git(&work, &["fsck", "--strict"]);
        assert_eq!((setting.sessions().await, setting.left()), (0, 0), "{mode:?}");
        let report = serde_json::to_value(result.report()).unwrap();
        assert_eq!(report["exit_code"], 0);
        assert_eq!(report["reason"], "exited");
        assert_eq!(report["changed_files"][0]["path"], "README.md");
        assert!(Path::new(report["log"].as_str().unwrap()).is_file());
        assert!(result.metadata.contains_key("agent_version"));
        diffs.push(diff);
    }
    assert_eq!(diffs[0], diffs[1]);
    assert_eq!(diffs[0], diffs[2]);
}

/// What an agent would plant for the user's next git. Each line must fail, or change nothing.
const PLANT: &str = "
    echo x >> .git/config; echo x > .git/hooks/pre-commit; echo x > .git/info/attributes
    rm -f .git/config; mv .git moved; mkdir .git; echo x > .git/HEAD; echo x > .git/index
    git update-ref refs/heads/planted HEAD; git config core.fsmonitor /bin/true
    echo x > sub/.git; rm -f sub/.git; mv sub elsewhere; mkdir -p sub/.git; echo x > sub/.git/config
    echo x > vendor/lib/.git/config; mv vendor/lib vendor/gone; mv vendor away; mkdir -p vendor/lib/.git
    echo x > unfetched/.git; mkdir unfetched/.git; mv unfetched other; true";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_git_can_be_planted_in_place_or_in_a_work_tree() {
    for mode in [WorkspaceMode::InPlace, WorkspaceMode::Worktree] {
        let setting = Setting::new();
        let work = setting.folder.join("work");
        let inner = setting.folder.join("inner");
        small_repository(&inner);
        let from = inner.to_str().unwrap();
        git(&work, &["submodule", "--quiet", "add", from, "sub"]);
        git(&work, &["submodule", "--quiet", "add", from, "unfetched"]);
        git(&work, &["commit", "-qm", "subs"]);
        git(&work, &["submodule", "--quiet", "deinit", "-f", "unfetched"]);
        fs::create_dir_all(work.join(".git/hooks")).unwrap();
        fs::create_dir_all(work.join("vendor")).unwrap();
        git(&work.join("vendor"), &["clone", "-q", from, "lib"]);
        let kept = setting.folder.join("kept");
        copy(&work, &kept);
        let result = setting.shell(setting.options(mode.clone()), PLANT).await;
        for path in [".git", "sub/.git", "vendor/lib/.git", "unfetched"] {
            let compared = std::process::Command::new("diff")
                .args(["-r", "--no-dereference", "--exclude=objects"])
                .args([kept.join(path), work.join(path)])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&compared.stdout).into_owned();
            let is_only_branch = mode == WorkspaceMode::Worktree && path == ".git";
            assert!(compared.status.success() || is_only_branch, "{mode:?} {path}: {said}");
        }
        git(&work, &["fsck", "--strict"]);
        assert_eq!(git(&work, &["branch", "--list", "planted"]), "");
        drop(result);
        assert_eq!((setting.sessions().await, setting.left()), (0, 0), "{mode:?}");
    }
}

/// A folder that is no repository does not become one under the user's next git.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_folder_does_not_become_a_repository() {
    let setting = Setting::new();
    let work = setting.folder.make("plain");
    write(&work, "a", "x\n");
    let mut options = setting.options(WorkspaceMode::InPlace);
    options.workspace = work.clone();
    let line = "mkdir -p .git/hooks; echo x > .git/HEAD; git init; mv .git b; echo y >> a";
    let result = setting.shell(options, line).await;
    assert_eq!(result.changed_files.len(), 1, "{result:?}");
    assert!(!work.join(".git").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rung_that_cannot_close_the_repository_is_refused() {
    let setting = Setting::new();
    let mut options = setting.options(WorkspaceMode::InPlace);
    options.create.isolation = Isolation::Exactly(Rung::Landlock);
    if rustix::process::geteuid().is_root() {
        // On that rung nobody is root, so the folder is somebody else's.
        let given = ["-R", "4242:4242"];
        let mut chown = std::process::Command::new("chown");
        assert!(chown.args(given).arg(&options.workspace).status().unwrap().success());
    }
    let sandbox = setting.sandbox(options);
    let config = RunConfig::default();
    let refused = run(&agent("shell"), &sandbox, "true", &config, &mut Listener::none()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(".git cannot be granted for reading only"), "{refused}");
    assert_eq!((setting.sessions().await, setting.left()), (0, 0));
    assert!(setting.folder.join("work/.git/HEAD").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_everything_and_the_change_is_still_collected() {
    let setting = Setting::new();
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::InPlace));
    let config = RunConfig::default().timeout(Duration::from_secs(2));
    let line = "echo begun > begun; (setsid sh -c 'while :; do date > late; done' &) ; sleep 1000";
    let mut listener = Listener::none();
    let result = run(&agent("shell"), &sandbox, line, &config, &mut listener).await.unwrap();
    assert_eq!(result.returncode, 124);
    assert_eq!(result.metadata["reason"], "timeout");
    assert!(result.changed_files.iter().any(|file| file.path == "begun"), "{result:?}");
    let report = serde_json::to_value(result.report()).unwrap();
    assert_eq!(report["reason"], "timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_told_as_they_come_and_silence_too() {
    let setting = Setting::new();
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Clone));
    let mut received = Vec::new();
    let mut listener =
        Listener::new(|event| received.push(event)).with_idle(Some(Duration::from_millis(100)));
    // It waits until it has been silent long enough for somebody to be told.
    let line = "echo one; echo two >&2; sleep 1; printf last";
    let config = RunConfig::default();
    run(&agent("shell"), &sandbox, line, &config, &mut listener).await.unwrap();
    drop(listener);
    let lines: Vec<_> = received
        .iter()
        .filter_map(|event| match event {
            RunEvent::Line { stream, text } => Some((stream.as_str(), text.as_str())),
            _ => None,
        })
        .collect();
    assert!(lines.contains(&("stdout", "one")) && lines.contains(&("stderr", "two")), "{lines:?}");
    assert_eq!(lines.last(), Some(&("stdout", "last")));
    assert!(received.iter().any(|event| matches!(event, RunEvent::Idle { .. })), "{received:?}");
    assert_eq!(received.last(), Some(&RunEvent::Ended { returncode: 0 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_agent_is_127_and_what_to_install() {
    let setting = Setting::new();
    let text =
        "name = \"gone\"\n[command]\nprogram = \"no-such-agent\"\ninstall = \"npm install it\"\n";
    let gone = Agent::new(AgentSpec::parse("gone.toml", text).unwrap());
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Clone));
    let config = RunConfig::default();
    let result = run(&gone, &sandbox, "x", &config, &mut Listener::none()).await.unwrap();
    assert_eq!(result.returncode, 127);
    assert!(result.stderr.contains("npm install it"), "{}", result.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_are_copied_out_and_never_lead_out() {
    let setting = Setting::new();
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Clone));
    let outputs = ["out/report.txt".to_owned(), "missing".to_owned()];
    let mut config = RunConfig::default().outputs(outputs);
    let line = "mkdir out; echo done > out/report.txt";
    let result =
        run(&agent("shell"), &sandbox, line, &config, &mut Listener::none()).await.unwrap();
    let files: Vec<_> = result.artifacts.iter().filter(|one| one.kind == "file").collect();
    assert_eq!(files.len(), 1);
    assert_eq!(fs::read_to_string(&files[0].path).unwrap(), "done\n");
    config.outputs = vec!["../../etc/passwd".to_owned()];
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Clone));
    let error = run(&agent("shell"), &sandbox, "true", &config, &mut Listener::none()).await;
    assert!(error.unwrap_err().to_string().contains("escapes workspace"));
    config.outputs = vec!["leak".to_owned()];
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Clone));
    let line = "ln -s /etc/hostname leak";
    let result =
        run(&agent("shell"), &sandbox, line, &config, &mut Listener::none()).await.unwrap();
    assert!(result.artifacts.iter().all(|one| one.kind != "file"), "{result:?}");
    let left_out = result.metadata["left_out"].to_string();
    assert!(left_out.contains("leak"), "{left_out}");
    assert_eq!((setting.sessions().await, setting.left()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_stays_if_asked_and_goes_when_it_is_made_again() {
    let setting = Setting::new();
    let mut options = setting.options(WorkspaceMode::Worktree);
    options.name = Some("named".to_owned());
    options.remove_on_exit = false;
    let before = git(&setting.folder.join("work"), &["worktree", "list"]);
    setting.shell(options.clone(), "true").await;
    assert_eq!((setting.sessions().await, setting.left()), (1, 1));
    // What stays on purpose is no garbage.
    let swept = setting.sweep().await;
    assert_eq!((swept.left, swept.ended.len()), (1, 0), "{swept:?}");
    let sandbox = setting.sandbox(options.clone());
    let config = RunConfig::default();
    let taken = run(&agent("shell"), &sandbox, "true", &config, &mut Listener::none()).await;
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::Conflict);
    options.force_recreate = true;
    options.remove_on_exit = true;
    setting.shell(options, "true").await;
    assert_eq!((setting.sessions().await, setting.left()), (0, 0));
    assert_eq!(git(&setting.folder.join("work"), &["worktree", "list"]), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_files_are_there_and_no_part_of_the_change() {
    for mode in [WorkspaceMode::InPlace, WorkspaceMode::Clone] {
        let setting = Setting::new();
        let text = "name = \"mine\"\n[command]\nprogram = \"sh\"\nargs = [\"-c\"]\n\
                    [files]\ninstructions = \"notes/AGENTS.md\"\n";
        let mut mine = Agent::new(AgentSpec::parse("mine.toml", text).unwrap());
        mine.instructions = Some("Be brief.".to_owned());
        let sandbox = setting.sandbox(setting.options(mode.clone()));
        let config = RunConfig::default();
        let line = "cat notes/AGENTS.md; echo x > new";
        let result = run(&mine, &sandbox, line, &config, &mut Listener::none()).await.unwrap();
        assert_eq!(result.stdout, "Be brief.\n", "{mode:?}");
        assert_eq!(result.changed_files.len(), 1, "{mode:?}");
        assert!(!setting.folder.join("work/notes").exists());
        // The user's own file is not overwritten.
        write(&setting.folder.join("work"), "notes/AGENTS.md", "mine\n");
        let sandbox = setting.sandbox(setting.options(mode.clone()));
        let again = run(&mine, &sandbox, line, &config, &mut Listener::none()).await;
        match mode {
            WorkspaceMode::InPlace => assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict),
            _ => assert_eq!(again.unwrap().stdout, "mine\n\nBe brief.\n"),
        }
        let kept = fs::read_to_string(setting.folder.join("work/notes/AGENTS.md")).unwrap();
        assert_eq!(kept, "mine\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_ends_the_session_of_a_killed_run() {
    let setting = Setting::new();
    let before = git(&setting.folder.join("work"), &["worktree", "list"]);
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Worktree).keep());
    sandbox.prepare(&agent("shell"), &RunConfig::default()).await.unwrap();
    // What a killed process leaves of a session that does not end with it.
    drop(sandbox);
    assert_eq!((setting.sessions().await, setting.left()), (1, 1));
    let swept = setting.sweep().await;
    assert!(swept.removed.iter().any(|what| what.contains("the session")), "{swept:?}");
    assert_eq!((setting.sessions().await, setting.left()), (0, 0), "{swept:?}");
    assert_eq!(git(&setting.folder.join("work"), &["worktree", "list"]), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_key_is_named_before_anything_starts() {
    let setting = Setting::new();
    let text = "name = \"keyed\"\n[command]\nprogram = \"sh\"\nargs = [\"-c\"]\n\
                [[credentials]]\nenv = \"SOME_KEY\"\nservice = \"some\"\nrequired = true\n";
    let keyed = Agent::new(AgentSpec::parse("keyed.toml", text).unwrap());
    let sandbox = setting.sandbox(setting.options(WorkspaceMode::Worktree));
    let mut config = RunConfig::default();
    let mut listener = Listener::none();
    for env in [vec![], vec![("SOME_KEY".to_owned(), String::new())]] {
        config.env = env;
        let refused = run(&keyed, &sandbox, "true", &config, &mut listener).await.unwrap_err();
        assert!(refused.to_string().contains("SOME_KEY"), "{refused}");
    }
    let results = fs::read_dir(setting.folder.join("runs/results")).unwrap().count();
    assert_eq!((setting.sessions().await, setting.left(), results), (0, 0, 0));
    config.env = vec![("SOME_KEY".to_owned(), "k".to_owned())];
    let ran = run(&keyed, &sandbox, "echo $SOME_KEY", &config, &mut listener).await.unwrap();
    assert_eq!(ran.stdout, "k\n");
}
