//! `bastide run`.

use std::process::Command;

use crate::harness::{Home, end, is_running, read_until, text, until};

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

/// Whoever starts the tool with `&` or `nohup` has it ignore signals; commands do not.
#[test]
fn commands_ignore_and_block_nothing_they_did_not_choose() {
    let home = Home::new();
    let status = ["grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status"];
    for rung in ["namespaces", "landlock"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' INT HUP TERM QUIT USR1; exec \"$@\"", "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_bastide"));
        let arguments = [&["run", "--isolation", rung, "--"][..], &status].concat();
        let output = home.wrapped(shell, &arguments).output().unwrap();
        let nothing = "0000000000000000";
        let want = format!("SigBlk:\t{nothing}\nSigIgn:\t{nothing}\n");
        assert_eq!(text(&output.stdout), want, "{rung}: {}", text(&output.stderr));
    }
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
    let output = home.feed(&["run", "-i", "--", "cat"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == input, "the input came back changed");
    // A command that does not read it is not held up by it.
    let output = home.feed(&["run", "-i", "--", "echo", "done"], &input);
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
        let line = "trap 'echo INT' INT; trap 'echo TERM' TERM; echo up; while :; do sleep 7601@ & wait; done";
        let mut child = home.start(&["run", "-q", "--", "sh", "-c", line], "up");
        let pid = i32::try_from(child.id()).unwrap();
        // As it is, then as TERM; the third kills.
        for heard in [signal, "TERM"] {
            crate::harness::kill(pid, signal);
            read_until(child.stdout.as_mut().unwrap(), heard);
        }
        crate::harness::kill(pid, signal);
        assert_eq!(end(&mut child).code(), Some(code), "{signal}");
        assert_eq!(home.folders(), Vec::<String>::new());
        assert!(!is_running("sleep 7601@"));
    }
}

