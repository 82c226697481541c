//! Making sessions, and bringing their machines up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bastide_model::snapshot::{FingerprintRecord, Snapshot};
use bastide_model::state::BackendState;
use bastide_model::{Manifest, SessionState};
use bastide_proto::GuestPathError;
use uuid::Uuid;

use super::removal::remove_owned_root;
use super::{
    Client, CreateOptions, DEFAULT_ROOT, ForkSource, admission, declared, events, grants, lease,
    path_policy, reserved_paths, storage,
};
use crate::backend::{Booted, Machine, MachineSpec, Retained, SessionId};
use crate::compat::pty::PtyProcesses;
use crate::compat::raise;
use crate::events::BoundSession;
use crate::link::{Link, link_of};
use crate::session::environment::{environment, search_path};
use crate::session::lifecycle::{
    ConcurrencyLimits, Lifecycle, Limits, Preserved, ProgressListener, SessionConfig,
};
use crate::snapshot::store::StoreSnapshot;
use crate::state::{Record, SessionFolder, SessionName, Stage};
use crate::workspace::{self, mounts};
use crate::{Error, ErrorKind, Result, Session};

/// What is to become of a session once its machine is up.
pub(super) struct Start {
    pub(super) state: SessionState,
    pub(super) preserved: Preserved,
    pub(super) discards_changes: bool,
    pub(super) progress: Option<ProgressListener>,
    /// Whether nothing may be left of it if it does not come up.
    pub(super) is_new: bool,
    /// Whether its workspace is made at once.
    pub(super) starts: bool,
    /// Why nobody can read what the session is. It can be used, and not be saved.
    pub(super) unreadable: Option<Error>,
    /// The name it gets, besides its id.
    pub(super) name: Option<SessionName>,
    /// What its workspace begins with, if it is a fork.
    pub(super) origin: Option<ForkSource>,
}

impl Client {
    /// Creates a session: boots its machine, then lays out the manifest, or restores the snapshot
    /// if there is one. When this returns, either the session runs or nothing is left of it; that
    /// holds as well if this process is killed meanwhile, or the future is dropped.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Conflict`] if a session with that id exists.
    /// - [`ErrorKind::Cancelled`] if the session was deleted while it was being created.
    /// - Others if the manifest is not valid, or asks for what the machine cannot do; if the
    ///   machine does not boot; or if the manifest cannot be laid out.
    pub async fn create(&self, manifest: &Manifest, options: CreateOptions) -> Result<Session> {
        // On the heap: it is large, and callers may be deep in a small stack.
        Box::pin(self.make(manifest, options, true, None)).await
    }

    /// Like [`create`](Self::create), but does not touch the workspace until
    /// [`Session::start`] is called.
    ///
    /// # Errors
    ///
    /// As `create`.
    pub async fn create_unstarted(
        &self,
        manifest: &Manifest,
        options: CreateOptions,
    ) -> Result<Session> {
        Box::pin(self.make(manifest, options, false, None)).await
    }

