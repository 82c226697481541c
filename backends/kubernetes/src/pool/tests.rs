use super::*;

fn printed(options: &KubernetesOptions) -> Vec<Value> {
    let mut spec = MachineSpec::new("/workspace".parse().unwrap());
    spec.limits.memory = Some(1 << 30);
    let text = pool_manifest("team", "warm", 3, &spec, options).unwrap();
    let documents = text.split("---\n").skip(1);
    documents.map(|document| serde_json::from_str(document).unwrap()).collect()
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    all.iter().find(|object| object["kind"] == kind).unwrap()
}

/// A pod as the controller makes one of the template.
fn pod_of(template: &Value) -> Pod {
    let pod = &template["spec"]["podTemplate"];
    serde_json::from_value(pod.clone()).unwrap()
}

#[test]
fn prints_a_pool_whose_pods_a_session_takes() {
    let all = printed(&KubernetesOptions::new("debian:12"));
    assert!(all.iter().all(|object| object["metadata"]["namespace"] == "team"));
    let pool = of_kind(&all, "SandboxWarmPool");
    assert_eq!(pool["spec"]["replicas"], 3);
    assert_eq!(pool["spec"]["sandboxTemplateRef"]["name"], "warm");
    let template = of_kind(&all, "SandboxTemplate");
    let labels = &template["spec"]["podTemplate"]["metadata"]["labels"];
    assert_eq!(labels[NETWORK_LABEL], "none");
    assert!(labels.get(OWN_SESSION).is_none() && labels.get(OWN_HOME).is_none(), "nobody's yet");
    let maps: Vec<_> = all
        .iter()
        .filter(|object| object["kind"] == "ConfigMap")
        .map(|map| map["metadata"]["name"].clone())
        .collect();
    let volumes = template["spec"]["podTemplate"]["spec"]["volumes"].to_string();
    assert!(!maps.is_empty() && maps.iter().all(|name| volumes.contains(&name.to_string())));
    let spec = MachineSpec::new("/workspace".parse().unwrap());
    check_pod("warm", &pod_of(template), &spec).unwrap();
}

#[test]
fn takes_no_pod_that_is_something_else_or_less_closed() {
    let all = printed(&KubernetesOptions::new("debian:12"));
    let template = of_kind(&all, "SandboxTemplate");
    let container = "/spec/podTemplate/spec/containers/0";
    let table: [(&str, Value, &str); 13] = [
        ("/command/1", "another".into(), "another version"),
        ("/command/3", "pod".into(), "does not wait"),
        ("/command", json!(["sleep", "infinity"]), "no guest"),
        ("/name", "main".into(), "no guest"),
        ("/volumeMounts", json!([]), "no workspace"),
        ("/securityContext/privileged", true.into(), "privileged"),
        ("/securityContext/allowPrivilegeEscalation", Value::Null, "allowPrivilegeEscalation"),
        ("/securityContext/capabilities/drop", json!(["NET_RAW"]), "capabilities"),
        ("/securityContext/capabilities/add", json!(["SYS_ADMIN"]), "capabilities"),
        ("../../restartPolicy", "Always".into(), "restartPolicy"),
        ("../../hostPID", true.into(), "hostPID"),
        (
            "../../volumes",
            json!([{ "name": "bin", "projected": {} }, { "name": "x", "hostPath": { "path": "/" } }]),
            "volumes",
        ),
        ("../../securityContext/seccompProfile/type", "Unconfined".into(), "seccompProfile"),
    ];
    let spec = MachineSpec::new("/workspace".parse().unwrap());
    for (field, value, word) in table {
        let mut template = template.clone();
        let path = match field.strip_prefix("../../") {
            Some(field) => format!("/spec/podTemplate/spec/{field}"),
            None => format!("{container}{field}"),
        };
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = template.pointer_mut(parent).unwrap();
        match parent {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            other => other[key] = value,
        }
        let error = check_pod("warm", &pod_of(&template), &spec).unwrap_err();
        assert!(error.message().contains(word), "{field}: {error}");
        assert_eq!(error.context()["option"], "KubernetesOptions::pool");
    }
    let mut open = spec.clone();
    open.network = NetworkAccess::Bridge;
    let error = check_pod("warm", &pod_of(template), &open).unwrap_err();
    assert!(error.message().contains("`none`") && error.message().contains("`egress`"), "{error}");
}

