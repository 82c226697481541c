//! What backends with wardens share to have stores mounted from outside: asking the keeper of a session's mounts, which
//! the warden starts.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use bastide_proto::boot::UserAndGroup;
use bastide_proto::mounts::{
    MOUNTS_FOLDER, MountRefusal, MountRequest, MountResponse, MountState, MountStatus, StoreMount,
};
use rustix::io::Errno;

use super::make_private;
use crate::backend::{HostMount, HostMountState, HostMountStatus};
use crate::events::mount_notes;
use crate::state::SessionFolder;
use crate::{Condition, Error, ErrorKind, Result, SessionId, warden_client};

/// The folder of blocks that mounts of any session of a home have read.
const CACHE: &str = "mount-cache";

/// How long a store may take to be found usable and to be mounted.
const MOUNT_TIME: Duration = Duration::from_secs(120);

/// How long an unmount may take beyond the time that whoever uses the mount is given: what was written is stored.
const UNMOUNT_TIME: Duration = Duration::from_secs(90);

/// How long the keeper may take to say what is mounted.
const STATUS_TIME: Duration = Duration::from_secs(10);

/// How often whoever was dropped by a keeper that died asks again, and how long after.
const AGAIN: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// The keeper of a session's mounts, as hosts see it.
#[derive(Debug, Clone, Copy)]
pub struct MountKeeper<'a> {
    folder: &'a SessionFolder,
    /// Why there is none in some sessions, and what to do about it.
    without: (&'static str, &'static str),
}

impl<'a> MountKeeper<'a> {
    /// The keeper of a session. `why` and `hint` are what callers are told where there cannot be one.
    #[must_use]
    pub fn new(folder: &'a SessionFolder, why: &'static str, hint: &'static str) -> Self {
        Self { folder, without: (why, hint) }
    }

    /// Mounts a store with a device, by `program` if no keeper was started yet.
    ///
    /// # Errors
    ///
    /// As [`HostMounts::mount`](crate::backend::HostMounts::mount).
    pub async fn mount(
        &self,
        home: &Path,
        program: BorrowedFd<'_>,
        device: &Path,
        mount: HostMount,
    ) -> Result<()> {
        let order = order(home, self.folder.id(), device, mount)?;
        let request = MountRequest::Mount(Box::new(order));
        match self.answered(self.ask(Some(program), &request, MOUNT_TIME).await)? {
            Some(MountResponse::Done) => Ok(()),
            _ => Err(warden_client::unexpected_response(self.folder.id())),
        }
    }

    /// Whether a keeper of this session was there: if it is not any more, another has to see to what it left.
    #[must_use]
    pub fn was_there(&self) -> bool {
        !matches!(self.folder.path().join(MOUNTS_FOLDER).try_exists(), Ok(false))
    }

    /// Unmounts, by `program` if no keeper is there.
    ///
    /// # Errors
    ///
    /// As [`HostMounts::unmount`](crate::backend::HostMounts::unmount).
    pub async fn unmount(
        &self,
        program: Option<BorrowedFd<'_>>,
        path: &str,
        deadline: Duration,
    ) -> Result<()> {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let request = MountRequest::Unmount { path: path.to_owned(), deadline_ms };
        let most = deadline.saturating_add(UNMOUNT_TIME);
        let mut asked = self.ask(program, &request, most).await;
        for _ in 0..AGAIN {
            if !asked.as_ref().is_err_and(was_dropped) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            asked = self.ask(program, &request, most).await;
        }
        match self.answered(asked)? {
            Some(MountResponse::Done) | None => Ok(()),
            Some(_) => Err(warden_client::unexpected_response(self.folder.id())),
        }
    }

    /// What is mounted.
    ///
    /// # Errors
    ///
    /// As [`HostMounts::status`](crate::backend::HostMounts::status).
    pub async fn status(&self) -> Result<Vec<HostMountStatus>> {
        match self.ask(None, &MountRequest::Status, STATUS_TIME).await {
            // Where nothing can be mounted from outside, nothing is.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => Ok(Vec::new()),
            asked => match self.answered(asked)? {
                Some(MountResponse::Status(all)) => Ok(all.into_iter().map(status_of).collect()),
                None => Ok(Vec::new()),
                Some(_) => Err(warden_client::unexpected_response(self.folder.id())),
            },
        }
    }

    async fn ask(
        &self,
        program: Option<BorrowedFd<'_>>,
        request: &MountRequest,
        most: Duration,
    ) -> io::Result<Option<MountResponse>> {
        warden_client::mounts(self.folder.path(), program, request, most).await
    }

    /// What the keeper answered, with its refusals as errors.
    fn answered(&self, answer: io::Result<Option<MountResponse>>) -> Result<Option<MountResponse>> {
        let id = self.folder.id();
        match answer {
            Ok(Some(MountResponse::Refused { why, message })) => Err(refusal(why, message)),
            Ok(answer) => Ok(answer),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                let (why, hint) = self.without;
                let message = format!("session {id} has no mounts of its own: {why}");
                Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint))
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
}

/// Whether a keeper that dies dropped whoever asked it. Another sees to what it left, and what is unmounted twice is unmounted.
fn was_dropped(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn refusal(why: MountRefusal, message: String) -> Error {
    let kind = match why {
        MountRefusal::Invalid => ErrorKind::InvalidInput,
        MountRefusal::Conflict => ErrorKind::Conflict,
        MountRefusal::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    };
    let error = Error::new(kind, message);
    match why {
        MountRefusal::NotStored => error.with_condition(Condition::MountNotStored),
        _ => error,
    }
}

fn order(home: &Path, id: &SessionId, device: &Path, mount: HostMount) -> Result<StoreMount> {
    let (cache, events) = (home.join(CACHE), mount_notes(home, id));
    for folder in [Some(cache.as_path()), events.parent()].into_iter().flatten() {
        make_private(folder).map_err(|error| not_made(folder, error))?;
    }
    Ok(StoreMount {
        path: mount.path,
        provider: mount.provider,
        read_only: mount.read_only,
        spec: mount.store.to_string(),
        cache,
        cache_size: mount.cache_size,
        owner: mount.owner.map(|(uid, gid)| UserAndGroup { uid, gid }),
        device: device.to_owned(),
        events,
    })
}

fn not_made(folder: &Path, error: io::Error) -> Error {
    let message = format!("cannot make {}: {error}", folder.display());
    Error::new(ErrorKind::Io, message).with_source(error)
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
