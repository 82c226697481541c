//! Whole runs through the stand-in for Docker's `sbx`.

use std::fs;
use std::sync::Arc;

use bastide::{Backend, Client, ErrorKind, NetworkAccess, SessionId};
use bastide_local::LocalBackend;
use bastide_model::lax;
use bastide_runs::agents::{Agent, AgentSpec};
use bastide_runs::reference::SbxRun;
use bastide_runs::stream::Listener;
use bastide_runs::workspace::{WorkspaceMode, WorkspaceOptions};
use bastide_runs::{RunConfig, RunHome, RunResult, Sandbox, SandboxOptions, run};
use bastide_sbx::{Sbx, SbxBackend, SbxOptions};
use bastide_sbx_stand_in::StandIn;
use serde_json::{Value, json};

use crate::repository::*;

struct Setting {
    folder: Folder,
    stand_in: StandIn,
    home: RunHome,
}

impl Setting {
    fn new(version: &str) -> Self {
        let folder = Folder::on_disk();
        let stand_in = StandIn::install(&folder.join("sbx"), version).unwrap();
        small_repository(&folder.join("work"));
        let home = RunHome::at(folder.join("runs")).unwrap();
        Self { folder, stand_in, home }
    }

    fn backend(&self, options: SbxOptions) -> Arc<dyn Backend> {
        let sbx = Sbx::new(self.stand_in.program());
        Arc::new(SbxBackend::new(self.folder.join("sessions"), sbx, options).unwrap())
    }

    fn options(&self) -> SandboxOptions {
        SandboxOptions::new(self.folder.join("work"))
    }

    fn sandbox(&self, options: SandboxOptions) -> Sandbox {
        Sandbox::new(self.backend(SbxOptions::new()), self.home.clone(), options)
    }

    fn sandboxes(&self) -> usize {
        self.stand_in.stored("sandboxes").unwrap().as_object().map_or(0, serde_json::Map::len)
    }

    fn calls(&self, verb: &str) -> Vec<String> {
        let calls = self.stand_in.calls().unwrap().into_iter().map(|words| words.join(" "));
        calls.filter(|call| call.starts_with(verb)).collect()
    }
}

async fn shell(sandbox: &Sandbox, line: &str) -> RunResult {
    let agent = Agent::new(AgentSpec::named("shell").unwrap());
    run(&agent, sandbox, line, &RunConfig::default(), &mut Listener::none()).await.unwrap()
}

const WORK: &str = "echo changed >> README.md; mkdir -p d; echo new > d/new; rm src/main.rs; \
    ln -s x link; printf '\\0\\1' > binary; echo said; echo wrong >&2; exit 3";

/// What of a result does not depend on where it came from.
fn same(result: &RunResult) -> Value {
    let mut value = serde_json::to_value(result).unwrap();
    let fields = value.as_object_mut().unwrap();
    for own in ["sandbox_backend", "duration_ms", "artifacts", "branch"] {
        fields.remove(own);
    }
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_the_same_here_and_on_this_machine_in_every_mode() {
    for mode in [WorkspaceMode::InPlace, WorkspaceMode::Worktree, WorkspaceMode::Clone] {
        let given = WorkspaceOptions::default().mode(mode.clone());
        let here = Setting::new("0.45.1");
        let result = shell(&here.sandbox(here.options().given(given.clone())), WORK).await;
        assert_eq!(result.sandbox_backend, "sbx");
        assert_eq!(here.sandboxes(), 0, "{mode:?}");
        let there = Setting::new("0.45.1");
        let local = LocalBackend::new(there.folder.join("sessions")).unwrap().without_spare();
        let options = there.options().given(given);
        let sandbox = Sandbox::new(Arc::new(local), there.home.clone(), options);
        assert_eq!(same(&result), same(&shell(&sandbox, WORK).await), "{mode:?}");
    }
}

/// The folders of a repository that its next `git` would run from are closed, as everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn what_git_would_run_is_closed_or_the_run_is_refused() {
    let setting = Setting::new("0.45.1");
    let line = "echo x > .git/hooks/post-commit || echo x >> .git/config || echo closed";
    let result = shell(&setting.sandbox(setting.options()), line).await;
    assert_eq!(result.stdout, "closed\n", "{}", result.stderr);
    setting.stand_in.fault("writable").unwrap();
    let agent = Agent::new(AgentSpec::named("shell").unwrap());
    let sandbox = setting.sandbox(setting.options());
    let config = RunConfig::default();
    let refused = run(&agent, &sandbox, "true", &config, &mut Listener::none()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(setting.sandboxes(), 0);
}

fn written(setting: &Setting, more: Value) -> SbxRun {
    let mut fields = json!({"workspace": setting.folder.join("work")});
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lax::read(&fields).unwrap()
}

/// A sandbox is made with the name, processors and memory that were asked for; the branch is a work tree of
/// ours, whatever the release has.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_command_for_shell() {
    let setting = Setting::new("0.45.1");
    let run = written(&setting, json!({"branch": "b", "cpus": 2, "memory": "512m"}));
    let result = shell(&setting.sandbox(run.options_for_sbx().unwrap()), "echo x > new").await;
    let made = setting.calls("create");
    assert!(made[0].contains("--cpus 2 --memory 512m"), "{made:?}");
    assert!(made[0].contains(" shell /"), "{made:?}");
    assert_eq!(result.branch.as_deref(), Some("b"));
    assert_eq!(git(&setting.folder.join("work"), &["show", "b:new"]), "x");
}

/// Agents are called by their own names: nothing is put before or after them by `sbx`.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_strips_codex_binary() {
    agents_are_called_by_their_own_names("codex").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_strips_opencode_binary() {
    agents_are_called_by_their_own_names("opencode").await;
}

