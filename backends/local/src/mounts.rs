//! Cloud storage that is mounted from outside: the warden's keeper does it, and has the keys.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{HostMount, HostMountStatus, HostMounts};
use bastide::host::mounts::MountKeeper;
use bastide::{Backend, Error, ErrorKind, Result, SessionFolder};
use bastide_guest_bin::InstalledProgram;
use bastide_mount_bin::MOUNT;

use crate::LocalBackend;
use crate::backend::GUESTS;

#[async_trait]
impl HostMounts for LocalBackend {
    async fn mount(&self, folder: &SessionFolder, mount: HostMount) -> Result<()> {
        let program = self.mount_program().await?;
        keeper(folder).mount(self.home(), program.as_fd(), &self.fuse_device, mount).await
    }

    async fn unmount(&self, folder: &SessionFolder, path: &str, deadline: Duration) -> Result<()> {
        let keeper = keeper(folder);
        let program = if keeper.was_there() { Some(self.mount_program().await?) } else { None };
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

impl LocalBackend {
    /// The program, put into the home with the first mount.
    async fn mount_program(&self) -> Result<Arc<InstalledProgram>> {
        let installed = self.mount_program.get_or_try_init(|| async {
            let guests = self.home().join(GUESTS);
            let installed = tokio::task::spawn_blocking(move || MOUNT.install(&guests)).await;
            installed.map_err(io::Error::other)?.map(Arc::new)
        });
        installed.await.cloned().map_err(|error: io::Error| {
            let message = format!("cannot put the mount program into the home: {error}");
            Error::new(ErrorKind::Io, message).with_source(error)
        })
    }
}
