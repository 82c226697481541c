//! The life of a session: start, save, shut down, close.
//!
//! [`start`](Session::start) lays out the workspace or brings it
//! back; [`save`](Session::save) keeps it and ends nothing; [`shutdown`](Session::shutdown) ends the
//! machine and keeps its files; [`close`](Session::close) does all of that in order, once, and always
//! lets go of everything.

mod close;
mod decision;
mod hooks;
mod limits;
mod progress;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bastide_model::events::Operation;
use bastide_model::snapshot::{FingerprintRecord, Snapshot};
use bastide_model::{Manifest, PosixPath, Registry, SessionState};
use bastide_proto::Request;
use serde_json::Value;

use crate::client::dependencies::Dependencies;
use crate::client::{DEFAULT_ROOT, shut_down, suspend_expiry};
use crate::compat::raise;
use crate::events::Finished;
use crate::journal::JournalOptions;
use crate::snapshot::{Saved, SnapshotStorage, Workspace};
use crate::state::Transition;
use crate::workspace::{self, GitOptions, Sources};
use crate::{Error, ErrorClass, ErrorKind, Result, Session};

pub(crate) use close::LastSave;
use decision::{Plan, StartState, decide};
pub(crate) use hooks::Hooks;
pub use limits::ConcurrencyLimits;
pub(crate) use limits::Limits;
pub use progress::ProgressListener;

/// How long a guest may take to say that it is there.
const PING: Duration = Duration::from_secs(5);

/// What a session is beside its machine.
pub(crate) struct Lifecycle {
    pub(crate) terms: SessionConfig,
    state: Mutex<SessionState>,
    preserved: Mutex<Preserved>,
    skipped: Mutex<BTreeSet<PosixPath>>,
    pub(crate) hooks: Hooks,
    /// One start, stop, shutdown or application of a manifest at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
    closing: tokio::sync::Mutex<bool>,
    pub(super) is_started: AtomicBool,
    is_shut_down: AtomicBool,
    is_lease_held_off: AtomicBool,
}

/// What of a session was there before it started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Preserved {
    /// Its files.
    pub(crate) workspace: bool,
    /// What is around them, accounts above all.
    pub(crate) system: bool,
}

/// What stays the same from the beginning of a session to its end.
pub(crate) struct SessionConfig {
    pub(crate) registry: Arc<Registry>,
    pub(crate) limits: Limits,
    pub(crate) sources: Option<Arc<Sources>>,
    pub(crate) git: GitOptions,
    pub(crate) dependencies: Dependencies,
    pub(crate) progress: Option<ProgressListener>,
    /// Whether the workspace is a folder of the caller's.
    pub(crate) is_callers: bool,
    /// The folder of the host that is the workspace, whosever it is. With a backslash in its name it is called otherwise inside.
    pub(crate) host_folder: Option<PathBuf>,
    /// Which points the session makes of itself.
    pub(crate) journal: Option<JournalOptions>,
    /// Whether the session ends with its owner.
    pub(crate) is_tied: bool,
    pub(crate) keeper: Arc<dyn SnapshotStorage>,
    /// Why nobody can read what the session is, and so where it is kept when it stops.
    pub(crate) unreadable: Option<Error>,
    /// Whether changes that no snapshot has are given up for the snapshot at a start.
    pub(crate) discards_changes: bool,
    /// Whether the workspace is not where the manifest wants it, for the machine has the host's paths.
    pub(crate) has_moved: bool,
}

