//! Networks that have a policy, as the command line has them.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::harness::{Home, text};

const POLICY: &str = "rules:\n\
    - allow: api.test\n  http: [{methods: [GET], paths: ['/v1/**']}]\n\
    - deny: bad.test\n  reason: ask Ops\n\
    - ask: '*'\n";

fn write(home: &Home, policy: &str) -> PathBuf {
    std::fs::create_dir_all(home.path()).unwrap();
    let path = home.path().join("net.yaml");
    std::fs::write(&path, policy).unwrap();
    path
}

#[test]
fn explains_a_policy_and_answers_by_exit_status() {
    let home = Home::new();
    let path = write(&home, POLICY);
    let explain = |words: &[&str]| {
        let mut all = vec!["net", "explain", "--policy", path.to_str().unwrap()];
        all.extend(words);
        home.run(&all)
    };
    for (words, code) in [
        (&["https://api.test/v1/things"][..], 0),
        (&["https://bad.test/"], 1),
        (&["https://other.test/"], 3),
        (&["https://api.test/v1/things", "-X", "POST"], 3),
        (&["10.0.0.1:443"], 1),
    ] {
        let output = explain(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    }
    let said = text(&explain(&["https://bad.test/"]).stdout);
    assert!(said.contains("ask Ops") && said.contains("line 4"), "{said}");
    let output = explain(&["https://api.test/v1/things", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["decision"], &found["read"]), (&json!("allow"), &json!(true)));
    let output = explain(&["https://bad.test/", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["decision"], &found["read"]), (&json!("deny"), &json!(false)));
    for bad in ["https://", "ftp://a.test/", "a.test", "https://a.test:0/", "https://a.test/%00"] {
        let output = explain(&[bad]);
        assert!(text(&output.stderr).contains("is no place"), "{bad}: {}", text(&output.stderr));
    }
}

#[test]
fn refuses_by_name_before_anything_is_made() {
    let home = Home::new();
    let wrong = write(&home, "rules:\n- allow: api.test\n  ports: [0]\n");
    let wrong = wrong.to_str().unwrap();
    for (arguments, said) in [
        (&["--allow", "a.test", "--isolation", "landlock"][..], "needs the rung `namespaces`"),
        (&["--allow", "a.test", "--isolation", "unconfined"], "needs the rung `namespaces`"),
        (&["--allow", "a.test", "--backend", "kubernetes", "--image", "none"], "kubernetes"),
        (&["--allow", "a.test", "--network", "host"], "not for `host`"),
        (&["--network", "policy"], "needs a policy"),
        (&["--policy", wrong], "rules.0.ports"),
        (&["--allow", "a..test"], "--allow a..test"),
        (&["--secret", "KEY=env:NOBODY@a.test"], "no rule lets commands reach a.test"),
        (&["--allow", "a.test", "--secret", "KEY=env:NOBODY_SET@a.test"], "the secret KEY"),
        (&["--allow", "@nowhere"], "@nowhere"),
    ] {
        let mut all = vec!["create"];
        all.extend(arguments);
        let output = home.run(&all);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
    }
    assert_eq!(home.json(&["ls", "--json"]), json!([]));
}

#[test]
fn shows_and_changes_the_network_of_a_session() {
    let home = Home::new();
    let output = home.run(&["create", "--allow", "api.test", "--allow", "db.test:5432"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let id = text(&output.stdout).trim().to_owned();
    let inspected = home.json(&["inspect", &id, "--json"]);
    assert_eq!(inspected["receipt"]["network"], "policy");
    assert_eq!(inspected["egress"]["rules"], 2);
    assert!(inspected["egress"]["pid"].as_u64().is_some_and(|pid| pid > 1), "{inspected}");
    let shown = home.json(&["net", "show", &id, "--json"]);
    assert_eq!(shown["ports"], json!([80, 443, 5432]));
    let explained = |url: &str| home.run(&["net", "explain", &id, url]).status.code();
    assert_eq!((explained("https://api.test/"), explained("https://c.test/")), (Some(0), Some(1)));
    let path = write(&home, "rules:\n- allow: c.test\n  ports: [8443]\n");
    let output = home.run(&["net", "set", &id, path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!((explained("https://api.test/"), explained("c.test:8443")), (Some(1), Some(0)));
    let shown = home.json(&["net", "show", &id, "--json"]);
    assert_eq!(shown["ports"], json!([80, 443, 8443]));
    assert_eq!(home.run(&["net", "log", &id, "--json"]).status.code(), Some(0));
    assert_eq!(home.json(&["net", "suggest", &id, "--json"]), json!([]));
    for how in ["--once", "--session", "--deny"] {
        let output = home.run(&["net", "approve", &id, "77", how]);
        assert_ne!(output.status.code(), Some(0));
        let said = text(&output.stderr);
        assert!(said.contains("nothing waits under number 77"), "{how}: {said}");
    }
    assert_eq!(home.run(&["rm", &id]).status.code(), Some(0));
    let plain = text(&home.run(&["create"]).stdout).trim().to_owned();
    let output = home.run(&["net", "show", &plain]);
    assert!(text(&output.stderr).contains("has no policy"), "{}", text(&output.stderr));
    assert_eq!(home.run(&["rm", &plain]).status.code(), Some(0));
}

/// What was refused is on record as refused, and a stopped session can be given what a running one cannot.
#[test]
fn says_what_became_of_another_policy() {
    let home = Home::new();
    let output = home.run(&["create", "--allow", "api.test"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let id = text(&output.stdout).trim().to_owned();
    let reads = write(&home, "rules:\n- allow: api.test\n  http: [{methods: [GET]}]\n");
    let set = || home.run(&["net", "set", &id, reads.to_str().unwrap()]);
    let output = set();
    assert_ne!(output.status.code(), Some(0));
    let said = text(&output.stderr);
    assert!(said.contains("has TLS read") && said.contains("stop the session"), "{said}");
    let states = || {
        let said = text(&home.run(&["events", &id, "--json"]).stdout);
        let lines = said.lines().filter_map(|line| serde_json::from_str(line).ok());
        let states = lines
            .filter_map(|line: serde_json::Value| Some(line.get("state")?.as_str()?.to_owned()));
        states.collect::<Vec<_>>()
    };
    let found = states();
    assert!(found.iter().any(|state| state == "network_policy_unchanged"), "{found:?}");
    assert!(!found.iter().any(|state| state == "network_policy"), "{found:?}");
    assert_eq!(home.run(&["stop", &id]).status.code(), Some(0));
    let output = home.run(&["net", "show", &id]);
    let said = text(&output.stderr);
    assert!(said.contains("does not run") && said.contains("resume"), "{said}");
    let output = set();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(states().iter().any(|state| state == "network_policy"));
    let explained = home.run(&["net", "explain", &id, "https://api.test/", "-X", "POST"]);
    assert_eq!(explained.status.code(), Some(1));
    assert_eq!(home.run(&["rm", &id]).status.code(), Some(0));
    assert!(!home.path().join("audit/.egress").join(&id).exists());
}

#[test]
fn reads_no_policy_in_part() {
    let home = Home::new();
    let long = format!("rules:\n- allow: a.test\n#{}\n- deny: a.test\n", "x".repeat(1 << 20));
    let path = write(&home, &long);
    for arguments in
        [&["create", "--policy"][..], &["net", "explain", "https://a.test/", "--policy"]]
    {
        let output = home.run(&[arguments, &[path.to_str().unwrap()]].concat());
        assert_ne!(output.status.code(), Some(0));
        assert!(text(&output.stderr).contains("more than 1 MiB"), "{}", text(&output.stderr));
    }
}

/// A folder somebody works in is anybody's: what it says of mirrors would open whatever its author likes, also places that
/// only this machine reaches.
#[test]
fn takes_no_place_of_a_preset_from_the_project_it_runs_in() {
    let home = Home::new();
    let policy = write(&home, "rules:\n- allow: ['@npm', '@git']\n");
    let project = home.path().join("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join(".npmrc"), "registry=http://npm.evil.test:8123/\n").unwrap();
    let repository = project.join(".git");
    for arguments in
        [&["init", "-q"][..], &["config", "url.http://git.evil.test:8123/.insteadof", "https://x/"]]
    {
        let git = Command::new("git").current_dir(&project).args(arguments).status().unwrap();
        assert!(git.success());
    }
    for host in ["npm", "git"] {
        let place = format!("http://{host}.evil.test:8123/");
        let mut explain =
            home.command(&["net", "explain", "--policy", policy.to_str().unwrap(), &place]);
        // As in a hook of git.
        explain.current_dir(&project).env("GIT_DIR", &repository);
        let output = explain.output().unwrap();
        let said = [text(&output.stdout), text(&output.stderr)].concat();
        assert_eq!(output.status.code(), Some(1), "{host}: {said}");
    }
}

/// A server of packages on loopback, whose certificate is of an authority of its own.
struct Mirror {
    server: Child,
    folder: tempfile::TempDir,
    port: String,
}

impl Mirror {
    /// None where a program is missing that it is made with.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).current_dir(folder.path()).env("HOME", folder.path());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn()
        };
        let prepare = include_str!("../../../testkit/data/package_server.sh");
        let prepared = in_folder("sh", &["-c", prepare]).unwrap().wait().unwrap();
        let server = include_str!("../../../testkit/data/package_server.py");
        let arguments = ["-c", server, "served", "cert.pem", "key.pem", "3"];
        let mut server = in_folder("python3", &arguments).ok().filter(|_| prepared.success())?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split_whitespace().next().unwrap().to_owned();
        Some(Self { server, folder, port })
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

/// Settings of package managers, in a folder that no session sees: a mirror whose certificate is of an authority that
/// nobody else trusts.
fn mirrored(folder: &Path, mirror: &Mirror) {
    let at = format!("https://packages.test:{}", mirror.port);
    let secret = "-----BEGIN PRIVATE KEY-----\nkept-outside\n-----END PRIVATE KEY-----\n";
    let authority = folder.join("authority.pem");
    let certificate = fs::read_to_string(mirror.folder.path().join("ca.pem")).unwrap();
    fs::write(&authority, [secret, &certificate].concat()).unwrap();
    let authority = authority.display();
    let index = at.replace("://", "://me:kept-outside@");
    for (name, content) in [
        ("pip.conf", format!("[global]\nindex-url = {index}/simple/\ncert = {authority}\n")),
        (".npmrc", format!("registry={at}/\ncafile={authority}\n")),
        (
            "config.toml",
            format!(
                "[source.crates-io]\nreplace-with = 'own'\n[source.own]\nregistry = 'sparse+{index}/index/'\n\
                 [http]\ncainfo = '{authority}'\n"
            ),
        ),
        (
            ".gitconfig",
            format!(
                "[url \"{index}/git/\"]\n insteadOf = https://github.com/\n[http]\n sslCAInfo = {authority}\n"
            ),
        ),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
}

/// What each of them is to do inside, unconfigured.
const MANAGERS: [(&str, &str); 4] = [
    (
        "python3 -m pip",
        "python3 -m pip install -q --disable-pip-version-check --no-cache-dir --target lib tiny && ls lib/tiny.py",
    ),
    (
        "npm",
        "for name in package.json package-lock.json; do \
         curl -sS --cacert $npm_config_cafile -o $name ${npm_config_registry}$name || exit 1; done; \
         npm ci --no-audit --no-fund --loglevel=error --cache=$PWD/cache && ls node_modules/package-2/package.json",
    ),
    (
        "cargo",
        "mkdir -p own/src && touch own/src/lib.rs && cd own && printf '[package]\\nname = \"own\"\\nversion = \
         \"1.0.0\"\\nedition = \"2021\"\\n[dependencies]\\nsmall = \"1\"\\n' > Cargo.toml && cargo fetch -q && \
         ls $HOME/.cargo/registry/cache/*/small-1.0.0.crate",
    ),
    ("git", "git clone -q https://github.com/repo.git clone && git -C clone log -1 --format=%s"),
];

#[test]
fn leads_package_managers_to_a_mirror_whose_authority_only_they_trust() {
    let Some(mirror) = Mirror::start() else {
        return eprintln!("skipped: there is no openssl, git or Python to serve packages with");
    };
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    mirrored(folder.path(), &mirror);
    // Toolchains are where they were: only their settings are others.
    let toolchains = env::var_os("RUSTUP_HOME").or_else(|| {
        let own = PathBuf::from(env::var_os("HOME")?);
        Some(own.join(".rustup").into())
    });
    for (manager, line) in MANAGERS {
        let found = Command::new("sh").args(["-c", &format!("{manager} --version")]).output();
        if !found.is_ok_and(|found| found.status.success()) {
            eprintln!("skipped: there is no {manager}");
            continue;
        }
        // What they are told, and what of the machine's they may not see.
        let line = format!(
            "{line} && ! env | grep kept-outside && ! cat /run/accounts/* /.cargo/config.toml | grep kept-outside"
        );
        for reads in [false, true] {
            let read = "  http: [{methods: [GET, POST]}]\n";
            let roots = mirror.folder.path().join("ca.pem");
            let roots = format!("upstream: {{roots: '{}'}}\n", roots.display());
            let (read, roots) = if reads { (read, roots.as_str()) } else { ("", "") };
            let rules = format!(
                "rules:\n- allow: ['@pip', '@npm', '@cargo', '@git']\n{read}hosts: {{packages.test: 127.0.0.1}}\n{roots}"
            );
            let policy = write(&home, &rules);
            let policy = policy.to_str().unwrap();
            let mut run = home.command(&["run", "--policy", policy, "--", "sh", "-c", &line]);
            run.env("PATH", env::var_os("PATH").unwrap_or_default()).env("HOME", folder.path());
            run.envs(toolchains.iter().map(|path| ("RUSTUP_HOME", path)));
            run.env("CARGO_HOME", folder.path());
            run.env("PIP_CONFIG_FILE", folder.path().join("pip.conf"));
            let output = run.output().unwrap();
            let said = [text(&output.stdout), text(&output.stderr)].concat();
            assert_eq!(output.status.code(), Some(0), "{manager}, read: {reads}: {said}");
        }
    }
}
