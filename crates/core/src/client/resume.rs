//! Coming back to sessions: by name, or by a state that was stored somewhere.
//!
//! A stored state is never believed about what it would give: which folders of the host, which
//! mounts, which snapshot, which machine. For a session of this home all of that is on record here;
//! for any other it comes from whoever resumes it, and the state must agree.

use std::sync::Arc;
use std::time::Duration;

use bastide_model::snapshot::{FingerprintRecord, Snapshot};
use bastide_model::state::BackendState;
use bastide_model::{EntryKind, Manifest, PathGrant, PosixPath, SessionState};
use serde_json::{Value, json};

use super::create::{Start, uuid_of};
use super::lifetime::missing;
use super::removal::{being_removed, busy, hold, never_made};
use super::{Client, CreateOptions, DEFAULT_ROOT, admission, storage};
use crate::backend::{Grant, KeepAlive, Machine, MachineStatus, SessionId};
use crate::compat::raise;
use crate::link::Link;
use crate::session::lifecycle::{Preserved, ProgressListener};
use crate::state::{Record, Stage, Transition, TransitionAttempt, has_tombstone};
use crate::{Condition, Error, ErrorKind, Result, Session, workspace};

/// The options of resuming a session.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ResumeOptions {
    /// A manifest that the caller trusts. It supplies what a stored state lacks because it must not
    /// be stored.
    pub manifest: Option<Manifest>,
    /// The options for creating the session again if only its snapshot is left here: machine,
    /// limits, type of snapshot. The state does not influence them.
    pub create: CreateOptions,
    /// Whether to discard changes made to the workspace since it was saved, and restore the
    /// snapshot. Changes are kept by default.
    pub discard_changes: bool,
    /// Receives the progress of long operations.
    pub progress: Option<ProgressListener>,
    /// Whether a machine that is started ends with this process. It does not by default.
    pub tied_to_owner: bool,
    /// How long to wait for room where the home limits how many sessions run; not at all by default.
    pub wait: Option<Duration>,
}

impl ResumeOptions {
    /// Has a machine that is started end with this process.
    #[must_use]
    pub fn tied(mut self) -> Self {
        self.tied_to_owner = true;
        self
    }

    /// Vouches for that manifest.
    #[must_use]
    pub fn manifest(mut self, manifest: Manifest) -> Self {
        self.manifest = Some(manifest);
        self
    }

    /// Makes the session in that way if only its snapshot is left of it here.
    #[must_use]
    pub fn create(mut self, create: CreateOptions) -> Self {
        self.create = create;
        self
    }

    /// Gives up what changed since the workspace was saved.
    #[must_use]
    pub fn discard_changes(mut self) -> Self {
        self.discard_changes = true;
        self
    }

    /// Tells the listener how far long work is.
    #[must_use]
    pub fn progress(mut self, progress: ProgressListener) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Waits that long for room.
    #[must_use]
    pub fn wait(mut self, most: Duration) -> Self {
        self.wait = Some(most);
        self
    }
}

/// What is found of a session that is to be resumed.
enum Prepared {
    /// Its machine runs.
    Running,
    /// Its machine is to be started.
    Down(Transition, Box<Record>),
}

impl Client {
    /// Resumes a session, whichever process created it. If it runs, this attaches to it; else its
    /// machine is started again with the files it has, or with the snapshot if it has none. It does
    /// not end with this process.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is no such session,
    /// [`Conflict`](crate::ErrorKind::Conflict) if its creation was never completed.
    pub async fn resume(&self, id: &SessionId) -> Result<Session> {
        self.resume_with(id, ResumeOptions::default()).await
    }

    /// Like [`resume`](Self::resume), with options.
    ///
    /// # Errors
    ///
    /// As `resume`; `ValueError` if a manifest is needed and not given.
    pub async fn resume_with(&self, id: &SessionId, options: ResumeOptions) -> Result<Session> {
        Box::pin(self.resume_machine(id, options, true)).await
    }

