//! Sessions that are there already: finding, stopping, resuming, deleting them.

use std::time::Duration;

use bastide_model::receipt::Receipt;
use serde_json::json;

use super::Client;
use super::lease::LeaseStatus;
use super::removal::{Removal, being_removed, check_backend, finish_removal, go_on};
use crate::backend::{Machine, MachineExit, MachineStatus, SessionId};
use crate::link::link_of;
use crate::session::retry;
use crate::snapshot::Progress;
use crate::snapshot::store::{SaveOptions, SaveReport, Store};
use crate::state::{
    Liveness, Record, SessionName, Stage, Summary, TransitionAttempt, has_tombstone,
};
use crate::{Condition, Error, ErrorKind, Result, Session};

/// How long a guest may take to answer before somebody finds out why.
const NO_ANSWER: Duration = Duration::from_millis(500);

/// The status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionStatus {
    /// It is being created.
    Starting,
    /// It runs.
    Running,
    /// It exists and is frozen until it is unpaused.
    Paused,
    /// It was saved and is being stopped; if that was interrupted, stopping or resuming it again
    /// completes it.
    Stopping,
    /// It was stopped. Its files are kept, and it can be resumed.
    Stopped,
    /// Its machine ended or was lost. Its files are kept until it is deleted.
    Ended,
    /// Its lease ran out. Its files are kept, and it can be resumed.
    Expired,
    /// Its creation was interrupted; nothing in it is usable.
    Failed,
    /// It is being removed; if that was interrupted, removing it again or a sweep completes it.
    Removing,
    /// The backend does not answer, or the record cannot be read. It may be running, so it is left
    /// alone.
    Unknown,
}

impl SessionStatus {
    /// The name of the status, as printed for programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Removing => "removing",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known about a session without attaching to it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// The name somebody gave it.
    pub name: Option<SessionName>,
    /// Its status.
    pub status: SessionStatus,
    /// The name of its backend.
    pub backend: String,
    /// The path of its workspace inside.
    pub root: String,
    /// When it was created, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// Whether it ends with the process that created it.
    pub tied_to_owner: bool,
    /// The isolation and limits in force, once it runs.
    pub receipt: Option<Receipt>,
    /// The guest's process id on this host, while it runs here.
    pub guest_pid: Option<u32>,
    /// How it ended, if it did.
    pub end: Option<MachineExit>,
    /// When it ends by itself, while it runs and if that was asked after.
    pub lease: Option<LeaseStatus>,
    /// What is wrong with it, or why its state is unknown.
    pub trouble: Option<String>,
}

impl Client {
    /// Attaches to a running session, whichever process created it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NotFound`] if there is no such session.
    /// - [`ErrorKind::Conflict`] if it is still being created, or is stopped.
    /// - [`ErrorKind::BackendLost`] if it has ended.
    pub async fn attach(&self, id: &SessionId) -> Result<Session> {
        let mut record = self.record(id)?;
        if has_tombstone(&self.state.path_of(id)) {
            return Err(being_removed(id));
        }
        if record.stage == Stage::Saving
            && let TransitionAttempt::Ours(transition) = self.state.try_lock_transition(id)?
        {
            // Whoever was saving it is gone, and did not come to the end.
            go_on(&self.state, id, &transition)?;
            record = self.record(id)?;
        }
        let machine = match (record.stage, &record.machine) {
            (Stage::Running, Some(machine)) => machine.clone(),
            (Stage::Saving | Stage::Stopping, _) => {
                let message = format!("session {id} is being stopped");
                return Err(Error::new(ErrorKind::Conflict, message)
                    .with_condition(Condition::SessionBeingStopped(id.to_string())));
            }
            (Stage::Stopped, _) => {
                return Err(Error::new(ErrorKind::Conflict, format!("session {id} is stopped"))
                    .with_condition(Condition::SessionStopped(id.to_string())));
            }
            _ => {
                let info = self.describe(Summary::of(&record)).await;
                let message = format!("session {id} is {}", info.status.as_str());
                return Err(Error::new(ErrorKind::Conflict, message));
            }
        };
        self.connect_to(record, machine).await
    }

    /// Goes on with a session, whatever its record says of its stage.
    pub(super) async fn connect_to(&self, record: Record, machine: Machine) -> Result<Session> {
        let connected = async {
            let connection = self.backend.connect(&machine).await?;
            link_of(&self.backend, &machine, connection, false).await
        };
        let connected = tokio::select! {
            connected = connected => connected,
            hint = self.until_paused(&machine) => return Err(paused(&machine.id, &hint)),
        };
        match connected {
            Ok(link) => {
                let session = self.reattached(record, machine, link)?;
                self.audit_attached(&session).await?;
                Ok(session)
            }
            Err(error) => Err(self.with_exit_reason(&machine, error).await),
        }
    }

