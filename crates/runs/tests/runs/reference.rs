//! The tests of sbx-agents 0.1.0, each by its name: the same here, or what is different and where it is said.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use bastide::{ErrorKind, Result};
use bastide_local::LocalBackend;
use bastide_runs::agents::{Agent, AgentSpec, MaterialisedFile, McpServer, Skill, StepFilter};
use bastide_runs::stream::{Listener, RunEvent, StreamFilter, StreamName};
use bastide_runs::{
    CommandResult, RunArtifacts, RunBackend, RunConfig, RunHome, RunSession, Sandbox,
    SandboxOptions, WorkspaceFiles, run,
};
use serde_json::{Value, json};

use crate::repository::*;

/// Where a test of the reference has its counterpart.
#[derive(Debug)]
enum Counterpart {
    /// In this file, by the same name.
    Here,
    /// In another file of tests: the file, and the test.
    There(&'static str, &'static str),
    /// `docs/differences.md` says why there is none.
    Different,
}

use Counterpart::{Different, Here, There};

const CLI: &str = "../../crates/cli/tests/cli/agent.rs";
const DOCKER: &str = "tests/runs/docker.rs";
const RUNS: &str = "tests/runs/sbx.rs";
const DRIVER: &str = "../../backends/sbx/tests/driver.rs";

const TABLE: [(&str, Counterpart); 55] = [
    ("test_shell_command", Here),
    ("test_codex_command", Here),
    ("test_codex_auth_helpers", There(DRIVER, "test_codex_auth_helpers")),
    ("test_codex_accepts_string_auth", There(DRIVER, "test_codex_accepts_string_auth")),
    ("test_opencode_command", Here),
    ("test_cli_run_file_target_default_prompt", Different),
    ("test_cli_run_file_target_with_diff", Different),
    ("test_cli_run_json_output", There(CLI, "a_change_is_the_same_wherever_the_agent_works")),
    (
        "test_cli_run_rejects_non_runner",
        There(CLI, "what_cannot_be_is_refused_with_the_reason_and_changes_nothing"),
    ),
    ("test_cli_doctor", Different),
    (
        "test_cli_preflights_docker_sbx_binary_only",
        There(DRIVER, "test_docker_sbx_check_ready_passes_when_sbx_ls_succeeds"),
    ),
    ("test_cli_can_skip_preflight", Different),
    (
        "test_cli_run_config_adds_pretty_filter",
        There(CLI, "shows_steps_as_they_come_and_a_table_at_the_end"),
    ),
    ("test_cli_run_config_raw_skips_pretty_filter", Here),
    (
        "test_cli_rejects_localhost_provider_for_docker_sbx",
        There(RUNS, "test_cli_rejects_localhost_provider_for_docker_sbx"),
    ),
    ("test_runner_run_sync_lifecycle", Here),
    ("test_runner_parses_opt_in_json_events", Here),
    ("test_runner_instance_uses_default_prompt", Different),
    ("test_runner_instance_prompt_override", Different),
    ("test_runner_instance_requires_prompt", Here),
    (
        "test_docker_command_mounts_workspace",
        There(DOCKER, "a_container_is_asked_for_as_the_reference_does"),
    ),
    ("test_docker_sbx_command_for_shell", There(RUNS, "test_docker_sbx_command_for_shell")),
    ("test_docker_sbx_strips_codex_binary", There(RUNS, "test_docker_sbx_strips_codex_binary")),
    (
        "test_docker_sbx_strips_opencode_binary",
        There(RUNS, "test_docker_sbx_strips_opencode_binary"),
    ),
    (
        "test_docker_sbx_retries_existing_workspace_sandbox",
        There(RUNS, "test_docker_sbx_retries_existing_workspace_sandbox"),
    ),
    (
        "test_docker_sbx_applies_network_allow_policy",
        There(DRIVER, "test_docker_sbx_applies_network_allow_policy"),
    ),
    (
        "test_docker_sbx_adds_openai_network_policy",
        There(RUNS, "test_docker_sbx_adds_openai_network_policy"),
    ),
    ("test_docker_sbx_sets_secret_from_env", There(DRIVER, "test_docker_sbx_sets_secret_from_env")),
    ("test_docker_sbx_sets_oauth_secret", There(DRIVER, "test_docker_sbx_sets_oauth_secret")),
    (
        "test_docker_sbx_applies_codex_backend_oauth_auth",
        There(DRIVER, "test_docker_sbx_applies_codex_backend_oauth_auth"),
    ),
    (
        "test_docker_sbx_applies_codex_backend_api_key_auth",
        There(DRIVER, "test_docker_sbx_applies_codex_backend_api_key_auth"),
    ),
    (
        "test_docker_sbx_refreshes_oauth_secret",
        There(DRIVER, "test_docker_sbx_refreshes_oauth_secret"),
    ),
    (
        "test_docker_sbx_syncs_host_codex_auth",
        There(DRIVER, "test_docker_sbx_syncs_host_codex_auth"),
    ),
    ("test_docker_sbx_force_recreate_removes_existing_named_sandbox", Here),
    (
        "test_docker_sbx_force_recreate_removes_conflicting_workspace_sandboxes",
        There(RUNS, "test_docker_sbx_force_recreate_removes_conflicting_workspace_sandboxes"),
    ),
    ("test_docker_sbx_does_not_retry_unrelated_sandbox_when_named", Here),
    (
        "test_docker_sbx_check_available_raises_helpful_error",
        There(DRIVER, "test_docker_sbx_check_available_raises_helpful_error"),
    ),
    (
        "test_docker_sbx_check_available_passes_when_sbx_exists",
        There(DRIVER, "test_docker_sbx_check_available_passes_when_sbx_exists"),
    ),
    (
        "test_docker_sbx_check_ready_passes_when_sbx_ls_succeeds",
        There(DRIVER, "test_docker_sbx_check_ready_passes_when_sbx_ls_succeeds"),
    ),
    (
        "test_docker_sbx_check_ready_raises_when_sbx_ls_fails",
        There(DRIVER, "test_docker_sbx_check_ready_raises_when_sbx_ls_fails"),
    ),
    ("test_docker_sbx_check_agent_secrets_raises_for_missing_openai", Here),
    ("test_sandbox_file_management", Here),
    ("test_sandbox_file_management_rejects_workspace_escape", Here),
    ("test_skill_from_dir", Here),
    ("test_codex_materialises_skills_and_mcp", Here),
    ("test_opencode_materialises_skills_and_http_mcp", Here),
    ("test_opencode_materialises_local_mcp", Here),
    ("test_backend_commands_include_json_and_session_flags", Here),
    ("test_shell_strict_rejects_skills", Here),
    ("test_shell_non_strict_ignores_skills", Here),
    ("test_pretty_stream_filter_formats_codex_agent_message", Here),
    ("test_pretty_stream_filter_formats_codex_command_failure", Here),
    (
        "test_pretty_stream_filter_hides_sbx_noise",
        There(RUNS, "test_pretty_stream_filter_hides_sbx_noise"),
    ),
    ("test_docker_sbx_shell_runs_command", Here),
    ("test_docker_sbx_runner_collects_tracked_diff", Here),
];