    /// Like [`resume_with`](Self::resume_with), but does not touch the workspace until
    /// [`Session::start`] is called.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn resume_unstarted(
        &self,
        id: &SessionId,
        options: ResumeOptions,
    ) -> Result<Session> {
        Box::pin(self.resume_machine(id, options, false)).await
    }

    async fn resume_machine(
        &self,
        id: &SessionId,
        options: ResumeOptions,
        starts: bool,
    ) -> Result<Session> {
        let mut turn = admission::AdmissionRequest::new(&self.state, options.wait)?;
        // While room is waited for, others may stop, delete or resume it.
        let (transition, mut record, folder) = loop {
            let (transition, mut record) = match self.prepare_resume(id).await? {
                Prepared::Running => return self.attach_to_resume(id, options).await,
                Prepared::Down(transition, record) => (transition, *record),
            };
            if let Some(admitted) = turn.look(Some(id), &mut record.spec.limits).await? {
                let folder = hold(&self.state, id, &transition).await?;
                drop(admitted);
                break (transition, record, folder);
            }
            drop(transition);
            turn.pause().await;
        };
        let folder = folder.ok_or_else(|| missing(id.as_str()))?.with_transition(transition);
        let state = self.remembered_or_nameless(&record, options.manifest.as_ref())?;
        if state.is_mount_authority_redacted() {
            let message = format!("the keys of the mounts of session {id} are not on record");
            return Err(raise::value_error(message)
                .with_condition(Condition::MountKeysMissing(id.to_string())));
        }
        state.check_resumable()?;
        record.spec.storage = storage(&state.manifest)?;
        self.refresh_egress(&mut record).await?;
        (record.tied, record.was_there) = (options.tied_to_owner, true);
        // The folder of the host may have been taken away meanwhile; what a session has itself stays.
        let workspace = record.spec.host_workspace.as_ref().is_none_or(|folder| folder.is_dir());
        let start = Start {
            state,
            preserved: Preserved { workspace, system: false },
            discards_changes: options.discard_changes,
            progress: options.progress,
            is_new: false,
            starts,
            unreadable: None,
            name: None,
            origin: None,
        };
        self.audit(id, "resuming", || json!({})).await?;
        let started = self.boot_machine(folder, record, start).await;
        self.audit_resumed(id, started).await
    }

    /// Looks whether a session runs; if not, whoever resumes it has it for themselves.
    async fn prepare_resume(&self, id: &SessionId) -> Result<Prepared> {
        let transition = match self.state.lock_transition(id).await? {
            TransitionAttempt::Ours(transition) => transition,
            TransitionAttempt::Missing => return Err(missing(id.as_str())),
            TransitionAttempt::Taken => return Err(busy(id)),
        };
        if has_tombstone(&self.state.path_of(id)) {
            return Err(being_removed(id));
        }
        let mut record = self.record(id)?;
        record.spec.before = record.machine.clone().map(Box::new);
        match (record.stage, &record.machine) {
            (Stage::Starting, _) => return Err(never_made(id)),
            // A copy of a session begins with the files that were copied, and has nothing of the original's.
            (_, Some(machine)) if !self.backend.is_own(machine)? => {
                record.stage = Stage::Stopped;
                record.machine = None;
                record.owned_root = None;
                self.state.write(&record, &transition)?;
            }
            (Stage::Running | Stage::Saving | Stage::Stopping, Some(machine)) => {
                match self.backend.inspect(machine).await? {
                    MachineStatus::Running { .. } | MachineStatus::Paused { .. } => {
                        // Whoever was stopping it is gone, and did not come to it.
                        if record.stage != Stage::Running {
                            record.stage = Stage::Running;
                            self.state.write(&record, &transition)?;
                        }
                        return Ok(Prepared::Running);
                    }
                    MachineStatus::Broken { .. } => self.backend.stop(machine).await?,
                    MachineStatus::Ended(_) => {}
                }
            }
            _ => {}
        }
        Ok(Prepared::Down(transition, Box::new(record)))
    }

    /// Goes on with a session that runs, and mounts what is missing of the manifest that its caller vouches for. If this
    /// process keeps it up, it does not end any more with whoever has it so far: it lives on, or ends with the last of both.
    async fn attach_to_resume(&self, id: &SessionId, options: ResumeOptions) -> Result<Session> {
        let mut session = self.attach(id).await?;
        session.keep_alive = KeepAlive::of(&self.state.path_of(id));
        if let Some(manifest) = options.manifest {
            workspace::mounts::mount_all(&session, &manifest).await?;
        }
        if !options.tied_to_owner {
            session.detach().await?;
            session.keep_alive = None;
        }
        Ok(session)
    }

    /// Resumes the session of a stored state ([`Session::state_json`]), or creates it again from
    /// its snapshot.
    ///
    /// The state grants nothing. For a session of this home, its record here is authoritative. For
    /// any other, everything that reaches outside the sandbox comes from `options`, and a state
    /// that asks for more is refused: a path of the host, a mount, a source of files, another
    /// snapshot.
    ///
    /// # Errors
    ///
    /// `TypeError` for the state of another kind of session, `ValueError` for one that cannot be
    /// read or asks for more than the caller allows.
    pub async fn resume_state(&self, stored: Value, options: ResumeOptions) -> Result<Session> {
        let state = SessionState::parse(stored, &self.registry)?;
        if !self.backend.state_types().contains(&state.type_name()) {
            let message = format!(
                "a session state of type `{}` is not for the backend `{}`",
                state.type_name(),
                self.backend.name()
            );
            return Err(raise::type_error(message));
        }
        let id: SessionId = state.session_id.simple().to_string().parse()?;
        match self.state.record(&id)? {
            Some(record) => {
                let mut own = self.remembered_or_nameless(&record, options.manifest.as_ref())?;
                if self.has_moved(&record) {
                    DEFAULT_ROOT.clone_into(&mut own.manifest.root);
                }
                let state = match state.path_grants_to_rebind().is_empty() {
                    true => state,
                    false => state.rebind_path_grants(Some(&own.manifest))?,
                };
                agree(&state, &own, &self.trusted(&record))?;
                self.resume_with(&id, options).await
            }
            None => self.rebuild(id, state, options).await,
        }
    }

    /// Makes a session again of which there is nothing here.
    async fn rebuild(
        &self,
        id: SessionId,
        state: SessionState,
        options: ResumeOptions,
    ) -> Result<Session> {
        let Some(trusted) = options.manifest else {
            let message =
                format!("there is no session {id} here, and a stored state alone grants nothing");
            return Err(
                raise::value_error(message).with_hint("resume it with a manifest you vouch for")
            );
        };
        let kind = state.type_name().to_owned();
        let state = match state.path_grants_to_rebind().is_empty() {
            true => state,
            false => state.rebind_path_grants(Some(&trusted))?,
        };
        let mut state = state.rebind_mount_authority(Some(&trusted), &kind, &self.registry)?;
        let is_unix_local = matches!(state.backend, BackendState::UnixLocal { .. });
        let is_owned =
            matches!(state.backend, BackendState::UnixLocal { workspace_root_owned: true });
        if is_owned && trusted.root == DEFAULT_ROOT {
            // Its folder was made for it and went with it. It gets another one; which one is not for the
            // state to say.
            DEFAULT_ROOT.clone_into(&mut state.manifest.root);
        }
        let uuid = state.session_id;
        let own_snapshot = match options.create.snapshot {
            Some(choice) => choice.build(state.snapshot.id()),
            None => Snapshot::Noop { id: state.snapshot.id().to_owned() },
        };
        let vouched = SessionState::new(uuid, own_snapshot, trusted.clone(), state.backend.clone());
        agree(&state, &vouched, &trusted.extra_path_grants)?;
        state.manifest.extra_path_grants = trusted.extra_path_grants;
        let create = CreateOptions {
            id: Some(id),
            snapshot: Some(super::SnapshotChoice::Named(vouched.snapshot)),
            progress: options.progress,
            unix_local: options.create.unix_local || is_unix_local,
            ..options.create
        };
        // A folder of the caller's is still as it was saved, or is not: it is compared, and nothing else comes of what the
        // state says here.
        let saved = state.snapshot_fingerprint.zip(state.snapshot_fingerprint_version);
        let saved = saved.map(|(fingerprint, version)| FingerprintRecord { fingerprint, version });
        Box::pin(self.make(&state.manifest, create, true, saved)).await
    }

    /// The session of a live machine.
    pub(super) fn reattached(
        &self,
        record: Record,
        machine: Machine,
        link: Arc<dyn Link>,
    ) -> Result<Session> {
        // Whoever attaches to a session only to use it needs no manifest it could not have.
        let (state, unreadable) = match self.remembered(&record, None) {
            Ok(Some(state)) => (state, None),
            Ok(None) => (nameless(&record)?, Some(never_written(&record))),
            Err(error) => (nameless(&record)?, Some(error)),
        };
        let start = Start {
            state,
            preserved: Preserved { workspace: true, system: true },
            discards_changes: false,
            progress: None,
            is_new: false,
            starts: false,
            unreadable,
            name: None,
            origin: None,
        };
        self.session(record, machine, link, start)
    }

    /// What is written down about a session of this home, with what may not be stored given back.
    /// `None` if nothing is.
    fn remembered(
        &self,
        record: &Record,
        trusted: Option<&Manifest>,
    ) -> Result<Option<SessionState>> {
        let Some(stored) = self.state.remembered(&record.id)? else { return Ok(None) };
        let state = SessionState::parse(stored, &self.registry)?;
        let mut own = state.manifest.clone();
        own.extra_path_grants = self.trusted(record);
        let state = state.rebind_path_grants(Some(&Manifest {
            extra_path_grants: backed(&own.extra_path_grants),
            ..Manifest::default()
        }))?;
        let kind = state.type_name().to_owned();
        let mut state = match (state.is_mount_authority_redacted(), trusted) {
            (true, Some(trusted)) => {
                state.rebind_mount_authority(Some(trusted), &kind, &self.registry)?
            }
            _ => state,
        };
        state.manifest.extra_path_grants = own.extra_path_grants;
        state.manifest.root = record.spec.root.as_str().to_owned();
        state.session_id = uuid_of(&record.id)?;
        Ok(Some(state))
    }

    /// As [`remembered`](Self::remembered); a session of which nothing is written down has its files.
    fn remembered_or_nameless(
        &self,
        record: &Record,
        trusted: Option<&Manifest>,
    ) -> Result<SessionState> {
        match self.remembered(record, trusted)? {
            Some(state) => Ok(state),
            None => nameless(record),
        }
    }

    /// Whether the workspace of a session is not where its manifest wants it: its machine sees the
    /// host's own paths, and has it wherever there is room. That is no business of a stored state.
    pub(super) fn has_moved(&self, record: &Record) -> bool {
        let machine = record.machine.as_ref();
        let root = machine.and_then(|machine| self.backend.root(machine));
        record.spec.host_workspace.is_none() && root.is_some()
    }

    /// What of the host a session of this home was granted.
    fn trusted(&self, record: &Record) -> Vec<PathGrant> {
        let grant = |grant: &Grant| {
            let path = grant.path.as_str().to_owned();
            let host = grant.host.to_string_lossy().into_owned();
            PathGrant {
                host_path: (host != path && !host.is_empty()).then_some(host),
                path,
                read_only: grant.read_only,
                description: None,
            }
        };
        record.spec.grants.iter().map(grant).collect()
    }
}

