//! What a user of this backend may do in the namespace, and what that takes.

use bastide::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::json;

use crate::cluster::{Call, Cluster};
use crate::failure::APPLY;
use crate::owner::{POOLS, SANDBOXES};

/// What can be done with one kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Right {
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// What it is for.
    pub(crate) purpose: &'static str,
    pub(crate) need: Requirement,
}

/// When a right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// By every session.
    Always,
    /// By sessions with a volume.
    Volume,
    /// By sessions that are a `Sandbox`.
    Sandbox,
    /// By sessions from a pool.
    Pool,
    /// Not, but more can be said with it.
    Extra,
}

/// All that is ever asked for. The manifest grants exactly this.
pub(crate) const RIGHTS: [Right; 11] = [
    right(
        "batch",
        "jobs",
        &["create", "get", "list", "watch", "delete", "patch"],
        "the one object of a session",
        Requirement::Always,
    ),
    right("", "pods", &["get", "list", "watch"], "the state of a session", Requirement::Always),
    right("", "pods/exec", &["get", "create"], "the link to the guest", Requirement::Always),
    right("", "configmaps", &["get", "create"], "the guest", Requirement::Always),
    right(
        "",
        "persistentvolumeclaims",
        &["create", "get", "list", "delete", "patch"],
        "`KubernetesOptions::volume`",
        Requirement::Volume,
    ),
    right(
        SANDBOXES,
        "sandboxes",
        &["create", "get", "list", "delete", "patch"],
        "`KubernetesOptions::owner` sandbox",
        Requirement::Sandbox,
    ),
    right(
        POOLS,
        "sandboxclaims",
        &["create", "get", "list", "delete", "patch"],
        "`KubernetesOptions::pool`",
        Requirement::Pool,
    ),
    right(
        "",
        "configmaps",
        &["list", "delete"],
        "`KubernetesBackend::sweep_guests`",
        Requirement::Extra,
    ),
    right("", "pods/log", &["get"], "why a guest did not start", Requirement::Extra),
    right("", "events", &["list", "watch"], "why a pod waits", Requirement::Extra),
    right("", "namespaces", &["get"], "telling clusters apart", Requirement::Extra),
];

const fn right(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    purpose: &'static str,
    need: Requirement,
) -> Right {
    Right { group, resource, verbs, purpose, need }
}

/// What a server says somebody may do.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RulesReview {
    status: Rules,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rules {
    resource_rules: Vec<Rule>,
    /// Whether there may be more that the server does not know of.
    incomplete: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl Rule {
    fn allows(&self, group: &str, resource: &str, verb: &str) -> bool {
        let has = |all: &[String], one: &str| all.iter().any(|known| known == "*" || known == one);
        let sub = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        let names_it =
            has(&self.resources, resource) || sub.is_some_and(|sub| self.resources.contains(&sub));
        self.resource_names.is_empty()
            && has(&self.verbs, verb)
            && has(&self.api_groups, group)
            && names_it
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AccessReview {
    status: Access,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Access {
    allowed: bool,
}

/// A verb that somebody lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRight {
    /// What may not be done, such as `create pods/exec`.
    pub what: String,
    /// What it is for.
    pub purpose: String,
    /// Whether what was asked for does not work without it.
    pub needed: bool,
    /// Whether no session works without it.
    pub always: bool,
}

/// Every verb that is missing in the namespace. The server is asked once, and about single verbs only where it does not
/// know its own rules, as where something outside of it decides.
pub(crate) async fn missing(
    cluster: &Cluster,
    wanted: impl Fn(Requirement) -> bool,
) -> Result<Vec<MissingRight>> {
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": { "namespace": cluster.namespace },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let call = Call::post(path, &body, "ask what this user may do");
    let rules = cluster.ask::<RulesReview>(call).await?.status;
    let mut missing = Vec::new();
    for right in RIGHTS.iter().filter(|right| wanted(right.need)) {
        for verb in right.verbs {
            let is_known = rules
                .resource_rules
                .iter()
                .any(|rule| rule.allows(right.group, right.resource, verb));
            if is_known || (rules.incomplete && is_allowed(cluster, right, verb).await?) {
                continue;
            }
            missing.push(MissingRight {
                what: named(right, verb),
                purpose: right.purpose.to_owned(),
                needed: right.need != Requirement::Extra,
                always: right.need == Requirement::Always,
            });
        }
    }
    Ok(missing)
}

fn named(right: &Right, verb: &str) -> String {
    match right.group {
        "" => format!("{verb} {}", right.resource),
        group => format!("{verb} {}.{group}", right.resource),
    }
}

async fn is_allowed(cluster: &Cluster, right: &Right, verb: &str) -> Result<bool> {
    let (resource, sub) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "namespace": cluster.namespace, "group": right.group, "resource": resource, "subresource": sub, "verb": verb,
        } },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let call = Call::post(path, &body, "ask what this user may do");
    Ok(cluster.ask::<AccessReview>(call).await?.status.allowed)
}

/// Refuses a user who lacks something, with all of it in one failure.
pub(crate) fn check(cluster: &Cluster, missing: &[MissingRight]) -> Result<()> {
    let needed: Vec<_> =
        missing.iter().filter(|right| right.needed).map(|right| right.what.as_str()).collect();
    if needed.is_empty() {
        return Ok(());
    }
    let (namespace, all) = (&cluster.namespace, needed.join(", "));
    let message = format!(
        "this user may not do everything in the namespace {namespace} that sessions need: {all}"
    );
    let hint = APPLY.replace("manifest", &format!("manifest -n {namespace}"));
    Err(Error::new(ErrorKind::PermissionDenied, message)
        .with_context("namespace", namespace.clone())
        .with_context("missing", needed)
        .with_hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rules_as_servers_mean_them() {
        let rule = |resources: &[&str], names: &[&str]| Rule {
            verbs: vec!["get".to_owned()],
            api_groups: vec![String::new()],
            resources: resources.iter().map(|name| (*name).to_owned()).collect(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(rule(&["pods"], &[]).allows("", "pods", "get"));
        assert!(rule(&["*"], &[]).allows("", "pods/exec", "get"));
        assert!(rule(&["*/exec"], &[]).allows("", "pods/exec", "get"));
        // A right to pods is none to what lies beneath, and one to a single pod is none to others.
        assert!(!rule(&["pods"], &[]).allows("", "pods/exec", "get"));
        assert!(!rule(&["pods"], &["one"]).allows("", "pods", "get"));
        assert!(!rule(&["pods"], &[]).allows("batch", "pods", "get"));
        assert!(!rule(&["pods"], &[]).allows("", "pods", "list"));
    }
}
