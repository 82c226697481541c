//! How `sbx` is called, shown on the stand-in for it. Tests that are named `test_docker_sbx_…` are the
//! counterparts of sbx-agents 0.1.0.
#![expect(clippy::unwrap_used, reason = "a test that has no stand-in to work with cannot go on")]

#[path = "driver/again.rs"]
mod again;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bastide::model::{Manifest, PathGrant};
use bastide::{Client, Command, CreateOptions, ErrorKind, NetworkAccess, SweepOptions};
use bastide_sbx::global::{self, CodexAuth, SecretSources};
use bastide_sbx::{DIAGNOSIS, Sbx, SbxBackend, SbxOptions};
use bastide_sbx_stand_in::StandIn;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);

struct Setting {
    folder: TempDir,
    stand_in: StandIn,
}

impl Setting {
    fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stand_in = StandIn::install(&folder.path().join("sbx"), version).unwrap();
        Self { folder, stand_in }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn sbx(&self) -> Sbx {
        Sbx::new(self.stand_in.program())
    }

    fn client(&self, options: SbxOptions) -> Client {
        let backend = SbxBackend::new(self.path("home"), self.sbx(), options).unwrap();
        Client::new(Arc::new(backend))
    }

    fn calls(&self) -> Vec<String> {
        self.stand_in.calls().unwrap().into_iter().map(|words| words.join(" ")).collect()
    }

    /// Calls that begin so.
    fn calls_of(&self, verb: &str) -> Vec<String> {
        self.calls().into_iter().filter(|call| call.starts_with(verb)).collect()
    }

    fn stored(&self, name: &str) -> Vec<Value> {
        match self.stand_in.stored(name).unwrap() {
            Value::Array(list) => list,
            Value::Object(map) => map.into_iter().map(|(_, value)| value).collect(),
            _ => Vec::new(),
        }
    }
}

fn sources(env: &[(&str, &str, Option<&str>)]) -> SecretSources {
    let owned = |(service, variable, value): &(&str, &str, Option<&str>)| {
        ((*service).to_owned(), (*variable).to_owned(), value.map(str::to_owned))
    };
    SecretSources { env: env.iter().map(owned).collect(), ..SecretSources::default() }
}

#[tokio::test]
async fn test_docker_sbx_check_available_raises_helpful_error() {
    let missing = Sbx::new("/nowhere/sbx").check_available().await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unsupported);
    let hint = missing.hint().unwrap();
    assert!(hint.contains("brew install docker/tap/sbx") && hint.contains("sbx login"), "{hint}");
    assert!(!Sbx::new("/nowhere/sbx").is_available().await);
}

#[tokio::test]
async fn test_docker_sbx_check_available_passes_when_sbx_exists() {
    let setting = Setting::new("0.45.1");
    assert!(setting.sbx().is_available().await);
}

#[tokio::test]
async fn another_program_of_the_same_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sbx");
    fs::write(&program, "#!/bin/sh\necho flash cards\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Sbx::new(program).check_available().await.unwrap_err();
    assert!(refused.to_string().contains("is not Docker's"), "{refused}");
}

#[tokio::test]
async fn test_docker_sbx_check_ready_passes_when_sbx_ls_succeeds() {
    for version in ["0.28.0", "0.33.0", "0.45.1"] {
        let setting = Setting::new(version);
        setting.stand_in.fault("noise").unwrap();
        assert_eq!(setting.sbx().check_ready(DIAGNOSIS).await.unwrap().release.major, 0);
        assert!(setting.sbx().is_ready(DIAGNOSIS).await, "{version}");
    }
}

#[tokio::test]
async fn test_docker_sbx_check_ready_raises_when_sbx_ls_fails() {
    let setting = Setting::new("0.45.1");
    fs::remove_file(setting.stand_in.state().join("signed-in")).unwrap();
    let unready = setting.sbx().check_ready(DIAGNOSIS).await.unwrap_err();
    assert!(unready.to_string().contains("Authentication: fail"), "{unready}");
    assert!(unready.hint().unwrap().contains("sbx login"));
    assert!(!setting.sbx().is_ready(DIAGNOSIS).await);
}

