//! What can be asked of pods.

mod builder;

use std::collections::BTreeMap;
use std::time::Duration;

use bastide::{GuestPath, Result};
use serde::{Deserialize, Serialize};

use crate::failure::wrong_option;
use crate::{ClusterAccess, Owner, patch, pool};

/// Whom everything in a pod runs as, unless somebody else is named.
const USER: u32 = 1000;

/// How long a pod may take to be there, where nobody says.
const BOOT: Duration = Duration::from_secs(300);

/// When an image is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodPull {
    /// If the node does not have it.
    #[default]
    Missing,
    /// Never.
    Never,
}

/// A volume that outlives the pod, as workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRequest {
    /// Its size, as the cluster writes it: `1Gi`.
    pub size: String,
    /// Its storage class; without it, the cluster's default.
    pub class: Option<String>,
}

/// A volume of the user's own beside the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimMount {
    /// The PersistentVolumeClaim of the namespace.
    pub name: String,
    /// Where it is inside.
    pub path: GuestPath,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// The options of a session's pod. Everything that weakens isolation is off by default, and appears in the receipt if
/// it is on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KubernetesOptions {
    /// The image.
    pub image: String,
    /// What the session is in the cluster.
    pub owner: Owner,
    /// The pool of agent-sandbox that has its pod ready: everything about the pod is what the pool's template says, and nothing
    /// else can be asked of it here.
    pub pool: Option<String>,
    /// When the image is pulled.
    pub pull: PodPull,
    /// Secrets of the namespace by which it may be pulled.
    pub pull_secrets: Vec<String>,
    /// Labels of the pod besides those of Bastide.
    pub labels: BTreeMap<String, String>,
    /// The runtime class, such as `gvisor` or `kata`.
    pub runtime_class: Option<String>,
    /// Labels of the nodes it may be on.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes it tolerates: `KEY[=VALUE][:EFFECT]`.
    pub tolerations: Vec<String>,
    /// The priority class.
    pub priority_class: Option<String>,
    /// The user that everything in the pod runs as: a uid, or uid and gid with a colon.
    pub user: Option<String>,
    /// Whether commands can run as several users: the guest is root then, with the capabilities that takes.
    pub many_users: bool,
    /// Whether the pod has a user namespace of its own, which nodes from release 1.33 on can give.
    pub own_users: bool,
    /// Whether nothing but the workspace and `/tmp` can be written.
    pub read_only_root: bool,
    /// Whether a network that is closed by a policy only is accepted without a proof.
    pub unproved_network: bool,
    /// The workspace, on a volume of its own.
    pub volume: Option<VolumeRequest>,
    /// Volumes of the user's own beside the workspace.
    pub claims: Vec<ClaimMount>,
    /// Changes to the pod that no other option is for: fields of `metadata` and `spec`, as in a pod's own file. What makes a
    /// session cannot be changed by it.
    pub pod_patch: Option<serde_json::Value>,
    /// How many percent of its limits the pod asks nodes to have free; all unless given.
    pub requests_percent: Option<u32>,
    /// How long the pod may take to be there, in seconds.
    pub boot_seconds: Option<u64>,
    /// How long the session may last at most, in seconds, kept by the cluster.
    pub lifetime_seconds: Option<u64>,
    /// The local queue of Kueue that admits the session.
    pub queue: Option<String>,
    /// An image that has the guest in it, as [`guest_image`](crate::guest_image()) makes it, where nodes can have it from a
    /// registry: no ConfigMaps are made then.
    pub guest_image: Option<String>,
}

impl KubernetesOptions {
    /// Options for pods from `image`, with everything closed.
    #[must_use]
    pub fn new(image: impl Into<String>) -> Self {
        Self { image: image.into(), ..Self::default() }
    }

    /// Options for pods from a pool, as [`pool_manifest`](crate::pool_manifest) makes one.
    #[must_use]
    pub fn from_pool(name: impl Into<String>) -> Self {
        Self { pool: Some(name.into()), ..Self::default() }
    }

    /// What a session is in the cluster.
    pub(crate) fn kind(&self) -> Owner {
        match self.pool {
            Some(_) => Owner::Claim,
            None => self.owner,
        }
    }

