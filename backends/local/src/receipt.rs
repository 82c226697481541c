//! What is really in force in a sandbox, from what the sandbox reported.

use bastide::MachineSpec;
use bastide::backend::ResourceLimits;
use bastide::model::receipt::{Limit, Limits, NetworkAccess, Receipt, Rung};
use bastide_proto::boot::{Enforced, HostIds, Ids, SandboxReady};

use crate::image::WorkspaceImage;
use crate::plan::Plan;

/// The first Landlock version that keeps signals inside the domain.
const SCOPED_SIGNALS: u32 = 6;

/// The first Landlock version that limits device requests.
const DEVICE_REQUESTS: u32 = 5;

/// The walls of the rung `namespaces`.
const IN_NAMESPACES: [&str; 4] = [
    "user, mount, pid, ipc, uts and cgroup namespaces",
    "own root, system folders read-only",
    "seccomp allow-list",
    "no new privileges",
];

/// The walls of the rung `landlock`.
const ON_HOST: [&str; 5] = [
    "contents of files outside closed",
    "no Unix sockets of the host",
    "no shared memory of the host",
    "seccomp allow-list",
    "no new privileges",
];

/// What the rung `landlock` cannot hold, each by a word and what it means.
const OPEN_ON_HOST: [&str; 2] = [
    "file names: names, sizes and times of files outside can be seen",
    "process list: command lines of the host's processes can be seen",
];

/// What holds where commands can write to folders of the host.
const CLEAN_HOST: &str =
    "no set-id modes, file capabilities, devices or other owners in folders of the host";

/// What is open where sandboxes inside the sandbox were asked for.
const NESTED: &str = "nested sandboxes: commands can make namespaces and mounts, root inside can change \
                      settings of the session's own namespaces, and Landlock does not limit files";

/// What it cannot hold besides where commands are a user that has files outside.
const OPEN_TO_USER: &str = "file metadata: permissions and times of the user's files outside can be changed, \
                            those of what Bastide keeps about sessions included";

/// Where memory is counted for each process alone.
const MEMORY_IN_PARTS: &str = "memory as a whole: the limit holds for the private memory of each process; what \
                               they share and files in memory are not counted";

/// Where processes are counted for each user alone.
const PIDS_IN_PARTS: &str =
    "pids as a whole: the limit holds for each user, and root inside can be any of them";

pub(crate) fn receipt(ready: &SandboxReady, spec: &MachineSpec, plan: &Plan) -> Receipt {
    let network = spec.network;
    let uid = ready.uid.unwrap_or(plan.who.inside.uid);
    let mut receipt = Receipt::new(plan.rung, network, format!("{} ({uid})", plan.who.name));
    let (walls, open): (&[&str], &[&str]) = match plan.rung {
        Rung::Landlock => (&ON_HOST, &OPEN_ON_HOST),
        Rung::Unconfined => (&[], &["everything: commands may do what their user may"]),
        _ => (&IN_NAMESPACES, &[]),
    };
    receipt.walls = walls.iter().map(|wall| (*wall).to_owned()).collect();
    receipt.not_enforced = open.iter().map(|gap| (*gap).to_owned()).collect();
    if plan.rung == Rung::Landlock && !matches!(plan.who.ids, Ids::Host(HostIds::Claimed { .. })) {
        receipt.not_enforced.push(OPEN_TO_USER.to_owned());
    }
    match (plan.rung, network) {
        // Whatever was asked for.
        (Rung::Unconfined, _) => receipt.network = NetworkAccess::Host,
        (Rung::Landlock, NetworkAccess::None) => receipt.walls.push("no sockets".to_owned()),
        (_, NetworkAccess::None) => receipt.walls.push("own network namespace".to_owned()),
        (_, NetworkAccess::Policy) => {
            if let Some(egress) = &spec.egress {
                let (wall, open) = egress.receipt_lines();
                receipt.walls.push(wall);
                receipt.not_enforced.extend(open.map(str::to_owned));
            }
        }
        _ => receipt.not_enforced.push("network: the host's, its loopback included".to_owned()),
    }
    if plan.rung != Rung::Unconfined && plan.writes_to_host() {
        receipt.walls.push(CLEAN_HOST.to_owned());
    }
    if plan.rung != Rung::Unconfined {
        landlock(&mut receipt, ready.landlock_abi);
    }
    if spec.nested_sandbox && plan.rung == Rung::Namespaces {
        receipt.not_enforced.push(NESTED.to_owned());
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
    let in_parts = [
        (&all.memory, "rlimit", MEMORY_IN_PARTS),
        (&all.pids, "rlimit nproc, each user", PIDS_IN_PARTS),
    ];
    let by = |limit: &Limit, what: &str| {
        limit.enforced_by.as_ref().is_some_and(|by| by.starts_with(what))
    };
    let in_parts = in_parts.into_iter().filter(|(limit, what, _)| by(limit, what));
    let in_parts: Vec<_> = in_parts.map(|(_, _, gap)| gap.to_owned()).collect();
    receipt.not_enforced.extend(in_parts);
    let whole = match (&plan.image, &ready.image) {
        (WorkspaceImage::Not(why), _) | (_, Some(Err(why))) => Some(why),
        _ => None,
    };
    receipt.not_enforced.extend(whole.map(|why| {
        format!("disk as a whole: the limit holds for each file of the workspace; {why}")
    }));
    receipt
}

/// What a version of Landlock holds, and what it does not.
fn landlock(receipt: &mut Receipt, abi: u32) {
    match abi {
        0 => receipt.not_enforced.push("Landlock: this kernel has none".to_owned()),
        abi => receipt.walls.push(format!("Landlock version {abi}")),
    }
    if abi < SCOPED_SIGNALS {
        let whom =
            if receipt.rung == Rung::Landlock { "processes of the user" } else { "the guest" };
        let missing = format!("signals: to {whom}; this kernel's Landlock does not scope them");
        receipt.not_enforced.push(missing);
    }
    if abi < DEVICE_REQUESTS {
        let missing = "device requests: this kernel's Landlock does not limit them";
        receipt.not_enforced.push(missing.to_owned());
    }
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
