//! The one object of a session, which its pod belongs to: a job, or a `Sandbox` of agent-sandbox where that is installed, or
//! a claim of one that a pool of it has ready.

use bastide::{Error, ErrorKind, Result};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::{Call, Cluster};
use crate::objects::ApiGroup;
use crate::pod::{HOME_LABEL, SESSION_LABEL};
use crate::pool;

/// The API group of agent-sandbox.
pub(crate) const SANDBOXES: &str = "agents.x-k8s.io";

/// The group of its pools.
pub(crate) const POOLS: &str = "extensions.agents.x-k8s.io";

/// The version of both that is spoken.
pub(crate) const API_VERSION: &str = "v1beta1";

/// What a session is in the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A job of one pod, which every cluster knows.
    #[default]
    Job,
    /// A `Sandbox` of agent-sandbox.
    Sandbox,
    /// A `SandboxClaim` of it, for sessions from a [pool](crate::KubernetesOptions::pool).
    Claim,
}

impl Owner {
    /// Where such objects are.
    pub(crate) fn path(self, cluster: &Cluster) -> String {
        match self {
            Self::Job => cluster.path("/apis/batch/v1", "jobs"),
            Self::Sandbox => cluster.path(&format!("/apis/{SANDBOXES}/{API_VERSION}"), "sandboxes"),
            Self::Claim => cluster.path(&format!("/apis/{POOLS}/{API_VERSION}"), "sandboxclaims"),
        }
    }

    /// The label of its pods that says whose session they are.
    pub(crate) fn session_label(self) -> &'static str {
        match self {
            Self::Job | Self::Sandbox => SESSION_LABEL,
            Self::Claim => pool::SESSION_LABEL,
        }
    }

    /// The label of its pods that says where that session is remembered.
    pub(crate) fn home_label(self) -> &'static str {
        match self {
            Self::Job | Self::Sandbox => HOME_LABEL,
            Self::Claim => pool::HOME_LABEL,
        }
    }

    /// What people call one.
    pub(crate) fn kind_name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Sandbox => "sandbox",
            Self::Claim => "sandbox claim",
        }
    }

    /// The whole object, around the template of its pod. That of a claim is the pool's.
    pub(crate) fn object(self, metadata: &Value, template: &Value, first_seconds: u64) -> Value {
        match self {
            Self::Job => json!({
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": {
                    "parallelism": 1,
                    "completions": 1,
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": first_seconds,
                    "ttlSecondsAfterFinished": crate::job_keep_alive::TIED_SECONDS,
                    "template": template,
                },
            }),
            Self::Claim => pool::claim(metadata, template, &after(Timestamp::now(), first_seconds)),
            Self::Sandbox => json!({
                "apiVersion": format!("{SANDBOXES}/{API_VERSION}"),
                "kind": "Sandbox",
                "metadata": metadata,
                "spec": {
                    "podTemplate": template,
                    "shutdownTime": after(Timestamp::now(), first_seconds),
                    "shutdownPolicy": "Delete",
                },
            }),
        }
    }

    /// The change by which one lasts that many seconds from when it was `made` by the cluster's clock, and stays for
    /// `kept_seconds` when it has ended, where it can.
    pub(crate) fn lasting(
        self,
        made: Option<&str>,
        seconds: Option<u64>,
        kept_seconds: Option<u64>,
    ) -> Value {
        match self {
            Self::Job => {
                let mut spec = json!({ "activeDeadlineSeconds": seconds });
                if let Some(kept) = kept_seconds {
                    spec["ttlSecondsAfterFinished"] = kept.into();
                }
                spec
            }
            Self::Sandbox | Self::Claim => {
                let made = made.and_then(|text| text.parse().ok()).unwrap_or_else(Timestamp::now);
                let mut lasting =
                    json!({ "shutdownTime": seconds.map(|seconds| after(made, seconds)) });
                if self == Self::Sandbox {
                    return lasting;
                }
                if let Some(kept) = kept_seconds {
                    lasting["ttlSecondsAfterFinished"] = kept.into();
                }
                json!({ "lifecycle": lasting })
            }
        }
    }
}

/// A moment as clusters write it: to the second.
fn after(begin: Timestamp, seconds: u64) -> String {
    let most = i64::from(u32::MAX);
    let seconds = i64::try_from(seconds).unwrap_or(most).min(most);
    let then = begin.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(begin);
    then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Why a cluster does not know such an object: it does not have agent-sandbox, or not in the version that is spoken.
pub(crate) async fn check_served(cluster: &Cluster, owner: Owner) -> Result<()> {
    let (group, option) = match owner {
        Owner::Job => return Ok(()),
        Owner::Sandbox => (SANDBOXES, "KubernetesOptions::owner"),
        Owner::Claim => (POOLS, "KubernetesOptions::pool"),
    };
    let call = Call::get(format!("/apis/{group}"), "ask for the versions of agent-sandbox");
    let group = cluster.find::<ApiGroup>(call).await?;
    let versions: Vec<_> =
        group.into_iter().flat_map(|group| group.versions).map(|known| known.version).collect();
    if versions.iter().any(|version| version == API_VERSION) {
        return Ok(());
    }
    let asked = match owner {
        Owner::Claim => format!("`{option}`"),
        _ => format!("`{option}` {}", owner.kind_name()),
    };
    let message = match versions.is_empty() {
        true => format!("{asked}: agent-sandbox is not installed in the cluster"),
        false => format!(
            "{asked}: the cluster has agent-sandbox in {} only, and sessions need {API_VERSION}",
            versions.join(", ")
        ),
    };
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_context("option", option)
        .with_hint("install agent-sandbox 0.5 or later, or leave the option out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasts_by_the_clock_of_the_cluster() {
        let made = Some("2026-11-18T23:59:30Z");
        let spec = Owner::Sandbox.lasting(made, Some(80), None);
        assert_eq!(spec, json!({ "shutdownTime": "2026-11-19T00:00:50Z" }));
        assert_eq!(Owner::Sandbox.lasting(made, None, Some(5)), json!({ "shutdownTime": null }));
        let spec = Owner::Job.lasting(made, Some(80), Some(600));
        assert_eq!(spec, json!({ "activeDeadlineSeconds": 80, "ttlSecondsAfterFinished": 600 }));
        assert_eq!(Owner::Job.lasting(made, None, None), json!({ "activeDeadlineSeconds": null }));
        let claim = Owner::Claim.lasting(made, Some(80), Some(10));
        let lifecycle =
            json!({ "shutdownTime": "2026-11-19T00:00:50Z", "ttlSecondsAfterFinished": 10 });
        assert_eq!(claim, json!({ "lifecycle": lifecycle }));
        // A server may say anything.
        assert!(
            Owner::Sandbox.lasting(Some("never"), Some(u64::MAX), None)["shutdownTime"].is_string()
        );
    }
}
