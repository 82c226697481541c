//! All that an administrator applies, as one file for `kubectl`.

use std::fmt::Write;

use crate::pod::{HOME_LABEL, NETWORK_LABEL};
use crate::rights::RIGHTS;

/// Addresses that no session is to reach by a network that leads out: those of networks, of machines, and of clouds.
const PRIVATE: [&str; 6] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "127.0.0.0/8",
];

/// The account that hosts can use which have none of their own.
const HOST_ACCOUNT: &str = "bastide-host";

/// The manifest of a namespace: the namespace itself, an account with exactly the rights that sessions need, and the policies
/// of the network.
#[must_use]
pub fn manifest(namespace: &str) -> String {
    let mut out = String::new();
    // Nothing can fail that only writes text.
    let _ = write!(
        out,
        "# Everything that Bastide needs in a cluster. `kubectl apply -f -` installs it, `kubectl delete -f -` removes it.
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels:
    pod-security.kubernetes.io/enforce: restricted
---
# For hosts that have no account of their own; bind others to the role below.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {HOST_ACCOUNT}
  namespace: {namespace}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: bastide
  namespace: {namespace}
rules:
"
    );
    for right in RIGHTS {
        let (group, resource, verbs) = (right.group, right.resource, right.verbs.join(", "));
        let _ = writeln!(out, "# {}", right.purpose);
        let _ = writeln!(
            out,
            "- apiGroups: [\"{group}\"]\n  resources: [{resource}]\n  verbs: [{verbs}]"
        );
    }
    let _ = write!(
        out,
        "---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: bastide
  namespace: {namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: bastide
subjects:
- kind: ServiceAccount
  name: {HOST_ACCOUNT}
  namespace: {namespace}
---
# `NetworkAccess::None`: nothing in, nothing out. The cluster's network must keep it; sessions prove that it does.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: bastide-closed
  namespace: {namespace}
spec:
  podSelector:
    matchLabels:
      {NETWORK_LABEL}: none
  policyTypes: [Ingress, Egress]
---
# `NetworkAccess::Bridge`: names, and the public internet; no network of yours, no machine, no cluster, nothing in.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: bastide-egress
  namespace: {namespace}
spec:
  podSelector:
    matchLabels:
      {NETWORK_LABEL}: egress
  policyTypes: [Ingress, Egress]
  egress:
  - ports:
    - {{port: 53, protocol: UDP}}
    - {{port: 53, protocol: TCP}}
    to:
    - namespaceSelector: {{}}
      podSelector:
        matchLabels:
          k8s-app: kube-dns
  - to:
    - ipBlock:
        cidr: 0.0.0.0/0
        except: [{}]
    - ipBlock:
        cidr: 2000::/3
---
# What all sessions of the namespace may have together: remove the comments, and choose.
# apiVersion: v1
# kind: ResourceQuota
# metadata:
#   name: bastide
#   namespace: {namespace}
# spec:
#   hard:
#     count/jobs.batch: \"100\"
#     requests.cpu: \"50\"
#     requests.memory: 100Gi
#     limits.ephemeral-storage: 500Gi
# Sessions are labelled `{HOME_LABEL}` and `bastide.session`.
",
        PRIVATE.join(", ")
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_every_right_and_nothing_cluster_wide() {
        let text = manifest("team");
        for right in RIGHTS {
            assert!(
                text.contains(&format!("resources: [{}]", right.resource)),
                "{}",
                right.resource
            );
        }
        for wide in ["ClusterRole", "secrets", "nodes", "\"*\"", "portforward"] {
            assert!(!text.contains(wide), "{wide}");
        }
        assert!(text.contains("namespace: team") && !text.contains('{') || text.contains("{port"));
    }
}