impl Lifecycle {
    pub(crate) fn new(
        terms: SessionConfig,
        state: SessionState,
        preserved: Preserved,
        is_started: bool,
    ) -> Self {
        Self {
            terms,
            state: Mutex::new(state),
            preserved: Mutex::new(preserved),
            skipped: Mutex::default(),
            hooks: Hooks::default(),
            turn: tokio::sync::Mutex::default(),
            closing: tokio::sync::Mutex::default(),
            is_started: AtomicBool::new(is_started),
            is_shut_down: AtomicBool::new(false),
            is_lease_held_off: AtomicBool::new(false),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, SessionState> {
        lock(&self.state)
    }

    /// Keeps a path of the workspace out of what is saved.
    pub(crate) fn skip(&self, path: PosixPath) {
        lock(&self.skipped).insert(path);
    }

    /// Keeps these paths of the workspace out of what is saved, and no others.
    pub(crate) fn skip_only(&self, paths: Vec<PosixPath>) {
        *lock(&self.skipped) = paths.into_iter().collect();
    }

    pub(crate) fn on_progress(&self) -> workspace::ProgressSink<'_> {
        self.terms.progress.as_ref().map(ProgressListener::as_callback)
    }
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifecycle").field("is_started", &self.is_started).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nobody panics while holding one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// What the session is, as it may be stored anywhere: the reference's session state, without
    /// paths of the host and without the credentials of mounts. It grants nothing to whoever holds it;
    /// [`Client::resume_state`](crate::Client::resume_state) says what comes back.
    ///
    /// # Errors
    ///
    /// `UnicodeDecodeError` if the manifest holds a file that is not text.
    pub fn state_json(&self) -> Result<Value> {
        let SessionConfig { registry, has_moved, .. } = &self.life.terms;
        let state = self.life.state();
        if !has_moved || state.manifest.root == DEFAULT_ROOT {
            return state.serialize(registry);
        }
        // Where the workspace lies on the host is said by the machine, each time.
        let mut state = state.clone();
        DEFAULT_ROOT.clone_into(&mut state.manifest.root);
        state.serialize(registry)
    }

    /// The manifest the session has.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        self.life.state().manifest.clone()
    }

