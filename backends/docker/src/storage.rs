//! What the mounts of a manifest ask of a container: volumes of the engine's drivers, and the means to
//! mount something inside.

use bastide::model::docker::{DockerMount, requires_fuse, requires_sys_admin, volume_mounts};
use bastide::model::manifest::MountTarget;
use bastide::model::mount::MountStrategy;
use bastide::{Error, ErrorKind, MachineSpec, Result, SessionId};
use bollard::models::MountVolumeOptionsDriverConfig;
use bollard::models::{DeviceMapping, Mount, MountType, MountVolumeOptions};

use crate::DockerOptions;
use crate::container::labels;
use crate::mounts::check_user;

/// The device of FUSE.
const FUSE: &str = "/dev/fuse";

/// The least capability that mounts.
pub(crate) const MOUNTS: &str = "SYS_ADMIN";

/// What the mounts of a session's manifest ask of its container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Storage {
    /// What volume drivers bring.
    pub(crate) volumes: Vec<DockerMount>,
    /// What is needed to mount inside, if anything is.
    pub(crate) inside: Option<MountNeeds>,
    /// Whether anything is mounted from outside.
    pub(crate) by_host: bool,
}

/// What it takes to mount something inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountNeeds {
    /// The device and the capability.
    Fuse,
    /// The capability alone.
    Kernel,
}

impl Storage {
    /// What a session asks for.
    pub(crate) fn of(spec: &MachineSpec, id: &SessionId, options: &DockerOptions) -> Result<Self> {
        let Some(manifest) = spec.storage.as_deref() else { return Ok(Self::default()) };
        let inside = if requires_fuse(manifest)? {
            Some(MountNeeds::Fuse)
        } else if requires_sys_admin(manifest)? {
            Some(MountNeeds::Kernel)
        } else {
            None
        };
        if inside.is_some() && options.only_user.is_some() {
            let message = "nothing can be mounted inside a container that runs as one user only";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("mount it by a volume driver, or leave the user to the image"));
        }
        let is_by_host =
            |target: &MountTarget<'_>| matches!(target.mount.strategy, MountStrategy::Host { .. });
        let by_host = manifest.mount_targets()?.iter().any(is_by_host);
        if by_host {
            check_user()?;
        }
        Ok(Self {
            volumes: volume_mounts(manifest, uuid::Uuid::parse_str(id.as_str()).ok())?,
            inside,
            by_host,
        })
    }

    /// The volumes in the engine's words. The engine makes them with the container.
    pub(crate) fn mounts(&self, id: &SessionId, home: &str) -> Vec<Mount> {
        let driver = |mount: &DockerMount| {
            let driver = mount.driver.as_ref()?;
            let options = driver.options.iter();
            let options = options.map(|(key, value)| (key.clone(), value.to_string()));
            Some(MountVolumeOptionsDriverConfig {
                name: Some(driver.driver.clone()),
                options: Some(options.collect()),
            })
        };
        let volume = |mount: &DockerMount| Mount {
            typ: Some(MountType::VOLUME),
            source: Some(mount.source.clone()),
            target: Some(mount.target.clone()),
            read_only: Some(mount.read_only),
            volume_options: Some(MountVolumeOptions {
                labels: Some(labels(id, home)),
                driver_config: driver(mount),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        };
        self.volumes.iter().map(volume).collect()
    }

    /// The names of the volumes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.volumes.iter().map(|volume| volume.source.clone()).collect()
    }

    /// The devices it takes.
    pub(crate) fn devices(&self) -> Vec<DeviceMapping> {
        let fuse = || DeviceMapping {
            path_on_host: Some(FUSE.to_owned()),
            path_in_container: Some(FUSE.to_owned()),
            cgroup_permissions: Some("rwm".to_owned()),
        };
        (self.inside == Some(MountNeeds::Fuse)).then(fuse).into_iter().collect()
    }

    /// What of this is open, for the receipt.
    pub(crate) fn open(&self) -> Vec<String> {
        let volume = |mount: &DockerMount| {
            let driver = mount.driver.as_ref().map_or("local", |driver| driver.driver.as_str());
            format!("storage elsewhere: the volume driver {driver} at {}", mount.target)
        };
        let mut open: Vec<_> = self.volumes.iter().map(volume).collect();
        let device = match self.inside {
            Some(MountNeeds::Fuse) => format!(" and the device {FUSE}"),
            Some(MountNeeds::Kernel) => String::new(),
            None => return open,
        };
        open.push(format!(
            "the capability {MOUNTS}{device}, for the manifest's mounts: root inside can mount, also what \
             changes the kernel's settings"
        ));
        open
    }
}