#[test]
fn every_test_of_the_reference_has_a_counterpart_or_a_line_about_it() {
    let names: HashSet<_> = TABLE.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), TABLE.len());
    let own = include_str!("reference.rs");
    let differences = include_str!("../../../../docs/differences.md");
    for (name, counterpart) in &TABLE {
        let line = format!("`{name}`");
        match counterpart {
            Here => assert!(own.contains(&format!("fn {name}(")), "{name} is not here"),
            There(file, test) => {
                let file = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
                let text = fs::read_to_string(&file).unwrap();
                assert!(text.contains(&format!("fn {test}(")), "{test} is not in {file}");
            }
            Different => assert!(differences.contains(&line), "docs/differences.md has no {line}"),
        }
        let is_different = matches!(counterpart, Different);
        assert_eq!(differences.contains(&line), is_different, "{name}");
    }
}

fn agent(name: &str) -> Agent {
    Agent::new(AgentSpec::named(name).unwrap())
}

fn command(name: &str, config: &RunConfig) -> Vec<String> {
    AgentSpec::named(name).unwrap().command("fix it", config).unwrap()
}

fn content(files: &[MaterialisedFile], path: &str) -> String {
    let found = files.iter().find(|file| file.path.as_os_str() == path);
    String::from_utf8(found.unwrap().content.clone()).unwrap()
}

#[test]
fn test_shell_command() {
    assert_eq!(command("shell", &RunConfig::default()), ["sh", "-lc", "fix it"]);
}

#[test]
fn test_codex_command() {
    assert_eq!(command("codex", &RunConfig::default()), ["codex", "exec", "fix it"]);
}

