//! What a pod is made of.

use bastide::{MachineSpec, NetworkAccess, Result, SessionId};
use bastide_guest_bin::HASH;
use bastide_proto::container::{BIN_PATH, RUN_PATH};
use bastide_proto::pod::{DELIVER, POD};
use serde_json::{Map, Value, json};

use crate::guest_image;
use crate::job_keep_alive::first_deadline;
use crate::options::{PodPull, Toleration};
use crate::{KubernetesOptions, patch, pool};

/// The container of the session.
pub(crate) const CONTAINER: &str = "sandbox";

/// The container that brings the guest, where it comes from an image and nodes cannot show that as a volume.
pub(crate) const GUEST_CONTAINER: &str = "guest";

/// The label that says whose session something is.
pub(crate) const SESSION_LABEL: &str = "bastide.session";

/// The label that says where that session is remembered.
pub(crate) const HOME_LABEL: &str = "bastide.home";

/// The label by which policies of the network select pods.
pub(crate) const NETWORK_LABEL: &str = "bastide.network";

/// What is on everything that is made here.
pub(crate) const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "bastide");

/// What the guest uses, and what commands of root have besides, where there are several users.
pub(crate) const CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"];

/// How long a node may be gone before its pods are.
const NODE_SECONDS: u64 = 60;

/// Everything that decides what a pod is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) id: &'a SessionId,
    /// What is on everything of this home.
    pub(crate) home: &'a str,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) options: &'a KubernetesOptions,
    /// The ConfigMaps of the guest, where it comes in by such.
    pub(crate) parts: &'a [String],
    /// Whether nodes can show an image as a volume.
    pub(crate) image_volumes: bool,
}

/// The name of everything that a session has in the cluster.
pub(crate) fn object_name(id: &SessionId) -> String {
    format!("bastide-{id}")
}

/// The words that start a program of the guest in a pod.
pub(crate) fn guest_command(args: &[&str]) -> Vec<String> {
    let loader = format!("{BIN_PATH}/loader");
    [loader.as_str(), HASH].iter().chain(args).map(|arg| (*arg).to_owned()).collect()
}

