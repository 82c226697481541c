//! Sessions that stay.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::harness::{Home, SOON, end, is_running, text, until};

#[test]
fn makes_uses_and_removes_a_session() {
    let home = Home::new();
    let id = home.create();
    assert_eq!(home.say(&["exec", &id, "--", "sh", "-c", "echo kept > file; pwd"]), "/workspace\n");
    assert_eq!(home.say(&["exec", &id, "--", "cat", "file"]), "kept\n");
    assert_eq!(home.say(&["exec", "-w", "/tmp", &id, "--", "pwd"]), "/tmp\n");
    home.say(&["exec", &id, "--", "mkdir", "-p", "a/b"]);
    assert_eq!(home.say(&["exec", &id, "-w", "a/b", "--", "pwd"]), "/workspace/a/b\n");
    let listed = home.say(&["ls"]);
    let listed: Vec<_> = listed.trim_end().split('\t').collect();
    assert_eq!((listed[0], listed[1], listed[2]), (id.as_str(), "running", "local"));
    assert!(home.say(&["inspect", &id]).starts_with(&format!("id\t{id}\nstate\trunning\n")));
    // The beginning of a name is enough where it is the only one.
    assert_eq!(home.say(&["exec", &id[..6], "--", "cat", "file"]), "kept\n");
    home.say(&["rm", &id]);
    home.say(&["rm", &id]);
    assert_eq!(home.say(&["ls"]), "");
    assert!(home.folders().is_empty() && home.processes().is_empty());
    assert_eq!(home.sweep(), Vec::<String>::new());
}

#[test]
fn exec_exits_as_a_shell_would() {
    let home = Home::new();
    let id = home.create();
    let cases: &[(&[&str], i32)] = &[
        (&["--", "true"], 0),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "no-such-program"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["--", "sh", "-c", "kill -9 $$"], 137),
        (&["--timeout", "100ms", "--", "sleep", "7800@"], 124),
        (&["-u", "nobody-we-know", "--", "true"], 125),
        (&["-w", "../..", "--", "true"], 125),
        (&[], 125),
    ];
    for (arguments, want) in cases {
        let output = home.run(&[&["exec", &id], *arguments].concat());
        assert_eq!(output.status.code(), Some(*want), "{arguments:?}: {}", text(&output.stderr));
    }
    // Somebody else may be, where the machine has ids for others; else it says what would give some.
    let output = home.run(&["exec", "-u", "4242", &id, "--", "id", "-u"]);
    match output.status.code() {
        Some(0) => assert_eq!(text(&output.stdout), "4242\n"),
        code => {
            assert_eq!(code, Some(125));
            assert!(text(&output.stderr).contains("nothing can be done as 4242"));
        }
    }
    // The session's own user may be named.
    let user = home.say(&["exec", &id, "--", "id", "-un"]);
    assert_eq!(home.say(&["exec", "-u", user.trim(), &id, "--", "id", "-un"]), user);
}

#[test]
fn sets_the_environment() {
    let home = Home::new();
    std::fs::write(
        home.path().join("m.yaml"),
        "environment:\n  value:\n    A: file\n    B: file\n",
    )
    .unwrap();
    let mut command = home.command(&["create", "--manifest", "m.yaml", "--env", "A=line"]);
    command.env("LANG", "C.UTF-8").env("SECRET", "s").env("TMPDIR", "/somewhere/else");
    let id = text(&command.output().unwrap().stdout).trim().to_owned();
    let line = "echo $A $B $LANG ${SECRET-unset} ${TMPDIR-unset}";
    let said = home.say(&["exec", &id, "--", "sh", "-c", line]);
    assert_eq!(said, "line file C.UTF-8 unset unset\n");
}

#[test]
fn outlives_everybody_who_had_to_do_with_its_making() {
    let home = Home::new();
    // A session of processes of its own, all of which are killed, the maker included.
    let mut line = Command::new("setsid");
    line.args(["sh", "-c", "\"$0\" create; kill -KILL 0"]).arg(env!("CARGO_BIN_EXE_bastide"));
    let output = home.wrapped(line, &[]).output().unwrap();
    let id = text(&output.stdout).trim().to_owned();
    assert_eq!(home.say(&["exec", &id, "--", "echo", "here"]), "here\n");
    home.say(&["rm", &id]);
}

#[test]
fn runs_processes_by_themselves() {
    let home = Home::new();
    let id = home.create();
    let line = "echo one; until [ -e go ]; do sleep 0.01; done; echo two; exit 4";
    let process = home.say(&["exec", "-d", &id, "--", "sh", "-c", line]);
    let process = process.trim();
    let listed = home.json(&["ps", "--json", &id]);
    assert_eq!(listed[0]["process"].to_string(), process);
    assert_eq!(listed[0]["state"], "running");
    assert!(home.say(&["ps", &id]).starts_with(&format!("{process}\trunning\t")));
    home.say(&["exec", &id, "--", "touch", "go"]);
    let output = home.run(&["attach", &id, process]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(4), "one\ntwo\n".to_owned()));
    let output = home.run(&["attach", "--from", "4", &id, process]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(4), "two\n".to_owned()));
    assert_eq!(home.run(&["attach", &id, "4711"]).status.code(), Some(125));
    let output = home.run(&["attach", "--json", &id, process]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["stdout"]), (Some(4), &"one\ntwo\n".into()));
    assert_eq!(report["reason"], "exited");

    let process = home.say(&["exec", "-d", &id, "--", "sleep", "7801@"]);
    until("it runs", || is_running("sleep 7801@"));
    home.say(&["kill", &id, process.trim()]);
    assert_eq!(home.run(&["attach", &id, process.trim()]).status.code(), Some(143));
    assert!(!is_running("sleep 7801@"));
    assert_eq!(home.run(&["kill", &id, process.trim(), "TERM"]).status.code(), Some(125));
}

