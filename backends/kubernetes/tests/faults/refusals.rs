//! What a cluster does not have, or does not allow: each is one failure that names the thing, soon, and nothing is left.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind, GuestPath};
use bastide_kubernetes::{
    ClaimMount, ClusterAccess, ClusterReport, KubernetesOptions, PodPull, VolumeRequest,
};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for};
use bastide_testkit::trials;
use serde_json::{Value, json};

use crate::{NAMESPACE, administer, backend_with, objects, until};

pub(crate) const TRIALS: &[Trial] =
    trials![names_what_the_cluster_does_not_have, names_each_verb_that_is_missing];

/// How soon a refusal is there, that of a pod which never has a node included.
const SOON: Duration = Duration::from_secs(60);

type Change = fn(&mut KubernetesOptions);

const TABLE: [(&str, ErrorKind, &str, Change); 10] = [
    ("a queue that nobody keeps", ErrorKind::Timeout, "the queue nothing", |options| {
        options.queue = Some("nothing".to_owned());
    }),
    ("a name that is none", ErrorKind::InvalidInput, "BAD/Name", |options| {
        options.image = "BAD/Name".to_owned();
    }),
    ("an image that no node has", ErrorKind::NotFound, "bastide-test/nothing", |options| {
        options.image = "bastide-test/nothing".to_owned();
    }),
    ("an image that nobody has", ErrorKind::NotFound, "127.0.0.1:1/nothing", |options| {
        options.image = "127.0.0.1:1/nothing".to_owned();
        options.pull = PodPull::Missing;
    }),
    ("a runtime class", ErrorKind::NotFound, "RuntimeClass", |options| {
        options.runtime_class = Some("nothing".to_owned());
    }),
    ("a priority class", ErrorKind::NotFound, "PriorityClass", |options| {
        options.priority_class = Some("nothing".to_owned());
    }),
    ("a node", ErrorKind::LimitExceeded, "no node takes the pod", |options| {
        options.node_selector.insert("no".to_owned(), "such".to_owned());
    }),
    ("a claim", ErrorKind::LimitExceeded, "\"nothing\" not found", |options| {
        let path = "/data".parse::<GuestPath>().ok();
        let claim = |path| ClaimMount { name: "nothing".to_owned(), path, read_only: false };
        options.claims = path.map(claim).into_iter().collect();
    }),
    ("a storage class", ErrorKind::LimitExceeded, "PersistentVolumeClaim", |options| {
        let class = Some("nothing".to_owned());
        options.volume = Some(VolumeRequest { size: "64Mi".to_owned(), class });
    }),
    ("a patch that is none", ErrorKind::InvalidInput, "dnsPolicy", |options| {
        options.pod_patch = Some(json!({ "spec": { "dnsPolicy": "Sideways" } }));
    }),
];

async fn names_what_the_cluster_does_not_have(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    for (what, kind, word, change) in TABLE {
        let backend = backend_with(home.path(), |options| {
            options.boot_seconds = Some(8);
            change(options);
        })?;
        let begun = Instant::now();
        let client = client_for(Arc::new(backend));
        let made = client.create(&Manifest::default(), CreateOptions::default()).await;
        let error = made.err().ok_or_else(|| format!("{what}: it was had"))?;
        assert_eq!(error.kind(), kind, "{what}: {error}");
        assert!(error.to_string().contains(word), "{what}: {error}");
        assert!(begun.elapsed() < SOON, "{what}: {:?}", begun.elapsed());
        check_nothing_is_left(what, home.path()).await?;
    }
    Ok(())
}

async fn check_nothing_is_left(what: &str, home: &Path) -> Outcome {
    let of = format!("bastide.home={}", bastide::home_identity(home)?);
    for kind in ["jobs", "persistentvolumeclaims", "pods"] {
        let gone = || Ok(objects(kind, &of)?.is_empty());
        until(Duration::from_secs(20), &format!("{what}: no {kind} are left"), gone).await?;
    }
    let left = std::fs::read_dir(home.join("sessions"))?.count();
    assert_eq!(left, 0, "{what}: folders of sessions");
    Ok(())
}

/// An account whose role lacks one verb after the other.
async fn names_each_verb_that_is_missing(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let role = administer(&["-n", NAMESPACE, "get", "role", "bastide", "-o", "json"])?;
    let role: Value = serde_json::from_str(&role)?;
    let rules = role["rules"].as_array().ok_or("a role without rules")?.clone();
    apply(folder.path(), &rules)?;
    let outcome = lacking(folder.path(), &rules).await;
    let names = ["serviceaccount/lacking", "role/lacking", "rolebinding/lacking"];
    administer(&[&["-n", NAMESPACE, "delete"][..], &names].concat())?;
    outcome
}

async fn lacking(folder: &Path, rules: &[Value]) -> Outcome {
    let token = administer(&["-n", NAMESPACE, "create", "token", "lacking"])?;
    let file = std::fs::read_to_string(bastide_testkit::kubernetes::for_tests()?)?;
    let mut config: Value = serde_json::from_str(&file)?;
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    let access = ClusterAccess::new(vec![path]);
    said(&access, |missing| missing.is_empty()).await?;
    for number in 0..rules.len() {
        let verbs = rules[number]["verbs"].as_array().ok_or("a rule without verbs")?.clone();
        let resource = rules[number]["resources"][0].as_str().unwrap_or_default().to_owned();
        for lacked in &verbs {
            let others: Vec<_> = verbs.iter().filter(|verb| *verb != lacked).cloned().collect();
            let mut all = rules.to_vec();
            // A rule without verbs is none.
            match others.is_empty() {
                true => drop(all.remove(number)),
                false => all[number]["verbs"] = Value::Array(others),
            }
            apply(folder, &all)?;
            let named = format!("{} {resource}", lacked.as_str().unwrap_or_default());
            said(&access, |missing| missing.len() == 1 && missing[0].starts_with(&named)).await?;
        }
    }
    Ok(())
}

/// Waits until what a report names as missing is right: a server hears of a new role a moment later.
async fn said(access: &ClusterAccess, is_right: impl Fn(&[String]) -> bool) -> Outcome {
    let begun = Instant::now();
    loop {
        let report = ClusterReport::of(access).await?;
        let missing: Vec<_> = report.missing.iter().map(|missing| missing.what.clone()).collect();
        if is_right(&missing) {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(15) {
            return Err(format!("the report names {missing:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn apply(folder: &Path, rules: &[Value]) -> Result<(), TrialError> {
    let named = json!({ "name": "lacking", "namespace": NAMESPACE });
    let account = json!({ "kind": "ServiceAccount", "name": "lacking", "namespace": NAMESPACE });
    let group = "rbac.authorization.k8s.io";
    let items = [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": named }),
        json!({ "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": named, "rules": rules }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": named,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": "lacking" }, "subjects": [account],
        }),
    ];
    let path = folder.join("lacking.json");
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    std::fs::write(&path, all.to_string())?;
    administer(&["apply", "-f", &path.to_string_lossy()]).map(drop)
}
