//! What is read of the cluster's objects. All of it may be missing.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::pod::CONTAINER;

/// What every object has.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) owner_references: Vec<OwnerReference>,
}

/// What an object belongs to.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct OwnerReference {
    pub(crate) uid: String,
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

    /// Whether its container runs, as far as its node said.
    pub(crate) fn is_running(&self) -> bool {
        self.container().is_some_and(|container| container.state.running.is_some())
    }
}

/// What somebody in the cluster noted about an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A job.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    pub(crate) metadata: Metadata,
    pub(crate) status: JobStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct JobStatus {
    pub(crate) conditions: Vec<Condition>,
}

/// What an API server says about itself. Whoever does not say it is none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Version {
    pub(crate) git_version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

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
