//! What is really in force in a sandbox, from what the sandbox reported.

use bastide::MachineSpec;
use bastide::backend::ResourceLimits;
use bastide::model::receipt::{Limit, Limits, NetworkAccess, Receipt, Rung};
use bastide_proto::boot::{Enforced, Ready};

use crate::user::Identity;

/// The first Landlock version that keeps signals inside the domain.
const SCOPED_SIGNALS: u32 = 6;

/// The first Landlock version that limits device requests.
const DEVICE_REQUESTS: u32 = 5;

pub(crate) fn receipt(ready: &Ready, spec: &MachineSpec, who: &Identity) -> Receipt {
    let network = spec.network;
    let user = format!("{} ({})", who.name, who.inside.uid);
    let mut receipt = Receipt::new(Rung::Namespaces, network, user);
    receipt.walls = vec![
        "user, mount, pid, ipc, uts and cgroup namespaces".to_owned(),
        "own root, system folders read-only".to_owned(),
        "seccomp allow-list".to_owned(),
        "no new privileges".to_owned(),
    ];
    match network {
        NetworkAccess::None => receipt.walls.push("own network namespace".to_owned()),
        _ => receipt.not_enforced.push("the host's network, its loopback included".to_owned()),
    }
    match ready.landlock_abi {
        0 => receipt.not_enforced.push("Landlock: this kernel has none".to_owned()),
        abi => receipt.walls.push(format!("Landlock version {abi}")),
    }
    if ready.landlock_abi < SCOPED_SIGNALS {
        let missing = "signals to the guest: this kernel's Landlock does not scope signals";
        receipt.not_enforced.push(missing.to_owned());
    }
    if ready.landlock_abi < DEVICE_REQUESTS {
        let missing = "device requests: this kernel's Landlock does not limit them";
        receipt.not_enforced.push(missing.to_owned());
    }
    receipt.limits = limits(&spec.limits, &ready.enforced);
    let all = &receipt.limits;
    let named =
        [("memory", &all.memory), ("pids", &all.pids), ("cpu", &all.cpu), ("disk", &all.disk)];
    for (name, limit) in named {
        if limit.asked.is_some() && limit.enforced_by.is_none() {
            receipt.not_enforced.push(format!("the limit on {name}: nothing here can hold it"));
        }
    }
    receipt
}

fn limits(asked: &ResourceLimits, by: &Enforced) -> Limits {
    let limit = |asked: Option<u64>, enforced_by: &Option<String>| Limit {
        asked,
        enforced_by: enforced_by.clone().filter(|_| asked.is_some()),
    };
    Limits {
        memory: limit(asked.memory, &by.memory),
        pids: limit(asked.pids, &by.pids),
        cpu: limit(asked.cpu_millis, &by.cpu),
        disk: limit(asked.disk, &by.disk),
    }
}
