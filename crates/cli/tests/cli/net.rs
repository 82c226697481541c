//! Networks that have a policy, as the command line has them.

use std::path::PathBuf;

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
