//! What somebody meets who uses the tool for the first time.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Home, text};

/// What the tool says on standard error, with its exit code.
fn complaint(home: &Home, arguments: &[&str]) -> (Option<i32>, String) {
    let output = home.run(arguments);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn takes_names_wherever_an_id_goes() {
    let home = Home::new();
    let id = home.say(&["create", "--name", "web"]).trim().to_owned();
    assert_eq!(home.say(&["exec", "web", "--", "echo", "hi"]), "hi\n");
    assert_eq!(home.json(&["inspect", "--json", "web"])["name"], "web");
    assert_eq!(home.json(&["ls", "--json"])[0]["name"], "web");
    assert!(home.say(&["ls"]).trim_end().ends_with("\tweb"));
    fs::write(home.path().join("file"), "content\n").unwrap();
    home.say(&["cp", "file", "web:copy"]);
    assert_eq!(home.say(&["files", "cat", "web", "copy"]), "content\n");
    assert!(home.say(&["events", "web"]).contains("write"), "a name is known there, too");
    let (code, said) = complaint(&home, &["create", "--name", "web"]);
    assert_eq!(code, Some(125));
    assert!(said.contains(&format!("the name web belongs to session {id}")), "{said}");
    assert_eq!(home.folders(), std::slice::from_ref(&id), "what was refused left a folder");
    home.say(&["stop", "web"]);
    home.say(&["resume", "web"]);
    assert_eq!(home.json(&["rm", "--json", "web"]), json!([{ "id": id, "removed": true }]));
    assert!(!home.path().join("names/web").is_symlink(), "the name is still there");
    let again = home.say(&["create", "--name", "web"]);
    assert_ne!(again.trim(), id);
    for bad in ["Web", "-web", "0123456789abcdef0123456789abcdef", "a/b", "", ".."] {
        let (code, said) = complaint(&home, &["create", &format!("--name={bad}")]);
        assert_eq!(code, Some(125), "{bad}: {said}");
    }
}

#[test]
fn gives_one_name_to_one_of_many_at_once() {
    let home = Home::new();
    let made: Vec<_> = std::thread::scope(|scope| {
        let create = || scope.spawn(|| home.run(&["create", "--name", "one"]));
        let all: Vec<_> = std::iter::repeat_with(create).take(4).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let good = made.iter().filter(|output| output.status.code() == Some(0)).count();
    assert_eq!(good, 1);
    assert_eq!(home.json(&["ls", "--json"]).as_array().unwrap().len(), 1);
}

#[test]
fn removes_and_stops_what_it_can_and_says_the_rest() {
    let home = Home::new();
    let (one, other) = (home.create(), home.create());
    let (code, said) = complaint(&home, &["rm", &one, "nope", &other]);
    assert_eq!(code, Some(125));
    assert!(said.contains("there is no session nope"), "{said}");
    assert!(said.contains("`bastide ls` lists those there are"), "{said}");
    assert_eq!(home.folders(), Vec::<String>::new());
    home.create();
    let stopped = home.create();
    home.say(&["stop", &stopped]);
    assert_eq!(home.json(&["stop", "--all", "--json"]).as_array().unwrap().len(), 1);
    assert_eq!(home.json(&["rm", "--all", "--json"]).as_array().unwrap().len(), 2);
    assert_eq!(home.say(&["rm", "--all"]), "");
    assert_eq!(complaint(&home, &["rm"]).0, Some(125));
}

#[test]
fn starts_commands_as_they_are_asked_for() {
    let home = Home::new();
    let id = home.create();
    home.say(&["files", "mkdir", &id, "sub"]);
    let line = "echo $A $B; pwd";
    let arguments = ["exec", "-e", "A=1", "-e", "B", "-w", "sub", &id, "--", "sh", "-c", line];
    let output = home.command(&arguments).env("B", "mine").output().unwrap();
    assert_eq!(text(&output.stdout), "1 mine\n/workspace/sub\n", "{}", text(&output.stderr));
    let line = "echo $A; pwd; [ -t 1 ] && echo terminal";
    let said = home.say(&["run", "-t", "-e", "A=1", "-w", "/tmp", "--", "sh", "-c", line]);
    assert_eq!(said, "1\r\n/tmp\r\nterminal\r\n");
    let (code, said) = complaint(&home, &["exec", "-it", &id, "--", "sh"]);
    assert_eq!(code, Some(125));
    assert!(said.contains("are not both a terminal"), "{said}");
    assert!(home.say(&["files", "ls", &id]).contains("sub"));
}

#[test]
fn reads_standard_input_only_where_it_is_asked_to() {
    let home = Home::new();
    let id = home.create();
    let read = home.feed(&["exec", "-i", &id, "--", "cat"], b"in\n");
    assert_eq!(text(&read.stdout), "in\n", "{}", text(&read.stderr));
    let unread = home.feed(&["exec", &id, "--", "cat"], b"in\n");
    assert_eq!((unread.status.code(), text(&unread.stdout)), (Some(0), String::new()));
    // A loop that reads lines goes on.
    let mut shell = Command::new("sh");
    let line = "printf 'a\\nb\\nc\\n' | while read x; do \"$0\" exec $1 -- echo $x; done";
    shell.args(["-c", line, env!("CARGO_BIN_EXE_bastide")]);
    let output = home.wrapped(shell, &[&id]).output().unwrap();
    assert_eq!(text(&output.stdout), "a\nb\nc\n", "{}", text(&output.stderr));
}

#[test]
fn says_in_one_line_how_a_command_ended() {
    let home = Home::new();
    let id = home.create();
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["--timeout", "100ms", &id, "--", "sleep", "7611@"],
            124,
            "ended at its timeout of 100ms, with everything it started",
        ),
        (&[&id, "--", "sh", "-c", "kill -KILL $$"], 137, "ended by signal KILL (9)"),
        (&[&id, "--", "sh", "-c", "kill -TERM $$"], 143, "ended by signal TERM (15)"),
        (&[&id, "--", "sh", "-c", "kill -INT $$"], 130, ""),
        (
            &[&id, "--", "no-such-program"],
            127,
            "no-such-program: cannot execute the program: No such file or directory",
        ),
    ];
    for (arguments, want, line) in cases {
        let (code, said) = complaint(&home, &[&["exec"], arguments].concat());
        assert_eq!(code, Some(want), "{arguments:?}: {said}");
        let first = said.strip_prefix("bastide: ").unwrap_or(&said);
        assert!(first.starts_with(line) && said.lines().count() <= 1, "{arguments:?}: {said}");
        let (code, said) = complaint(&home, &[&["exec", "-q"], arguments].concat());
        assert_eq!((code, said.as_str()), (Some(want), ""), "{arguments:?}");
    }
}

#[test]
fn says_that_memory_ran_out() {
    let home = Home::new();
    let limit = ["run", "--memory", "100m"];
    let ran = home.json(&[&limit[..], &["--json", "--", "true"]].concat());
    let by = ran["receipt"]["limits"]["memory"]["enforced_by"].as_str().unwrap_or_default();
    if !by.starts_with("cgroup") {
        eprintln!("skipped: memory is bounded by {by:?} here, which tells nobody");
        return;
    }
    let line = ["--", "sh", "-c", "head -c 400000000 /dev/zero | tail -c 400000000 > /dev/null"];
    let (code, said) = complaint(&home, &[&limit[..], &line].concat());
    assert_eq!(code, Some(137), "{said}");
    let want =
        format!("bastide: killed because memory ran out: the limit is 100 MiB, enforced by {by}");
    assert_eq!(said.lines().last(), Some(want.as_str()), "{said}");
    let (_, said) = complaint(&home, &[&limit[..], &["-q"], &line].concat());
    assert!(!said.contains("memory ran out"), "{said}");
}

/// How long a name takes that cannot be resolved, at best of five times, and then the same with nobody to catch it.
const RESOLVE: &str = "
import socket, time
took = []
for _ in range(5):
    began = time.monotonic()
    try:
        socket.getaddrinfo('example.org', 443)
    except OSError:
        took.append(time.monotonic() - began)
print(min(took))
socket.getaddrinfo('example.org', 443)
";

#[test]
fn says_that_there_is_no_network() {
    let home = Home::new();
    let output = home.run(&["run", "--", "python3", "-c", RESOLVE]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let took: f64 = text(&output.stdout).trim().parse().unwrap();
    assert!(took < 0.05, "a name that cannot be resolved took {took} s");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.contains("network of this session is `none`") && last.contains("--network"),
        "{said}"
    );
    let (_, said) = complaint(&home, &["run", "--", "sh", "-c", "echo other >&2; exit 1"]);
    assert_eq!(said, "other\n");
}

/// What is installed from nowhere is given up at once: trying again, `pip` would take 13 s.
#[test]
fn gives_up_at_once_where_nothing_can_be_installed_from() {
    let home = Home::new();
    let id = home.create();
    let pip = |arguments: &[&str]| {
        let began = Instant::now();
        let line = [&["exec", &id, "--", "python3", "-m", "pip"], arguments].concat();
        (home.run(&line), began.elapsed())
    };
    // What Python takes to start counts for nothing: on a machine that others use, that is a second by itself.
    let (output, starting) = pip(&["--version"]);
    if !output.status.success() {
        eprintln!("skipped: pip is not installed: {}", text(&output.stderr));
        return;
    }
    let (output, took) = pip(&["install", "--target", "libraries", "six"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("network of this session is `none`"), "{said}");
    let most = starting + Duration::from_secs(2);
    assert!(took < most, "pip took {took:?}, of which {starting:?} to start");
}

#[test]
fn reads_a_manifest_from_standard_input() {
    let home = Home::new();
    for manifest in [
        "entries: {a: {type: file, content: x}}\n",
        "{\"entries\": {\"a\": {\"type\": \"file\", \"content\": \"x\"}}}",
    ] {
        let output = home.feed(&["run", "--manifest", "-", "--", "cat", "a"], manifest.as_bytes());
        assert_eq!(text(&output.stdout), "x", "{}", text(&output.stderr));
    }
    let output = home.feed(&["run", "--manifest", "-", "--", "true"], b"entries: 7\n");
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("standard input"), "{}", text(&output.stderr));
}

#[test]
fn says_that_a_workspace_is_not_there() {
    let home = Home::of_anybody_but_root();
    let (code, said) = complaint(&home, &["run", "--workspace", "/no/such/folder", "--", "true"]);
    assert_eq!(code, Some(125));
    assert!(said.contains("it is not there") && !said.contains("denied"), "{said}");
}

#[test]
fn writes_a_manifest_that_works_and_never_over_another() {
    let home = Home::new();
    home.say(&["init"]);
    let said = home.say(&["run", "--manifest", "bastide.yaml", "--", "sh", "hello.sh"]);
    assert!(said.starts_with("Hello from "), "{said}");
    let (code, said) = complaint(&home, &["init"]);
    assert_eq!(code, Some(125));
    assert!(said.contains("bastide.yaml is there already"), "{said}");
}

#[test]
fn ends_its_examination_with_what_to_do() {
    let home = Home::new();
    let said = home.say(&["doctor"]);
    assert!(said.lines().last().unwrap_or_default().starts_with("next  "), "{said}");
}

#[test]
fn offers_every_backend() {
    let home = Home::new();
    let help = home.say(&["run", "--help"]);
    for backend in ["local", "docker", "sbx", "kubernetes"] {
        assert!(help.contains(&format!("- {backend}")), "{backend}: {help}");
    }
}

/// Written by `cargo xtask docs`.
#[test]
fn has_a_page_of_every_command() {
    let home = Home::new();
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md")).unwrap();
    assert!(
        home.say(&["man", "--markdown"]) == page,
        "docs/cli.md is not what `cargo xtask docs` writes"
    );
}

/// What prints something for programs takes `--json`: all but a shell, archives, pages, and what is JSON anyway.
#[test]
fn takes_json_wherever_something_is_printed_for_programs() {
    const OTHERS: [&str; 6] =
        ["shell", "audit prove", "audit check", "snapshot export", "completions", "man"];
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md")).unwrap();
    let sections = page.split("\n## ").flat_map(|part| part.split("\n### ")).skip(1);
    // Groups of commands have no line of use.
    let mut commands = sections.filter(|section| section.contains("```text")).peekable();
    assert!(commands.peek().is_some(), "there is no command");
    for command in commands {
        let name = command.lines().next().unwrap().trim_start_matches("bastide ");
        assert_eq!(command.contains("- `--json`"), !OTHERS.contains(&name), "{name}");
    }
}

#[test]
fn has_a_page_of_every_variable() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = fs::read_to_string(format!("{top}/docs/configuration.md")).unwrap();
    let source = fs::read_to_string(format!("{top}/crates/cli/src/config.rs")).unwrap();
    let is_name = |text: &&str| {
        text.len() > 2
            && text
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit())
    };
    let names: Vec<_> = source.split('"').skip(1).step_by(2).filter(is_name).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(page.contains(name), "{name} is not in docs/configuration.md");
    }
}

/// No telemetry: whatever is called on an ordinary day, nothing is connected to but by sockets of this machine. A trace
/// ends with the last process of it, so nothing is called here that leaves a session running.
#[test]
fn makes_no_connection_that_nobody_asked_for() {
    if Command::new("strace").arg("--version").output().is_err() {
        eprintln!("skipped: strace is not installed");
        return;
    }
    let home = Home::new();
    let trace = home.path().join("trace");
    let traced = |arguments: &[&str]| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o"]).arg(&trace);
        let output = home.around(strace, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        let calls = fs::read_to_string(&trace).unwrap();
        let outside = calls.lines().filter(|call| call.contains("AF_INET"));
        assert_eq!(outside.collect::<Vec<_>>(), Vec::<&str>::new(), "{arguments:?}");
        text(&output.stdout).trim().to_owned()
    };
    let id = home.create();
    for arguments in [
        &["--version"][..],
        &["ls"],
        &["exec", &id, "--", "true"],
        &["files", "ls", &id],
        &["inspect", &id],
        &["events", &id],
        &["audit", "verify", &id],
        &["run", "--", "true"],
        &["stop", &id],
        &["snapshot", "ls"],
        &["sweep"],
        &["rm", &id],
    ] {
        traced(arguments);
    }
}
