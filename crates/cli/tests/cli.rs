//! The command line tool, as a script would use it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output};

/// A home of its own for each test, and nothing of the caller's environment.
fn bastide(home: &Path, arguments: &[&str]) -> Output {
    command(Command::new(env!("CARGO_BIN_EXE_bastide")), home, arguments)
}

fn command(mut command: Command, home: &Path, arguments: &[&str]) -> Output {
    command.args(arguments).env_clear().env("BASTIDE_HOME", home);
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(home).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What of a session could be left: its folder, or a process that names its home.
fn leftovers(home: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(home.join("sessions")).unwrap();
    folders.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn runs_the_example_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello.yaml");
    let output =
        bastide(home.path(), &["run", "-v", "--manifest", manifest, "--", "sh", "hello.sh"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("Hello from bastide-"), "{stdout}");
    assert!(stdout.ends_with("I see 2 things here:\nhello.sh\nnotes\n"), "{stdout}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("rung     namespaces") && stderr.contains("network  none"), "{stderr}");
    assert_eq!(leftovers(home.path()), Vec::<String>::new());
}

#[test]
fn keeps_quiet_without_being_asked() {
    let home = tempfile::tempdir().unwrap();
    let output = bastide(home.path(), &["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    let said = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(said, (Some(3), "out\n".to_owned(), "err\n".to_owned()));
}

#[test]
fn exits_as_a_shell_would() {
    let home = tempfile::tempdir().unwrap();
    let cases: &[(&[&str], i32)] = &[
        (&["run", "--", "true"], 0),
        (&["run", "--", "no-such-program"], 127),
        (&["run", "--", "/etc/passwd"], 126),
        (&["run", "--", "sh", "-c", "kill -TERM $$"], 143),
        (&["run", "--manifest", "missing.yaml", "--", "true"], 125),
        (&["run"], 2),
    ];
    for (arguments, want) in cases {
        let output = bastide(home.path(), arguments);
        assert_eq!(output.status.code(), Some(*want), "{arguments:?}: {}", text(&output.stderr));
    }
    assert_eq!(leftovers(home.path()), Vec::<String>::new());
}

#[test]
fn ends_a_stubborn_tree_at_the_timeout() {
    let home = tempfile::tempdir().unwrap();
    let tree =
        "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 7201' &); (sleep 7202 &); sleep 7203";
    let output = bastide(home.path(), &["run", "--timeout", "1s", "--", "sh", "-c", tree]);
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    for entry in std::fs::read_dir("/proc").unwrap() {
        let line = std::fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
        assert!(!text_lossy(&line).starts_with("sleep\u{0}720"), "a process is left");
    }
}

fn text_lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn points_at_the_line_of_a_mistake() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("bad.yaml"), "entries:\n  a:\n    type: fil\n").unwrap();
    let output = bastide(home.path(), &["run", "--manifest", "bad.yaml", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("bad.yaml:3:5: entries.a.type:"), "{stderr}");
    assert!(stderr.contains("did you mean `file`?"), "{stderr}");
}

#[test]
fn refuses_where_user_namespaces_are_forbidden() {
    let home = tempfile::tempdir().unwrap();
    // In a user namespace of its own, anybody may forbid further ones.
    let mut forbid = Command::new("unshare");
    let line = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    forbid.args(["--user", "--map-root-user", "sh", "-c", line, "sh"]);
    forbid.arg(env!("CARGO_BIN_EXE_bastide"));
    let output = command(forbid, home.path(), &["run", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("forbids user namespaces"), "{stderr}");
    assert!(stderr.contains("sudo sysctl -w user.max_user_namespaces="), "{stderr}");
}
