//! A backend whose host mounts are only remembered: what sessions ask for, on every backend there is.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{Expose, HostMount, HostMountStatus, HostMounts};
use bastide::model::state::BackendState;
use bastide::{
    Backend, Booted, Connection, Error, ErrorKind, GuestPath, Machine, MachineSpec, MachineStatus,
    Orphans, Result, SessionFolder, SweepMode,
};

/// The bucket that cannot be mounted.
pub(super) const BROKEN: &str = "broken";

/// The backend under trial, with mounts that are remembered.
#[derive(Debug)]
pub(super) struct Recording {
    inner: Arc<dyn Backend>,
    recorded_calls: Mutex<Vec<RecordedCall>>,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RecordedCall {
    Mount(HostMount),
    Unmount(String),
}

impl Recording {
    pub(super) fn new(inner: &Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), recorded_calls: Mutex::default() })
    }

    /// Everything that was asked for since the last time.
    pub(super) fn recorded_calls(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut *self.recorded_calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, recorded_calls: RecordedCall) {
        self.recorded_calls.lock().unwrap_or_else(PoisonError::into_inner).push(recorded_calls);
    }
}

#[async_trait]
impl HostMounts for Recording {
    async fn mount(&self, _: &SessionFolder, mount: HostMount) -> Result<()> {
        let source = &mount.store["source"];
        let refused = (source["bucket"] == BROKEN).then(|| {
            let key = source["keys"]["secret_access_key"].as_str().unwrap_or_default();
            Error::new(ErrorKind::Io, format!("the store does not know the key {key}"))
        });
        self.note(RecordedCall::Mount(mount));
        refused.map_or(Ok(()), Err)
    }

    async fn unmount(&self, _: &SessionFolder, path: &str, _: Duration) -> Result<()> {
        self.note(RecordedCall::Unmount(path.to_owned()));
        Ok(())
    }

    async fn status(&self, folder: &SessionFolder) -> Result<Vec<HostMountStatus>> {
        let mut status = HostMountStatus::new("/workspace/data", "s3", 7);
        status.reads = 5;
        let is_there = folder.path().is_dir();
        Ok(is_there.then_some(status).into_iter().collect())
    }
}

#[async_trait]
impl Backend for Recording {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn has_host_files(&self) -> bool {
        self.inner.has_host_files()
    }

    fn has_own_system(&self) -> bool {
        self.inner.has_own_system()
    }

    fn home(&self) -> &Path {
        self.inner.home()
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted> {
        self.inner.boot(folder, spec).await
    }

    async fn connect(&self, machine: &Machine) -> Result<Connection> {
        self.inner.connect(machine).await
    }

    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus> {
        self.inner.inspect(machine).await
    }

    async fn stop(&self, machine: &Machine) -> Result<()> {
        self.inner.stop(machine).await
    }

    async fn destroy(&self, machine: &Machine) -> Result<()> {
        self.inner.destroy(machine).await
    }

    async fn discard(&self, folder: &Path) -> Result<()> {
        self.inner.discard(folder).await
    }

    fn is_own(&self, machine: &Machine) -> Result<bool> {
        self.inner.is_own(machine)
    }

    async fn remove_tree(&self, folder: &Path) -> Result<()> {
        self.inner.remove_tree(folder).await
    }

    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        self.inner.sweep(mode).await
    }

    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        self.inner.root(machine)
    }

    fn state_types(&self) -> Vec<&'static str> {
        self.inner.state_types()
    }

    fn stored(&self, machine: &Machine) -> BackendState {
        self.inner.stored(machine)
    }

    fn unmade(&self) -> BackendState {
        self.inner.unmade()
    }

    fn expose(&self) -> Option<&dyn Expose> {
        self.inner.expose()
    }

    fn mounts_inside(&self) -> bool {
        self.inner.mounts_inside()
    }

    fn host_mounts(&self) -> Option<&dyn HostMounts> {
        Some(self)
    }
}