    /// Makes a session. `saved` is what its workspace looked like when its snapshot was made, where that is known.
    pub(super) async fn make(
        &self,
        manifest: &Manifest,
        options: CreateOptions,
        starts: bool,
        saved: Option<FingerprintRecord>,
    ) -> Result<Session> {
        self.check_lease(options.lease.as_ref())?;
        let mut manifest = manifest.clone();
        let id = match options.id {
            Some(id) => {
                // A session of this name that its lease deleted must be on record as gone before there is another.
                self.finish_deletions().await;
                id
            }
            None => SessionId::random(),
        };
        let mut owned_root = None;
        if options.unix_local && manifest.root == DEFAULT_ROOT {
            let root = std::env::temp_dir().join(format!("sandbox-local-{id}"));
            manifest.root = root.to_string_lossy().into_owned();
            owned_root = Some(root);
        }
        let stored = match options.unix_local {
            true => BackendState::UnixLocal { workspace_root_owned: owned_root.is_some() },
            false => self.backend.unmade(),
        };
        let checked = manifest.check_mount_boundaries(Some(stored.type_name()));
        let checked = checked.and_then(|()| mounts::check(self.backend.as_ref(), &manifest));
        checked.map_err(|error| error.redacted_if(manifest.holds_mount_authority()))?;
        let mut spec = MachineSpec::new(root_of(&manifest)?);
        spec.network = options.network;
        spec.isolation = options.isolation;
        spec.nested_sandbox = options.nested_sandbox;
        if self.backend.has_host_files() {
            // A root of the caller's choice is a folder of the caller's.
            let is_chosen = manifest.root != DEFAULT_ROOT;
            spec.host_workspace = is_chosen.then(|| PathBuf::from(&manifest.root));
        }
        spec.grants = grants(&manifest, self.backend.has_host_files())?;
        spec.limits = options.limits;
        spec.storage = storage(&manifest)?;
        reserved_paths::check(self.backend.home(), &spec)?;
        spec.egress = self.egress_of(&options.network, options.policy.as_ref(), &spec).await?;
        let mut record = Record::intent(id, self.backend.name(), spec);
        record.tied = options.tied_to_owner;
        let own_system = self.backend.has_own_system();
        record.env =
            environment(&record.spec.root, &manifest, options.env, options.home, own_system);
        record.set_egress_variables();
        record.spec.search_path = search_path(&record.env);
        record.exposed_ports = declared(options.exposed_ports)?;
        record.spec.exposed_ports.clone_from(&record.exposed_ports);
        record.base_dir = options.base_dir;
        record.git = options.git;
        let ConcurrencyLimits { manifest_entries, local_dir_files } = options.concurrency;
        options.concurrency.validate()?;
        record.concurrency = Some((manifest_entries, local_dir_files));
        record.owned_root = owned_root;
        record.journal = options.journal;
        record.lease = options.lease;
        let uuid = uuid_of(&record.id)?;
        let snapshot = match options.snapshot {
            Some(choice) => choice.build(&uuid.to_string()),
            None => self.default_snapshot(&record.id, &uuid),
        };
        // Who nobody keeps is refused before anything happens.
        self.types.keeper(&snapshot)?;
        let mut state = SessionState::new(uuid, snapshot, manifest, stored);
        state.exposed_ports.clone_from(&record.exposed_ports);
        if let Some(FingerprintRecord { fingerprint, version }) = saved {
            state.snapshot_fingerprint = Some(fingerprint);
            state.snapshot_fingerprint_version = Some(version);
        }
        let start = Start {
            state,
            preserved: Preserved::default(),
            discards_changes: false,
            progress: options.progress,
            is_new: true,
            starts,
            unreadable: None,
            name: options.name,
            origin: None,
        };
        self.reserve_and_boot(record, start, options.wait).await
    }

    /// Makes the folder of a new session, and its machine.
    pub(super) async fn reserve_and_boot(
        &self,
        mut record: Record,
        start: Start,
        wait: Option<Duration>,
    ) -> Result<Session> {
        let limits = &mut record.spec.limits;
        let admitted = admission::admit(&self.state, limits, wait).await?;
        let folder = self.state.reserve(&record).await?;
        drop(admitted);
        let id = record.id.clone();
        if let Err(error) = self.settle_before(&id).await {
            self.undo(&folder, None, &record, true).await;
            return Err(error);
        }
        if let Some(name) = &start.name
            && let Err(error) = self.state.give_name(name, &id).await
        {
            self.undo(&folder, None, &record, true).await;
            return Err(error);
        }
        let intent = || events::intent(&record, &start.state.manifest);
        if let Err(error) = self.audit(&id, "creating", intent).await {
            self.undo(&folder, None, &record, true).await;
            return Err(error);
        }
        if let Some(origin) = &start.origin
            && let Err(error) = origin.put_on_record(&id, folder.path()).await
        {
            self.undo(&folder, None, &record, true).await;
            return Err(error);
        }
        let started = self.boot_machine(folder, record, start).await;
        self.audit_created(&id, started).await
    }