#[test]
fn test_opencode_command() {
    assert_eq!(command("opencode", &RunConfig::default()), ["opencode", "run", "fix it"]);
}

#[test]
fn test_cli_run_config_raw_skips_pretty_filter() {
    let mut shown = Vec::new();
    let event = r#"{"type":"turn.started"}"#;
    let mut raw = Listener::new(|event| shown.push(event));
    raw.line(event, StreamName::Stdout);
    drop(raw);
    let (stream, text) = (StreamName::Stdout, event.to_owned());
    assert_eq!(shown, [RunEvent::Line { stream, text }]);
    let spec = AgentSpec::named("codex").unwrap();
    assert_eq!(StepFilter::new(&spec.stream).filter(event, stream), None);
}

/// A place to run agents in that only notes what it is asked for.
#[derive(Debug, Default)]
struct Fake {
    said: String,
    asked: std::sync::Mutex<Vec<String>>,
}

impl Fake {
    fn note(&self, what: &str) {
        self.asked.lock().unwrap().push(what.to_owned());
    }
}

#[async_trait::async_trait]
impl RunBackend for Fake {
    fn id(&self) -> &str {
        "fake"
    }

    fn provides(&self, _: &str) -> bool {
        true
    }

    async fn prepare(&self, _: &Agent, _: &RunConfig) -> Result<RunSession> {
        self.note("prepare");
        Ok(RunSession::new("one", "/work"))
    }

    async fn run(
        &self,
        _: &RunSession,
        command: &[String],
        _: &RunConfig,
        _: &mut Listener<'_>,
    ) -> Result<CommandResult> {
        self.note(&command.join(" "));
        let mut result = CommandResult::default();
        result.stdout.clone_from(&self.said);
        result.command = command.to_vec();
        Ok(result)
    }

    async fn collect(&self, _: &RunSession, _: &RunConfig) -> Result<RunArtifacts> {
        self.note("collect");
        let mut artifacts = RunArtifacts::default();
        artifacts.diff = Some("diff".to_owned());
        Ok(artifacts)
    }

    async fn cleanup(&self, _: &RunSession) -> Result<()> {
        self.note("cleanup");
        Ok(())
    }
}

#[tokio::test]
async fn test_runner_run_sync_lifecycle() {
    let fake = Fake { said: "done\n".to_owned(), ..Fake::default() };
    let mut listener = Listener::none();
    let config = RunConfig::default();
    let result = run(&agent("shell"), &fake, "echo hi", &config, &mut listener).await.unwrap();
    let asked = fake.asked.lock().unwrap().join(" · ");
    assert_eq!(asked, "prepare · sh -c command -v sh · sh -lc echo hi · collect · cleanup");
    assert_eq!((result.output.as_str(), result.diff.as_deref()), ("done\n", Some("diff")));
    let names = (result.agent_name.as_str(), result.agent_backend.as_str());
    assert_eq!((names, result.sandbox_backend.as_str()), (("shell", "shell"), "fake"));
}

#[tokio::test]
async fn test_runner_parses_opt_in_json_events() {
    let said = [
        json!({"type": "thread.started", "thread_id": "t1"}),
        json!({"type": "item.completed", "item": {"type": "agent_message", "text": "done"}}),
        json!({"type": "turn.completed", "usage": {"output_tokens": 7}}),
    ];
    let said: String = said.iter().map(|event| format!("{event}\n")).collect();
    let fake = Fake { said, ..Fake::default() };
    let config = RunConfig::default().json_events();
    let mut listener = Listener::none();
    let result = run(&agent("codex"), &fake, "x", &config, &mut listener).await.unwrap();
    assert_eq!((result.events.len(), result.output.as_str()), (3, "done"));
    assert_eq!(result.thread_id.as_deref(), Some("t1"));
    assert_eq!(result.usage.unwrap()["output_tokens"], 7);
}

#[tokio::test]
async fn test_runner_instance_requires_prompt() {
    let (fake, config) = (Fake::default(), RunConfig::default());
    let refused = run(&agent("shell"), &fake, "", &config, &mut Listener::none()).await;
    assert!(refused.unwrap_err().to_string().contains("Prompt required"));
    assert!(fake.asked.lock().unwrap().is_empty());
}

struct Setting {
    folder: Folder,
    backend: Arc<LocalBackend>,
    home: RunHome,
}