/// Grants with a path of the host each.
fn backed(grants: &[PathGrant]) -> Vec<PathGrant> {
    let with_host = |grant: &PathGrant| PathGrant {
        host_path: Some(grant.host_path.clone().unwrap_or_else(|| grant.path.clone())),
        ..grant.clone()
    };
    grants.iter().map(with_host).collect()
}

fn never_written(record: &Record) -> Error {
    let message = format!("the state of session {} is missing", record.id);
    Error::new(ErrorKind::InvalidInput, message)
}

/// The state of a session whose manifest could not be written down.
fn nameless(record: &Record) -> Result<SessionState> {
    let manifest = Manifest { root: record.spec.root.as_str().to_owned(), ..Manifest::default() };
    let uuid = uuid_of(&record.id)?;
    let snapshot = Snapshot::Noop { id: uuid.to_string() };
    // The backend fills in its own once the machine is up.
    let stored = bastide_model::state::BackendState::Local { machine: None, receipt: None };
    let mut state = SessionState::new(uuid, snapshot, manifest, stored);
    state.workspace_root_ready = true;
    state.exposed_ports.clone_from(&record.exposed_ports);
    Ok(state)
}

/// Refuses a state that asks for more than what is vouched for.
fn agree(state: &SessionState, vouched: &SessionState, grants: &[PathGrant]) -> Result<()> {
    let refused = |what: &str| {
        let message = format!("the session state asks for {what} that nobody vouches for");
        Err(raise::value_error(message).with_hint("resume it with the manifest it was made with"))
    };
    let root = |manifest: &Manifest| manifest.root_path().normalized();
    if root(&state.manifest) != root(&vouched.manifest) {
        return refused("a workspace");
    }
    let host = |grant: &PathGrant| grant.host_path.clone().unwrap_or_else(|| grant.path.clone());
    let is_granted = |asked: &PathGrant| {
        grants.iter().any(|grant| {
            grant.path == asked.path
                && host(grant) == host(asked)
                && (asked.read_only || !grant.read_only)
        })
    };
    if !state.manifest.extra_path_grants.iter().all(is_granted) {
        return refused("a path of the host");
    }
    if state.snapshot != vouched.snapshot {
        return refused("a snapshot");
    }
    let known: Vec<_> = reaching(&vouched.manifest)?;
    for (path, entry) in reaching(&state.manifest)? {
        if !known.contains(&(path.clone(), entry)) {
            let what = format!("an entry `{}` of type `{}`", path, entry.type_name());
            return refused(&what);
        }
    }
    Ok(())
}

/// The entries of a manifest that reach outside the sandbox.
fn reaching(manifest: &Manifest) -> Result<Vec<(PosixPath, &bastide_model::Entry)>> {
    let mut found = Vec::new();
    for step in manifest.walk()? {
        let (path, entry) = step?;
        let reaches = match &entry.kind {
            EntryKind::Dir { .. } | EntryKind::File { .. } => false,
            EntryKind::LocalFile { .. }
            | EntryKind::LocalDir { .. }
            | EntryKind::GitRepo(_)
            | EntryKind::Mount(_)
            | EntryKind::Custom(_) => true,
        };
        if reaches {
            found.push((path, entry));
        }
    }
    Ok(found)
}
