//! `bastide run`.

use std::process::Command;

use crate::harness::{Home, end, is_running, text, until};

#[test]
fn runs_the_example_and_leaves_nothing() {
    let home = Home::new();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello.yaml");
    let output = home.run(&["run", "-v", "--manifest", manifest, "--", "sh", "hello.sh"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("Hello from bastide-"), "{stdout}");
    assert!(stdout.ends_with("I see 2 things here:\nhello.sh\nnotes\n"), "{stdout}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("rung     namespaces") && stderr.contains("network  none"), "{stderr}");
    assert_eq!(home.folders(), Vec::<String>::new());
    assert!(
        !home.path().join("state.db").exists(),
        "a session that is over at once is not indexed"
    );
}

#[test]
fn keeps_quiet_without_being_asked() {
    let home = Home::new();
    let output = home.run(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    let said = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(said, (Some(3), "out\n".to_owned(), "err\n".to_owned()));
}

#[test]
fn exits_as_a_shell_would() {
    let home = Home::new();
    let cases: &[(&[&str], i32)] = &[
        (&["run", "--", "true"], 0),
        (&["run", "--", "no-such-program"], 127),
        (&["run", "--", "/etc/passwd"], 126),
        (&["run", "--", "sh", "-c", "kill -TERM $$"], 143),
        (&["run", "--timeout", "100ms", "--", "sleep", "7600@"], 124),
        (&["run", "--manifest", "missing.yaml", "--", "true"], 125),
        (&["run"], 125),
        (&["walk"], 125),
        (&["run", "--timeout", "soon", "--", "true"], 125),
        (&["--help"], 0),
        (&["--version"], 0),
    ];
    for (arguments, want) in cases {
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(*want), "{arguments:?}: {}", text(&output.stderr));
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn ends_a_stubborn_tree_at_the_timeout() {
    let home = Home::new();
    let tree = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 7201@' &); (sleep 7202@ &); sleep 7203@";
    let output = home.run(&["run", "--timeout", "1s", "--", "sh", "-c", tree]);
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    for line in ["sleep 7201@", "sleep 7202@", "sleep 7203@"] {
        assert!(!is_running(line), "{line} is left");
    }
}

#[test]
fn hands_its_input_to_the_command() {
    let home = Home::new();
    let input: Vec<u8> = (0..=u8::MAX).cycle().take(1_000_000).collect();
    let output = home.feed(&["run", "--", "cat"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == input, "the input came back changed");
    // A command that does not read it is not held up by it.
    let output = home.feed(&["run", "--", "echo", "done"], &input);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "done\n".to_owned()));
}

#[test]
fn ends_with_whoever_reads_its_output() {
    let home = Home::new();
    let mut line = Command::new("sh");
    line.args(["-c", "\"$0\" run -- yes | head -n 1; echo done"]);
    line.arg(env!("CARGO_BIN_EXE_bastide"));
    let output = home.wrapped(line, &[]).output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("y\ndone\n".into(), String::new()));
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn ends_the_session_when_it_is_interrupted() {
    let home = Home::new();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let line = "trap '' INT TERM; echo up; while :; do sleep 7601@; done";
        let mut child = home.start(&["run", "--", "sh", "-c", line], "up");
        crate::harness::kill(i32::try_from(child.id()).unwrap(), signal);
        assert_eq!(end(&mut child).code(), Some(code), "{signal}");
        assert_eq!(home.folders(), Vec::<String>::new());
        assert!(!is_running("sleep 7601@"));
    }
}

#[test]
fn ends_the_session_when_it_is_killed() {
    let home = Home::new();
    let mut child = home.start(&["run", "--", "sh", "-c", "echo up; sleep 7602@"], "up");
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing of it is left", || home.folders().is_empty() && home.processes().is_empty());
    assert!(!is_running("sleep 7602@"));
}

#[test]
fn points_at_the_line_of_a_mistake() {
    let home = Home::new();
    std::fs::write(home.path().join("bad.yaml"), "entries:\n  a:\n    type: fil\n").unwrap();
    let output = home.run(&["run", "--manifest", "bad.yaml", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("bad.yaml:3:5: entries.a.type:"), "{stderr}");
    assert!(stderr.contains("did you mean `file`?"), "{stderr}");
}

#[test]
fn refuses_where_user_namespaces_are_forbidden() {
    let home = Home::new();
    // In a user namespace of its own, anybody may forbid further ones.
    let mut forbid = Command::new("unshare");
    let line = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    forbid.args(["--user", "--map-root-user", "sh", "-c", line, "sh"]);
    forbid.arg(env!("CARGO_BIN_EXE_bastide"));
    let output = home.wrapped(forbid, &["run", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("forbids user namespaces"), "{stderr}");
    assert!(stderr.contains("sudo sysctl -w user.max_user_namespaces="), "{stderr}");
    assert_eq!(home.folders(), Vec::<String>::new());
}