async fn agents_are_called_by_their_own_names(name: &str) {
    let setting = Setting::new("0.45.1");
    let agent = Agent::new(AgentSpec::named(name).unwrap());
    let keys = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"].map(|key| (key.to_owned(), "k".to_owned()));
    let config = RunConfig::default().env(keys);
    let sandbox = setting.sandbox(setting.options());
    let result = run(&agent, &sandbox, "fix", &config, &mut Listener::none()).await.unwrap();
    // It is not installed here, which is said as everywhere.
    assert_eq!(result.returncode, 127);
    assert_eq!(result.command.first().map(String::as_str), Some(name));
    assert!(result.command.iter().any(|word| word == "exec" || word == "run"));
    assert_eq!(setting.calls("run"), Vec::<String>::new());
}

/// A sandbox that somebody else has over the same folder stays, and is not used.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_force_recreate_removes_conflicting_workspace_sandboxes() {
    let setting = Setting::new("0.45.1");
    let work = setting.folder.join("work");
    let made = std::process::Command::new(setting.stand_in.program())
        .args(["create", "--name", "theirs", "shell"])
        .arg(&work)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let recreated = setting.options().name("mine").force_recreate();
    shell(&setting.sandbox(recreated), "true").await;
    assert_eq!(setting.sandboxes(), 1);
    let ended = std::process::Command::new(setting.stand_in.program())
        .args(["rm", "-f", "theirs"])
        .status()
        .unwrap();
    assert!(ended.success());
}

/// There is nothing to try again: each run has a sandbox of its own, beside any other of the same folder.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_retries_existing_workspace_sandbox() {
    let setting = Setting::new("0.45.1");
    let kept = setting.sandbox(setting.options().name("first").keep());
    assert_eq!(shell(&kept, "echo one").await.stdout, "one\n");
    assert_eq!(shell(&setting.sandbox(setting.options()), "echo two").await.stdout, "two\n");
    assert_eq!(setting.sandboxes(), 1);
    let last = setting.sandbox(setting.options().name("first").force_recreate());
    assert_eq!(shell(&last, "echo three").await.stdout, "three\n");
    assert_eq!(setting.sandboxes(), 0);
}

/// The hosts an agent talks to are those of its file, and are opened for its sandbox alone.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_adds_openai_network_policy() {
    let setting = Setting::new("0.45.1");
    let hosts = AgentSpec::named("codex").unwrap().hosts;
    assert_eq!(hosts, ["api.openai.com:443"]);
    let backend = setting.backend(SbxOptions::new().network_allow(hosts));
    let sandbox = Sandbox::new(backend, setting.home.clone(), setting.options());
    shell(&sandbox, "true").await;
    let rules = setting.calls("policy");
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert!(rules[0].contains("--sandbox bastide-") && rules[0].ends_with("api.openai.com:443"));
    assert_eq!(setting.stand_in.stored("rules").unwrap(), json!([]));
}

/// What `sbx` says besides is no part of what the agent said.
#[tokio::test(flavor = "multi_thread")]
async fn test_pretty_stream_filter_hides_sbx_noise() {
    let setting = Setting::new("0.45.1");
    let result = shell(&setting.sandbox(setting.options()), "echo said; echo wrong >&2").await;
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("said\n", "wrong\n"));
}

/// A model server on this host's loopback cannot be reached from a microVM: the host's network is refused,
/// with the name it has there.
#[tokio::test(flavor = "multi_thread")]
async fn test_cli_rejects_localhost_provider_for_docker_sbx() {
    let setting = Setting::new("0.45.1");
    let mut options = setting.options();
    options.create.network = NetworkAccess::Host;
    let agent = Agent::new(AgentSpec::named("shell").unwrap());
    let (sandbox, config) = (setting.sandbox(options), RunConfig::default());
    let refused = run(&agent, &sandbox, "true", &config, &mut Listener::none()).await.unwrap_err();
    assert!(refused.hint().unwrap().contains("host.docker.internal"), "{refused}");
    assert_eq!(setting.calls("create"), Vec::<String>::new());
}

/// A run that is killed at any call leaves nothing that a sweep does not find.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_takes_back_what_a_killed_run_had_at_sbx() {
    let setting = Setting::new("0.45.1");
    let mut options = SbxOptions::new().secret("anthropic", "k");
    options.oauth = vec!["openai".to_owned()];
    let backend = setting.backend(options);
    let sandbox = Sandbox::new(Arc::clone(&backend), setting.home.clone(), setting.options());
    let agent = Agent::new(AgentSpec::named("shell").unwrap());
    let config = RunConfig::default();
    let prepared = bastide_runs::RunBackend::prepare(&sandbox, &agent, &config).await.unwrap();
    assert_eq!(setting.sandboxes(), 1);
    assert_eq!(setting.stand_in.stored("secrets").unwrap().as_array().map(Vec::len), Some(2));
    // As a process that is killed does: nothing is taken back, but the kernel lets go of locks.
    drop((prepared, sandbox));
    let client = Client::new(Arc::clone(&backend));
    let remove = async |id: &SessionId| client.delete(id).await;
    let swept = Sandbox::sweep(backend.as_ref(), &setting.home, remove).await.unwrap();
    assert_eq!(swept.ended.len(), 1, "{swept:?}");
    assert_eq!(setting.sandboxes(), 0);
    for stored in ["secrets", "rules"] {
        assert_eq!(setting.stand_in.stored(stored).unwrap(), json!([]), "{stored}");
    }
    assert_eq!(fs::read_dir(setting.folder.join("runs/runs")).unwrap().count(), 0);
    git(&setting.folder.join("work"), &["fsck", "--strict"]);
}
