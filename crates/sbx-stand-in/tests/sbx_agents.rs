//! The Python package sbx-agents 0.1.0 drives the stand-in and gets what it expects.
#![expect(clippy::unwrap_used, reason = "a test that has no place to work in cannot go on")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bastide_sbx_stand_in::StandIn;

/// What the package is asked to do.
const SCRIPT: &str = r#"
import sys
from pathlib import Path
from sbx_agents import Agent, Runner
from sbx_agents.backends import Codex, Shell
from sbx_agents.sandboxes import DockerSbxSandbox

work = Path(sys.argv[1])
DockerSbxSandbox.check_available()
DockerSbxSandbox.check_ready()
assert not DockerSbxSandbox.has_global_secret("openai")
shell = Agent(name="a", backend=Shell())
box = DockerSbxSandbox(workspace=work, name="mine", cpus=2, memory="1g")
result = Runner.run_sync(shell, sandbox=box, prompt="echo hello; sed -i s/one/1/ README.md; exit 3")
assert (result.returncode, result.stdout) == (3, "hello\n"), result
assert "\n-one\n+1\n" in result.diff, result.diff
again = Runner.run_sync(shell, sandbox=box, prompt="cat README.md")
assert again.stdout == "1\n", again
box.put_file("made", "x\n")
assert Runner.run_sync(shell, sandbox=box, prompt="cat made").stdout == "x\n"
DockerSbxSandbox.set_global_secret("openai", "k")
assert DockerSbxSandbox.has_global_secret("openai")
codex = DockerSbxSandbox(workspace=work, name="other", network_allow=["a.example"])
result = Runner.run_sync(Agent(name="c", backend=Codex()), sandbox=codex, prompt="fix")
assert result.stdout == "codex exec fix\n", result
"#;

/// A Python with the package, beside what cargo builds; it is made if it can be.
fn python() -> Option<PathBuf> {
    let built = std::env::current_exe().unwrap();
    let target = built.ancestors().find(|folder| folder.ends_with("target"))?;
    let folder = target.join("sbx-agents");
    let python = folder.join("bin/python");
    let has = |python: &Path| {
        let asked = Command::new(python).args(["-c", "import sbx_agents"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    if !has(&python) {
        Command::new("python3").args(["-m", "venv"]).arg(&folder).output().ok()?;
        let pip = ["-m", "pip", "--quiet", "--timeout", "15", "install", "sbx-agents==0.1.0"];
        Command::new(&python).args(pip).output().ok()?;
    }
    has(&python).then_some(python)
}

#[test]
fn sbx_agents_gets_what_it_expects() {
    let Some(python) = python() else {
        eprintln!("skipped: sbx-agents 0.1.0 cannot be installed from PyPI");
        return;
    };
    let folder = Command::new("mktemp").arg("-d").output().unwrap();
    let folder = PathBuf::from(String::from_utf8(folder.stdout).unwrap().trim());
    // The release that the package was written for.
    let stand_in = StandIn::install(&folder.join("sbx"), "0.28.0").unwrap();
    let work = folder.join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("README.md"), "one\n").unwrap();
    for words in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "first"]] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=n", "-c", "user.email=e"]).args(words);
        assert!(git.current_dir(&work).status().unwrap().success());
    }
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", stand_in.bin().display());
    let ran: Output =
        Command::new(python).args(["-c", SCRIPT]).arg(&work).env("PATH", path).output().unwrap();
    Command::new(stand_in.program()).args(["rm", "-f", "--all"]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let calls = stand_in.calls().unwrap();
    let policy = ["policy", "allow", "network", "a.example,api.openai.com:443"];
    assert!(calls.iter().any(|call| call[..] == policy), "{calls:?}");
    drop(std::fs::remove_dir_all(folder));
}
