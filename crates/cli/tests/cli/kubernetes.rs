//! Sessions on a Kubernetes cluster, as far as they can be tried without one. With one, see
//! `backends/kubernetes/tests`.

use std::fs;

use serde_json::Value;

use crate::harness::{Home, text};

/// What must be in no message.
const SECRET: &str = "s3cr3t-t0ken";

#[test]
fn prints_what_an_administrator_applies() {
    let home = Home::new();
    let printed = home.say(&["kubernetes", "manifest", "--namespace", "team-7"]);
    for part in
        ["kind: Role\n", "pods/exec", "namespace: team-7", "enforce: restricted", "bastide-closed"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let object = home.json(&["kubernetes", "manifest", "-n", "team-7", "--json"]);
    assert_eq!(object["manifest"].as_str().unwrap().trim_end(), printed.trim_end());
    let refused = home.run(&["kubernetes", "manifest", "-n", "a: {b}"]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
}

#[test]
fn refuses_by_name_what_pods_do_not_have_and_what_others_do_not() {
    let home = Home::new();
    let pod = ["run", "--backend", "kubernetes", "--image", "x", "--json"];
    let patch = home.path().join("patch.yaml");
    fs::write(&patch, "spec: {hostPID: true}").unwrap();
    let patch = patch.to_str().unwrap();
    let table: [(&[&str], &str); 10] = [
        (&["--pod-patch", patch], "spec.hostPID"),
        (&["--pod-patch", "nothing.yaml"], "--pod-patch"),
        (&["--workspace", "."], "--workspace"),
        (&["--runtime", "runsc"], "--runtime"),
        (&["--cap-add", "NET_ADMIN"], "--cap-add"),
        (&["--isolation", "landlock"], "--isolation"),
        (&["--sbx-allow", "a.example"], "--sbx-allow"),
        (&["--pull-secret", "../x"], "--pull-secret"),
        (&["--volume", "ten"], "--volume"),
        (&["--only-user", "0"], "--only-user"),
    ];
    for (given, option) in table {
        let words = [&pod[..], given, &["--", "true"]].concat();
        check_refused(&home, &words, option);
    }
    let table: [(&[&str], &str); 6] = [
        (&["--pod-patch", patch], "--pod-patch"),
        (&["--namespace", "x"], "--namespace"),
        (&["--runtime-class", "gvisor"], "--runtime-class"),
        (&["--many-users"], "--many-users"),
        (&["--network", "egress"], "--network"),
        (&["--network", "unproved"], "--network"),
    ];
    for (given, option) in table {
        let words = [&["run", "--json"][..], given, &["--", "true"]].concat();
        check_refused(&home, &words, option);
    }
    assert!(home.folders().is_empty(), "nothing is left of any of them");
}

fn check_refused(home: &Home, words: &[&str], option: &str) {
    let output = home.run(words);
    assert_eq!(output.status.code(), Some(125), "{words:?}: {}", text(&output.stderr));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(error.to_string().contains(option), "{words:?}: {error}");
}

#[test]
fn says_that_there_is_no_such_context_and_no_such_server() {
    let home = Home::new();
    let file = home.path().join("kubeconfig");
    let config = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}],
          users: [{{name: u, user: {{token: {SECRET}}}}}], contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}"
    );
    fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap();
    let asked = ["run", "--backend", "kubernetes", "--image", "x", "--kubeconfig", file];
    for (given, word) in [(&["--context", "other"][..], "other"), (&[], "127.0.0.1:1")] {
        let output = home.run(&[&asked[..], given, &["--", "true"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(word) && !said.contains(SECRET), "{said}");
    }
    assert!(home.folders().is_empty(), "nothing is left of any of them");
    let found = home.json(&["doctor", "--backend", "kubernetes", "--kubeconfig", file, "--json"]);
    assert_eq!(found["kubernetes"]["works"], false);
    assert!(!found.to_string().contains(SECRET), "{found}");
}