impl Setting {
    fn new() -> Self {
        let folder = Folder::on_disk();
        small_repository(&folder.join("work"));
        let backend = LocalBackend::new(folder.join("sessions")).unwrap().without_spare();
        let home = RunHome::at(folder.join("runs")).unwrap();
        Self { folder, backend: Arc::new(backend), home }
    }

    fn sandbox(&self, change: impl FnOnce(SandboxOptions) -> SandboxOptions) -> Sandbox {
        let options = change(SandboxOptions::new(self.folder.join("work")));
        Sandbox::new(self.backend.clone(), self.home.clone(), options)
    }
}

/// In our own sandbox: what is run there writes to the folder of the host.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_shell_runs_command() {
    let setting = Setting::new();
    let sandbox = setting.sandbox(|options| options);
    let (line, config) = ("echo hello; echo inside > made", RunConfig::default());
    let result =
        run(&agent("shell"), &sandbox, line, &config, &mut Listener::none()).await.unwrap();
    assert_eq!(result.stdout, "hello\n");
    assert_eq!(fs::read_to_string(setting.folder.join("work/made")).unwrap(), "inside\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_runner_collects_tracked_diff() {
    let setting = Setting::new();
    let sandbox = setting.sandbox(|options| options);
    let (line, config) = ("sed -i s/two/2/ README.md", RunConfig::default());
    let result =
        run(&agent("shell"), &sandbox, line, &config, &mut Listener::none()).await.unwrap();
    let diff = result.diff.unwrap();
    assert!(diff.contains("\n-two\n+2\n"), "{diff}");
}

#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_force_recreate_removes_existing_named_sandbox() {
    let setting = Setting::new();
    let (first, config) =
        (setting.sandbox(|options| options.name("example").keep()), RunConfig::default());
    run(&agent("shell"), &first, "true", &config, &mut Listener::none()).await.unwrap();
    let again = setting.sandbox(|options| options.name("example").force_recreate());
    run(&agent("shell"), &again, "true", &config, &mut Listener::none()).await.unwrap();
    let left = fs::read_dir(setting.folder.join("runs/runs")).unwrap().count();
    assert_eq!(left, 0);
}

