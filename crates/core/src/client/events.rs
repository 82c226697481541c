//! What clients record of sessions: who made, used and removed them.

use std::sync::Arc;

use bastide_model::lax::Dump as _;
use bastide_model::{Manifest, Registry};
use serde_json::{Value, json};

use super::Client;
use super::removal::shut_down;
use crate::backend::{Machine, MachineExit, MachineStatus, SessionId};
use crate::events::{
    Auditor, BoundSession, EventOptions, Recorder, Redactor, Secret, forget_notes, is_storage_full,
};
use crate::session::lifecycle::Lifecycle;
use crate::state::Record;
use crate::{Error, Result, Session};

impl Client {
    /// Sets where events of this client's sessions go.
    #[must_use]
    pub fn with_events(self, events: EventOptions) -> Self {
        Self { events: Arc::new(events), ..self }
    }

    /// Puts what happens to a session on record, if that is wanted.
    pub(super) fn auditor(&self, id: &SessionId) -> Option<Auditor> {
        let options = self.events.audit.as_ref()?;
        Some(Auditor::new(options, self.backend.home(), id, self.events.report.as_ref()))
    }

    /// Puts a change of a session's state on record.
    pub(super) async fn audit(
        &self,
        id: &SessionId,
        state: &str,
        data: impl FnOnce() -> Value,
    ) -> Result<()> {
        let auditor = self.auditor(id);
        // Before the log takes it over, and nobody else hears of it.
        let told =
            Recorder::record_network_of(&self.events, self.backend.home(), id, auditor.clone())
                .await;
        match auditor {
            Some(auditor) => auditor.state(state, data()).await.and(told),
            None => told,
        }
    }

    /// Puts on record that somebody goes on with a session. Where there is no room for that, whoever came
    /// to make room is let in; anything else the session is asked for has to be on record with it.
    pub(super) async fn audit_attached(&self, session: &Session) -> Result<()> {
        let audited = self.audit(session.id(), "attached", || up(session)).await;
        match (audited, &session.events) {
            (Err(error), Some(events)) if is_storage_full(&error) => {
                events.defer_state("attached", up(session));
                Ok(())
            }
            (audited, _) => audited,
        }
    }

    /// Puts on record what came of making a session. One that cannot be put on record is not given out.
    pub(super) async fn audit_created(
        &self,
        id: &SessionId,
        started: Result<Session>,
    ) -> Result<Session> {
        let (started, unrecorded) = self.audit_start(id, "running", started).await?;
        match unrecorded {
            None => Ok(started),
            Some(error) => {
                // The failure to tell is the one that counts.
                drop(started.delete().await);
                Err(error)
            }
        }
    }

    /// Puts on record what came of starting a session again. One that cannot be put on record is not given
    /// out, but it was there before, and so are its files.
    pub(super) async fn audit_resumed(
        &self,
        id: &SessionId,
        started: Result<Session>,
    ) -> Result<Session> {
        let (started, unrecorded) = self.audit_start(id, "resumed", started).await?;
        match unrecorded {
            None => Ok(started),
            Some(error) => {
                // The failure to tell is the one that counts.
                drop(shut_down(self.backend.as_ref(), &self.state, &started.machine, None).await);
                Err(error)
            }
        }
    }

    /// Puts on record what came of a start; with the session, why that could not be done.
    async fn audit_start(
        &self,
        id: &SessionId,
        state: &str,
        started: Result<Session>,
    ) -> Result<(Session, Option<Error>)> {
        match started {
            Ok(session) => {
                let audited = self.audit(id, state, || up(&session)).await;
                Ok((session, audited.err()))
            }
            Err(error) => {
                let data = || json!({"error": error.message(), "code": error.code()});
                // It failed already.
                drop(self.audit(id, "failed", data).await);
                Err(error)
            }
        }
    }

    /// Puts on record that a session is gone.
    pub(super) async fn audit_deleted(&self, id: &SessionId, data: Value) -> Result<()> {
        let Some(auditor) = self.auditor(id) else {
            forget_notes(self.backend.home(), id, false);
            return Ok(());
        };
        auditor.state("deleted", data).await?;
        auditor.sync().await;
        forget_notes(self.backend.home(), id, true);
        Ok(())
    }

