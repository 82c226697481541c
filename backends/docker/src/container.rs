//! What a container is made of.

use std::collections::HashMap;
use std::path::Path;

use bastide::model::docker::DockerMount;
use bastide::{Error, ErrorKind, MachineSpec, NetworkAccess, Result, SessionId};
use bastide_guest_bin::HASH;
use bastide_proto::container::{BIN_PATH, CALLS, GUEST_PATH, HOST_PATH, RUN_PATH, TRUST_PATH};
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, HostConfig, HostConfigLogConfig, Mount,
    MountType, MountVolumeOptions, PortBinding,
};

use crate::DockerOptions;
use crate::egress::{NAME_OPTIONS, NAME_SERVER, trust_dir};
use crate::engine::named;
use crate::grants::HostGrant;
use crate::image::Image;
use crate::state::{HOME_LABEL, SESSION_LABEL, Transport, workspace_volume};
use crate::storage::{MOUNTS, Storage};

/// What the guest uses, and what commands of root have besides.
pub(crate) const CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"];

/// How many processes a container may have where nobody says otherwise.
pub(crate) const PIDS: u64 = 4096;

/// How many of our own are counted among them: first process, guest with its threads, launcher, and the
/// supervisors that wait.
pub(crate) const OWN_PIDS: u64 = 48;

/// How large the file system of the guest's socket is, where it has one.
const RUN_BYTES: u32 = 64 * 1024;

/// Everything that decides what a container is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) id: &'a SessionId,
    /// What is on everything of this home.
    pub(crate) home: &'a str,
    /// Where the home is: what earlier versions put on everything.
    pub(crate) home_path: &'a Path,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) options: &'a DockerOptions,
    pub(crate) image: &'a Image,
    pub(crate) storage: &'a Storage,
    pub(crate) grants: &'a [HostGrant],
    pub(crate) transport: Transport,
    /// The guest program on this host.
    pub(crate) guest: &'a Path,
    /// The folder shared with this host.
    pub(crate) run: &'a Path,
    /// Whether the engine can limit memory together with swap.
    pub(crate) limits_swap: bool,
    /// Whether the storage driver is asked to limit the disk.
    pub(crate) limits_disk: bool,
}

/// The name of a session's container as a machine.
pub(crate) fn hostname(id: &SessionId) -> String {
    format!("bastide-{}", id.as_str().get(..8).unwrap_or_default())
}

/// How a container that is there already was made to be reached: one that the guest came into by a volume
/// shares no folder with us.
pub(crate) fn transport_of(found: &ContainerInspectResponse) -> Transport {
    let by_volume = found.mounts.iter().flatten().any(|mount| {
        mount.typ.as_deref() == Some("volume") && mount.destination.as_deref() == Some(BIN_PATH)
    });
    if by_volume { Transport::Dial } else { Transport::Socket }
}

/// The volume that holds the guest, one for all sessions of a version.
pub(crate) fn guest_volume() -> String {
    format!("bastide-guest-{}", HASH.get(..16).unwrap_or(HASH))
}