impl Plan<'_> {
    pub(crate) fn labels(&self) -> Map<String, Value> {
        let network = match self.spec.network {
            NetworkAccess::None => "none",
            _ => "egress",
        };
        let own = [
            (SESSION_LABEL, self.id.as_str()),
            (HOME_LABEL, self.home),
            (NETWORK_LABEL, network),
            MANAGED,
        ];
        let asked = self.options.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let queue = self.options.queue.as_deref().map(|queue| ("kueue.x-k8s.io/queue-name", queue));
        // Ours count more than what was asked for.
        let all = asked.chain(queue).chain(own);
        all.map(|(key, value)| (key.to_owned(), Value::from(value))).collect()
    }

    /// The one object of a session: of one pod that is never started again, and it goes by itself.
    pub(crate) fn owner(&self) -> Result<Value> {
        let labels = self.labels();
        let metadata = json!({ "name": object_name(self.id), "labels": labels.clone() });
        let first = first_deadline(self.options.lifetime_seconds);
        let template = match &self.options.pool {
            Some(pool) => pool::claim_request(pool, self.id, self.home),
            None => self.template(labels)?,
        };
        let mut object = self.options.kind().object(&metadata, &template, first);
        if let Some(spec) = object.get_mut("spec") {
            put(spec, "suspend", self.options.queue.as_ref().map(|_| true));
        }
        Ok(object)
    }

    /// What the pod is made of.
    pub(crate) fn template(&self, labels: Map<String, Value>) -> Result<Value> {
        let mut template = json!({ "metadata": { "labels": labels }, "spec": self.pod()? });
        if let Some(patch) = &self.options.pod_patch {
            patch::apply(&mut template, patch);
        }
        Ok(template)
    }

    /// The claim of the volume that is the workspace, if there is one.
    pub(crate) fn claim(&self) -> Option<Value> {
        let volume = self.options.volume.as_ref()?;
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": volume.size } },
        });
        put(&mut spec, "storageClassName", volume.class.clone());
        Some(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": object_name(self.id), "labels": self.labels() },
            "spec": spec,
        }))
    }

    fn pod(&self) -> Result<Value> {
        let options = self.options;
        let mut pod = json!({
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "hostname": hostname(self.id),
            "securityContext": self.pod_security()?,
            "nodeSelector": self.node_selector(),
            "tolerations": self.tolerations()?,
            "containers": [self.container()?],
            "volumes": self.volumes(),
        });
        put(&mut pod, "initContainers", self.guest_container().map(|container| [container]));
        put(&mut pod, "hostUsers", options.own_users.then_some(false));
        put(&mut pod, "runtimeClassName", options.runtime_class.clone());
        put(&mut pod, "priorityClassName", options.priority_class.clone());
        let secrets: Vec<_> =
            options.pull_secrets.iter().map(|name| json!({ "name": name })).collect();
        put(&mut pod, "imagePullSecrets", (!secrets.is_empty()).then_some(secrets));
        Ok(pod)
    }

    fn pod_security(&self) -> Result<Value> {
        let (user, group) = self.options.ids()?;
        let mut security = json!({
            "runAsUser": user,
            "runAsGroup": group,
            "seccompProfile": { "type": "RuntimeDefault" },
        });
        // Folders of the pod's own are everybody's there. What this would do to them, every folder in them inherited.
        put(&mut security, "fsGroup", self.options.volume.is_some().then_some(group));
        put(&mut security, "runAsNonRoot", (!self.options.many_users).then_some(true));
        Ok(security)
    }

    fn pull(&self) -> &'static str {
        match self.options.pull {
            PodPull::Missing => "IfNotPresent",
            PodPull::Never => "Never",
        }
    }

    /// The container that brings the guest from its image, where nothing else does. It leaves the guest where the loader looks
    /// for it, unpacked.
    fn guest_container(&self) -> Option<Value> {
        let image = self.options.guest_image.as_ref().filter(|_| !self.image_volumes)?;
        let folder = format!("/{}", guest_image::FOLDER);
        let loader = format!("{folder}/loader");
        Some(json!({
            "name": GUEST_CONTAINER,
            "image": image,
            "imagePullPolicy": self.pull(),
            "command": [loader, HASH, DELIVER, folder, BIN_PATH],
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            "resources": self.resources(),
            "volumeMounts": [mount("bin", BIN_PATH), mount("run", "/run")],
        }))
    }

    /// Where the loader and the parts of the guest come from.
    fn bin(&self) -> Value {
        match &self.options.guest_image {
            None => {
                let sources: Vec<_> = self
                    .parts
                    .iter()
                    .map(|name| json!({ "configMap": { "name": name } }))
                    .collect();
                json!({ "name": "bin", "projected": { "defaultMode": 0o555, "sources": sources } })
            }
            Some(image) if self.image_volumes => {
                let image = json!({ "reference": image, "pullPolicy": self.pull() });
                json!({ "name": "bin", "image": image })
            }
            Some(_) => json!({ "name": "bin", "emptyDir": {} }),
        }
    }

    fn container(&self) -> Result<Value> {
        let options = self.options;
        let mut capabilities = json!({ "drop": ["ALL"] });
        put(&mut capabilities, "add", options.many_users.then_some(CAPABILITIES));
        let mut bin = mount("bin", BIN_PATH);
        put(&mut bin, "readOnly", Some(true));
        let is_volume = self.image_volumes && options.guest_image.is_some();
        put(&mut bin, "subPath", is_volume.then_some(guest_image::FOLDER));
        let mut mounts =
            vec![bin, mount("run", RUN_PATH), mount("workspace", self.spec.root.as_str())];
        if self.has_own_tmp() {
            mounts.push(mount("tmp", "/tmp"));
        }
        for (number, claim) in options.claims.iter().enumerate() {
            let mut claimed = mount(&format!("claim-{number}"), claim.path.as_str());
            put(&mut claimed, "readOnly", claim.read_only.then_some(true));
            mounts.push(claimed);
        }
        Ok(json!({
            "name": CONTAINER,
            "image": options.image,
            "imagePullPolicy": self.pull(),
            "command": guest_command(&["container", POD]),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": options.read_only_root,
                "capabilities": capabilities,
            },
            "resources": self.resources(),
            "volumeMounts": mounts,
        }))
    }

    fn resources(&self) -> Value {
        let limits = &self.spec.limits;
        let share = |percent: u32| {
            let of = |limit: u64| (limit.saturating_mul(u64::from(percent)) / 100).max(1);
            let mut all = json!({});
            put(&mut all, "memory", limits.memory.map(|bytes| of(bytes).to_string()));
            put(&mut all, "cpu", limits.cpu_millis.map(|millis| format!("{}m", of(millis))));
            put(&mut all, "ephemeral-storage", limits.disk.map(|bytes| of(bytes).to_string()));
            all
        };
        let requests = share(self.options.requests_percent.unwrap_or(100));
        json!({ "limits": share(100), "requests": requests })
    }

    fn volumes(&self) -> Value {
        let mut folder = json!({});
        put(&mut folder, "sizeLimit", self.spec.limits.disk.map(|bytes| bytes.to_string()));
        let workspace = match &self.options.volume {
            Some(_) => {
                json!({ "name": "workspace", "persistentVolumeClaim": { "claimName": object_name(self.id) } })
            }
            None => json!({ "name": "workspace", "emptyDir": folder }),
        };
        let mut all = vec![self.bin(), json!({ "name": "run", "emptyDir": {} }), workspace];
        if self.has_own_tmp() {
            all.push(json!({ "name": "tmp", "emptyDir": folder }));
        }
        for (number, claim) in self.options.claims.iter().enumerate() {
            let source = json!({ "claimName": claim.name, "readOnly": claim.read_only });
            all.push(json!({ "name": format!("claim-{number}"), "persistentVolumeClaim": source }));
        }
        Value::from(all)
    }

    /// Whether `/tmp` is a folder of the pod's own: images need not have one, and one user alone could not make it. A
    /// folder of the cluster's has no sticky bit, which several users need.
    fn has_own_tmp(&self) -> bool {
        self.options.read_only_root || !self.options.many_users
    }

    /// The guest is a program of one architecture.
    fn node_selector(&self) -> Value {
        let mut all: Map<String, Value> = self
            .options
            .node_selector
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().into()))
            .collect();
        all.insert("kubernetes.io/arch".to_owned(), architecture().into());
        all.insert("kubernetes.io/os".to_owned(), "linux".into());
        Value::Object(all)
    }

    fn tolerations(&self) -> Result<Value> {
        let mut all = Vec::new();
        for key in ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"] {
            all.push(json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_SECONDS }));
        }
        for asked in &self.options.tolerations {
            let Toleration { key, value, effect } = Toleration::parse(asked)?;
            let mut toleration =
                json!({ "key": key, "operator": if value.is_some() { "Equal" } else { "Exists" } });
            put(&mut toleration, "value", value);
            put(&mut toleration, "effect", effect);
            all.push(toleration);
        }
        Ok(Value::from(all))
    }
}