    /// Refuses what no cluster would take, before one is asked.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |option: &str, why: String| Err(wrong_option(option, &why));
        if let Some(pool) = &self.pool {
            if !is_object_name(pool) {
                return wrong(
                    "KubernetesOptions::pool",
                    format!("{pool:?} is no name of an object"),
                );
            }
            return pool::check_options(self);
        }
        if self.owner == Owner::Claim {
            return wrong(
                "KubernetesOptions::pool",
                "a claim is of a pool, and none is named".to_owned(),
            );
        }
        if self.owner != Owner::Job && self.queue.is_some() {
            return wrong(
                "KubernetesOptions::queue",
                "Kueue admits jobs, and this is to be none".to_owned(),
            );
        }
        let is_none = |name: &str| {
            name.is_empty() || name.chars().any(|char| char.is_whitespace() || char.is_control())
        };
        let images = [
            ("KubernetesOptions::image", Some(&self.image)),
            ("KubernetesOptions::guest_image", self.guest_image.as_ref()),
        ];
        for (option, image) in images {
            if let Some(image) = image.filter(|image| is_none(image)) {
                return wrong(option, format!("{image:?} is no name of an image"));
            }
        }
        self.ids()?;
        for (option, name) in [
            ("KubernetesOptions::runtime_class", self.runtime_class.as_ref()),
            ("KubernetesOptions::priority_class", self.priority_class.as_ref()),
            ("KubernetesOptions::queue", self.queue.as_ref()),
            (
                "KubernetesOptions::volume",
                self.volume.as_ref().and_then(|volume| volume.class.as_ref()),
            ),
        ] {
            if let Some(name) = name
                && !is_object_name(name)
            {
                return wrong(option, format!("{name:?} is no name of an object"));
            }
        }
        if let Some(name) = self.pull_secrets.iter().find(|name| !is_object_name(name)) {
            return wrong(
                "KubernetesOptions::pull_secrets",
                format!("{name:?} is no name of an object"),
            );
        }
        if let Some(volume) = &self.volume
            && !is_quantity(&volume.size)
        {
            return wrong(
                "KubernetesOptions::volume",
                format!("{:?} is no size, such as 10Gi", volume.size),
            );
        }
        for toleration in &self.tolerations {
            Toleration::parse(toleration)?;
        }
        for claim in &self.claims {
            let path = claim.path.as_str();
            if !is_object_name(&claim.name) {
                return wrong(
                    "KubernetesOptions::claims",
                    format!("{:?} is no name of an object", claim.name),
                );
            }
            if is_taken(path) {
                return wrong(
                    "KubernetesOptions::claims",
                    format!("{path} is not free for a volume"),
                );
            }
        }
        if let Some(percent) = self.requests_percent.filter(|percent| !(1..=100).contains(percent))
        {
            return wrong(
                "KubernetesOptions::requests_percent",
                format!("{percent} % is no share of a limit"),
            );
        }
        if let Some(patch) = &self.pod_patch {
            patch::check(patch)?;
        }
        Ok(())
    }

    /// Whom everything runs as; root where there are several users.
    pub(crate) fn ids(&self) -> Result<(u32, u32)> {
        let text = match (&self.user, self.many_users) {
            (_, true) => return Ok((0, 0)),
            (None, false) => return Ok((USER, USER)),
            (Some(text), false) => text,
        };
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
        match (number(user), number(group)) {
            (Some(user), Some(group)) if user != 0 => Ok((user, group)),
            _ => {
                let why = format!("{text:?} cannot be the user of a pod");
                Err(wrong_option("KubernetesOptions::user", &why)
                    .with_hint("give a number other than 0, or two with a colon; `KubernetesOptions::many_users` has root and others"))
            }
        }
    }

    /// How long the pod may take to be there.
    pub(crate) fn boot_time(&self) -> Duration {
        self.boot_seconds.map_or(BOOT, Duration::from_secs)
    }
}

/// A taint that is tolerated.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Toleration<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: Option<&'a str>,
    pub(crate) effect: Option<&'a str>,
}