#[test]
fn refuses_what_a_pod_that_is_there_cannot_be_asked_for() {
    KubernetesOptions::from_pool("warm").check().unwrap();
    let mut options = KubernetesOptions::from_pool("warm");
    options.image = "debian".to_owned();
    assert_eq!(options.check().unwrap_err().context()["option"], "KubernetesOptions::image");
    let mut options = KubernetesOptions::from_pool("warm");
    options.runtime_class = Some("kata".to_owned());
    assert_eq!(
        options.check().unwrap_err().context()["option"],
        "KubernetesOptions::runtime_class"
    );
    assert_eq!(
        KubernetesOptions::from_pool("a/b").check().unwrap_err().context()["option"],
        "KubernetesOptions::pool"
    );
    let mut spec = MachineSpec::new("/workspace".parse().unwrap());
    spec.limits.memory = Some(1);
    assert_eq!(check_spec(&spec).unwrap_err().context()["option"], "ResourceLimits::memory");
    // And what only a session has is no pool's.
    let mut options = KubernetesOptions::new("debian");
    options.lifetime_seconds = Some(5);
    let spec = MachineSpec::new("/workspace".parse().unwrap());
    let error = pool_manifest("team", "warm", 1, &spec, &options).unwrap_err();
    assert_eq!(error.context()["option"], "KubernetesOptions::lifetime_seconds");
}

#[test]
fn says_at_once_what_a_claim_will_never_get() {
    let claim = |reason: &str, message: &str| -> OwnerObject {
        let condition =
            json!({ "type": "Ready", "status": "False", "reason": reason, "message": message });
        serde_json::from_value(json!({ "status": { "conditions": [condition] } })).unwrap()
    };
    let table = [
        ("WarmPoolNotFound", "", ErrorKind::NotFound),
        ("TemplateNotFound", "no t", ErrorKind::NotFound),
        ("InvalidMetadata", "label domain", ErrorKind::Unsupported),
        ("ReconcilerError", "pods \"x\" is forbidden: exceeded quota: q", ErrorKind::LimitExceeded),
    ];
    for (reason, message, kind) in table {
        let error = refusal("warm", &claim(reason, message)).unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(message), "{error}");
    }
    for patient in ["SandboxMissing", "AdoptionConflict", "DependenciesNotReady"] {
        assert!(refusal("warm", &claim(patient, "wait")).is_none(), "{patient}");
    }
    let error =
        timed_out("warm", Some(&claim("SandboxMissing", "no sandbox")), std::time::Duration::ZERO);
    assert!(error.message().contains("warm") && error.message().contains("no sandbox"), "{error}");
}

#[test]
fn knows_its_pod_by_the_claim_it_was_made_with() {
    let id = SessionId::random();
    let (one, other) = (claim_request("warm", &id, "h"), claim_request("warm", &id, "h"));
    let claimed = |asked: &Value| -> OwnerObject {
        serde_json::from_value(claim(&json!({ "labels": {} }), asked, "")).unwrap()
    };
    let pod = |asked: &Value, kind: &str| -> Pod {
        let metadata =
            json!({ "labels": asked["labels"], "ownerReferences": [{ "kind": kind, "uid": "u" }] });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    };
    assert!(is_of(&pod(&one, "Sandbox"), &claimed(&one)));
    assert!(!is_of(&pod(&one, "Sandbox"), &claimed(&other)), "a former claim of the session");
    assert!(!is_of(&pod(&one, "Job"), &claimed(&one)));
    assert!(!is_of(&Pod::default(), &OwnerObject::default()));
}
