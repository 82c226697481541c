//! Setters of the options of a pod: each option by its name.

use crate::{ClaimMount, KubernetesOptions, Owner, PodPull, VolumeRequest};

impl KubernetesOptions {
    /// Makes the session that in the cluster.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Has the image pulled then.
    #[must_use]
    pub fn pull(mut self, pull: PodPull) -> Self {
        self.pull = pull;
        self
    }

    /// Has the image pulled by a secret of the namespace, too.
    #[must_use]
    pub fn pull_secret(mut self, name: impl Into<String>) -> Self {
        self.pull_secrets.push(name.into());
        self
    }

    /// Adds a label to the pod.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Runs the pod by that runtime class.
    #[must_use]
    pub fn runtime_class(mut self, name: impl Into<String>) -> Self {
        self.runtime_class = Some(name.into());
        self
    }

    /// Runs the pod only on nodes with that label.
    #[must_use]
    pub fn node_selector(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.node_selector.insert(key.into(), value.into());
        self
    }

    /// Tolerates that taint of nodes, too: `KEY[=VALUE][:EFFECT]`.
    #[must_use]
    pub fn toleration(mut self, taint: impl Into<String>) -> Self {
        self.tolerations.push(taint.into());
        self
    }

    /// Gives the pod that priority class.
    #[must_use]
    pub fn priority_class(mut self, name: impl Into<String>) -> Self {
        self.priority_class = Some(name.into());
        self
    }

    /// Runs everything as that user: a uid, or uid and gid with a colon.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Lets commands run as several users.
    #[must_use]
    pub fn many_users(mut self) -> Self {
        self.many_users = true;
        self
    }

    /// Gives the pod a user namespace of its own.
    #[must_use]
    pub fn own_users(mut self) -> Self {
        self.own_users = true;
        self
    }

    /// Lets nothing but the workspace and `/tmp` be written.
    #[must_use]
    pub fn read_only_root(mut self) -> Self {
        self.read_only_root = true;
        self
    }

    /// Accepts a network that is closed by a policy only, without a proof.
    #[must_use]
    pub fn unproved_network(mut self) -> Self {
        self.unproved_network = true;
        self
    }

    /// Has the workspace on a volume of its own.
    #[must_use]
    pub fn volume(mut self, volume: VolumeRequest) -> Self {
        self.volume = Some(volume);
        self
    }

    /// Mounts a volume of the user's own, too.
    #[must_use]
    pub fn claim(mut self, claim: ClaimMount) -> Self {
        self.claims.push(claim);
        self
    }

    /// Changes the pod by that; what makes a session cannot be changed.
    #[must_use]
    pub fn pod_patch(mut self, patch: serde_json::Value) -> Self {
        self.pod_patch = Some(patch);
        self
    }

    /// Asks nodes to have that many percent of the limits free.
    #[must_use]
    pub fn requests_percent(mut self, percent: u32) -> Self {
        self.requests_percent = Some(percent);
        self
    }

    /// Gives the pod that many seconds to be there.
    #[must_use]
    pub fn boot_seconds(mut self, seconds: u64) -> Self {
        self.boot_seconds = Some(seconds);
        self
    }

    /// Lets the session last that many seconds at most.
    #[must_use]
    pub fn lifetime_seconds(mut self, seconds: u64) -> Self {
        self.lifetime_seconds = Some(seconds);
        self
    }

    /// Has that local queue of Kueue admit the session.
    #[must_use]
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queue = Some(name.into());
        self
    }

    /// Takes the guest from that image.
    #[must_use]
    pub fn guest_image(mut self, image: impl Into<String>) -> Self {
        self.guest_image = Some(image.into());
        self
    }
}