/// A name that is taken is an error of its own; no other sandbox is used in its place.
#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_does_not_retry_unrelated_sandbox_when_named() {
    let setting = Setting::new();
    let named = || setting.sandbox(|options| options.name("example").keep());
    let config = RunConfig::default();
    run(&agent("shell"), &named(), "true", &config, &mut Listener::none()).await.unwrap();
    let taken = run(&agent("shell"), &named(), "true", &config, &mut Listener::none()).await;
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::Conflict);
    // The one that was kept goes.
    let last = setting.sandbox(|options| options.name("example").force_recreate());
    run(&agent("shell"), &last, "true", &config, &mut Listener::none()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_check_agent_secrets_raises_for_missing_openai() {
    let setting = Setting::new();
    let (sandbox, config) = (setting.sandbox(|options| options), RunConfig::default());
    let missing = run(&agent("codex"), &sandbox, "x", &config, &mut Listener::none()).await;
    assert!(missing.unwrap_err().to_string().contains("OPENAI_API_KEY"));
}

#[test]
fn test_sandbox_file_management() {
    let folder = Folder::new();
    let files = WorkspaceFiles::open(folder.make("work")).unwrap();
    files.put("src/app.py", b"print('hi')\n").unwrap();
    files.put("data/blob.bin", b"\x00\x01").unwrap();
    assert_eq!(files.get_text("src/app.py").unwrap(), "print('hi')\n");
    assert_eq!(files.get("data/blob.bin").unwrap(), b"\x00\x01");
    let listed = files.list("**/*").unwrap();
    assert_eq!(listed, ["data/blob.bin", "src/app.py"].map(std::path::PathBuf::from));
    files.delete("src/app.py").unwrap();
    assert_eq!(files.get("src/app.py").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn test_sandbox_file_management_rejects_workspace_escape() {
    let folder = Folder::new();
    let files = WorkspaceFiles::open(folder.make("work")).unwrap();
    let refused = files.put("../outside.txt", b"x").unwrap_err().to_string();
    assert!(refused.contains("escapes workspace"), "{refused}");
}

#[test]
fn test_skill_from_dir() {
    let folder = Folder::new();
    let page = "---\nname: tidy\ndescription: Tidies up\nmetadata:\n  owner: me\n---\n\n# Tidy\n";
    write(&folder.path(), "tidy/SKILL.md", page);
    let skill = Skill::from_dir(&folder.join("tidy")).unwrap();
    assert_eq!((skill.name.as_str(), skill.description.as_str()), ("tidy", "Tidies up"));
    assert_eq!(skill.metadata["owner"], "me");
    assert!(skill.instructions.contains("# Tidy"));
}

#[test]
fn test_codex_materialises_skills_and_mcp() {
    let mut codex = agent("codex");
    codex.instructions = Some("Be brief.".to_owned());
    codex.skills = vec![Skill::new("tidy", "Tidies", "Do.\n")];
    codex.mcp_servers = vec![McpServer::stdio("context7", "npx", &["-y", "c7"])];
    let files = codex.files().unwrap();
    assert!(content(&files, "AGENTS.md").starts_with("Be brief.\n"));
    assert_eq!(content(&files, ".codex/skills/tidy/SKILL.md"), "Do.\n");
    let config = content(&files, ".codex/config.toml");
    assert!(config.contains("[mcp_servers.\"context7\"]\ncommand = \"npx\""), "{config}");
}

#[test]
fn test_opencode_materialises_skills_and_http_mcp() {
    let mut opencode = agent("opencode");
    opencode.skills = vec![Skill::new("tidy", "Tidies", "Do.\n")];
    opencode.mcp_servers = vec![McpServer::http("docs", "https://example.com/mcp")];
    let files = opencode.files().unwrap();
    let page = content(&files, ".opencode/skills/tidy/SKILL.md");
    assert!(page.starts_with("---\nname: tidy\ndescription: Tidies\n---\n"), "{page}");
    let config: Value = serde_json::from_str(&content(&files, "opencode.jsonc")).unwrap();
    let want = json!({"type": "remote", "url": "https://example.com/mcp"});
    assert_eq!(config["mcp"]["docs"], want);
}

#[test]
fn test_opencode_materialises_local_mcp() {
    let mut opencode = agent("opencode");
    opencode.mcp_servers = vec![McpServer::stdio("c7", "npx", &["-y", "c7"])];
    let files = opencode.files().unwrap();
    let config: Value = serde_json::from_str(&content(&files, "opencode.jsonc")).unwrap();
    assert_eq!(config["mcp"]["c7"], json!({"type": "local", "command": ["npx", "-y", "c7"]}));
}

#[test]
fn test_backend_commands_include_json_and_session_flags() {
    let config = RunConfig::default().json_events().output_schema("schema.json");
    let codex = command("codex", &config).join(" ");
    assert_eq!(codex, "codex exec --json --output-schema schema.json fix it");
    let config = RunConfig::default().json_events().resume_session_id("S");
    let opencode = command("opencode", &config).join(" ");
    assert_eq!(opencode, "opencode run --format json --session S fix it");
}

#[test]
fn test_shell_strict_rejects_skills() {
    let mut shell = agent("shell");
    shell.skills = vec![Skill::new("tidy", "Tidies", "Do.\n")];
    assert_eq!(shell.files().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn test_shell_non_strict_ignores_skills() {
    let mut shell = agent("shell");
    shell.skills = vec![Skill::new("tidy", "Tidies", "Do.\n")];
    shell.strict = false;
    assert!(shell.files().unwrap().is_empty());
}

fn shown(event: &Value) -> Option<String> {
    let spec = AgentSpec::named("codex").unwrap();
    StepFilter::new(&spec.stream).filter(&event.to_string(), StreamName::Stdout)
}

#[test]
fn test_pretty_stream_filter_formats_codex_agent_message() {
    let item = json!({"type": "agent_message", "text": "Hello\nthere"});
    let event = json!({"type": "item.completed", "item": item});
    assert_eq!(shown(&event).unwrap(), "agent:\n  Hello\n  there");
}

#[test]
fn test_pretty_stream_filter_formats_codex_command_failure() {
    let started = json!({"type": "command_execution", "command": "make"});
    let event = json!({"type": "item.started", "item": started});
    assert_eq!(shown(&event).unwrap(), "cmd: make");
    let failed = json!({"type": "command_execution", "command": "make", "exit_code": 127,
        "status": "failed", "aggregated_output": "no make\n"});
    let event = json!({"type": "item.completed", "item": failed});
    assert_eq!(shown(&event).unwrap(), "fail: make (exit 127)\n  no make");
}