/// One signal, and a command that does not care.
#[test]
fn kills_ten_seconds_after_it_was_interrupted() {
    let home = Home::new();
    let line = "trap '' INT TERM; echo up; while :; do sleep 7604@; done";
    let mut child = home.start(&["run", "-q", "--", "sh", "-c", line], "up");
    let began = std::time::Instant::now();
    crate::harness::kill(i32::try_from(child.id()).unwrap(), "INT");
    assert_eq!(end(&mut child).code(), Some(130));
    assert!(began.elapsed().as_secs() >= 9, "it had {:?}", began.elapsed());
    assert_eq!(home.folders(), Vec::<String>::new());
    assert!(!is_running("sleep 7604@"));
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

/// Runs the tool where something was taken away: in a user namespace of its own, anybody may do that.
fn deprived(home: &Home, line: &str, arguments: &[&str]) -> std::process::Output {
    let mut deprive = Command::new("unshare");
    let line = format!("{line} && exec \"$@\"");
    deprive.args(["--user", "--map-root-user", "--mount", "sh", "-c", &line, "sh"]);
    home.around(deprive, arguments).output().unwrap()
}

const NO_USER_NAMESPACES: &str = "echo 0 > /proc/sys/user/max_user_namespaces";

/// What makes a container one for the kernel: part of `/proc` is covered, so no new one can be mounted.
const COVERED_PROC: &str = "mount --bind /dev/null /proc/uptime";

/// What commands must not get hold of, wherever they stand.
const PROBE: &str =
    "cat /etc/shadow 2>/dev/null; grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status";

fn stands_on_landlock(line: &str) {
    let home = Home::of_anybody_but_root();
    let output = deprived(&home, line, &["run", "--json", "--", "sh", "-c", PROBE]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["receipt"]["rung"], "landlock");
    assert_eq!(report["stdout"], "NoNewPrivs:\t1\nSeccomp:\t2\n");
    assert!(!report["receipt"]["not_enforced"].as_array().unwrap().is_empty());
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn t14_stands_on_the_lower_rung_where_user_namespaces_are_forbidden() {
    stands_on_landlock(NO_USER_NAMESPACES);
}

#[test]
fn t15_stands_on_the_lower_rung_where_proc_is_covered_as_in_a_container() {
    stands_on_landlock(COVERED_PROC);
}

#[test]
fn a_rung_asked_for_by_name_works_or_fails() {
    let home = Home::of_anybody_but_root();
    let named = ["run", "--isolation", "namespaces", "--", "true"];
    let output = deprived(&home, NO_USER_NAMESPACES, &named);
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("forbids user namespaces"), "{stderr}");
    assert!(stderr.contains("sudo sysctl -w user.max_user_namespaces="), "{stderr}");
    let output = deprived(&home, COVERED_PROC, &named);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("proc"), "{}", text(&output.stderr));
    for rung in ["namespaces", "landlock", "unconfined"] {
        let output = home.run(&["run", "--json", "--isolation", rung, "--", "true"]);
        assert_eq!(output.status.code(), Some(0), "{rung}: {}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["receipt"]["rung"], rung);
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}

/// What each rung can do here, and what would help where it cannot.
#[test]
fn doctor_says_what_this_machine_can_enforce() {
    let home = Home::of_anybody_but_root();
    let found = home.json(&["doctor", "--json"]);
    assert_eq!(found["auto"], "namespaces");
    let rungs = found["rungs"].as_array().unwrap();
    assert_eq!(
        rungs.iter().map(|rung| &rung["rung"]).collect::<Vec<_>>(),
        ["namespaces", "landlock"]
    );
    for rung in rungs {
        assert_eq!(rung["works"], true, "{rung}");
        let missing: Vec<_> = rung["missing"].as_array().unwrap().iter().collect();
        // Whatever the receipt does not hold is named here too.
        for gap in rung["receipt"]["not_enforced"].as_array().unwrap() {
            assert!(missing.iter().any(|missing| missing["what"] == *gap), "{gap} in {rung}");
        }
    }
    let people = home.say(&["doctor"]);
    assert!(people.contains("namespaces  works") && people.contains("auto        namespaces"));

    let forbidden = deprived(&home, NO_USER_NAMESPACES, &["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&forbidden.stdout).unwrap();
    assert_eq!(found["auto"], "landlock");
    assert_eq!(found["rungs"][0]["works"], false);
    let fix = found["rungs"][0]["missing"][0]["fix"].as_str().unwrap();
    assert_eq!(fix, "sudo sysctl -w user.max_user_namespaces=15000");
    let covered = deprived(&home, COVERED_PROC, &["doctor"]);
    assert!(text(&covered.stdout).contains("systempaths=unconfined"), "{}", text(&covered.stdout));
    assert_eq!(home.folders(), Vec::<String>::new());
}

/// A name service module of somebody else's would be loaded into whoever asks the C library for a name.
/// The control shows that it is: a program that asks leaves a mark. Nothing of ours does.
#[test]
fn boots_in_a_root_whose_name_service_is_hostile() {
    let home = Home::of_anybody_but_root();
    let module = "#include <fcntl.h>\n__attribute__((constructor)) static void mark(void) \
                  { creat(MARK, 0666); }\n";
    std::fs::write(home.path().join("evil.c"), module).unwrap();
    std::fs::write(home.path().join("nsswitch.conf"), "passwd: evil\ngroup: evil\n").unwrap();
    let mark = home.path().join("mark");
    let define = format!("-DMARK=\"{}\"", mark.display());
    let mut compile = Command::new("cc");
    compile.current_dir(home.path()).args(["-shared", "-fPIC", &define, "-o", "libnss_evil.so.2"]);
    let folder = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let folder = folder.into_iter().find(|folder| std::path::Path::new(folder).is_dir());
    let (Ok(true), Some(folder)) = (compile.arg("evil.c").status().map(|s| s.success()), folder)
    else {
        return;
    };
    // In a mount namespace of its own anybody may put a module among the system's.
    let place = home.path().display();
    let hostile = format!(
        "cd {place} && mkdir -p over && mount -t tmpfs none over && mkdir over/up over/work && \
         cp libnss_evil.so.2 over/up && mount -t overlay -o \
         lowerdir={folder},upperdir=over/up,workdir=over/work none {folder} && \
         mount --bind nsswitch.conf /etc/nsswitch.conf"
    );
    let control =
        deprived(&home, &format!("{hostile} && {{ getent passwd x; true; }}"), &["--version"]);
    if !control.status.success() || !mark.exists() {
        // This machine cannot be made hostile in this way.
        return;
    }
    std::fs::remove_file(&mark).unwrap();
    for rung in ["namespaces", "landlock", "unconfined"] {
        let arguments = ["run", "-v", "--isolation", rung, "--", "/bin/true"];
        let output = deprived(&home, &hostile, &arguments);
        assert_eq!(output.status.code(), Some(0), "{rung}: {}", text(&output.stderr));
        assert!(!mark.exists(), "{rung}: the module was loaded");
    }
}

#[test]
fn says_without_being_asked_which_limit_does_not_hold() {
    let home = Home::new();
    let arguments = ["run", "--isolation", "landlock", "--memory", "1G", "--pids", "50"];
    let output = home.run(&[&arguments[..], &["--json", "--", "true"]].concat());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let open = said["receipt"]["not_enforced"].as_array().unwrap();
    let open = open.iter().filter_map(serde_json::Value::as_str);
    let about_limits = |gap: &&str| gap.starts_with("the limit on") || gap.contains("as a whole");
    let unheld: Vec<_> = open.filter(about_limits).collect();
    let output = home.run(&[&arguments[..], &["--", "true"]].concat());
    let stderr = text(&output.stderr);
    for gap in &unheld {
        assert!(stderr.contains(gap), "nothing is said of {gap:?}: {stderr}");
    }
    assert_eq!(stderr.is_empty(), unheld.is_empty(), "{stderr}");
}

#[test]
fn makes_no_folder_for_a_workspace_it_refuses() {
    let home = Home::new();
    let refused = home.run(&["run", "--workspace", "/usr/bastide-refused/inner", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("cannot be a workspace"), "{}", text(&refused.stderr));
    assert!(!std::path::Path::new("/usr/bastide-refused").exists());
    let elsewhere = tempfile::tempdir().unwrap();
    let made = elsewhere.path().join("made/inner");
    home.say(&["run", "--workspace", made.to_str().unwrap(), "--", "touch", "file"]);
    assert!(made.join("file").exists());
}
