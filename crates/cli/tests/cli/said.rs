//! Everything a newcomer reads, in one file that a person can read: `said.txt`, help and errors as they are printed.
//! `BASTIDE_TEST_UPDATE=1` writes it anew.

use std::fs;

use crate::harness::{Home, text};

/// The file.
const SAID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/said.txt");

/// Command lines whose words are held. `ID` is a session that runs.
const LINES: &[&str] = &[
    "--help",
    "run -h",
    "create -h",
    "exec -h",
    "shell -h",
    "ps -h",
    "attach -h",
    "kill -h",
    "cp -h",
    "files -h",
    "ls -h",
    "inspect -h",
    "events -h",
    "audit -h",
    "port -h",
    "mounts -h",
    "lease -h",
    "stats -h",
    "net -h",
    "net show -h",
    "net set -h",
    "net explain -h",
    "net log -h",
    "net approve -h",
    "net suggest -h",
    "stop -h",
    "resume -h",
    "rm -h",
    "snapshot -h",
    "snapshot save -h",
    "snapshot restore -h",
    "snapshot ls -h",
    "snapshot push -h",
    "snapshot gc -h",
    "checkpoint -h",
    "log -h",
    "diff -h",
    "undo -h",
    "redo -h",
    "restore -h",
    "fork -h",
    "merge -h",
    "bisect -h",
    "agent -h",
    "agent run -h",
    "agent ls -h",
    "agent show -h",
    "sweep -h",
    "sbx -h",
    "kubernetes -h",
    "doctor -h",
    "init -h",
    "walk",
    "run",
    "run --nonsense -- true",
    "run --timeout soon -- true",
    "run --memory much -- true",
    "run --manifest missing.yaml -- true",
    "run --manifest wrong.yaml -- true",
    "run --workspace /proc/no/such -- true",
    "run --workspace /etc -- true",
    "run --image debian -- true",
    "run --backend kubernetes -- true",
    "run --backend docker -- true",
    "run -t --json -- true",
    "run --snapshot nobody -- true",
    "run -- no-such-program",
    "run -- /etc/passwd",
    "run -w missing -- true",
    "create --name Wrong",
    "create --name taken",
    "exec nobody -- true",
    "exec -it ID -- sh",
    "exec --timeout 100ms ID -- sleep 60",
    "exec -w ../.. ID -- true",
    "inspect nobody",
    "attach ID 99",
    "kill ID 99",
    "kill ID 1 BANG",
    "cp here there",
    "cp ID:missing here",
    "cp missing ID:there",
    "files cat ID missing",
    "files cat ID /etc/passwd",
    "files ls ID missing",
    "port ID 0",
    "rm",
    "rm nobody",
    "stop nobody",
    "resume nobody",
    "undo ID",
    "snapshot rm nobody",
    "audit verify nobody",
];

#[test]
fn says_what_it_said() {
    let home = Home::new();
    let id = home.say(&["create", "--name", "taken"]).trim().to_owned();
    fs::write(home.path().join("wrong.yaml"), "entries:\n  a:\n    type: fil\n").unwrap();
    let mut said = String::new();
    for line in LINES {
        let words: Vec<&str> = line.split(' ').collect();
        let words: Vec<String> = words.iter().map(|word| word.replace("ID", &id)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = home.command(&words).env("COLUMNS", "120").output().unwrap();
        let code = output.status.code().unwrap_or(-1);
        said.push_str(&format!("$ bastide {line}\n"));
        for part in [text(&output.stdout), text(&output.stderr)] {
            let part = part.replace(&id, "ID").replace(&home.path().display().to_string(), "HOME");
            for line in part.lines() {
                said.push_str(format!("  {line}").trim_end());
                said.push('\n');
            }
        }
        said.push_str(&format!("  => {code}\n\n"));
    }
    if std::env::var_os("BASTIDE_TEST_UPDATE").is_some() {
        fs::write(SAID, &said).unwrap();
    }
    let held = fs::read_to_string(SAID).unwrap_or_default();
    let differs = held.lines().zip(said.lines()).find(|(held, said)| held != said);
    assert!(
        held == said,
        "the first line that differs: {differs:?}; look at it, then BASTIDE_TEST_UPDATE=1"
    );
}
