//! What is read of the cluster's objects. All of it may be missing.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::pod::{CONTAINER, GUEST_CONTAINER};

/// What every object has.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) creation_timestamp: Option<String>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) owner_references: Vec<OwnerReference>,
}

/// What an object belongs to.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct OwnerReference {
    pub(crate) uid: String,
    pub(crate) kind: String,
}

/// An object of any kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamedObject {
    pub(crate) metadata: Metadata,
}

/// A part of a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(crate) struct Page<T> {
    #[serde(default)]
    pub(crate) metadata: PageMetadata,
    // A list of nothing may be `null`.
    #[serde(default = "Vec::new", deserialize_with = "nothing_is_empty")]
    pub(crate) items: Vec<T>,
}

fn nothing_is_empty<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PageMetadata {
    #[serde(rename = "continue")]
    pub(crate) next: String,
}

/// A pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) node_name: String,
    pub(crate) host_users: Option<bool>,
    pub(crate) runtime_class_name: Option<String>,
    pub(crate) restart_policy: String,
    pub(crate) host_network: bool,
    #[serde(rename = "hostPID")]
    pub(crate) host_pid: bool,
    #[serde(rename = "hostIPC")]
    pub(crate) host_ipc: bool,
    pub(crate) share_process_namespace: bool,
    /// By name and kind.
    pub(crate) volumes: Vec<BTreeMap<String, serde::de::IgnoredAny>>,
    pub(crate) security_context: SecurityContext,
    pub(crate) containers: Vec<ContainerSpec>,
}

/// What a container was asked to be.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) command: Vec<String>,
    pub(crate) security_context: SecurityContext,
    pub(crate) volume_mounts: Vec<VolumeMount>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeMount {
    pub(crate) mount_path: String,
}

/// What a pod or one container of it may do.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SecurityContext {
    pub(crate) privileged: bool,
    pub(crate) allow_privilege_escalation: Option<bool>,
    pub(crate) seccomp_profile: Option<SeccompProfile>,
    pub(crate) capabilities: Capabilities,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SeccompProfile {
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Capabilities {
    pub(crate) add: Vec<String>,
    pub(crate) drop: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last_transition_time: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    #[serde(rename = "imageID")]
    pub(crate) image_id: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: Option<String>,
    pub(crate) state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) waiting: Option<Waiting>,
    pub(crate) running: Option<serde::de::IgnoredAny>,
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waiting {
    pub(crate) reason: String,
    pub(crate) message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Terminated {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) exit_code: i64,
}

impl Pod {
    /// A condition, by its name.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The container of the session. Something in the cluster may have put others beside it.
    pub(crate) fn container(&self) -> Option<&ContainerStatus> {
        let all = &self.status.container_statuses;
        all.iter().find(|container| container.name == CONTAINER).or_else(|| all.first())
    }

    /// How the container that brings the guest ended, if it failed.
    pub(crate) fn failed_guest_container(&self) -> Option<&Terminated> {
        let all = &self.status.init_container_statuses;
        let brings = all.iter().find(|container| container.name == GUEST_CONTAINER)?;
        brings.state.terminated.as_ref().filter(|end| end.exit_code != 0)
    }

    /// Whether its container runs, as far as its node said.
    pub(crate) fn is_running(&self) -> bool {
        self.container().is_some_and(|container| container.state.running.is_some())
    }
}

/// Where the files of a pod come from, as far as those are ConfigMaps together in one place.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodVolumes {
    spec: VolumesSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct VolumesSpec {
    volumes: Vec<Volume>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Volume {
    projected: Projected,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Projected {
    sources: Vec<Source>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    config_map: Metadata,
}

impl PodVolumes {
    /// The names of the ConfigMaps.
    pub(crate) fn config_maps(&self) -> impl Iterator<Item = &str> {
        let sources = self.spec.volumes.iter().flat_map(|volume| &volume.projected.sources);
        sources.map(|source| source.config_map.name.as_str())
    }
}

/// What somebody in the cluster noted about an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The object that a pod belongs to.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OwnerObject {
    pub(crate) metadata: Metadata,
    pub(crate) status: OwnerStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OwnerStatus {
    pub(crate) conditions: Vec<Condition>,
}

/// A group of kinds of objects that a server knows.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiGroup {
    pub(crate) versions: Vec<ApiVersion>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiVersion {
    pub(crate) version: String,
}

/// What an API server says about itself. Whoever does not say it is none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Version {
    pub(crate) git_version: String,
}

/// The first release whose nodes show images as volumes, unless told otherwise.
const IMAGE_VOLUMES: (u32, u32) = (1, 35);

impl Version {
    /// Whether nodes can show an image as a volume.
    pub(crate) fn has_image_volumes(&self) -> bool {
        let mut numbers = self.git_version.trim_start_matches('v').split('.');
        let mut number = || numbers.next()?.parse::<u32>().ok();
        number().zip(number()).is_some_and(|version| version >= IMAGE_VOLUMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_releases_that_show_images_as_volumes() {
        let has = |text: &str| Version { git_version: text.to_owned() }.has_image_volumes();
        assert!(has("v1.35.0") && has("v1.36.4+k3s1") && has("v2.0.1"));
        assert!(!has("v1.34.11") && !has("v1.9.0") && !has("") && !has("unknown"));
    }

    #[test]
    fn finds_the_config_maps_of_a_pod() {
        let pod: PodVolumes = serde_json::from_str(
            r#"{"spec":{"volumes":[{"name":"run","emptyDir":{}},
                {"name":"bin","projected":{"sources":[{"configMap":{"name":"a"}},{"configMap":{"name":"b"}}]}}]}}"#,
        )
        .unwrap();
        assert_eq!(pod.config_maps().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn reads_what_is_there_and_misses_nothing_else() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"p","uid":"u"},"status":{"phase":"Running","containerStatuses":[{"state":{"running":{"startedAt":"x"}}}]}}"#,
        )
        .unwrap();
        assert!(pod.is_running());
        let pod: Pod = serde_json::from_str(
            r#"{"status":{"containerStatuses":[{"name":"proxy","state":{"running":{}}},{"name":"sandbox","state":{"terminated":{"exitCode":0}}}]}}"#,
        )
        .unwrap();
        assert!(!pod.is_running(), "another container runs");
        assert!(!serde_json::from_str::<Pod>("{}").unwrap().is_running());
        assert!(serde_json::from_str::<Page<Pod>>(r#"{"items":null}"#).unwrap().items.is_empty());
    }
}