impl<'a> Toleration<'a> {
    /// Reads `KEY[=VALUE][:EFFECT]`.
    pub(crate) fn parse(text: &'a str) -> Result<Self> {
        let (rest, effect) = match text.rsplit_once(':') {
            Some((rest, effect)) => (rest, Some(effect)),
            None => (text, None),
        };
        let (key, value) = match rest.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (rest, None),
        };
        let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if key.is_empty() || effect.is_some_and(|effect| !known.contains(&effect)) {
            let why = format!("{text:?} names no taint");
            return Err(wrong_option("KubernetesOptions::tolerations", &why).with_hint(format!(
                "write KEY[=VALUE][:EFFECT], with an effect of {}",
                known.join(", ")
            )));
        }
        Ok(Self { key, value, effect })
    }
}

/// Whether something else than a volume of the user's is at a path inside.
pub(crate) fn is_taken(path: &str) -> bool {
    ["/", "/tmp", "/proc", "/sys", "/dev", "/.bastide"].contains(&path)
        || ["/.bastide/", "/proc/", "/sys/", "/dev/"].iter().any(|own| path.starts_with(own))
}

/// Whether an object of a cluster can be called that.
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_part = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
    };
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    (1..=253).contains(&bytes.len())
        && bytes.iter().all(|byte| is_part(*byte))
        && ends(bytes.first())
        && ends(bytes.last())
}

/// Whether that is a size in the cluster's own form.
fn is_quantity(text: &str) -> bool {
    let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = text.get(number.len()..).unwrap_or_default();
    let is_number = number.parse::<f64>().is_ok_and(|number| number > 0.0 && number.is_finite());
    is_number && ["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"].contains(&unit)
}

/// What a session was made with, and where: kept in its folder from before its first object on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredOptions {
    pub(crate) access: ClusterAccess,
    pub(crate) server: String,
    /// The UID of the namespace, where it may be looked at.
    pub(crate) namespace_uid: Option<String>,
    pub(crate) options: KubernetesOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_no_cluster_would_take_and_names_the_option() {
        let base = || KubernetesOptions::new("debian:12");
        assert!(base().check().is_ok());
        let claim = |name: &str, path: &str| {
            let path = path.parse().unwrap();
            base().claim(ClaimMount { name: name.to_owned(), path, read_only: false })
        };
        assert!(claim("data", "/data").check().is_ok());
        let patch = serde_json::json!({ "spec": { "hostPID": true } });
        let table: [(&str, KubernetesOptions); 13] = [
            ("KubernetesOptions::pod_patch", base().pod_patch(patch)),
            ("KubernetesOptions::claims", claim("a/b", "/data")),
            ("KubernetesOptions::claims", claim("data", "/.bastide/bin")),
            ("KubernetesOptions::requests_percent", base().requests_percent(0)),
            ("KubernetesOptions::image", KubernetesOptions::new("")),
            ("KubernetesOptions::image", KubernetesOptions::new("a b")),
            ("KubernetesOptions::runtime_class", base().runtime_class("a/b")),
            ("KubernetesOptions::priority_class", base().priority_class("")),
            ("KubernetesOptions::pull_secrets", base().pull_secret("../x")),
            ("KubernetesOptions::tolerations", base().toleration("k=v:Never")),
            ("KubernetesOptions::user", base().user("0")),
            (
                "KubernetesOptions::volume",
                base().volume(VolumeRequest { size: "ten".to_owned(), class: None }),
            ),
            ("KubernetesOptions::guest_image", base().guest_image("a b")),
        ];
        for (option, options) in table {
            let error = options.check().unwrap_err();
            assert!(error.message().starts_with(&format!("`{option}`: ")), "{option}: {error}");
            assert_eq!(error.context()["option"], option);
        }
    }

    #[test]
    fn reads_tolerations_as_kubectl_writes_taints() {
        let toleration = Toleration::parse("gpu=yes:NoSchedule").unwrap();
        assert_eq!(
            toleration,
            Toleration { key: "gpu", value: Some("yes"), effect: Some("NoSchedule") }
        );
        assert_eq!(
            Toleration::parse("gpu").unwrap(),
            Toleration { key: "gpu", value: None, effect: None }
        );
        assert!(Toleration::parse("=x").is_err());
    }

    #[test]
    fn knows_sizes() {
        for good in ["1Gi", "500M", "1.5Ti", "1024"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "Gi", "-1Gi", "1GB", "0", "NaN", "1e400", "1 Gi"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
