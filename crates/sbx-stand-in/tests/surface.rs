//! What the stand-in has of the documented program, called as people call it.
#![expect(clippy::unwrap_used, reason = "a test that has no place to work in cannot go on")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bastide_sbx_stand_in::StandIn;
use serde_json::Value;

struct Setting {
    folder: tempfile::TempDir,
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

    fn call(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.stand_in.program());
        command.args(words).current_dir(self.folder.path()).stdin(std::process::Stdio::null());
        command.output().unwrap()
    }

    /// A call that succeeds: what it says.
    fn ok(&self, words: &[&str]) -> String {
        let said = self.call(words);
        assert!(said.status.success(), "{words:?}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    }

    /// A call that fails: what it complains of.
    fn refused(&self, words: &[&str]) -> String {
        let said = self.call(words);
        assert!(!said.status.success(), "{words:?}: {said:?}");
        String::from_utf8(said.stderr).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }
}

fn git(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=n", "-c", "user.email=e@example.org"]).args(words);
    let said = command.current_dir(folder).output().unwrap();
    assert!(said.status.success(), "{words:?}: {said:?}");
    String::from_utf8(said.stdout).unwrap()
}

#[test]
fn a_clone_is_the_sandboxs_own_and_a_remote_of_the_repository() {
    let setting = Setting::new("0.45.1");
    let work = setting.path("work");
    fs::create_dir(&work).unwrap();
    let folder = work.to_str().unwrap();
    let refused = setting.refused(&["create", "--clone", "--name", "one", "shell", folder]);
    assert!(refused.contains("Git repository"), "{refused}");
    git(&work, &["init", "--quiet", "--initial-branch", "main"]);
    fs::write(work.join("a"), "one\n").unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "-m", "first"]);
    setting.ok(&["create", "--clone", "--name", "one", "shell", folder]);
    let script =
        "pwd && cat a && git -c user.name=n -c user.email=e@x commit -q --allow-empty -m second";
    let said = setting.ok(&["exec", "one", "sh", "-c", script]);
    assert_eq!(said, "/home/agent/workspace\none\n");
    let source = "cat /run/sandbox/source/a && ! touch /run/sandbox/source/b 2>/dev/null";
    assert_eq!(setting.ok(&["exec", "one", "sh", "-c", source]), "one\n");
    git(&work, &["fetch", "--quiet", "sandbox-one"]);
    assert_eq!(git(&work, &["log", "-1", "--format=%s", "sandbox-one/main"]), "second\n");
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]), "first\n");
    setting.ok(&["rm", "--force", "one"]);
    assert_eq!(git(&work, &["remote"]), "");
    let old = Setting::new("0.30.0");
    assert!(old.refused(&["create", "--clone", "shell", folder]).contains("unknown flag"));
}

#[test]
fn ports_are_published_and_listed() {
    let setting = Setting::new("0.45.1");
    let work = setting.path("work");
    fs::create_dir(&work).unwrap();
    setting.ok(&["create", "--name", "one", "shell", work.to_str().unwrap()]);
    assert_eq!(setting.json(&["ports", "one", "--json"]), serde_json::json!([]));
    let script = "import socket\ns = socket.create_server(('0.0.0.0', 8080))\nprint('up', flush=True)\n\
                  c, _ = s.accept()\nc.sendall(c.recv(9).upper())";
    let mut server = Command::new(setting.stand_in.program())
        .args(["exec", "one", "python3", "-c", script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    server.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    setting.ok(&["ports", "one", "--publish", "8080/tcp4"]);
    let listed = setting.json(&["ports", "one", "--json"]);
    assert_eq!(
        (&listed[0]["host_ip"], &listed[0]["sandbox_port"]),
        (&"127.0.0.1".into(), &8080.into())
    );
    assert_eq!(setting.json(&["ls", "--json"])["sandboxes"][0]["ports"], listed);
    let port = u16::try_from(listed[0]["host_port"].as_u64().unwrap()).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert_eq!(received, "HELLO");
    server.wait().unwrap();
    for wrong in ["0", "x", "1/sctp"] {
        assert!(setting.refused(&["ports", "one", "--publish", wrong]).contains("invalid port"));
    }
    setting.ok(&["stop", "one"]);
    assert!(setting.refused(&["ports", "one"]).contains("not running"));
    setting.ok(&["rm", "--force", "one"]);
}

#[test]
fn a_template_brings_the_disk_of_a_sandbox_to_another() {
    let setting = Setting::new("0.45.1");
    let work = setting.path("work");
    fs::create_dir(&work).unwrap();
    let folder = work.to_str().unwrap();
    setting.ok(&["create", "--name", "one", "shell", folder]);
    setting.ok(&["exec", "one", "sh", "-c", "echo kept > /home/agent/file"]);
    assert!(setting.refused(&["template", "save", "one", "t:1"]).contains("stopped"));
    setting.ok(&["stop", "one"]);
    let file = setting.path("t2.tar");
    setting.ok(&["template", "save", "one", "t:1", "-o", file.to_str().unwrap()]);
    setting.ok(&["template", "load", file.to_str().unwrap()]);
    assert_eq!(setting.ok(&["template", "ls", "-q"]), "t2\nt:1\n");
    for (tag, name) in [("t:1", "two"), ("t2", "three")] {
        setting.ok(&["create", "--pull", "never", "-t", tag, "--name", name, "shell", folder]);
        assert_eq!(setting.ok(&["exec", name, "cat", "/home/agent/file"]), "kept\n");
    }
    assert!(setting.refused(&["template", "rm", "t2"]).contains("confirmation"));
    setting.ok(&["template", "rm", "t2", "-f"]);
    assert_eq!(setting.json(&["template", "ls", "--json"])["templates"][0]["tag"], "t:1");
    setting.ok(&["rm", "--all", "--force"]);
}

/// The words that remove a rule.
fn removal<'a>(scope: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [&["policy", "rm", "network"], scope, rest].concat()
}

#[test]
fn rules_are_removed_by_number_or_by_what_they_are_about() {
    for version in ["0.30.0", "0.45.1"] {
        let setting = Setting::new(version);
        let work = setting.path("work");
        fs::create_dir(&work).unwrap();
        setting.ok(&["create", "--name", "one", "shell", work.to_str().unwrap()]);
        let scope: &[&str] = if version == "0.30.0" { &["one"] } else { &["--sandbox", "one"] };
        let global: &[&str] = if version == "0.30.0" { &["-g"] } else { &[] };
        let rule = |scope: &[&str], hosts: &str| {
            setting.ok(&[&["policy", "allow", "network"], scope, &[hosts]].concat())
        };
        rule(scope, "a.example,b.example");
        rule(global, "a.example");
        let count = || setting.json(&["policy", "ls", "--json"])["rules"].as_array().unwrap().len();
        assert_eq!(count(), 2);
        assert!(setting.refused(&removal(scope, &[])).contains("--id or --resource"));
        assert!(setting.refused(&removal(scope, &["--resource", "c"])).contains("no matching"));
        setting.ok(&removal(scope, &["--resource", "b.example"]));
        assert_eq!(count(), 1, "the other is everybody's");
        let id = setting.json(&["policy", "ls", "--json"])["rules"][0]["id"].clone();
        setting.ok(&removal(global, &["--id", id.as_str().unwrap()]));
        assert_eq!(count(), 0);
        let log = setting.json(&["policy", "log", "one", "--json"]);
        assert_eq!(log["blocked_hosts"], serde_json::json!([]));
        setting.ok(&["rm", "--force", "one"]);
    }
}