    /// Where a session is saved that nobody said it of: nowhere, unless its machine keeps no files and this client knows a
    /// store.
    fn default_snapshot(&self, id: &SessionId, uuid: &Uuid) -> Snapshot {
        let stored = StoreSnapshot { id: id.to_string(), from: None }.into_snapshot();
        match !self.backend.keeps_files() && self.types.keeper(&stored).is_ok() {
            true => stored,
            false => Snapshot::Noop { id: uuid.to_string() },
        }
    }

    /// Boots the machine of a session whose folder is ours, and puts the session on record.
    pub(super) async fn boot_machine(
        &self,
        folder: SessionFolder,
        mut record: Record,
        mut start: Start,
    ) -> Result<Session> {
        let (is_new, starts) = (start.is_new, start.starts);
        if let Some(root) = &record.owned_root {
            let failed = |error| raise::workspace_start(root.to_string_lossy()).with_source(error);
            if let Err(error) = folder.make_owned_root(root, is_new) {
                self.undo(&folder, None, &record, is_new).await;
                return Err(failed(error));
            }
        }
        // What was stopped, or ended, ends with nobody.
        let mut before = record.clone();
        before.tied = false;
        folder.write_origin().map_err(|error| {
            let path = folder.path().display().to_string();
            let message = format!("cannot start session {} in {path}: {error}", record.id);
            Error::new(ErrorKind::Io, message).with_context("path", path)
        })?;
        // Held until a failed start is undone: a warden that ends by itself meanwhile would be killed
        // half-way through removing its folder.
        let Booted { machine, connection, mut keep_alive, retained } =
            match self.backend.boot(&folder, &record.spec).await {
                Ok(booted) => booted,
                Err(error) => {
                    self.undo(&folder, None, &record, is_new).await;
                    return Err(error);
                }
            };
        if let Some(root) = self.backend.root(&machine) {
            for (key, value) in &mut record.env {
                // The workspace is always the home.
                if key == "HOME" && *value == record.spec.root.as_str() {
                    root.as_str().clone_into(value);
                }
            }
            root.as_str().clone_into(&mut start.state.manifest.root);
            record.spec.root = root;
        }
        match retained {
            Retained::Files => {}
            Retained::System => start.preserved.system = !is_new,
            Retained::Nothing => start.preserved = Preserved::default(),
        }
        for (key, value) in &machine.environment {
            // What somebody asked for counts more than what the machine comes with.
            if !record.env.iter().any(|(known, _)| known == key) {
                record.env.push((key.clone(), value.clone()));
            }
        }
        record.stage = Stage::Running;
        record.machine = Some(machine.clone());
        let up = async {
            let connection = match connection {
                Some(connection) => connection,
                None => self.backend.connect(&machine).await?,
            };
            let lives_by_it = keep_alive.is_some();
            let link = link_of(&self.backend, &machine, connection, lives_by_it).await?;
            let mut session = self.session(record.clone(), machine.clone(), link, start)?;
            match starts {
                true => session.start().await?,
                false => session.remember()?,
            }
            let deleted = || {
                let message = format!("session {} was deleted while it was made", record.id);
                Error::new(ErrorKind::Cancelled, message)
            };
            let stamp = folder.write(&record).map_err(|error| match error.is_not_found() {
                true => deleted(),
                false => error,
            })?;
            // It has all its time left once it is whole.
            lease::begin(self.backend.as_ref(), &machine, record.lease.as_ref()).await?;
            // Whoever wants the session gone says so first and looks at the record then; so one of
            // both sees the other.
            if folder.has_tombstone() {
                return Err(deleted());
            }
            // From here on the session does not need this process any more.
            session.keep_alive = match keep_alive.take() {
                Some(keep_alive) if !record.tied => {
                    session.detach_by_link().await?;
                    keep_alive.release()?;
                    None
                }
                keep_alive => keep_alive.map(|held| held.share(folder.path())),
            };
            Ok((session, stamp))
        };
        match up.await {
            Ok((session, stamp)) => {
                if !record.tied {
                    self.state.note(&record, stamp);
                }
                Ok(session)
            }
            Err(error) => {
                self.undo(&folder, Some(&machine), &record, is_new).await;
                if !is_new && !folder.has_tombstone() {
                    // It is what it was before. Where that cannot be written it has ended, and has its
                    // files either way.
                    drop(folder.write(&before));
                }
                Err(error)
            }
        }
    }

