//! Cloud storage that is mounted from outside: the keeper beside the warden joins the container's namespace of mounts,
//! so neither the capability nor the device is ever inside. That takes root of the machine that containers run on.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{HostMount, HostMountStatus, HostMounts};
use bastide::host::mounts::MountKeeper;
use bastide::{Backend, Error, ErrorKind, Result, SessionFolder};
use bastide_proto::warden::CONTROL_SOCKET;

use crate::DockerBackend;
use crate::state::load_user;

/// The device of FUSE on this machine.
const FUSE: &str = "/dev/fuse";

/// Why a container can have no such mounts, and what to do about it.
const NOT_ROOT: &str = "mounting in containers from outside takes root of this machine";
const ELSEWHERE: &str = "its container shares neither files nor a kernel with this machine";
const HINT: &str = "use `in_container` or `docker_volume`";

/// Refuses by name, before anything is made, what this user cannot do.
pub(crate) fn check_user() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, NOT_ROOT)
        .with_hint("use `in_container` or `docker_volume`, or run bastide as root"))
}

/// The refusal of a container that has no warden beside it.
pub(crate) fn elsewhere() -> Error {
    let message = format!("nothing can be mounted from outside: {ELSEWHERE}");
    Error::new(ErrorKind::Unsupported, message).with_hint(HINT)
}

/// Whether a warden stands beside a session's container.
fn has_warden(folder: &SessionFolder) -> bool {
    !matches!(folder.path().join(CONTROL_SOCKET).try_exists(), Ok(false))
}

fn keeper(folder: &SessionFolder) -> MountKeeper<'_> {
    MountKeeper::new(folder, NOT_ROOT, HINT)
}

#[async_trait]
impl HostMounts for DockerBackend {
    async fn mount(&self, folder: &SessionFolder, mut mount: HostMount) -> Result<()> {
        check_user()?;
        if !has_warden(folder) {
            return Err(elsewhere());
        }
        // The keeper is root, whoever commands run as.
        mount.owner = mount.owner.or_else(|| load_user(folder.path()));
        let program = self.sidecar().await?;
        keeper(folder).mount(self.home(), program.as_fd(), Path::new(FUSE), mount).await
    }

    async fn unmount(&self, folder: &SessionFolder, path: &str, deadline: Duration) -> Result<()> {
        let keeper = keeper(folder);
        if !has_warden(folder) {
            return Ok(());
        }
        let program = if keeper.was_there() { Some(self.sidecar().await?) } else { None };
        let program = program.as_ref().map(|program| program.as_fd());
        keeper.unmount(program, path, deadline).await
    }

    async fn status(&self, folder: &SessionFolder) -> Result<Vec<HostMountStatus>> {
        match has_warden(folder) {
            true => keeper(folder).status().await,
            false => Ok(Vec::new()),
        }
    }
}