#[tokio::test]
async fn every_release_lists_its_sandboxes_in_json_behind_any_noise() {
    for version in ["0.28.0", "0.32.0", "0.33.0", "0.45.1"] {
        let setting = Setting::new(version);
        let work = setting.path("a b");
        fs::create_dir(&work).unwrap();
        setting.stand_in.fault("noise").unwrap();
        assert_eq!(setting.sbx().list().await.unwrap(), []);
        let program = setting.stand_in.program();
        let made = std::process::Command::new(program)
            .args(["create", "--name", "one", "shell"])
            .arg(&work)
            .output()
            .unwrap();
        assert!(made.status.success(), "{version}: {made:?}");
        let found = setting.sbx().list().await.unwrap();
        let named: Vec<_> = found.iter().map(|one| (&*one.name, one.is_running())).collect();
        assert_eq!(named, [("one", true)], "{version}");
        assert_eq!(found[0].workspaces, [work.to_str().unwrap()]);
        std::process::Command::new(program).args(["rm", "-f", "one"]).output().unwrap();
    }
}

#[tokio::test]
async fn a_call_that_does_not_end_is_ended_with_all_it_started() {
    let setting = Setting::new("0.45.1");
    setting.stand_in.fault("ls:tree").unwrap();
    let number = setting.stand_in.state().join("child");
    let sbx = setting.sbx();
    // It is let go when its child is there.
    let late = tokio::select! {
        listed = sbx.list() => listed.unwrap_err(),
        () = until(|| fs::read_to_string(&number).is_ok_and(|text| !text.is_empty())) => {
            bastide::Error::new(ErrorKind::Timeout, "given up")
        }
    };
    assert_eq!(late.kind(), ErrorKind::Timeout);
    let child: u32 = fs::read_to_string(number).unwrap().parse().unwrap();
    until(|| is_gone(child)).await;
    // Its own deadline does the same.
    setting.stand_in.fault("diagnose:hang").unwrap();
    let late = sbx.check_ready(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
}

/// Whether a process is gone, or only waits to be waited for.
fn is_gone(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z"))
}

async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap();
}

#[tokio::test]
async fn test_docker_sbx_sets_secret_from_env() {
    for (version, listed) in
        [("0.28.0", "secret ls -g --service openai"), ("0.45.1", "secret ls --json")]
    {
        let setting = Setting::new(version);
        let from = sources(&[("openai", "MY_KEY", Some("value-of-the-key"))]);
        let sbx = setting.sbx();
        global::ensure_agent_secret(&sbx, "codex", &from, LONG, None).await.unwrap();
        let calls = setting.calls_of("secret");
        assert_eq!(calls[0], listed);
        assert!(calls[1].starts_with("secret set") && calls[1].ends_with("openai"), "{calls:?}");
        assert!(!calls.join(" ").contains("value-of-the-key"));
        assert_eq!(setting.stored("secrets")[0]["value"], "value-of-the-key");
        assert!(global::has_global_secret(&sbx, "openai", LONG).await.unwrap());
        // One that is stored is left as it is.
        global::ensure_agent_secret(&sbx, "codex", &sources(&[]), LONG, None).await.unwrap();
        global::check_agent_secrets(&sbx, "codex", LONG).await.unwrap();
    }
}

#[tokio::test]
async fn a_secret_without_a_source_is_named_with_the_call_that_stores_it() {
    let setting = Setting::new("0.45.1");
    let sbx = setting.sbx();
    let none = global::ensure_agent_secret(&sbx, "codex", &sources(&[]), LONG, None).await;
    let hint = none.unwrap_err().hint().unwrap().to_owned();
    assert!(hint.contains("sbx secret set -g openai"), "{hint}");
    let unset = sources(&[("openai", "MY_KEY", Some(""))]);
    let unset = global::ensure_agent_secret(&sbx, "codex", &unset, LONG, None).await.unwrap_err();
    assert!(unset.to_string().contains("MY_KEY"), "{unset}");
    let missing = global::check_agent_secrets(&sbx, "claude", LONG).await.unwrap_err();
    assert!(missing.to_string().contains("anthropic"), "{missing}");
    global::check_agent_secrets(&sbx, "shell", LONG).await.unwrap();
    // What is refused does not say what was to be stored.
    setting.stand_in.fault("secret set:1").unwrap();
    let refused = global::set_global_secret(&sbx, "openai", "injected", LONG).await.unwrap_err();
    assert!(!refused.to_string().contains("injected)"), "{refused}");
}