/// Labels of everything that is made for a session.
pub(crate) fn labels(id: &SessionId, home: &str) -> HashMap<String, String> {
    let ours = [(SESSION_LABEL, id.as_str()), (HOME_LABEL, home)];
    ours.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

impl Plan<'_> {
    /// The engine's own words for it.
    pub(crate) fn body(&self) -> Result<ContainerCreateBody> {
        let mut labels: HashMap<String, String> = self.options.labels.clone().into_iter().collect();
        labels.extend(self::labels(self.id, self.home));
        let user = self.options.only_ids()?.map(|(user, group)| format!("{user}:{group}"));
        let exposed = self.spec.exposed_ports.iter().map(|port| format!("{port}/tcp"));
        Ok(ContainerCreateBody {
            image: Some(self.image.id.clone()),
            hostname: Some(hostname(self.id)),
            entrypoint: Some(self.first_process()),
            cmd: Some(Vec::new()),
            user: Some(user.unwrap_or_else(|| "0:0".to_owned())),
            working_dir: Some("/".to_owned()),
            labels: Some(labels),
            // The first process answers to nothing but an end.
            stop_signal: Some("SIGKILL".to_owned()),
            exposed_ports: self.publishes().then(|| exposed.collect()),
            host_config: Some(self.host_config()?),
            ..ContainerCreateBody::default()
        })
    }

    /// The first process: how it meets us depends on whether a folder is shared.
    fn first_process(&self) -> Vec<String> {
        let calls = (self.transport == Transport::Socket).then_some(CALLS);
        [GUEST_PATH, "container"].into_iter().chain(calls).map(str::to_owned).collect()
    }

    /// File systems in memory. Whatever of ours can be written to inside is one, and small: nobody inside
    /// fills a disk of the engine's by it.
    fn tmpfs(&self) -> Result<HashMap<String, String>> {
        let mut all = HashMap::new();
        if self.options.read_only_root {
            all.insert("/tmp".to_owned(), "rw,exec,nosuid,nodev,mode=1777".to_owned());
        }
        if self.transport == Transport::Dial {
            let (user, group) = self.options.only_ids()?.unwrap_or_default();
            let owned = format!("mode=700,uid={user},gid={group}");
            let small = format!("rw,noexec,nosuid,nodev,size={RUN_BYTES},nr_inodes=16,{owned}");
            all.insert(RUN_PATH.to_owned(), small);
        }
        Ok(all)
    }

    /// Whether the engine publishes the declared ports itself.
    fn publishes(&self) -> bool {
        self.spec.network == NetworkAccess::Bridge && !self.spec.exposed_ports.is_empty()
    }

    /// Whether its network has a policy.
    fn has_policy(&self) -> bool {
        self.spec.network == NetworkAccess::Policy
    }

    fn host_config(&self) -> Result<HostConfig> {
        let limits = &self.spec.limits;
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let memory = limits.memory.map(signed);
        let pids = match limits.pids {
            Some(pids) => pids.saturating_add(OWN_PIDS),
            None => self.options.pids.unwrap_or(PIDS),
        };
        let own = if self.options.only_user.is_some() { &[][..] } else { &CAPABILITIES[..] };
        let mounting = self.storage.inside.map(|_| MOUNTS);
        let added = own.iter().copied().chain(mounting).map(str::to_owned).collect();
        let mut sysctls = HashMap::new();
        if self.spec.network != NetworkAccess::Host {
            // Both loopback addresses, as everywhere else.
            sysctls.insert("net.ipv6.conf.lo.disable_ipv6".to_owned(), "0".to_owned());
        }
        let storage = limits.disk.filter(|_| self.limits_disk).map(|bytes| format!("{bytes}"));
        Ok(HostConfig {
            mounts: Some(self.mounts()?),
            network_mode: Some(network_mode(self.spec.network)?.to_owned()),
            dns: self.has_policy().then(|| vec![NAME_SERVER.to_owned()]),
            dns_options: self.has_policy().then(|| NAME_OPTIONS.map(str::to_owned).to_vec()),
            port_bindings: self.publishes().then(|| self.port_bindings()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            devices: Some(self.storage.devices()),
            cap_add: Some([added, self.options.cap_add.clone()].concat()),
            security_opt: Some(self.security()),
            pids_limit: Some(signed(pids)),
            memory,
            memory_swap: memory.filter(|_| self.limits_swap),
            nano_cpus: limits.cpu_millis.map(|millis| signed(millis.saturating_mul(1_000_000))),
            storage_opt: storage.map(|size| HashMap::from([("size".to_owned(), size)])),
            readonly_rootfs: Some(self.options.read_only_root),
            tmpfs: Some(self.tmpfs()?),
            sysctls: Some(sysctls),
            runtime: self.options.runtime.clone(),
            // What the guest says over its streams is nobody's log.
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            init: Some(false),
            ..HostConfig::default()
        })
    }

    fn security(&self) -> Vec<String> {
        let mut all = Vec::new();
        if !self.options.new_privileges {
            all.push("no-new-privileges".to_owned());
        }
        if self.options.seccomp_unconfined {
            all.push("seccomp=unconfined".to_owned());
        }
        if self.storage.inside.is_some() {
            // The engine's own profile lets nobody mount.
            all.push("apparmor=unconfined".to_owned());
        }
        all
    }

    fn port_bindings(&self) -> HashMap<String, Option<Vec<PortBinding>>> {
        let loopback = || PortBinding {
            host_ip: Some("127.0.0.1".to_owned()),
            host_port: Some(String::new()),
        };
        let ports = self.spec.exposed_ports.iter();
        ports.map(|port| (format!("{port}/tcp"), Some(vec![loopback()]))).collect()
    }

    fn mounts(&self) -> Result<Vec<Mount>> {
        let volume = |name: String, target: &str, read_only: bool| Mount {
            typ: Some(MountType::VOLUME),
            source: Some(name),
            target: Some(target.to_owned()),
            read_only: Some(read_only),
            volume_options: Some(MountVolumeOptions {
                labels: Some(labels(self.id, self.home)),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        };
        let mut mounts = match self.transport {
            Transport::Socket => {
                vec![bind(self.guest, GUEST_PATH, true)?, bind(self.run, HOST_PATH, true)?]
            }
            Transport::Dial => {
                vec![Mount { volume_options: None, ..volume(guest_volume(), BIN_PATH, true) }]
            }
        };
        if self.has_policy() {
            mounts.push(bind(&trust_dir(self.run), TRUST_PATH, true)?);
        }
        let root = self.spec.root.as_str();
        let has_volume = self.image.volumes.iter().any(|path| path.trim_end_matches('/') == root);
        if self.options.read_only_root && !has_volume {
            mounts.push(volume(workspace_volume(self.id), root, false));
        }
        for grant in self.grants {
            mounts.push(bind(&grant.source, &grant.target, grant.read_only)?);
        }
        mounts.extend(self.storage.mounts(self.id, self.home));
        Ok(mounts)
    }

    /// Refuses a container that is there already and is not what this session was made with.
    pub(crate) fn check_reuse(&self, found: &ContainerInspectResponse) -> Result<()> {
        let refuse = |why: String| {
            let message = format!("the container of session {} {why}", self.id);
            Err(Error::new(ErrorKind::Conflict, message).with_hint("make a fresh session"))
        };
        let config = found.config.as_ref();
        let has = config.and_then(|config| config.labels.clone()).unwrap_or_default();
        let wanted = self.body()?;
        let earlier = self.home_path.display().to_string();
        for (key, value) in wanted.labels.unwrap_or_default() {
            let is_earlier = key == HOME_LABEL && has.get(&key) == Some(&earlier);
            if has.get(&key) != Some(&value) && !is_earlier {
                return refuse(format!("has another label {key}"));
            }
        }
        let mode = found.host_config.as_ref().and_then(|host| host.network_mode.as_deref());
        let wanted_mode = network_mode(self.spec.network)?;
        // Engines call the network nobody chose by another name once it is chosen.
        let mode = mode.map(|mode| if mode == "default" { "bridge" } else { mode });
        if mode != Some(wanted_mode) {
            return refuse(format!("is not on the network {wanted_mode}"));
        }
        let bind = |target: Option<&str>, source: Option<&str>, writable: Option<bool>| {
            (target.map(str::to_owned), source.map(str::to_owned), writable)
        };
        let mut is: Vec<_> = found
            .mounts
            .iter()
            .flatten()
            .filter(|mount| mount.typ.as_deref() == Some("bind"))
            .map(|mount| bind(mount.destination.as_deref(), mount.source.as_deref(), mount.rw))
            .collect();
        let mounts = wanted.host_config.and_then(|host| host.mounts).unwrap_or_default();
        let mut want: Vec<_> = mounts
            .iter()
            .filter(|mount| mount.typ == Some(MountType::BIND))
            .map(|mount| {
                let writable = mount.read_only.map(|read_only| !read_only);
                bind(mount.target.as_deref(), mount.source.as_deref(), writable)
            })
            .collect();
        is.sort();
        want.sort();
        if is != want {
            return refuse("has other folders of the host in it".to_owned());
        }
        let attached = |volume: &DockerMount| {
            found.mounts.iter().flatten().any(|mount| {
                mount.name.as_deref() == Some(volume.source.as_str())
                    && mount.destination.as_deref() == Some(volume.target.as_str())
                    && mount.rw == Some(!volume.read_only)
            })
        };
        if !self.storage.volumes.iter().all(attached) {
            return refuse("has other volumes".to_owned());
        }
        let has = found.host_config.as_ref().and_then(|host| host.cap_add.as_deref());
        let may_mount = has.unwrap_or_default().iter().any(|name| name.ends_with(MOUNTS));
        let asked = self.options.cap_add.iter().any(|name| name.ends_with(MOUNTS));
        if may_mount != (asked || self.storage.inside.is_some()) {
            return refuse("may mount otherwise than it was asked for".to_owned());
        }
        Ok(())
    }
}

fn bind(source: &Path, target: &str, read_only: bool) -> Result<Mount> {
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(named(source)?),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    })
}

fn network_mode(network: NetworkAccess) -> Result<&'static str> {
    match network {
        // The warden leads it on from there.
        NetworkAccess::None | NetworkAccess::Policy => Ok("none"),
        NetworkAccess::Bridge => Ok("bridge"),
        NetworkAccess::Host => Ok("host"),
        other => {
            let message = format!("containers have no network `{}`", other.as_str());
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}
