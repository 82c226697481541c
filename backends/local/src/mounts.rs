//! Cloud storage that is mounted from outside: the warden's keeper does it, and has the keys.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{HostMount, HostMountState, HostMountStatus, HostMounts};
use bastide::events::mount_notes;
use bastide::host::make_private;
use bastide::{
    Backend, Condition, Error, ErrorKind, Result, SessionFolder, SessionId, warden_client,
};
use bastide_guest_bin::InstalledProgram;
use bastide_mount_bin::MOUNT;
use bastide_proto::boot::UserAndGroup;
use bastide_proto::mounts::{
    MountOrder, MountRefusal, MountRequest, MountResponse, MountState, MountStatus,
};
use rustix::io::Errno;

use crate::LocalBackend;
use crate::backend::GUESTS;

/// The folder of blocks that mounts of any session of a home have read.
const CACHE: &str = "mount-cache";

/// How long a store may take to be found usable and to be mounted.
const MOUNT_TIME: Duration = Duration::from_secs(120);

/// How long an unmount may take beyond the time that whoever uses the mount is given: what was written is stored.
const UNMOUNT_TIME: Duration = Duration::from_secs(90);

/// How long the keeper may take to say what is mounted.
const STATUS_TIME: Duration = Duration::from_secs(10);

#[async_trait]
impl HostMounts for LocalBackend {
    async fn mount(&self, folder: &SessionFolder, mount: HostMount) -> Result<()> {
        let program = self.mount_program().await?;
        let order = self.order(folder.id(), mount)?;
        let request = MountRequest::Mount(Box::new(order));
        let program = Some(program.as_fd());
        let asked = warden_client::mounts(folder.path(), program, &request, MOUNT_TIME).await;
        match answered(folder.id(), asked)? {
            Some(MountResponse::Done) => Ok(()),
            _ => Err(warden_client::unexpected_response(folder.id())),
        }
    }

    async fn unmount(&self, folder: &SessionFolder, path: &str, deadline: Duration) -> Result<()> {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let request = MountRequest::Unmount { path: path.to_owned(), deadline_ms };
        let most = deadline.saturating_add(UNMOUNT_TIME);
        let asked = warden_client::mounts(folder.path(), None, &request, most).await;
        match answered(folder.id(), asked)? {
            Some(MountResponse::Done) | None => Ok(()),
            Some(_) => Err(warden_client::unexpected_response(folder.id())),
        }
    }

    async fn status(&self, folder: &SessionFolder) -> Result<Vec<HostMountStatus>> {
        let request = MountRequest::Status;
        let asked = warden_client::mounts(folder.path(), None, &request, STATUS_TIME).await;
        match asked {
            // Where nothing can be mounted from outside, nothing is.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => Ok(Vec::new()),
            asked => match answered(folder.id(), asked)? {
                Some(MountResponse::Status(all)) => Ok(all.into_iter().map(status_of).collect()),
                None => Ok(Vec::new()),
                Some(_) => Err(warden_client::unexpected_response(folder.id())),
            },
        }
    }
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

    fn order(&self, id: &SessionId, mount: HostMount) -> Result<MountOrder> {
        let (cache, events) = (self.home().join(CACHE), mount_notes(self.home(), id));
        for folder in [Some(cache.as_path()), events.parent()].into_iter().flatten() {
            make_private(folder).map_err(|error| not_made(folder, error))?;
        }
        Ok(MountOrder {
            path: mount.path,
            provider: mount.provider,
            read_only: mount.read_only,
            spec: mount.store.to_string(),
            cache,
            cache_size: mount.cache_size,
            owner: mount.owner.map(|(uid, gid)| UserAndGroup { uid, gid }),
            device: self.fuse_device.clone(),
            events,
        })
    }
}

fn not_made(folder: &Path, error: io::Error) -> Error {
    let message = format!("cannot make {}: {error}", folder.display());
    Error::new(ErrorKind::Io, message).with_source(error)
}

/// What the keeper answered, with its refusals as errors.
fn answered(
    id: &SessionId,
    answer: io::Result<Option<MountResponse>>,
) -> Result<Option<MountResponse>> {
    match answer {
        Ok(Some(MountResponse::Refused { why, message })) => {
            let kind = match why {
                MountRefusal::Invalid => ErrorKind::InvalidInput,
                MountRefusal::Conflict => ErrorKind::Conflict,
                MountRefusal::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Io,
            };
            Err(match why {
                MountRefusal::NotStored => {
                    Error::new(kind, message).with_condition(Condition::MountNotStored)
                }
                _ => Error::new(kind, message),
            })
        }
        Ok(answer) => Ok(answer),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
            let message = format!(
                "session {id} has no mounts of its own: the host strategy needs the rung `namespaces`, not \
                 `landlock` or `unconfined`"
            );
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("create the session with isolation `namespaces`"))
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let message = format!("the mounts of session {id} are not answered for in time");
            Err(Error::new(ErrorKind::Timeout, message))
        }
        Err(error) => {
            let message = format!("the warden of session {id} does not answer: {error}");
            Err(Error::new(ErrorKind::BackendLost, message))
        }
    }
}

fn status_of(status: MountStatus) -> HostMountStatus {
    let mut found = HostMountStatus::new(status.path, status.provider, status.since_ms);
    found.read_only = status.read_only;
    found.state = match status.state {
        MountState::Mounted => HostMountState::Mounted,
        MountState::Restarting => HostMountState::Restarting,
        MountState::Lost => HostMountState::Lost,
    };
    (found.reads, found.writes, found.cache_hits) =
        (status.reads, status.writes, status.cache_hits);
    found
}
