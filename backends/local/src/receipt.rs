//! What is really in force in a sandbox, from what the sandbox reported.

use bastide::model::receipt::{NetworkAccess, Receipt, Rung};
use bastide_proto::boot::Ready;

use crate::user::Identity;

/// The first Landlock version that keeps signals inside the domain.
const SCOPED_SIGNALS: u32 = 6;

/// The first Landlock version that limits device requests.
const DEVICE_REQUESTS: u32 = 5;

pub(crate) fn receipt(ready: &Ready, network: NetworkAccess, who: &Identity) -> Receipt {
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
    receipt
}
