//! Whether a network is really closed. A policy is a request that many clusters ignore, so the guest tries.

use std::net::SocketAddr;

use bastide::{Error, ErrorKind, NetworkAccess, Result};
use bastide_proto::pod::{PodReady, ProbeResult};

use crate::KubernetesOptions;

/// There is no way there at all, which says nothing about policies.
const NO_ROUTE: i32 = 101;

/// What is tried from inside, besides the service of the API server that every pod is told of. The node is not: policies
/// never close the way to the pod's own.
pub(crate) fn addresses(server: &str) -> Vec<SocketAddr> {
    let (scheme, rest) = server.split_once("://").unwrap_or(("https", server));
    let authority = rest.split('/').next().unwrap_or_default();
    let port = if scheme == "http" { 80 } else { 443 };
    let address = authority.parse().or_else(|_| format!("{authority}:{port}").parse());
    // The loopback inside is the pod's own.
    address.into_iter().filter(|address: &SocketAddr| !address.ip().is_loopback()).collect()
}

/// Refuses a session whose network is to be closed and was not seen to be.
pub(crate) fn check(
    network: NetworkAccess,
    options: &KubernetesOptions,
    up: &PodReady,
) -> Result<()> {
    if network != NetworkAccess::None || options.unproved_network {
        return Ok(());
    }
    let hint = "apply the policies of `bastide kubernetes manifest` on a cluster whose network keeps them, or take it as it is \
                with `KubernetesOptions::unproved_network`";
    let refused = |message: &str| {
        Err(Error::new(ErrorKind::Unsupported, message.to_owned())
            .with_context("option", "CreateOptions::network")
            .with_hint(hint))
    };
    if up.probes.iter().any(|probe| !probe.is_closed()) {
        return refused(
            "the network of the pod is not closed: the API server can be reached from inside, so this cluster keeps no policy \
             for it",
        );
    }
    let is_evidence = |probe: &ProbeResult| match probe {
        ProbeResult::Unreachable { errno } => *errno != NO_ROUTE,
        probe => probe.is_closed(),
    };
    match up.probes.iter().any(is_evidence) {
        true => Ok(()),
        false => refused(
            "whether the network of the pod is closed cannot be told: there was nothing to try, or no way there at all",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_no_loopback_and_no_names() {
        assert_eq!(addresses("https://127.0.0.1:6443"), []);
        assert_eq!(addresses("https://cluster.example:6443/k8s"), []);
        assert_eq!(addresses("https://10.0.0.1:6443"), ["10.0.0.1:6443".parse().unwrap()]);
        assert_eq!(addresses("https://10.0.0.1/x"), ["10.0.0.1:443".parse().unwrap()]);
        assert_eq!(addresses("https://[fd00::1]:6443"), ["[fd00::1]:6443".parse().unwrap()]);
    }
}
