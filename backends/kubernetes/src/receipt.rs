//! What is really in force in a pod.

use bastide::MachineSpec;
use bastide::backend::ResourceLimits;
use bastide::model::receipt::{Limit, Limits, NetworkAccess, Receipt, Rung};
use bastide_proto::container::ContainerReady;
use bastide_proto::pod::PodReady;

use crate::objects::{Pod, Version};
use crate::pod::CAPABILITIES;
use crate::{KubernetesOptions, patch};

/// The first Landlock version that keeps signals inside the domain.
const SCOPED_SIGNALS: u32 = 6;

pub(crate) fn receipt(
    version: &Version,
    spec: &MachineSpec,
    options: &KubernetesOptions,
    pod: &Pod,
    report: &PodReady,
) -> Receipt {
    let up = &report.container;
    let name = up.user_name.as_deref().unwrap_or("user");
    let user = format!("{name} ({})", up.user.uid);
    let mut receipt = Receipt::new(Rung::Container, spec.network, user);
    receipt.walls.push(machine(version, pod));
    if let Some(pool) = &options.pool {
        let open =
            format!("limits and labels of the pod: as the template of the pool {pool} has them");
        receipt.not_enforced.push(open);
    }
    match report.has_cluster_token {
        false => receipt.walls.push("no token of a service account".to_owned()),
        true => {
            let open = "a token of the cluster's, which something in the cluster put into the pod";
            receipt.not_enforced.push(open.to_owned());
        }
    }
    network(&mut receipt, spec.network, options);
    users(&mut receipt, options, pod, report);
    let lowered = options.pod_patch.as_ref().map(patch::lowered_walls).unwrap_or_default();
    filters(&mut receipt, up, lowered.iter().any(|field| field.ends_with(".seccompProfile")));
    let lowered = lowered.iter().map(|field| format!("{field}: as the patch of the pod has it"));
    receipt.not_enforced.extend(lowered);
    if options.read_only_root {
        receipt.walls.push("own root, read-only but for the workspace and /tmp".to_owned());
    }
    if let Some(seconds) = options.lifetime_seconds {
        receipt.walls.push(format!("at most {seconds} s of life, kept by the cluster"));
    }
    receipt.limits = limits(&spec.limits, up);
    let all = &receipt.limits;
    let named =
        [("memory", &all.memory), ("pids", &all.pids), ("cpu", &all.cpu), ("disk", &all.disk)];
    for (name, limit) in named {
        if limit.asked.is_some() && limit.enforced_by.is_none() {
            receipt.not_enforced.push(format!("the limit on {name}: a pod has no field for it"));
        }
    }
    receipt
}

fn machine(version: &Version, pod: &Pod) -> String {
    let runtime = pod.container().and_then(|container| container.container_id.as_deref());
    let runtime =
        runtime.and_then(|id| id.split_once("://")).map_or("the node's runtime", |(name, _)| name);
    let node = &pod.spec.node_name;
    let class =
        pod.spec.runtime_class_name.as_ref().map(|class| format!(", runtime class {class}"));
    format!(
        "pod by {runtime} on {node} (Kubernetes {}){}",
        version.git_version,
        class.unwrap_or_default()
    )
}

fn network(receipt: &mut Receipt, network: NetworkAccess, options: &KubernetesOptions) {
    receipt.walls.push("own network namespace".to_owned());
    match network {
        NetworkAccess::None if options.unproved_network => {
            let open = "network: closed by a NetworkPolicy if the cluster keeps it, which was not proved, as was asked for";
            receipt.not_enforced.push(open.to_owned());
        }
        NetworkAccess::None => receipt.walls.push("network policy, proved from inside".to_owned()),
        _ => {
            let open = "network: whatever the policy `bastide-egress` and the cluster let through";
            receipt.not_enforced.push(open.to_owned());
        }
    }
}

fn users(receipt: &mut Receipt, options: &KubernetesOptions, pod: &Pod, report: &PodReady) {
    let up = &report.container;
    match pod.spec.host_users {
        // What the cluster says counts if the kernel says so too.
        Some(false) if is_mapped(&report.uid_map) => {
            receipt.walls.push("user namespace of the pod".to_owned());
        }
        _ => {
            let open = "ids: those inside are the node's own, without a user namespace between";
            receipt.not_enforced.push(open.to_owned());
        }
    }
    if options.many_users {
        let all = CAPABILITIES.join(" ");
        receipt.walls.push(match up.user.uid {
            0 => format!("no capabilities but {all}"),
            _ => "no capabilities".to_owned(),
        });
        let open = "Pod Security `restricted`: the guest is root, as several users need";
        receipt.not_enforced.push(open.to_owned());
    } else {
        receipt.walls.push("no capabilities".to_owned());
        let only = "users: commands run as one user only, and the guest with them";
        receipt.not_enforced.push(only.to_owned());
    }
}

/// Whether ids inside are others than those of the node.
fn is_mapped(uid_map: &str) -> bool {
    let mut first = uid_map.split_whitespace();
    matches!((first.next(), first.next()), (Some("0"), Some(outside)) if outside != "0")
}

fn filters(receipt: &mut Receipt, up: &ContainerReady, has_other_profile: bool) {
    if !has_other_profile {
        receipt.walls.push("seccomp: the runtime's default profile".to_owned());
    }
    if up.filtered {
        receipt.walls.push("seccomp allow-list".to_owned());
    }
    receipt.walls.push("no new privileges".to_owned());
    match up.landlock_abi {
        0 => receipt.not_enforced.push("Landlock: there is none in this pod".to_owned()),
        abi => receipt.walls.push(format!("Landlock version {abi}, around signals and sockets")),
    }
    if !up.has_subreaper {
        let missing = "ending what left its parent: this runtime does not say where it came from";
        receipt.not_enforced.push(missing.to_owned());
    }
    if up.landlock_abi < SCOPED_SIGNALS {
        let missing = "signals to the guest: Landlock does not scope signals here";
        receipt.not_enforced.push(missing.to_owned());
    }
}

fn limits(asked: &ResourceLimits, up: &ContainerReady) -> Limits {
    let limit = |asked: Option<u64>, by: Option<&str>| Limit {
        asked,
        enforced_by: asked.and(by).map(str::to_owned),
    };
    let disk = match &up.enforced.disk {
        Some(by) => format!("eviction by the node, up to a minute late; {by}"),
        None => "eviction by the node, up to a minute late".to_owned(),
    };
    Limits {
        memory: limit(asked.memory, Some("cgroup memory, by the node")),
        pids: limit(asked.pids, up.enforced.pids.as_deref()),
        cpu: limit(asked.cpu_millis, Some("cgroup cpu, by the node")),
        disk: limit(asked.disk, Some(&disk)),
    }
}
