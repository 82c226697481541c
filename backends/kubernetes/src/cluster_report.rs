//! What a cluster can do for a user, for whoever asks why something does not work.

use bastide::Result;

use crate::ClusterAccess;
use crate::cluster::{Call, Cluster};
use crate::objects::Version;
use crate::rights::{self, MissingRight};

/// What a cluster reports about itself, and about what this user may do there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterReport {
    /// Where its API server is.
    pub server: String,
    /// The context it was found by; nothing inside a pod.
    pub context: String,
    /// The namespace.
    pub namespace: String,
    /// The release of the cluster.
    pub version: String,
    /// The verbs this user lacks.
    pub missing: Vec<MissingRight>,
}

impl ClusterReport {
    /// Whether sessions can be made there, as far as rights go.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.missing.iter().any(|right| right.always)
    }

    /// Asks the cluster that `access` leads to.
    ///
    /// # Errors
    ///
    /// [`BackendLost`](bastide::ErrorKind::BackendLost) if it cannot be reached, and
    /// [`PermissionDenied`](bastide::ErrorKind::PermissionDenied) if it does not know this user; the hint says what to do.
    pub async fn of(access: &ClusterAccess) -> Result<Self> {
        let cluster = Cluster::at(access).await?;
        let version: Version =
            cluster.ask(Call::get("/version", "ask for the version of the cluster")).await?;
        // One that is not there is said first.
        cluster.namespace_uid().await?;
        let missing = rights::missing(&cluster, |_| true).await?;
        Ok(Self {
            server: cluster.server,
            context: cluster.context,
            namespace: cluster.namespace,
            version: version.git_version,
            missing,
        })
    }
}
