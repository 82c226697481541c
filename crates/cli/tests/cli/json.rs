//! What programs read.

use serde_json::{Value, json};

use crate::harness::{Home, parent, text};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn check_receipt(receipt: &Value) {
    assert_eq!(receipt["rung"], "namespaces");
    assert_eq!(receipt["network"], "none");
    assert!(receipt["user"].is_string() && receipt["not_enforced"].is_array(), "{receipt}");
    assert_eq!(receipt["points"], "store");
    for limit in ["memory", "pids", "cpu", "disk"] {
        assert_eq!(keys(&receipt["limits"][limit]), ["asked", "enforced_by"]);
    }
}

#[test]
fn reports_a_command_as_one_object() {
    let home = Home::new();
    let output = home.run(&["run", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(3), String::new()));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let want = [
        "id",
        "exit_code",
        "reason",
        "stdout",
        "stderr",
        "truncated",
        "duration_ms",
        "usage",
        "receipt",
    ];
    assert_eq!(keys(&report), want);
    assert_eq!(report["id"].as_str().unwrap().len(), 32);
    assert_eq!((&report["exit_code"], &report["reason"]), (&json!(3), &json!("exited")));
    assert_eq!((&report["stdout"], &report["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(report["truncated"], false);
    assert!(report["duration_ms"].is_u64());
    check_receipt(&report["receipt"]);
}

#[test]
fn keeps_bytes_that_are_no_text() {
    let home = Home::new();
    let report = home.json(&["run", "--json", "--", "printf", "a\\377b"]);
    assert_eq!(report["stdout_b64"], "Yf9i");
    assert_eq!(report["stdout"], "a\u{fffd}b");
    assert!(report.get("stderr_b64").is_none());
}

#[test]
fn bounds_what_it_keeps_and_says_so() {
    let home = Home::new();
    let line = "echo first; yes | head -c 40000000; echo last";
    let report = home.json(&["run", "--json", "--", "sh", "-c", line]);
    assert_eq!(report["truncated"], true);
    let stdout = report["stdout"].as_str().unwrap();
    assert!(stdout.len() < 20_000_000, "{}", stdout.len());
    assert!(stdout.starts_with("first\ny\n") && stdout.ends_with("last\n"));
}

#[test]
fn tells_how_a_command_ended() {
    let home = Home::new();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "--json", "--", "sh", "-c", "kill -9 $$"], 137, "signalled"),
        (&["run", "--json", "--timeout", "100ms", "--", "sleep", "7700@"], 124, "timeout"),
        (&["run", "--json", "--", "no-such-program"], 127, "not_started"),
    ];
    for (arguments, code, reason) in cases {
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["exit_code"], &report["reason"]), (&json!(code), &json!(reason)));
    }
}

#[test]
fn describes_a_session() {
    let home = Home::new();
    let created = home.json(&["create", "--json"]);
    let id = created["id"].as_str().unwrap();
    check_receipt(&created["receipt"]);
    let session = home.json(&["inspect", "--json", id]);
    for key in ["id", "state", "backend", "root", "guest", "receipt"] {
        assert!(session.get(key).is_some(), "{key} is missing: {session}");
    }
    assert_eq!((&session["id"], &session["state"]), (&json!(id), &json!("running")));
    assert_eq!((&session["backend"], &session["root"]), (&json!("local"), &json!("/workspace")));
    check_receipt(&session["receipt"]);
    // An ordinary user may not look at the guest itself, but at the first process, its parent.
    let pid = i32::try_from(session["guest"]["pid"].as_i64().unwrap()).unwrap();
    assert!(home.processes().contains(&parent(pid)), "the guest is process {pid}");
    let all = home.json(&["ls", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), 1);
    assert_eq!(all[0]["id"], id);
    assert_eq!(home.json(&["rm", "--json", id]), json!([{ "id": id, "removed": true }]));
    assert_eq!(home.json(&["rm", "--json", id]), json!([{ "id": id, "removed": false }]));
    assert_eq!(home.json(&["ls", "--json"]), json!([]));
}

/// The failure a program reads from standard error.
fn failure(home: &Home, arguments: &[&str]) -> Value {
    let output = home.run(arguments);
    assert_eq!(output.status.code(), Some(125), "{arguments:?}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    let stderr = text(&output.stderr);
    let failure: Value = serde_json::from_str(&stderr).unwrap_or_default();
    assert!(failure.is_object(), "{stderr}");
    assert_eq!(keys(&failure), ["error"]);
    assert_eq!(keys(&failure["error"]), ["code", "message", "hint", "context"]);
    failure["error"].clone()
}

#[test]
fn reports_failures_as_objects() {
    let home = Home::new();
    let unknown = "0123456789abcdef0123456789abcdef";
    assert_eq!(failure(&home, &["inspect", "--json", unknown])["code"], "not_found");
    assert_eq!(failure(&home, &["exec", "--json", unknown, "--", "true"])["code"], "not_found");
    assert_eq!(failure(&home, &["inspect", "--json", "nobody"])["code"], "not_found");
    assert_eq!(failure(&home, &["run", "--json"])["code"], "invalid_input");
    assert_eq!(
        failure(&home, &["run", "--json", "--nonsense", "--", "x"])["code"],
        "invalid_input"
    );
    // What belongs to the command is not ours to read.
    let output = home.run(&["walk", "--", "--json"]);
    assert!(text(&output.stderr).starts_with("error:"), "{}", text(&output.stderr));
}

#[test]
fn refuses_what_it_cannot_do_by_name() {
    let home = Home::new();
    let cases: &[&[&str]] =
        &[&["--namespace", "x"], &["--image", "debian"], &["--sbx-allow", "a.example"]];
    for case in cases {
        for task in ["run", "create"] {
            let mut arguments = vec![task, "--json"];
            arguments.extend(*case);
            if task == "run" {
                arguments.extend(["--", "true"]);
            }
            let error = failure(&home, &arguments);
            assert_eq!(error["code"], "unsupported", "{arguments:?}");
            assert_eq!(error["context"]["option"], case[0], "{arguments:?}");
        }
    }
    for isolation in ["auto", "namespaces"] {
        home.say(&["run", "--isolation", isolation, "--", "true"]);
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn says_what_enforces_each_limit() {
    let home = Home::new();
    let ran = home.json(&["run", "--json", "--memory", "1g", "--pids", "100", "--", "true"]);
    let limits = &ran["receipt"]["limits"];
    assert_eq!(keys(limits), ["memory", "pids", "cpu", "disk"]);
    assert_eq!(
        (&limits["memory"]["asked"], &limits["pids"]["asked"]),
        (&Value::from(1_073_741_824), &Value::from(100))
    );
    assert!(
        limits["memory"]["enforced_by"].is_string() && limits["pids"]["enforced_by"].is_string()
    );
    assert!(limits["cpu"]["asked"].is_null() && limits["disk"]["enforced_by"].is_null());
}