    /// All sessions on this client's backend, the oldest first. Sessions whose record cannot be
    /// read are included, unless they are known to be on another backend.
    ///
    /// # Errors
    ///
    /// Fails if the home cannot be read.
    pub async fn list(&self) -> Result<Vec<SessionInfo>> {
        self.finish_deletions().await;
        let mut found = Vec::new();
        let (summaries, unread) = self.state.summaries().await?;
        for summary in summaries {
            if summary.backend == self.backend.name() {
                found.push(self.describe(summary).await);
            }
        }
        for (id, error) in unread {
            let backend = self.state.backend_of(&id);
            if backend.as_deref().is_none_or(|backend| backend == self.backend.name()) {
                found.push(SessionInfo::unknown(id, backend, &error));
            }
        }
        let mut names = self.state.session_names();
        found.iter_mut().for_each(|info| info.name = names.remove(&info.id));
        found.sort_by(|one, other| {
            (one.created_at_ms, &one.id).cmp(&(other.created_at_ms, &other.id))
        });
        Ok(found)
    }

    /// Information about one session.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such session.
    pub async fn inspect(&self, id: &SessionId) -> Result<SessionInfo> {
        let record = self.record(id)?;
        let mut info = self.describe(Summary::of(&record)).await;
        if let (SessionStatus::Running, Some(machine)) = (info.status, &record.machine) {
            info.lease = self.lease_of(machine).await;
        }
        info.name = self.state.session_names().remove(id);
        Ok(info)
    }

    /// The name of the backend a session is on, this client's or another; `None` if there is no
    /// such session.
    #[must_use]
    pub fn backend_of(&self, id: &SessionId) -> Option<String> {
        self.state.backend_of(id)
    }

    /// The session of that name, or the one whose id begins with `prefix`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Conflict`] if there are several.
    pub fn find(&self, prefix: &str) -> Result<SessionId> {
        if let Ok(id) = prefix.parse() {
            return Ok(id);
        }
        if let Some(id) = self.state.named(prefix) {
            return Ok(id);
        }
        let ids = self.state.ids()?;
        let begins = |id: &&SessionId| !prefix.is_empty() && id.as_str().starts_with(prefix);
        let mut found = ids.iter().filter(begins);
        match (found.next(), found.next()) {
            (Some(id), None) => Ok(id.clone()),
            (Some(_), Some(_)) => {
                let message = format!("more than one session begins with {prefix:?}");
                Err(Error::new(ErrorKind::Conflict, message).with_hint("give more of its name"))
            }
            (None, _) => Err(missing(prefix)),
        }
    }

    /// Saves the workspace of a running session as the snapshot `name`: [`SessionSnapshots::save`](crate::SessionSnapshots::save).
    /// If the backend is temporarily unavailable, it is retried at most twice.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach) and [`Store::save`].
    pub async fn save_snapshot(
        &self,
        id: &SessionId,
        store: &Store,
        name: &str,
        progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
    ) -> Result<SaveReport> {
        self.save_snapshot_with(id, store, name, SaveOptions { full_read: false, progress }).await
    }