#[test]
fn reads_a_shell_from_its_input() {
    let home = Home::new();
    let id = home.create();
    let output = home.feed(&["shell", &id], b"echo here\npwd\nexit 9\n");
    assert_eq!(output.status.code(), Some(9), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "here\n/workspace\n");
}

#[test]
fn opens_a_shell_on_a_terminal() {
    let home = Home::new();
    let id = home.create();
    let mut line = Command::new("script");
    let shell = format!("{} shell {id}", env!("CARGO_BIN_EXE_bastide"));
    line.args(["--quiet", "--return", "--command", &shell, "/dev/null"]);
    let mut command = home.wrapped(line, &[]);
    let Ok(mut child) = command.stdin(std::process::Stdio::piped()).spawn() else {
        eprintln!("skipped: there is no `script` to make a terminal with");
        return;
    };
    // It hangs up at the end of its input, so that must not come before the end of the shell.
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(b"stty -echo; [ -t 0 ] && echo $((6 * 7)) is a terminal; exit 5\n").unwrap();
    let status = end(&mut child);
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("42 is a terminal"), "{said}");
    assert_eq!(status.code(), Some(5));
}

#[test]
fn publishes_a_port_that_stays_where_it_is() {
    let home = Home::new();
    let id = home.create();
    let server = "
        import socket
        s = socket.create_server(('127.0.0.1', 8000))
        open('up', 'w').close()
        while True:
            c, _ = s.accept()
            c.sendall(b'hello ' + c.recv(100))
            c.close()
    ";
    let server = server.replace("\n        ", "\n");
    if home.run(&["exec", &id, "--", "python3", "-c", "pass"]).status.code() != Some(0) {
        eprintln!("skipped: there is no python3 to serve with");
        return;
    }
    let address = home.say(&["port", &id, "8000"]);
    home.say(&["exec", "-d", &id, "--", "python3", "-c", &server]);
    home.say(&["exec", &id, "--", "sh", "-c", "until [ -e up ]; do sleep 0.01; done"]);
    for _ in 0..3 {
        assert_eq!(home.say(&["port", &id, "8000"]), address, "the address changed");
        let mut stream = TcpStream::connect(address.trim()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"you").unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hello you");
    }
    let endpoint = home.json(&["port", "--json", &id, "8000"]);
    assert_eq!(endpoint["url"], format!("http://{}/", address.trim()));
    home.say(&["rm", &id]);
    until("the port is closed", || TcpStream::connect(address.trim()).is_err());
}

#[test]
fn prints_completions_and_the_manual() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(home.say(&["completions", shell]).contains("bastide"), "{shell}");
    }
    assert!(home.say(&["man"]).contains(".TH bastide 1"));
    home.say(&["man", "--out", "pages"]);
    assert!(home.path().join("pages/bastide-exec.1").exists());
}

#[test]
fn stops_and_resumes() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("m.json");
    std::fs::create_dir_all(folder.path().join("src/empty")).unwrap();
    std::fs::write(folder.path().join("src/a"), "from the host").unwrap();
    let entries = r#"{"entries": {
        "in": {"type": "local_dir", "src": "src"},
        "fresh": {"type": "file", "content": "new", "ephemeral": true}
    }}"#;
    std::fs::write(&manifest, entries).unwrap();
    let id = home.say(&["create", "--manifest", manifest.to_str().unwrap()]).trim().to_owned();
    assert_eq!(home.say(&["exec", &id, "--", "cat", "in/a", "fresh"]), "from the hostnew");
    home.say(&["exec", &id, "--", "sh", "-c", "echo kept > file; echo old > fresh; ls in/empty"]);
    home.say(&["exec", "-d", &id, "--", "sleep", "7811"]);

    home.say(&["stop", &id]);
    assert!(home.processes().is_empty(), "nothing of it runs");
    assert!(home.say(&["inspect", &id]).contains("state\tstopped\n"));
    let refused = home.run(&["exec", &id, "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains(&format!("bastide resume {id}")));
    assert_eq!(
        home.say(&["stop", "--json", &id]).trim(),
        format!(r#"[{{"id":"{id}","state":"stopped","left_out":[]}}]"#)
    );

    assert_eq!(home.say(&["resume", &id]).trim(), id);
    assert_eq!(
        home.say(&["exec", &id, "--", "cat", "file", "fresh", "in/a"]),
        "kept\nnewfrom the host"
    );
    assert!(home.say(&["resume", "--json", &id]).contains(&format!(r#""id":"{id}""#)), "it runs");
    home.say(&["rm", &id]);
    assert!(home.folders().is_empty() && home.processes().is_empty());
}
