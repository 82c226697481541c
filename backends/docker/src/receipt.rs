//! What is really in force in a container.

use bastide::MachineSpec;
use bastide::backend::ResourceLimits;
use bastide::model::receipt::{Limit, Limits, NetworkAccess, Receipt, Rung};
use bastide_proto::container::ContainerReady;
use bollard::models::SystemInfo;

use crate::DockerOptions;
use crate::container::{CAPABILITIES, OWN_PIDS, PIDS};

/// The first Landlock version that keeps signals inside the domain.
const SCOPED_SIGNALS: u32 = 6;

/// What an engine says about itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct EngineInfo {
    pub(crate) version: String,
    pub(crate) runtime: String,
    pub(crate) id: String,
    pub(crate) user_namespace: bool,
    pub(crate) rootless: bool,
    pub(crate) seccomp: bool,
    pub(crate) limits_memory: bool,
    pub(crate) limits_swap: bool,
    pub(crate) limits_pids: bool,
    pub(crate) limits_cpu: bool,
}

impl From<SystemInfo> for EngineInfo {
    fn from(info: SystemInfo) -> Self {
        let security = info.security_options.unwrap_or_default();
        let has = |name: &str| {
            security
                .iter()
                .any(|option| option.split(',').any(|word| word == format!("name={name}")))
        };
        Self {
            version: info.server_version.unwrap_or_default(),
            runtime: info.default_runtime.unwrap_or_default(),
            id: info.id.unwrap_or_default(),
            user_namespace: has("userns"),
            rootless: has("rootless"),
            seccomp: has("seccomp"),
            limits_memory: info.memory_limit != Some(false),
            limits_swap: info.swap_limit == Some(true),
            limits_pids: info.pids_limit != Some(false),
            limits_cpu: info.cpu_cfs_quota != Some(false),
        }
    }
}

pub(crate) fn receipt(
    about: &EngineInfo,
    spec: &MachineSpec,
    options: &DockerOptions,
    up: &ContainerReady,
    disk_by_driver: bool,
) -> Receipt {
    let name = up.user_name.as_deref().unwrap_or("user");
    let user = format!("{name} ({})", up.user.uid);
    let mut receipt = Receipt::new(Rung::Container, spec.network, user);
    let runtime = options.runtime.as_deref().unwrap_or(&about.runtime);
    receipt.walls.push(format!("container by {runtime} (Docker {})", about.version));
    network(&mut receipt, spec);
    users(&mut receipt, about, options, up);
    filters(&mut receipt, about, options, up);
    if options.read_only_root {
        receipt.walls.push("own root, read-only but for the workspace and /tmp".to_owned());
    }
    if spec.limits.pids.is_none() && about.limits_pids {
        let most = options.pids.unwrap_or(PIDS);
        receipt.walls.push(format!("at most {most} processes"));
    }
    receipt.limits = limits(&spec.limits, about, up, disk_by_driver);
    let all = &receipt.limits;
    let named =
        [("memory", &all.memory), ("pids", &all.pids), ("cpu", &all.cpu), ("disk", &all.disk)];
    for (name, limit) in named {
        if limit.asked.is_some() && limit.enforced_by.is_none() {
            receipt.not_enforced.push(format!("the limit on {name}: the engine cannot hold it"));
        }
    }
    receipt
}

fn network(receipt: &mut Receipt, spec: &MachineSpec) {
    if let Some(egress) = &spec.egress {
        let (wall, open) = egress.receipt_lines();
        receipt.walls.push(wall);
        receipt.not_enforced.extend(open.map(str::to_owned));
        return;
    }
    match spec.network {
        NetworkAccess::None => receipt.walls.push("own network namespace".to_owned()),
        NetworkAccess::Bridge => {
            receipt.walls.push("own network namespace".to_owned());
            let open = "network: the engine's, and what can be reached from it";
            receipt.not_enforced.push(open.to_owned());
        }
        _ => {
            let open = "network: the host's, its loopback included";
            receipt.not_enforced.push(open.to_owned());
        }
    }
}

fn users(receipt: &mut Receipt, about: &EngineInfo, options: &DockerOptions, up: &ContainerReady) {
    if about.user_namespace || about.rootless {
        receipt.walls.push("user namespace of the engine".to_owned());
    } else {
        let open = "ids: those inside are the host's own, without a user namespace between";
        receipt.not_enforced.push(open.to_owned());
    }
    match &options.only_user {
        Some(_) => {
            receipt.walls.push("no capabilities".to_owned());
            let only = "users: commands run as one user only, and the guest with them";
            receipt.not_enforced.push(only.to_owned());
        }
        None if up.user.uid == 0 => {
            let all = CAPABILITIES.join(" ");
            receipt.walls.push(format!("no capabilities but {all}"));
        }
        None => receipt.walls.push("no capabilities".to_owned()),
    }
    for name in &options.cap_add {
        receipt.not_enforced.push(format!("the capability {name}, which was asked for"));
    }
}

fn filters(
    receipt: &mut Receipt,
    about: &EngineInfo,
    options: &DockerOptions,
    up: &ContainerReady,
) {
    if options.seccomp_unconfined {
        receipt.not_enforced.push("seccomp: unconfined, as was asked for".to_owned());
    } else {
        match about.seccomp {
            true => receipt.walls.push("seccomp: the engine's default profile".to_owned()),
            false => receipt.not_enforced.push("seccomp: the engine has none".to_owned()),
        }
    }
    if up.filtered {
        receipt.walls.push("seccomp allow-list".to_owned());
    }
    match options.new_privileges {
        true => receipt.not_enforced.push("new privileges, as was asked for".to_owned()),
        false => receipt.walls.push("no new privileges".to_owned()),
    }
    match up.landlock_abi {
        0 => receipt.not_enforced.push("Landlock: there is none in this container".to_owned()),
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

fn limits(asked: &ResourceLimits, about: &EngineInfo, up: &ContainerReady, disk: bool) -> Limits {
    let limit = |asked: Option<u64>, holds: bool, by: &str| Limit {
        asked,
        enforced_by: asked.filter(|_| holds).map(|_| by.to_owned()),
    };
    // A container has one count for commands and what runs them.
    let pids_by = format!("cgroup pids, by the engine, with {OWN_PIDS} more for Bastide's own");
    let mut all = Limits {
        memory: limit(asked.memory, about.limits_memory, "cgroup memory, by the engine"),
        pids: limit(asked.pids, about.limits_pids, &pids_by),
        cpu: limit(asked.cpu_millis, about.limits_cpu, "cgroup cpu, by the engine"),
        disk: limit(asked.disk, disk, "the engine's storage driver"),
    };
    if asked.cpu_millis.is_some() && all.cpu.enforced_by.is_none() {
        all.cpu.enforced_by.clone_from(&up.enforced.cpu);
    }
    if asked.disk.is_some() && all.disk.enforced_by.is_none() {
        all.disk.enforced_by.clone_from(&up.enforced.disk);
    }
    all
}