#[tokio::test]
async fn test_docker_sbx_sets_oauth_secret() {
    let setting = Setting::new("0.28.0");
    let from = SecretSources { oauth: vec!["openai".to_owned()], ..SecretSources::default() };
    let received = std::sync::Mutex::new(String::new());
    let listener = |line: &str| received.lock().unwrap().push_str(line);
    let lines: Option<bastide_sbx::LineListener<'_>> = Some(&listener);
    global::ensure_agent_secret(&setting.sbx(), "codex", &from, LONG, lines).await.unwrap();
    let want = ["secret ls -g --service openai", "secret set -g openai --oauth"];
    assert_eq!(setting.calls_of("secret"), want);
    assert!(received.lock().unwrap().contains("ABCD-EFGH"));
}

#[tokio::test]
async fn test_docker_sbx_refreshes_oauth_secret() {
    let setting = Setting::new("0.28.0");
    let refresh = vec!["openai".to_owned()];
    let from = SecretSources { oauth_refresh: refresh, ..SecretSources::default() };
    global::ensure_agent_secret(&setting.sbx(), "codex", &from, LONG, None).await.unwrap();
    assert_eq!(setting.calls_of("secret"), ["secret set -g openai --oauth"]);
}

#[tokio::test]
async fn test_docker_sbx_applies_codex_backend_oauth_auth() {
    let setting = Setting::new("0.28.0");
    let (sbx, auth) = (setting.sbx(), CodexAuth::named("openai_oauth", |_| None).unwrap());
    let none = SecretSources::default();
    let changed = global::ensure_agent_auth(&sbx, "codex", Some(&auth), &none, None).await;
    assert!(changed.unwrap());
    let want = ["secret ls -g --service openai", "secret set -g openai --oauth"];
    assert_eq!(setting.calls_of("secret"), want);
    let again = global::ensure_agent_auth(&sbx, "codex", Some(&auth), &none, None).await;
    assert!(!again.unwrap());
}

#[tokio::test]
async fn test_docker_sbx_applies_codex_backend_api_key_auth() {
    let setting = Setting::new("0.45.1");
    let auth = CodexAuth::OpenAiApiKeyEnv {
        variable: "OTHER".to_owned(),
        value: Some("other-key".to_owned()),
        service: "openai".to_owned(),
        refresh: false,
    };
    let none = SecretSources::default();
    global::ensure_agent_auth(&setting.sbx(), "codex", Some(&auth), &none, None).await.unwrap();
    assert_eq!(setting.stored("secrets")[0]["value"], "other-key");
}

#[test]
fn test_codex_auth_helpers() {
    let read = |name: &str| Some(format!("value of {name}"));
    let key = CodexAuth::named("openai_api_key_env", read).unwrap();
    let CodexAuth::OpenAiApiKeyEnv { variable, value, service, refresh } = key else { panic!() };
    assert_eq!((variable.as_str(), service.as_str()), ("OPENAI_API_KEY", "openai"));
    assert_eq!(value.as_deref(), Some("value of OPENAI_API_KEY"));
    assert!(!refresh);
}