    /// Puts on record how a session ended when nobody was there, which is seen only now.
    pub(super) async fn audit_late_end(&self, id: &SessionId, end: &MachineExit) -> Result<()> {
        let data = || {
            json!({
                "late": true,
                "ended_at_ms": end.at_ms,
                "reason": end.reason,
                "detail": end.detail,
            })
        };
        self.audit(id, "ended", data).await
    }

    /// Puts on record that a sweep removed a session.
    pub(super) async fn audit_swept(
        &self,
        id: &SessionId,
        why: &str,
        end: Option<MachineExit>,
        removed: &Result<()>,
    ) {
        if let Some(end) = end {
            // A sweep removes what it can, also where it cannot tell.
            drop(self.audit_late_end(id, &end).await);
        }
        if removed.is_ok() {
            drop(self.audit_deleted(id, json!({"by": "sweep", "why": why})).await);
        }
    }

    /// Puts on record that a session is about to be removed, and how it had ended if it had.
    pub(super) async fn audit_deleting(&self, machine: &Machine) -> Result<()> {
        if self.events.audit.is_none() {
            return Ok(());
        }
        if let Ok(MachineStatus::Ended(end)) = self.backend.inspect(machine).await {
            self.audit_late_end(&machine.id, &end).await?;
        }
        self.audit(&machine.id, "deleting", || json!({})).await
    }

    /// The recorder of a session.
    pub(super) fn recorder(
        &self,
        session: &BoundSession,
        life: &Lifecycle,
    ) -> Result<Option<Arc<Recorder>>> {
        if !self.events.has_listeners() {
            return Ok(None);
        }
        let secrets = credentials(&life.state().manifest);
        let auditor = self.auditor(session.id());
        let auditor = auditor.map(|auditor| auditor.with_receipt(&session.machine.receipt));
        let secrets = self.events.secrets.iter().cloned().chain(secrets);
        Recorder::new(&self.events, session, auditor, Redactor::new(secrets))
    }
}

/// What is on record about the making of a session.
pub(super) fn intent(record: &Record, manifest: &Manifest) -> Value {
    let secrets = credentials(manifest);
    let names: Vec<_> = secrets.iter().map(|secret| secret.name.as_str()).collect();
    let variables: Vec<_> = record.env.iter().map(|(name, _)| name.as_str()).collect();
    json!({
        "backend": record.backend,
        "root": record.spec.root,
        "network": record.spec.network.as_str(),
        "limits": record.spec.limits,
        "grants": record.spec.grants,
        "host_workspace": record.spec.host_workspace,
        "entries": manifest.entries.len(),
        "environment": variables,
        "secrets": names,
        "tied_to_owner": record.tied,
        "lease": record.lease,
    })
}

/// What is on record about a session that is up.
pub(super) fn up(session: &Session) -> Value {
    let receipt = session.receipt();
    json!({"receipt": receipt, "receipt_id": crate::events::digest_of(receipt)})
}

/// The credentials in a manifest: whatever must not be stored with it.
pub(crate) fn credentials(manifest: &Manifest) -> Vec<Secret> {
    // Only mounts have any; and a manifest with many files is long.
    if manifest.mount_targets().is_ok_and(|mounts| mounts.is_empty()) {
        return Vec::new();
    }
    let Ok(raw) = manifest.dump() else { return Vec::new() };
    let kept = manifest.sanitized(Registry::builtin()).and_then(|kept| kept.value.dump());
    let mut found = Vec::new();
    // Where credentials cannot be told from the rest, all of it is secret.
    removed(&raw, kept.as_ref().unwrap_or(&Value::Null), "manifest", &mut found);
    found
}

/// Texts that are in one value and not in the other.
fn removed(raw: &Value, kept: &Value, name: &str, found: &mut Vec<Secret>) {
    match raw {
        Value::String(text) if raw != kept => {
            found.push(Secret { name: name.to_owned(), value: text.clone() });
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                removed(item, kept.get(index).unwrap_or(&Value::Null), name, found);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                removed(value, kept.get(key).unwrap_or(&Value::Null), key, found);
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