    /// Clears away what a failed start left. The first failure is the one to tell; what cannot be
    /// removed now is found by a later sweep.
    async fn undo(
        &self,
        folder: &SessionFolder,
        machine: Option<&Machine>,
        record: &Record,
        is_new: bool,
    ) {
        if let (Some(root), true) = (&record.owned_root, is_new)
            && folder.owns_root(root)
            && remove_owned_root(self.backend.as_ref(), machine, root).await.is_err()
        {
            // The record stays with it: a sweep finishes both.
            return;
        }
        match machine {
            Some(machine) if is_new => drop(self.backend.destroy(machine).await),
            Some(machine) => drop(self.backend.stop(machine).await),
            None if is_new => drop(self.backend.discard(folder.path()).await),
            None => {}
        }
    }

    pub(super) fn session(
        &self,
        record: Record,
        machine: Machine,
        link: Arc<dyn Link>,
        start: Start,
    ) -> Result<Session> {
        let policy = path_policy(&record.spec)?;
        let has_moved = self.has_moved(&record);
        let bytes = |text: String| text.into_bytes();
        let env = record.env.into_iter().map(|(key, value)| (bytes(key), bytes(value))).collect();
        let concurrency = record.concurrency.map_or_else(ConcurrencyLimits::default, |limits| {
            ConcurrencyLimits { manifest_entries: limits.0, local_dir_files: limits.1 }
        });
        let mut state = start.state;
        if !matches!(state.backend, BackendState::UnixLocal { .. }) {
            state.backend = self.backend.stored(&machine);
        }
        let terms = SessionConfig {
            registry: Arc::clone(&self.registry),
            limits: Limits::new(concurrency)?,
            sources: workspace::sources(record.base_dir.as_deref(), &record.spec.grants),
            git: record.git,
            dependencies: self.dependencies.template_copy(),
            progress: start.progress,
            is_callers: record.spec.host_workspace.is_some() && record.owned_root.is_none(),
            host_folder: record.spec.host_workspace.clone(),
            is_tied: record.tied,
            keeper: match start.origin {
                Some(origin) => Arc::new(origin),
                None => self.types.keeper(&state.snapshot)?,
            },
            journal: record.journal,
            unreadable: start.unreadable,
            discards_changes: start.discards_changes,
            has_moved,
        };
        let is_started = !start.starts && state.workspace_root_ready;
        let life = Lifecycle::new(terms, state, start.preserved, is_started);
        let bound = BoundSession {
            backend: Arc::clone(&self.backend),
            machine: machine.clone(),
            link: Arc::clone(&link),
            policy: policy.clone(),
            root: record.spec.root.clone(),
        };
        Ok(Session {
            events: self.recorder(&bound, &life)?,
            options: Arc::clone(&self.events),
            backend: Arc::clone(&self.backend),
            state: Arc::clone(&self.state),
            machine,
            link,
            env,
            root: record.spec.root,
            policy,
            exposed_ports: record.exposed_ports,
            keep_alive: None,
            ptys: PtyProcesses::default(),
            life: Arc::new(life),
        })
    }
}

/// Where the workspace of a manifest is inside.
pub(super) fn root_of(manifest: &Manifest) -> Result<bastide_proto::GuestPath> {
    // A slash too many at either end means nothing to this system.
    let root = manifest.root_path();
    let root = match root.is_absolute() {
        true => format!("/{}", root.as_str().trim_start_matches('/')),
        false => root.to_string(),
    };
    root.parse().map_err(|error: GuestPathError| match error {
        GuestPathError::NotAbsolute => {
            raise::value_error("sandbox workspace root must be absolute")
        }
        GuestPathError::Nul => raise::value_error("embedded null byte"),
        _ => raise::value_error(format!("manifest root {:?}: {error}", manifest.root)),
    })
}

/// The name of a session as states spell it.
pub(crate) fn uuid_of(id: &SessionId) -> Result<Uuid> {
    Uuid::parse_str(id.as_str()).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("{id} is no name of a session: {error}"))
    })
}