#[test]
fn test_codex_accepts_string_auth() {
    let oauth = CodexAuth::named("openai_oauth", |_| None).unwrap();
    assert_eq!(oauth, CodexAuth::OpenAiOauth { refresh: false });
    assert_eq!(CodexAuth::named("host_chatgpt", |_| None).unwrap(), CodexAuth::HostChatGpt);
    assert_eq!(CodexAuth::named("none", |_| None).unwrap(), CodexAuth::None);
    assert!(CodexAuth::named("magic", |_| None).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_applies_network_allow_policy() {
    for version in ["0.30.0", "0.45.1"] {
        let setting = Setting::new(version);
        let hosts = ["a.example".to_owned(), "*.b.example:443".to_owned()];
        let client = setting.client(SbxOptions::new().network_allow(hosts));
        let session = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
        let allowed = setting.calls_of("policy");
        assert_eq!(allowed.len(), 1, "{allowed:?}");
        assert!(allowed[0].ends_with("a.example,*.b.example:443"), "{allowed:?}");
        let rules = setting.stored("rules");
        assert!(rules[0]["scope"].as_str().unwrap().starts_with("sandbox:bastide-"), "{rules:?}");
        session.delete().await.unwrap();
        assert_eq!(setting.stored("rules"), Vec::<Value>::new());
        assert_eq!(setting.stored("sandboxes"), Vec::<Value>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_network_is_a_rule_of_the_sandbox_or_is_refused() {
    for version in ["0.30.0", "0.45.1"] {
        let setting = Setting::new(version);
        let client = setting.client(SbxOptions::new());
        let session = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
        let rules = setting.stored("rules");
        assert_eq!(rules[0]["decision"], "deny", "{rules:?}");
        assert_eq!(rules[0]["resources"][0], "**", "{rules:?}");
        session.delete().await.unwrap();
        assert_eq!(setting.stored("rules"), Vec::<Value>::new());
    }
    let old = Setting::new("0.28.0");
    let client = old.client(SbxOptions::new());
    let refused = client.create(&Manifest::default(), CreateOptions::default()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(old.stored("sandboxes"), Vec::<Value>::new());
    let open = CreateOptions::default().network(NetworkAccess::Bridge);
    let session = client.create(&Manifest::default(), open).await.unwrap();
    session.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_a_session_are_its_own_and_go_with_it() {
    let setting = Setting::new("0.45.1");
    let client = setting.client(SbxOptions::new().secret("openai", "the-real-key"));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
    let secrets = setting.stored("secrets");
    assert!(secrets[0]["scope"].as_str().unwrap().starts_with("sandbox:"), "{secrets:?}");
    let env = session.exec(Command::shell("env; cat /proc/*/environ")).await.unwrap();
    let env = String::from_utf8_lossy(&env.stdout).into_owned();
    assert!(env.contains("OPENAI_API_KEY=proxy-managed"), "{env}");
    assert!(!env.contains("the-real-key"));
    assert!(!setting.calls().join("\n").contains("the-real-key"));
    session.delete().await.unwrap();
    assert_eq!(setting.stored("secrets"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_for_a_session_is_forgotten_with_it_and_one_that_was_there_stays() {
    let setting = Setting::new("0.45.1");
    let mut options = SbxOptions::new();
    options.oauth = vec!["openai".to_owned()];
    let session = setting
        .client(options.clone())
        .create(&Manifest::default(), CreateOptions::default())
        .await
        .unwrap();
    assert_eq!(setting.stored("secrets").len(), 1);
    session.delete().await.unwrap();
    assert_eq!(setting.stored("secrets"), Vec::<Value>::new());
    global::set_global_secret(&setting.sbx(), "openai", "mine", LONG).await.unwrap();
    let client = setting.client(options);
    let session = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
    session.delete().await.unwrap();
    assert_eq!(setting.stored("secrets")[0]["value"], "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn test_docker_sbx_syncs_host_codex_auth() {
    let setting = Setting::new("0.45.1");
    let login = setting.path("auth.json");
    fs::write(&login, "{\"auth_mode\": \"apikey\"}").unwrap();
    let client = setting.client(SbxOptions::new().codex_login(&login));
    let refused = client.create(&Manifest::default(), CreateOptions::default()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(setting.calls_of("create"), Vec::<String>::new());
    fs::write(&login, "{\"auth_mode\": \"chatgpt\", \"token\": \"t\"}").unwrap();
    let made = client.create(&Manifest::default(), CreateOptions::default()).await;
    let calls = setting.calls();
    let at = |part: &str| calls.iter().position(|call| call.contains(part));
    let folder = at("mkdir -p /home/agent/.codex").unwrap();
    let copied = at(":/home/agent/.codex/auth.json").unwrap();
    let owned = at("chown agent:agent /home/agent/.codex/auth.json && chmod 600").unwrap();
    assert!(folder < copied && copied < owned, "{calls:?}");
    // The stand-in has no user of that name.
    match made {
        Ok(session) => session.delete().await.unwrap(),
        Err(error) => assert!(error.to_string().contains("agent"), "{error}"),
    }
    assert_eq!(setting.stored("sandboxes"), Vec::<Value>::new());
}

fn granted(path: &Path, read_only: bool) -> PathGrant {
    let path = path.to_str().unwrap().to_owned();
    PathGrant { host_path: Some(path.clone()), path, read_only, description: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_granted_for_reading_only_is_tried_before_anything_runs() {
    let setting = Setting::new("0.45.1");
    let (open, closed) = (setting.path("open"), setting.path("open/closed"));
    fs::create_dir_all(&closed).unwrap();
    let grants = vec![granted(&open, false), granted(&closed, true)];
    let mut manifest = Manifest { extra_path_grants: grants, ..Manifest::default() };
    let client = setting.client(SbxOptions::new());
    let session = client.create(&manifest, CreateOptions::default()).await.unwrap();
    let line = format!("echo x > {0}/made; echo x > {0}/closed/made", open.display());
    session.exec(Command::shell(&line)).await.unwrap();
    session.delete().await.unwrap();
    assert!(open.join("made").exists() && !closed.join("made").exists());
    setting.stand_in.fault("writable").unwrap();
    let refused = client.create(&manifest, CreateOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("can be written to"), "{refused}");
    assert_eq!(setting.stored("sandboxes"), Vec::<Value>::new());
    // Only at its own path.
    manifest.extra_path_grants =
        vec![PathGrant { path: "/other".to_owned(), ..granted(&open, false) }];
    let refused = client.create(&manifest, CreateOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_call_fails_nothing_is_left_of_the_session() {
    for fault in ["create:1", "policy:1", "secret set:1", "cp:1", "exec:1"] {
        let setting = Setting::new("0.30.0");
        setting.stand_in.fault(fault).unwrap();
        let client = setting.client(SbxOptions::new().secret("openai", "k"));
        let failed = client.create(&Manifest::default(), CreateOptions::default()).await;
        let error = failed.unwrap_err().to_string();
        assert!(!error.is_empty(), "{fault}");
        setting.stand_in.fault("").unwrap();
        for name in ["sandboxes", "secrets", "rules"] {
            assert_eq!(setting.stored(name), Vec::<Value>::new(), "{fault}: {error}");
        }
        assert_eq!(client.list().await.unwrap().len(), 0, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_removes_sandboxes_of_this_home_that_no_session_leads_to_and_no_others() {
    let setting = Setting::new("0.45.1");
    let client = setting.client(SbxOptions::new());
    let session = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
    let names: Vec<String> =
        setting.sbx().list().await.unwrap().into_iter().map(|s| s.name).collect();
    // The home of the same sessions, as it would be if the folder were lost.
    let id = session.id().clone();
    let folder = setting.path("home").join("sessions").join(id.as_str());
    let other = setting.path("other");
    fs::create_dir(&other).unwrap();
    let program = setting.stand_in.program();
    let made = std::process::Command::new(program)
        .args(["create", "--name", "bastide-00000000-0123456789abcdef0123456789abcdef", "shell"])
        .arg(&other)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    drop(session);
    fs::rename(&folder, setting.path("lost")).unwrap();
    let swept = client.sweep_with(SweepOptions::default()).await.unwrap();
    assert!(swept.removed.iter().any(|one| one.what.contains(&names[0])), "{swept:?}");
    let left: Vec<_> = setting.sbx().list().await.unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    std::process::Command::new(program).args(["rm", "-f", "--all"]).output().unwrap();
}
