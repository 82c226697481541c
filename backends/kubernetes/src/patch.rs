//! Changes to the pod that no option is for. A patch says only what is known to leave the session what it is: everything else
//! is refused by name, and what lowers a wall is named in the receipt.

use bastide::{Error, GuestPath, Result};
use serde_json::{Map, Value};

use crate::failure::wrong_option;
use crate::options::is_taken;
use crate::pod::CONTAINER;

/// The option a patch is given by.
pub(crate) const OPTION: &str = "KubernetesOptions::pod_patch";

/// The longest patch: it is kept in the session's folder.
const MOST_BYTES: usize = 256 << 10;

/// The kinds of volumes that Pod Security `restricted` knows: none has anything of the node.
pub(crate) const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What a patch may say about a field.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// Anything: it is put as it is.
    Any,
    /// Anything, and the receipt names it: a wall is lower by it.
    Opened,
    /// These fields, and no others.
    Fields(&'static [(&'static str, Self)]),
    /// Entries beside those that are there, but for what begins with one of these.
    Entries(&'static [&'static str]),
    /// Volumes beside those of the session.
    Volumes,
    /// Places for those.
    Mounts,
    /// The session's container, and no other.
    Container(&'static [(&'static str, Self)]),
}

const LABELS: Field = Field::Entries(&["bastide.", "app.kubernetes.io/managed-by"]);

// Profiles were chosen by annotations once, and some clusters still read them.
const ANNOTATIONS: Field = Field::Entries(&[
    "bastide.",
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
]);

/// What the options for limits are for.
const RESOURCES: Field = Field::Entries(&["cpu", "memory", "ephemeral-storage"]);

const POD: Field = Field::Fields(&[
    ("metadata", Field::Fields(&[("annotations", ANNOTATIONS), ("labels", LABELS)])),
    (
        "spec",
        Field::Fields(&[
            ("affinity", Field::Any),
            ("automountServiceAccountToken", Field::Opened),
            (
                "containers",
                Field::Container(&[
                    ("imagePullPolicy", Field::Any),
                    ("name", Field::Any),
                    (
                        "resources",
                        Field::Fields(&[
                            ("claims", Field::Any),
                            ("limits", RESOURCES),
                            ("requests", RESOURCES),
                        ]),
                    ),
                    (
                        "securityContext",
                        Field::Fields(&[
                            ("appArmorProfile", Field::Opened),
                            ("seLinuxOptions", Field::Opened),
                            ("seccompProfile", Field::Opened),
                        ]),
                    ),
                    ("volumeMounts", Field::Mounts),
                ]),
            ),
            ("dnsConfig", Field::Any),
            ("dnsPolicy", Field::Any),
            ("enableServiceLinks", Field::Opened),
            ("hostAliases", Field::Any),
            ("nodeSelector", Field::Entries(&["kubernetes.io/arch", "kubernetes.io/os"])),
            ("preemptionPolicy", Field::Any),
            ("resourceClaims", Field::Any),
            ("schedulerName", Field::Any),
            (
                "securityContext",
                Field::Fields(&[
                    ("appArmorProfile", Field::Opened),
                    ("fsGroup", Field::Opened),
                    ("fsGroupChangePolicy", Field::Any),
                    ("seLinuxOptions", Field::Opened),
                    ("seccompProfile", Field::Opened),
                    ("supplementalGroups", Field::Opened),
                    ("supplementalGroupsPolicy", Field::Any),
                    ("sysctls", Field::Opened),
                ]),
            ),
            ("serviceAccountName", Field::Opened),
            ("topologySpreadConstraints", Field::Any),
            ("volumes", Field::Volumes),
        ]),
    ),
]);

/// Refuses a patch that says anything else than what it may.
pub(crate) fn check(patch: &Value) -> Result<()> {
    if patch.to_string().len() > MOST_BYTES {
        return Err(refused("", &format!("it is longer than {} KiB", MOST_BYTES >> 10)));
    }
    POD.check("", patch)?;
    // A mount without its volume here would be one of the session's own.
    let volumes: Vec<_> = volumes(patch).filter_map(name_of).collect();
    for mount in mounts(patch) {
        let of = name_of(mount).unwrap_or_default();
        if !volumes.contains(&of) {
            let why = format!("{of:?} is none of its volumes");
            return Err(refused("spec.containers.volumeMounts", &why));
        }
    }
    Ok(())
}

