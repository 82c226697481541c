//! Cloud storage that is mounted from outside: the warden's keeper does it, and has the keys.

use std::os::fd::AsFd;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{HostMount, HostMountStatus, HostMounts};
use bastide::host::mounts::MountKeeper;
use bastide::{Backend, Result, SessionFolder};

use crate::LocalBackend;

#[async_trait]
impl HostMounts for LocalBackend {
    async fn mount(&self, folder: &SessionFolder, mount: HostMount) -> Result<()> {
        let program = self.sidecar().await?;
        keeper(folder).mount(self.home(), program.as_fd(), &self.fuse_device, mount).await
    }

    async fn unmount(&self, folder: &SessionFolder, path: &str, deadline: Duration) -> Result<()> {
        let keeper = keeper(folder);
        let program = if keeper.was_there() { Some(self.sidecar().await?) } else { None };
        let program = program.as_ref().map(|program| program.as_fd());
        keeper.unmount(program, path, deadline).await
    }

    async fn status(&self, folder: &SessionFolder) -> Result<Vec<HostMountStatus>> {
        keeper(folder).status().await
    }
}

fn keeper(folder: &SessionFolder) -> MountKeeper<'_> {
    let why = "the host strategy needs the rung `namespaces`, not `landlock` or `unconfined`";
    MountKeeper::new(folder, why, "create the session with isolation `namespaces`")
}
