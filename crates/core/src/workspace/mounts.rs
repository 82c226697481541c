//! Cloud storage in the workspace: mounting what a manifest names, and unmounting it.

mod cause;
mod commands;
mod host;
mod inside;
mod record;
mod table;

use std::time::Duration;

use bastide_model::manifest::MountTarget;
use bastide_model::mount::MountStrategy;
use bastide_model::{Error, Manifest};
use serde::Serialize;
use uuid::Uuid;

use crate::backend::{Backend, HostMountState, HostMountStatus, HostMounts};
use crate::client::uuid_of;
use crate::compat::raise;
use crate::state::SessionFolder;
use crate::{ErrorKind, Result, Session};

use inside::InsideMount;
pub(crate) use record::MountRecord;
use table::MountTable;

/// What to do where a backend has no mounts at all.
const ELSEWHERE: &str = "use the backend `local` or `docker`";

/// How long the host's program may take to store what was written.
const FLUSHING: Duration = Duration::from_secs(60);

/// A mount of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MountInfo {
    /// Where it is inside.
    pub path: String,
    /// The provider, as manifests call it.
    pub provider: String,
    /// By which means it is mounted.
    pub strategy: String,
    /// Whether it can only be read.
    pub read_only: bool,
    /// `mounted`, `missing`, or of a program of the host `restarting` or `lost`.
    pub state: String,
    /// When it was mounted, in milliseconds since 1970, if that is known.
    pub since: Option<u64>,
    /// How many reads were answered, where somebody counts.
    pub reads: Option<u64>,
    /// How many writes were taken, where somebody counts.
    pub writes: Option<u64>,
    /// How many blocks came out of the cache, where somebody counts.
    pub cache_hits: Option<u64>,
    /// The fields of credentials that commands in the sandbox can get at.
    pub exposed: Vec<String>,
}