/// Puts what a patch says into the template of a pod.
pub(crate) fn apply(template: &mut Value, patch: &Value) {
    POD.put(template, patch);
}

/// What of a patch lowers a wall.
pub(crate) fn lowered_walls(patch: &Value) -> Vec<String> {
    let mut all = Vec::new();
    POD.find_opened("", patch, &mut all);
    let has_token = |volume: &Value| volume.to_string().contains("\"serviceAccountToken\"");
    let with_token = volumes(patch).filter(|volume| has_token(volume)).filter_map(name_of);
    all.extend(with_token.map(|name| format!("spec.volumes: a token of the cluster's in {name}")));
    all
}

/// Where the volumes of a patch are mounted.
pub(crate) fn mount_paths(patch: &Value) -> impl Iterator<Item = &str> {
    mounts(patch).filter_map(|mount| mount.get("mountPath")?.as_str())
}

fn mounts(patch: &Value) -> impl Iterator<Item = &Value> {
    elements(patch.pointer("/spec/containers/0/volumeMounts"))
}

fn volumes(patch: &Value) -> impl Iterator<Item = &Value> {
    elements(patch.pointer("/spec/volumes"))
}

fn elements(list: Option<&Value>) -> impl Iterator<Item = &Value> {
    list.and_then(Value::as_array).into_iter().flatten()
}

fn name_of(object: &Value) -> Option<&str> {
    object.get("name")?.as_str()
}

fn known(fields: &[(&str, Field)], key: &str) -> Option<Field> {
    fields.iter().find(|(name, _)| *name == key).map(|(_, field)| *field)
}

impl Field {
    fn check(self, at: &str, value: &Value) -> Result<()> {
        match self {
            Self::Any | Self::Opened => Ok(()),
            Self::Fields(fields) => {
                for (key, value) in object(at, value)? {
                    let at = beneath(at, key);
                    match known(fields, key) {
                        Some(field) => field.check(&at, value)?,
                        None => return Err(refused(&at, "that is not for a patch to say")),
                    }
                }
                Ok(())
            }
            Self::Entries(taken) => {
                for (key, value) in object(at, value)? {
                    let at = beneath(at, key);
                    if taken.iter().any(|taken| key.starts_with(taken)) {
                        return Err(refused(&at, "that is not for a patch to say"));
                    }
                    if !value.is_string() && !value.is_number() {
                        return Err(refused(&at, "it is neither text nor a number"));
                    }
                }
                Ok(())
            }
            Self::Volumes => {
                list(at, value)?.iter().try_for_each(|volume| check_volume(at, volume))
            }
            Self::Mounts => list(at, value)?.iter().try_for_each(|mount| check_mount(at, mount)),
            Self::Container(fields) => match list(at, value)? {
                [container] if name_of(container) == Some(CONTAINER) => {
                    Self::Fields(fields).check(at, container)
                }
                _ => {
                    let why = format!("a pod has one container, whose name is `{CONTAINER}`");
                    Err(refused(at, &why))
                }
            },
        }
    }

    fn put(self, target: &mut Value, patch: &Value) {
        match (self, patch) {
            (Self::Fields(fields), Value::Object(patch)) => {
                if !target.is_object() {
                    *target = Value::Object(Map::new());
                }
                let Some(target) = target.as_object_mut() else { return };
                for (key, value) in patch {
                    if let Some(field) = known(fields, key) {
                        field.put(target.entry(key).or_insert(Value::Null), value);
                    }
                }
            }
            (Self::Entries(_), Value::Object(entries)) => match target {
                Value::Object(target) => target.extend(entries.clone()),
                target => *target = patch.clone(),
            },
            (Self::Volumes | Self::Mounts, Value::Array(added)) => match target {
                Value::Array(target) => target.extend(added.iter().cloned()),
                target => *target = patch.clone(),
            },
            (Self::Container(fields), Value::Array(containers)) => {
                if let (Some(target), Some(container)) = (target.get_mut(0), containers.first()) {
                    Self::Fields(fields).put(target, container);
                }
            }
            (Self::Any | Self::Opened, value) => *target = value.clone(),
            // That was refused.
            _ => {}
        }
    }