fn mount(name: &str, path: &str) -> Value {
    json!({ "name": name, "mountPath": path })
}

/// The name of a session's pod as a machine.
fn hostname(id: &SessionId) -> String {
    format!("bastide-{}", id.as_str().get(..8).unwrap_or_default())
}

/// The architecture of the guest, in the cluster's words.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Adds a field that has a value.
fn put(object: &mut Value, key: &str, value: Option<impl serde::Serialize>) {
    if let (Value::Object(fields), Some(value)) = (object, value) {
        fields.insert(key.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClaimMount, Owner};

    fn made(options: &KubernetesOptions) -> Value {
        made_on(options, false)
    }

    fn made_on(options: &KubernetesOptions, image_volumes: bool) -> Value {
        let (id, parts) = (SessionId::random(), vec!["a".to_owned(), "b".to_owned()]);
        let mut spec = MachineSpec::new("/workspace".parse().unwrap());
        spec.limits.memory = Some(1 << 30);
        spec.limits.cpu_millis = Some(1500);
        let plan = Plan { id: &id, home: "h", spec: &spec, options, parts: &parts, image_volumes };
        plan.owner().unwrap()
    }

    #[test]
    fn is_restricted_unless_more_is_asked_for() {
        let job = made(&KubernetesOptions::new("debian"));
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["enableServiceLinks"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["runAsUser"], 1000);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["capabilities"], json!({ "drop": ["ALL"] }));
        assert_eq!(
            container["resources"]["limits"],
            json!({ "memory": "1073741824", "cpu": "1500m" })
        );
        for open in ["hostNetwork", "hostPID", "hostIPC", "hostUsers"] {
            assert!(pod.get(open).is_none(), "{open}");
        }
        assert_eq!(job["spec"]["backoffLimit"], 0);
        assert_eq!(pod["restartPolicy"], "Never");
    }

    #[test]
    fn has_the_guest_from_an_image_that_is_named() {
        let options = KubernetesOptions {
            guest_image: Some("registry/guest:1".to_owned()),
            ..KubernetesOptions::new("debian")
        };
        let bin = |pod: &Value| {
            let volumes = pod["volumes"].as_array().unwrap().clone();
            volumes.into_iter().find(|volume| volume["name"] == "bin").unwrap()
        };
        let job = made_on(&options, false);
        let pod = &job["spec"]["template"]["spec"];
        let brings = &pod["initContainers"][0];
        assert_eq!(brings["image"], "registry/guest:1");
        assert_eq!(brings["command"], json!(["/bin/loader", HASH, DELIVER, "/bin", BIN_PATH]));
        assert_eq!(brings["securityContext"]["capabilities"], json!({ "drop": ["ALL"] }));
        assert_eq!(bin(pod), json!({ "name": "bin", "emptyDir": {} }));
        let job = made_on(&options, true);
        let pod = &job["spec"]["template"]["spec"];
        assert!(pod.get("initContainers").is_none());
        let image = json!({ "reference": "registry/guest:1", "pullPolicy": "IfNotPresent" });
        assert_eq!(bin(pod), json!({ "name": "bin", "image": image }));
        let mounted = &pod["containers"][0]["volumeMounts"][0];
        let expected =
            json!({ "name": "bin", "mountPath": BIN_PATH, "readOnly": true, "subPath": "bin" });
        assert_eq!(mounted, &expected);
    }

    #[test]
    fn is_a_sandbox_with_the_same_pod_where_that_is_asked_for() {
        let options =
            KubernetesOptions { owner: Owner::Sandbox, ..KubernetesOptions::new("debian") };
        let sandbox = made(&options);
        assert_eq!(sandbox["kind"], "Sandbox");
        assert_eq!(sandbox["apiVersion"], "agents.x-k8s.io/v1beta1");
        assert_eq!(sandbox["spec"]["shutdownPolicy"], "Delete");
        assert!(sandbox["spec"]["shutdownTime"].is_string());
        let pod = &sandbox["spec"]["podTemplate"];
        assert_eq!(pod["metadata"]["labels"][HOME_LABEL], "h");
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert!(sandbox["spec"].get("template").is_none());
    }

    #[test]
    fn keeps_its_own_labels_whatever_was_asked_for() {
        let mut options = KubernetesOptions::new("debian");
        options.labels.insert(HOME_LABEL.to_owned(), "another".to_owned());
        options.labels.insert("team".to_owned(), "red".to_owned());
        let labels = &made(&options)["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels[HOME_LABEL], "h");
        assert_eq!(labels["team"], "red");
        assert_eq!(labels[NETWORK_LABEL], "none");
    }

    #[test]
    fn asks_nodes_for_a_share_of_its_limits_and_mounts_what_is_claimed() {
        let claim =
            ClaimMount { name: "data".to_owned(), path: "/data".parse().unwrap(), read_only: true };
        let options = KubernetesOptions {
            requests_percent: Some(50),
            claims: vec![claim],
            ..KubernetesOptions::new("debian")
        };
        let job = made(&options);
        let pod = &job["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(
            container["resources"]["requests"],
            json!({ "memory": "536870912", "cpu": "750m" })
        );
        assert_eq!(container["resources"]["limits"]["cpu"], "1500m");
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mount = json!({ "name": "claim-0", "mountPath": "/data", "readOnly": true });
        assert!(mounts.contains(&mount), "{mounts:?}");
        let volumes = pod["volumes"].as_array().unwrap();
        let claimed = json!({ "claimName": "data", "readOnly": true });
        assert!(volumes.iter().any(|volume| volume["persistentVolumeClaim"] == claimed));
    }

    #[test]
    fn keeps_what_makes_a_session_when_it_is_patched() {
        let patch = json!({
            "metadata": { "labels": { "team": "red" } },
            "spec": { "schedulerName": "other", "containers": [{ "name": CONTAINER, "resources": { "limits": { "gpu": 1 } } }] },
        });
        let options =
            KubernetesOptions { pod_patch: Some(patch), ..KubernetesOptions::new("debian") };
        options.check().unwrap();
        let job = made(&options);
        let template = &job["spec"]["template"];
        assert_eq!(template["metadata"]["labels"]["team"], "red");
        assert_eq!(template["metadata"]["labels"][HOME_LABEL], "h");
        assert_eq!(template["spec"]["schedulerName"], "other");
        let container = &template["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"]["gpu"], 1);
        assert_eq!(container["resources"]["limits"]["cpu"], "1500m");
        assert_eq!(container["command"], json!(guest_command(&["container", POD])));
        assert_eq!(template["spec"]["securityContext"]["runAsNonRoot"], true);
    }

    #[test]
    fn has_capabilities_only_for_several_users() {
        let options = KubernetesOptions { many_users: true, ..KubernetesOptions::new("debian") };
        let job = made(&options);
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsUser"], 0);
        assert!(pod["securityContext"].get("runAsNonRoot").is_none());
        assert_eq!(
            pod["containers"][0]["securityContext"]["capabilities"]["add"],
            json!(CAPABILITIES)
        );
    }
}