    /// Where the workspace is kept when the session stops.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.life.state().snapshot.clone()
    }

    /// What the session can ask of the program around it.
    #[must_use]
    pub fn dependencies(&self) -> &Dependencies {
        &self.life.terms.dependencies
    }

    /// Whether the session was started, was not shut down, and its guest answers.
    ///
    /// # Errors
    ///
    /// Only with what a sink fails with that must hear of it.
    pub async fn is_running(&self) -> Result<bool> {
        let scope = self.operation_scope(|| Operation::Running);
        scope.record(async { Ok(self.answers().await) }, |alive| Finished::running(*alive)).await
    }

    async fn answers(&self) -> bool {
        if !self.life.is_started.load(Ordering::Acquire)
            || self.life.is_shut_down.load(Ordering::Acquire)
        {
            return false;
        }
        let ping = async { self.link.open(Request::Ping).await?.finish().await };
        matches!(tokio::time::timeout(PING, ping).await, Ok(Ok(())))
    }

    /// Makes the workspace what it should be: restores the snapshot if there is one, else lays out the
    /// manifest. A workspace that is there already is used as it is, and only what is ephemeral is made
    /// anew.
    ///
    /// # Errors
    ///
    /// Fails with what the manifest or the snapshot fails with. Nothing of the workspace is removed
    /// before its replacement is there and verified.
    pub async fn start(&self) -> Result<()> {
        self.operation_scope(|| Operation::Start)
            .record_as_one(self.start_unrecorded(), |()| Finished::done())
            .await
    }

    async fn start_unrecorded(&self) -> Result<()> {
        let _turn = self.life.turn.lock().await;
        self.check_up().map_err(|error| {
            let raised = raise::workspace_start(self.root.as_str());
            raised.with_hint("resume it first").with_source(error)
        })?;
        let started = self.start_workspace().await.map_err(|error| self.redacted_if(error));
        self.life.is_started.store(started.is_ok(), Ordering::Release);
        started?;
        self.life.state().workspace_root_ready = true;
        // Starting again is no reason to begin from nothing.
        *lock(&self.life.preserved) = Preserved { workspace: true, system: true };
        self.remember()
    }

    async fn start_workspace(&self) -> Result<()> {
        let (manifest, is_ready) = {
            let state = self.life.state();
            state.manifest.check_mount_boundaries(Some(state.type_name()))?;
            (state.manifest.clone(), state.workspace_root_ready)
        };
        let preserved = *lock(&self.life.preserved);
        let workspace = self.workspace(&manifest)?;
        let is_ready = is_ready || (preserved.workspace && self.has_root().await);
        let is_there = preserved.workspace && is_ready;
        let is_restorable = self.life.terms.keeper.is_restorable(&workspace).await?;
        let discards = self.life.terms.discards_changes;
        // A folder of the caller's outlives its session, and is not cleared to restore what it holds already.
        let may_be_there = is_there && discards || !is_there && self.life.terms.is_callers;
        let is_as_saved = may_be_there && is_restorable && self.is_as_saved(&workspace).await;
        let is_there = is_there || is_as_saved;
        let situation = StartState { is_restorable, is_there, is_as_saved, discards };
        let plan = decide(situation);
        if plan == Plan::Restore {
            self.life.terms.keeper.restore(&workspace).await?;
        }
        if !preserved.system {
            self.provision(&manifest).await?;
        }
        if plan == Plan::Use {
            self.recover_journal().await?;
        }
        let only_ephemeral = plan != Plan::LayOut;
        workspace::apply(self, &manifest, only_ephemeral, self.life.on_progress()).await.map(drop)
    }

    async fn has_root(&self) -> bool {
        self.files().stat(self.root.as_str()).await.is_ok_and(|found| found.is_dir())
    }

    /// Whether the workspace looks as it did when it was last saved. What cannot be found out counts
    /// as no.
    async fn is_as_saved(&self, workspace: &Workspace<'_>) -> bool {
        let saved = {
            let state = self.life.state();
            let (fingerprint, version) =
                (state.snapshot_fingerprint.clone(), state.snapshot_fingerprint_version.clone());
            match (fingerprint, version) {
                (Some(fingerprint), Some(version)) => FingerprintRecord { fingerprint, version },
                _ => return false,
            }
        };
        let now = self.life.terms.keeper.fingerprint(workspace).await;
        now.ok().flatten().is_some_and(|now| now == saved)
    }

    /// The workspace as whoever saves or restores it sees it.
    pub(crate) fn workspace<'a>(&'a self, manifest: &'a Manifest) -> Result<Workspace<'a>> {
        let root = manifest.root_path();
        // Whatever a mount says of itself: no store is copied into a snapshot, and none is restored over.
        let mounted = manifest.mount_targets()?;
        let kept: Vec<_> = mounted.iter().filter_map(|target| target.path.below(&root)).collect();
        let mut left_out = manifest.ephemeral_persistence_paths()?;
        left_out.extend(kept.iter().filter(|path| !path.is_empty()).cloned());
        left_out.extend(manifest.mount_scratch_paths()?);
        left_out.extend(lock(&self.life.skipped).iter().cloned());
        left_out.extend(self.sink_paths());
        Ok(Workspace {
            id: self.id(),
            link: self.link.as_ref(),
            policy: &self.policy,
            root: &self.root,
            manifest,
            left_out: left_out.into_iter().collect(),
            kept,
            must_be_empty: self.life.terms.is_callers,
            dependencies: &self.life.terms.dependencies,
            progress: self.life.on_progress(),
        })
    }

    /// An error as it may be shown: without what speaks of a mount that may have credentials.
    pub(crate) fn redacted_if(&self, error: Error) -> Error {
        error.redacted_if(self.life.state().manifest.holds_mount_authority())
    }

    /// Ends interactive processes and saves the workspace. Nothing else ends: the session goes on.
    ///
    /// # Errors
    ///
    /// `WorkspaceStopError` if the workspace cannot be saved; where the session has a system of its own, the class of what
    /// went wrong. What was saved before is still there then, and so is the workspace.
    pub async fn save(&self) -> Result<Saved> {
        self.operation_scope(|| Operation::Stop)
            .record_as_one(self.save_unrecorded(), Saved::finished)
            .await
    }

    async fn save_unrecorded(&self) -> Result<Saved> {
        let _turn = self.life.turn.lock().await;
        let is_shut_down = self.life.is_shut_down.load(Ordering::Acquire);
        if is_shut_down && self.life.terms.keeper.is_noop() {
            return Ok(Saved::default());
        }
        self.check_up().map_err(|error| {
            raise::workspace_stop(&self.root).with_hint("resume it first").with_source(error)
        })?;
        if let Some(error) = &self.life.terms.unreadable {
            let message = format!("session {} cannot be saved: {error}", self.id());
            let error = Error::new(error.kind(), message);
            return Err(raise::workspace_stop(&self.root).with_source(error));
        }
        let manifest = self.manifest();
        let checked = manifest.check_mount_boundaries(Some(self.life.state().type_name()));
        checked.map_err(|error| self.redacted_if(error))?;
        self.compat().pty_terminate_all().await;
        // A workspace that was never made is nothing to come back to.
        if self.life.terms.keeper.is_noop() || !self.life.is_started.load(Ordering::Acquire) {
            return Ok(Saved::default());
        }
        let workspace = self.workspace(&manifest)?;
        let saved = self.life.terms.keeper.save(&workspace).await.map_err(|error| {
            let retryable = error.is_retryable();
            let error = self.redacted_if(error);
            // The reference's client for this machine has one word for whatever happens here; the one for containers says
            // what it was.
            if self.backend.has_own_system() && error.class().is_some() {
                return error;
            }
            raise::workspace_stop(&self.root).with_retryable(retryable).with_source(error)
        })?;
        {
            let mut state = self.life.state();
            let record = saved.fingerprint.clone();
            let (fingerprint, version) = match record {
                Some(record) => (Some(record.fingerprint), Some(record.version)),
                None => (None, None),
            };
            state.snapshot_fingerprint = fingerprint;
            state.snapshot_fingerprint_version = version;
        }
        self.remember()?;
        Ok(saved)
    }

    /// Ends every process of the session and its machine. Its files stay, and it can be
    /// [resumed](crate::Client::resume). Shutting down what is shut down succeeds.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be ended.
    pub async fn shutdown(&self) -> Result<()> {
        self.operation_scope(|| Operation::Shutdown)
            .record_as_one(self.shutdown_unrecorded(None), |()| Finished::done())
            .await
    }

    /// Shuts down with the turn of whoever saved the session, if they have it.
    async fn shutdown_unrecorded(&self, turn: Option<Transition>) -> Result<()> {
        let _turn = self.life.turn.lock().await;
        if self.life.is_shut_down.load(Ordering::Acquire) {
            return Ok(());
        }
        self.compat().pty_terminate_all().await;
        self.life.is_started.store(false, Ordering::Release);
        self.suspend_lease().await;
        let released = self.release_mounts().await;
        shut_down(self.backend.as_ref(), &self.state, &self.machine, turn).await?;
        self.life.is_shut_down.store(true, Ordering::Release);
        released
    }

    /// Keeps a lease from deleting what is about to be saved. One of a session that ends with this process deletes nothing.
    async fn suspend_lease(&self) {
        let is_safe = self.keep_alive.is_some() || self.life.is_shut_down.load(Ordering::Acquire);
        if !is_safe && !self.life.is_lease_held_off.swap(true, Ordering::AcqRel) {
            suspend_expiry(self.backend.as_ref(), &self.machine).await;
        }
    }

    /// Refuses work on a machine that was shut down.
    pub(crate) fn check_up(&self) -> Result<()> {
        if self.life.is_shut_down.load(Ordering::Acquire) {
            let message = format!("session {} was shut down", self.id());
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_class(ErrorClass::ExecTransportError)
                .with_code("exec_transport_error")
                .with_op("exec")
                .with_hint("resume it first"));
        }
        Ok(())
    }

    /// Writes down what the session is, for whoever resumes it.
    pub(crate) fn remember(&self) -> Result<()> {
        // A manifest that cannot be written is no reason not to have a session; it cannot be told to
        // anybody else, and whoever resumes the session finds its files. Where it is kept can.
        let state = self.state_json().or_else(|_| {
            let mut state = self.life.state().clone();
            let root = std::mem::take(&mut state.manifest.root);
            state.manifest = Manifest { root, ..Manifest::default() };
            state.serialize(&self.life.terms.registry)
        })?;
        self.state.remember(self.id(), &state, self.life.terms.is_tied)
    }

    /// Makes users and groups inside.
    pub(crate) async fn provision(&self, manifest: &Manifest) -> Result<()> {
        if manifest.users.is_empty() && manifest.groups.is_empty() {
            return Ok(());
        }
        crate::workspace::accounts::provision(self.link.as_ref(), manifest).await
    }
}