/// Refuses, before anything happens, what cannot be mounted in sessions of this backend.
pub(crate) fn check(backend: &dyn Backend, manifest: &Manifest) -> Result<()> {
    manifest.check_mount_targets()?;
    for target in manifest.mount_targets()? {
        let (kind, path) = (target.mount.type_name(), &target.path);
        let refused = |why: String, hint: &str| {
            let message = format!("cannot mount the `{kind}` at {path}: {why}; {hint}");
            Err(raise::mount_config(message).with_safe_message().with_context("mount_type", kind))
        };
        let name = backend.name();
        match target.mount.strategy {
            MountStrategy::InContainer { .. } if !backend.mounts_inside() => {
                let why = format!("nobody inside a sandbox of the backend `{name}` may mount");
                let hint = match backend.host_mounts().is_some() {
                    true => "use `mount_strategy: {type: host}`, or a container",
                    false => ELSEWHERE,
                };
                return refused(why, hint);
            }
            MountStrategy::Host { .. } if backend.host_mounts().is_none() => {
                let why = format!("the backend `{name}` does not mount from outside");
                let hint = match backend.mounts_inside() {
                    true => "use `in_container` or `docker_volume`",
                    false => ELSEWHERE,
                };
                return refused(why, hint);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Mounts everything a manifest names that is not mounted yet. When this fails, what it mounted is not
/// mounted any more.
pub(crate) async fn mount_all(session: &Session, manifest: &Manifest) -> Result<()> {
    let targets = manifest.mount_targets()?;
    if targets.is_empty() {
        return Ok(());
    }
    check(session.backend.as_ref(), manifest)?;
    let known = session.state.mounts(session.id())?;
    let mut records: Vec<MountRecord> = Vec::new();
    let mut fresh = Vec::new();
    for target in &targets {
        let one = OneMount::new(session, manifest, target)?;
        let record = MountRecord::of(target, &session.life.terms.registry)?;
        let mounted = match one.mount(record, &known).await {
            // Files of the workspace may be in it from now on.
            Ok(mounted) => session.files().enter_mount(&one.path()).await.map(|()| mounted),
            Err(error) => Err(error),
        };
        match mounted {
            Ok((record, is_new)) => {
                fresh.extend(is_new.then_some(one));
                records.push(record);
            }
            Err(error) => {
                for one in fresh.iter().rev() {
                    // The first failure is the one to tell.
                    drop(one.unmount().await);
                }
                return Err(error);
            }
        }
    }
    session.state.remember_mounts(session.id(), &records)
}

/// Unmounts everything of a session that a machine's end would not unmount cleanly: what was written is
/// stored then. What cannot be unmounted is told.
pub(crate) async fn unmount_all(session: &Session) -> Result<()> {
    let manifest = session.manifest();
    let targets = manifest.mount_targets()?;
    if targets.is_empty() {
        return Ok(());
    }
    let known = session.state.mounts(session.id())?;
    let mut failed = None;
    for target in &targets {
        let one = OneMount::new(session, &manifest, target)?;
        let unmounted = one.unmount().await;
        let record = known.iter().find(|known| known.path == one.path());
        if let (Ok(()), Some(folder)) =
            (&unmounted, record.and_then(|known| known.private.as_ref()))
        {
            commands::remove_private(session, folder).await;
        }
        failed = failed.or(unmounted.err());
    }
    failed.map_or(Ok(()), Err)
}

/// What is mounted in a session, in the order of its manifest's depths.
pub(crate) async fn list(session: &Session) -> Result<Vec<MountInfo>> {
    let manifest = session.manifest();
    let targets = manifest.mount_targets()?;
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let known = session.state.mounts(session.id())?;
    let is_inside =
        |target: &MountTarget<'_>| !matches!(target.mount.strategy, MountStrategy::Host { .. });
    let table = match targets.iter().any(is_inside) {
        true => MountTable::read(session).await?,
        false => MountTable::default(),
    };
    let served = match session.backend.host_mounts() {
        Some(mounts) => mounts.status(&folder_of(session)?).await?,
        None => Vec::new(),
    };
    let describe = |target: &MountTarget<'_>| {
        let path = target.path.normalized().to_string();
        let record = known.iter().find(|record| record.path == path);
        let served = served.iter().find(|status| status.path == path);
        let is_there = table.at(&path).is_some();
        MountInfo {
            provider: target.mount.type_name().trim_end_matches("_mount").to_owned(),
            strategy: target.mount.strategy.type_name().to_owned(),
            read_only: target.mount.read_only,
            state: state_of(target, served, is_there).to_owned(),
            since: served.map(|status| status.since_ms).or(record.map(|record| record.since_ms)),
            reads: served.map(|status| status.reads),
            writes: served.map(|status| status.writes),
            cache_hits: served.map(|status| status.cache_hits),
            exposed: record.map(|record| record.exposed.clone()).unwrap_or_default(),
            path,
        }
    };
    Ok(targets.iter().map(describe).collect())
}

fn state_of(
    target: &MountTarget<'_>,
    served: Option<&HostMountStatus>,
    is_there: bool,
) -> &'static str {
    match (&target.mount.strategy, served.map(|status| status.state)) {
        (MountStrategy::Host { .. }, Some(HostMountState::Mounted)) => "mounted",
        (MountStrategy::Host { .. }, Some(HostMountState::Restarting)) => "restarting",
        (MountStrategy::Host { .. }, Some(HostMountState::Lost)) => "lost",
        (MountStrategy::Host { .. }, None) => "missing",
        _ if is_there => "mounted",
        _ => "missing",
    }
}

fn folder_of(session: &Session) -> Result<SessionFolder> {
    SessionFolder::seen(session.state.path_of(session.id()), session.id().clone())
}

/// One mount of a session, by whatever means.
struct OneMount<'a> {
    session: &'a Session,
    manifest: &'a Manifest,
    target: &'a MountTarget<'a>,
    backend: String,
    session_id: Uuid,
}

impl<'a> OneMount<'a> {
    fn new(
        session: &'a Session,
        manifest: &'a Manifest,
        target: &'a MountTarget<'a>,
    ) -> Result<Self> {
        let backend = session.life.state().type_name().to_owned();
        let session_id = uuid_of(session.id())?;
        Ok(Self { session, manifest, target, backend, session_id })
    }

    fn path(&self) -> String {
        self.target.path.normalized().to_string()
    }

    fn inside(&self) -> InsideMount<'_> {
        let Self { session, manifest, target, backend, session_id } = self;
        InsideMount { session, manifest, target, backend, session_id: *session_id }
    }

    fn host_mounts(&self) -> Result<&dyn HostMounts> {
        let none =
            || Error::new(ErrorKind::Unsupported, "this backend does not mount from outside");
        self.session.backend.host_mounts().ok_or_else(none)
    }

    /// Mounts it unless it is there already. Says what is on record of it, and whether it is new.
    async fn mount(
        &self,
        record: MountRecord,
        known: &[MountRecord],
    ) -> Result<(MountRecord, bool)> {
        match &self.target.mount.strategy {
            MountStrategy::InContainer { .. } => self.mount_inside(record, known).await,
            MountStrategy::Host { .. } => {
                self.target.mount.check_boundary(
                    self.manifest,
                    &self.target.path,
                    Some(&self.backend),
                )?;
                let mount = host::host_mount(self.target)?;
                let folder = folder_of(self.session)?;
                let mounted = self.host_mounts()?.mount(&folder, mount).await;
                mounted.map_err(|error| host::mount_error(error, self.target))?;
                Ok((record, true))
            }
            // The machine came up with it.
            MountStrategy::DockerVolume { .. } | MountStrategy::Custom(_) => Ok((record, false)),
        }
    }

    async fn mount_inside(
        &self,
        mut record: MountRecord,
        known: &[MountRecord],
    ) -> Result<(MountRecord, bool)> {
        let inside = self.inside();
        let same = known.iter().find(|known| known.is_same_mount(&record));
        if inside.is_mounted().await? {
            if let Some(same) = same
                && inside.is_live().await?
            {
                record.private.clone_from(&same.private);
                record.since_ms = same.since_ms;
                return Ok((record, false));
            }
            // Another store, or one that does not answer any more.
            inside.unmount().await?;
        }
        record.private = inside.mount().await?;
        Ok((record, true))
    }

    async fn unmount(&self) -> Result<()> {
        match &self.target.mount.strategy {
            MountStrategy::InContainer { .. } => self.inside().unmount().await,
            MountStrategy::Host { .. } => {
                let folder = folder_of(self.session)?;
                let unmounted = self.host_mounts()?.unmount(&folder, &self.path(), FLUSHING).await;
                unmounted.map_err(|error| host::unmount_error(error, self.target))
            }
            MountStrategy::DockerVolume { .. } | MountStrategy::Custom(_) => Ok(()),
        }
    }
}