    fn find_opened(self, at: &str, patch: &Value, all: &mut Vec<String>) {
        match (self, patch) {
            (Self::Opened, _) => all.push(at.to_owned()),
            (Self::Fields(fields), Value::Object(patch)) => {
                for (key, value) in patch {
                    if let Some(field) = known(fields, key) {
                        field.find_opened(&beneath(at, key), value, all);
                    }
                }
            }
            (Self::Container(fields), Value::Array(containers)) => {
                for container in containers {
                    Self::Fields(fields).find_opened(at, container, all);
                }
            }
            _ => {}
        }
    }
}

fn check_volume(at: &str, volume: &Value) -> Result<()> {
    let name = name_of(volume).ok_or_else(|| refused(at, "a volume has a name"))?;
    let at = format!("{at}: {name}");
    let is_own = ["bin", "run", "workspace", "tmp"].contains(&name) || name.starts_with("claim-");
    if is_own {
        return Err(refused(&at, "the session has a volume of that name"));
    }
    match object(&at, volume)?.keys().find(|key| *key != "name" && !VOLUMES.contains(&key.as_str()))
    {
        Some(kind) => {
            let why = format!("{kind} is not among {}", VOLUMES.join(", "));
            Err(refused(&at, &why))
        }
        None => Ok(()),
    }
}

fn check_mount(at: &str, mount: &Value) -> Result<()> {
    let path = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
    match path.parse::<GuestPath>() {
        Err(error) => Err(refused(at, &format!("{path:?}: {error}"))),
        Ok(_) if is_taken(path) => Err(refused(at, &format!("{path} is not free for a volume"))),
        Ok(_) => Ok(()),
    }
}

fn object<'a>(at: &str, value: &'a Value) -> Result<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| refused(at, "it has no fields"))
}

fn list<'a>(at: &str, value: &'a Value) -> Result<&'a [Value]> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| refused(at, "it is no list"))
}

fn beneath(at: &str, key: &str) -> String {
    match at {
        "" => key.to_owned(),
        at => format!("{at}.{key}"),
    }
}

fn refused(at: &str, why: &str) -> Error {
    let at = crate::failure::shortened(at);
    let why = match at.as_str() {
        "" => why.to_owned(),
        at => format!("{at}: {why}"),
    };
    wrong_option(OPTION, &why)
        .with_context("field", at)
        .with_hint("what a patch may say is in docs/kubernetes.md; users, limits, commands and what else makes a session have options")
}

#[cfg(test)]
mod tests {
    use bastide::ErrorKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn refuses_by_name_what_makes_a_session() {
        let table = [
            (json!([]), ""),
            (json!({ "kind": "Pod" }), "kind"),
            (json!({ "metadata": { "name": "x" } }), "metadata.name"),
            (
                json!({ "metadata": { "labels": { "bastide.home": "x" } } }),
                "metadata.labels.bastide.home",
            ),
            (
                json!({ "metadata": { "annotations": { "container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined" } } }),
                "metadata.annotations",
            ),
            (json!({ "spec": { "hostPID": true } }), "spec.hostPID"),
            (json!({ "spec": { "hostNetwork": true } }), "spec.hostNetwork"),
            (json!({ "spec": { "hostUsers": true } }), "spec.hostUsers"),
            (json!({ "spec": { "restartPolicy": "Always" } }), "spec.restartPolicy"),
            (json!({ "spec": { "$patch": "replace" } }), "spec.$patch"),
            (json!({ "spec": null }), "spec"),
            (json!({ "spec": { "initContainers": [] } }), "spec.initContainers"),
            (
                json!({ "spec": { "securityContext": { "runAsUser": 0 } } }),
                "spec.securityContext.runAsUser",
            ),
            (
                json!({ "spec": { "nodeSelector": { "kubernetes.io/arch": "arm64" } } }),
                "spec.nodeSelector",
            ),
            (json!({ "spec": { "containers": [{ "name": "other" }] } }), "spec.containers"),
            (
                json!({ "spec": { "containers": [{ "name": "sandbox" }, { "name": "sandbox" }] } }),
                "spec.containers",
            ),
            (
                json!({ "spec": { "containers": [{ "name": "sandbox", "command": ["sh"] }] } }),
                "spec.containers.command",
            ),
            (
                json!({ "spec": { "containers": [{ "name": "sandbox", "securityContext": { "privileged": true } }] } }),
                "spec.containers.securityContext.privileged",
            ),
            (
                json!({ "spec": { "containers": [{ "name": "sandbox", "resources": { "limits": { "memory": "9Gi" } } }] } }),
                "spec.containers.resources.limits.memory",
            ),
            (
                json!({ "spec": { "volumes": [{ "name": "x", "hostPath": { "path": "/" } }] } }),
                "spec.volumes: x",
            ),
            (
                json!({ "spec": { "volumes": [{ "name": "run", "emptyDir": {} }] } }),
                "spec.volumes: run",
            ),
        ];
        for (patch, field) in table {
            let error = check(&patch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.message().starts_with(&format!("`{OPTION}`: {field}")), "{error}");
        }
    }

