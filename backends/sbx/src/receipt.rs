//! What is really in force in a sandbox of `sbx`.

use bastide::MachineSpec;
use bastide::model::receipt::{Limit, Limits, NetworkAccess, Receipt, Rung};
use bastide_proto::container::ContainerReady;

use crate::dialect::Dialect;
use crate::options::SbxOptions;

/// The first Landlock version that keeps signals inside the domain.
const SCOPED_SIGNALS: u32 = 6;

pub(crate) fn receipt(
    dialect: Dialect,
    spec: &MachineSpec,
    options: &SbxOptions,
    up: &ContainerReady,
) -> Receipt {
    let name = up.user_name.as_deref().unwrap_or("user");
    let user = format!("{name} ({})", up.user.uid);
    let mut receipt = Receipt::new(Rung::MicroVm, spec.network, user);
    let release = dialect.release;
    match dialect.is_stand_in {
        true => {
            let none = "microVM: this `sbx` is the stand-in of Bastide's tests, and has none";
            receipt.not_enforced.push(none.to_owned());
        }
        false => receipt.walls.push(format!("microVM by Docker sbx {release}")),
    }
    network(&mut receipt, spec.network, options);
    if up.filtered {
        receipt.walls.push("seccomp allow-list".to_owned());
    }
    receipt.walls.push("no new privileges".to_owned());
    match up.landlock_abi {
        0 => receipt.not_enforced.push("Landlock: there is none in this sandbox".to_owned()),
        abi => receipt.walls.push(format!("Landlock version {abi}, around signals and sockets")),
    }
    if up.landlock_abi < SCOPED_SIGNALS {
        let missing = "signals to the guest: Landlock does not scope signals here";
        receipt.not_enforced.push(missing.to_owned());
    }
    if options.codex_login.is_some() {
        let open = "the host's sign-in of codex, which is inside and can be read there";
        receipt.not_enforced.push(open.to_owned());
    }
    receipt.limits = limits(spec, up, dialect.is_stand_in);
    let all = &receipt.limits;
    let named =
        [("memory", &all.memory), ("pids", &all.pids), ("cpu", &all.cpu), ("disk", &all.disk)];
    for (name, limit) in named {
        if limit.asked.is_some() && limit.enforced_by.is_none() {
            receipt.not_enforced.push(format!("the limit on {name}: sbx cannot hold it"));
        }
    }
    receipt
}

fn network(receipt: &mut Receipt, network: NetworkAccess, options: &SbxOptions) {
    match network {
        NetworkAccess::None if options.network_allow.is_empty() => {
            receipt.walls.push("no host can be reached, by a rule of its own".to_owned());
        }
        NetworkAccess::None => {
            let hosts = options.network_allow.join(", ");
            receipt.not_enforced.push(format!("network: {hosts}, and what rules of sbx allow"));
        }
        _ => {
            let open = "network: whatever the rules of sbx for this machine allow";
            receipt.not_enforced.push(open.to_owned());
        }
    }
}

fn limits(spec: &MachineSpec, up: &ContainerReady, is_stand_in: bool) -> Limits {
    let asked = &spec.limits;
    let limit =
        |asked: Option<u64>, by: Option<String>| Limit { asked, enforced_by: asked.and(by) };
    let by_vm = |what: &str| (!is_stand_in).then(|| format!("the {what} of the microVM"));
    Limits {
        memory: limit(asked.memory, by_vm("memory")),
        pids: limit(asked.pids, up.enforced.pids.clone()),
        cpu: limit(asked.cpu_millis, by_vm("processors").or_else(|| up.enforced.cpu.clone())),
        disk: limit(asked.disk, up.enforced.disk.clone()),
    }
}