    /// Like [`save_snapshot`](Self::save_snapshot), with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn save_snapshot_with(
        &self,
        id: &SessionId,
        store: &Store,
        name: &str,
        options: SaveOptions<'_>,
    ) -> Result<SaveReport> {
        let session = retry::saving(|| self.attach(id)).await?;
        session.snapshots(store).save_with(name, options).await
    }

    /// Ends a session in any state and removes everything of it. Returns whether there was such a
    /// session; a missing one is no error. An interrupted removal is completed.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be ended or removed; calling it again, or a later sweep, completes
    /// it. Also fails if the removal cannot be written to the audit log, after it was done.
    pub async fn delete(&self, id: &SessionId) -> Result<bool> {
        let backend = self.backend.as_ref();
        let mut found = finish_removal(backend, &self.state, id).await?;
        if let Some(removal) = Removal::announce(backend, &self.state, id).await? {
            found = true;
            // One whose commands filled the disk that is written to has to go first.
            let unrecorded = match removal.machine() {
                Some(machine) => self.audit_deleting(machine).await.is_err(),
                None => false,
            };
            removal.execute().await?;
            if unrecorded {
                self.audit(id, "deleting", || json!({ "late": true })).await?;
            }
        }
        match found {
            true => self.audit_deleted(id, json!({})).await?,
            false => self.finish_deletions().await,
        }
        Ok(found)
    }

    /// Waits until this client's changes are in the index that [`list`](Self::list) reads. Not
    /// needed for correctness: what is missing in the index is read from the sessions' folders.
    pub async fn flush(&self) {
        self.state.flush().await;
    }

    pub(super) fn record(&self, id: &SessionId) -> Result<Record> {
        let Some(record) = self.state.record(id)? else {
            // Files without a record are listed as unknown, and why.
            return Err(self.state.record_error(id).unwrap_or_else(|| missing(id.as_str())));
        };
        check_backend(self.backend.as_ref(), id, &record.backend)?;
        Ok(record)
    }

    /// How a session really is: what its record says, and what its machine says to that.
    pub(super) async fn describe(&self, summary: Summary) -> SessionInfo {
        let liveness = self.state.liveness(&summary.id);
        let kept = liveness.is_kept();
        let mut trouble = None;
        let (status, guest_pid, end) = match (summary.stage, &summary.machine) {
            _ if has_tombstone(&self.state.path_of(&summary.id)) => {
                (SessionStatus::Removing, None, None)
            }
            (Stage::Stopped, _) if !kept => (SessionStatus::Stopped, None, None),
            (Stage::Stopping, Some(machine)) => match self.backend.inspect(machine).await {
                Ok(MachineStatus::Ended(_)) => (SessionStatus::Stopped, None, None),
                _ => (SessionStatus::Stopping, None, None),
            },
            (Stage::Running, Some(machine)) => self.describe_machine(machine, &mut trouble).await,
            (Stage::Saving, Some(machine)) => {
                match self.describe_machine(machine, &mut trouble).await {
                    (SessionStatus::Running, pid, end) => (SessionStatus::Stopping, pid, end),
                    described => described,
                }
            }
            _ if kept => match liveness {
                Liveness::Unclear(why) => {
                    let message =
                        format!("the lock of session {} cannot be read: {why}", summary.id);
                    trouble = Some(message);
                    (SessionStatus::Unknown, None, None)
                }
                _ => (SessionStatus::Starting, None, None),
            },
            _ => (SessionStatus::Failed, None, None),
        };
        SessionInfo {
            id: summary.id,
            name: None,
            status,
            backend: summary.backend,
            root: summary.root,
            created_at_ms: summary.created_at_ms,
            tied_to_owner: summary.tied,
            receipt: summary.machine.map(|machine| machine.receipt),
            guest_pid,
            end,
            lease: None,
            trouble,
        }
    }

    async fn describe_machine(
        &self,
        machine: &Machine,
        trouble: &mut Option<String>,
    ) -> (SessionStatus, Option<u32>, Option<MachineExit>) {
        match self.backend.inspect(machine).await {
            Ok(MachineStatus::Paused { hint }) => {
                *trouble = Some(format!("session {} is paused: {hint}", machine.id));
                (SessionStatus::Paused, None, None)
            }
            Ok(MachineStatus::Running { guest_pid }) => (SessionStatus::Running, guest_pid, None),
            Ok(MachineStatus::Broken { why }) => {
                (SessionStatus::Ended, None, Some(MachineExit::unrecorded(why)))
            }
            Ok(MachineStatus::Ended(end)) if end.is_expired() => {
                (SessionStatus::Expired, None, Some(end))
            }
            Ok(MachineStatus::Ended(end)) => (SessionStatus::Ended, None, Some(end)),
            // One session that cannot be asked after is no reason to say nothing of the others.
            Err(error) => {
                *trouble = Some(format!("session {}: {error}", machine.id));
                (SessionStatus::Unknown, None, None)
            }
        }
    }

    /// Waits until a machine that does not answer turns out to be paused; says how to change that. Whoever
    /// answers in time is not asked after.
    async fn until_paused(&self, machine: &Machine) -> String {
        loop {
            tokio::time::sleep(NO_ANSWER).await;
            if let Ok(MachineStatus::Paused { hint }) = self.backend.inspect(machine).await {
                return hint;
            }
        }
    }
}

impl SessionInfo {
    /// One whose record cannot be read.
    fn unknown(id: SessionId, backend: Option<String>, error: &Error) -> Self {
        Self {
            id,
            name: None,
            status: SessionStatus::Unknown,
            backend: backend.unwrap_or_default(),
            root: String::new(),
            created_at_ms: 0,
            tied_to_owner: false,
            receipt: None,
            guest_pid: None,
            end: None,
            lease: None,
            trouble: Some(error.message().to_owned()),
        }
    }
}

pub(super) fn paused(id: &SessionId, hint: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("session {id} is paused")).with_hint(hint)
}

pub(super) fn missing(id: &str) -> Error {
    let message = format!("there is no session {id}");
    Error::new(ErrorKind::NotFound, message).with_condition(Condition::SessionMissing)
}