    #[test]
    fn mounts_nothing_of_the_session_and_nothing_over_it() {
        let patch = |volume: &str, path: &str| {
            let mounts = json!([{ "name": volume, "mountPath": path }]);
            json!({ "spec": {
                "volumes": [{ "name": "keys", "secret": { "secretName": "keys" } }],
                "containers": [{ "name": "sandbox", "volumeMounts": mounts }],
            } })
        };
        assert!(check(&patch("keys", "/keys")).is_ok());
        for (volume, path) in [
            ("run", "/keys"),
            ("keys", "/.bastide/run"),
            ("keys", "/data/../.bastide/run"),
            ("keys", "/proc"),
            ("keys", "keys"),
        ] {
            let error = check(&patch(volume, path)).unwrap_err();
            assert!(error.message().contains("volumeMounts"), "{error}");
        }
        assert_eq!(mount_paths(&patch("keys", "/keys")).collect::<Vec<_>>(), ["/keys"]);
    }

    #[test]
    fn adds_to_what_is_there_and_says_what_it_opens() {
        let mut pod = json!({
            "metadata": { "labels": { "bastide.home": "h" } },
            "spec": {
                "securityContext": { "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
                "nodeSelector": { "kubernetes.io/os": "linux" },
                "containers": [{ "name": "sandbox", "image": "i", "resources": { "limits": { "memory": "1" } }, "volumeMounts": [{ "name": "bin" }] }],
                "volumes": [{ "name": "bin" }],
            },
        });
        let patch = json!({
            "metadata": { "labels": { "team": "red" }, "annotations": { "a": "b" } },
            "spec": {
                "affinity": { "nodeAffinity": {} },
                "nodeSelector": { "gpu": "yes" },
                "securityContext": { "seccompProfile": { "type": "Localhost", "localhostProfile": "p" } },
                "containers": [{ "name": "sandbox", "resources": { "limits": { "nvidia.com/gpu": 1 } }, "volumeMounts": [{ "name": "id", "mountPath": "/id" }] }],
                "volumes": [{ "name": "id", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } }],
            },
        });
        check(&patch).unwrap();
        apply(&mut pod, &patch);
        assert_eq!(pod["metadata"]["labels"], json!({ "bastide.home": "h", "team": "red" }));
        assert_eq!(pod["metadata"]["annotations"], json!({ "a": "b" }));
        let spec = &pod["spec"];
        assert_eq!(spec["securityContext"]["runAsUser"], 1000);
        assert_eq!(spec["securityContext"]["seccompProfile"]["localhostProfile"], "p");
        assert_eq!(spec["nodeSelector"], json!({ "kubernetes.io/os": "linux", "gpu": "yes" }));
        assert_eq!(spec["affinity"], json!({ "nodeAffinity": {} }));
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "i");
        assert_eq!(container["resources"]["limits"], json!({ "memory": "1", "nvidia.com/gpu": 1 }));
        assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 2);
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 2);
        let lowered = lowered_walls(&patch);
        assert_eq!(lowered.len(), 2, "{lowered:?}");
        assert_eq!(lowered[0], "spec.securityContext.seccompProfile");
        assert!(lowered[1].contains("a token of the cluster's in id"), "{lowered:?}");
    }
}
