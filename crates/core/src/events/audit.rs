//! The audit log: what happened in a session, kept on the host where nothing inside can reach it.
//!
//! Each session has a folder `audit/ID` beside the folder of all sessions; it stays when the session
//! goes. Records are lines of JSON in numbered files. Each ends with a hash over itself and the hash
//! before it, so that a changed, removed or moved record is found; with a key, the state of the chain
//! is signed from time to time, so that nobody without the key can make another chain.
//!
//! Whichever process acts on the session writes, one record by one write, under a lock. What is
//! written survives the end of the process at once, and the end of the machine after a second at most.

mod head;
mod key;
mod log;
mod notes;
mod proof;
mod read;
mod record;
mod report;
mod sync;
mod verify;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bastide_model::receipt::Receipt;
use serde_json::{Value, json};

use super::recorder::now;
use super::sink_delivery::RecordedEvent;
use super::{OnError, Report};
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result};

pub use key::{AuditKey, AuditPublicKey};
pub use notes::{egress_notes, mount_notes};
pub use proof::{AuditProof, prove};
pub use read::{AuditReader, AuditRecord};
pub use report::{AuditProblem, AuditReport};
pub use verify::verify;

pub(super) use sync::flush_all;
pub(crate) use sync::lock_for_fork;

use log::AuditLog;
use notes::{NoteKind, Notes};
use record::{Bounded, Fields, bounded_text};

/// The folder of all audit logs, in the home of sessions.
pub const AUDIT_FOLDER: &str = "audit";

/// How a file of the log may grow before the next one is begun.
const SEGMENT: u64 = 16 << 20;

/// The options of an audit log.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuditOptions {
    /// Who acts, if the caller knows better than the system: the tool, or the user of a service.
    pub actor: Option<String>,
    /// The key that signs the log.
    pub key: Option<AuditKey>,
    /// The size at which a new file of the log is started.
    pub segment_bytes: u64,
    /// What happens to an operation that cannot be recorded. By default it fails, and is not
    /// started if it was not yet.
    pub on_error: OnError,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self { actor: None, key: None, segment_bytes: SEGMENT, on_error: OnError::Raise }
    }
}

impl AuditOptions {
    /// Sets who acts.
    #[must_use]
    pub fn actor(mut self, actor: impl Into<String>) -> Self {
        self.actor = Some(actor.into());
        self
    }

    /// Sets the key that signs the log.
    #[must_use]
    pub fn key(mut self, key: AuditKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the size at which a new file of the log is started.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes.max(1 << 10);
        self
    }

    /// Sets what happens to an operation that cannot be recorded.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }
}

/// The folder of a session's audit log, whether it exists or not.
#[must_use]
pub fn audit_folder(home: &Path, id: &SessionId) -> PathBuf {
    home.join(AUDIT_FOLDER).join(id.as_str())
}

/// The sessions that have an audit log, or had one when it was last signed, by id.
///
/// # Errors
///
/// Fails if that cannot be listed.
pub fn audited(home: &Path) -> Result<Vec<SessionId>> {
    let audit = home.join(AUDIT_FOLDER);
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot list what is on record: {error}"))
            .with_source(error)
    };
    let entries = match std::fs::read_dir(&audit) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut ids = head::all(&audit);
    for entry in entries {
        ids.extend(entry.map_err(failed)?.file_name().to_str().and_then(|name| name.parse().ok()));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Takes over what the proxy of a session's network noted, where nobody keeps a log.
pub(super) fn take_egress_notes(home: &Path, id: &SessionId) -> std::io::Result<Vec<Value>> {
    match Notes::take(&audit_folder(home, id), NoteKind::Egress)? {
        Some(notes) => {
            let all = notes.read();
            notes.empty().map(|()| all)
        }
        None => Ok(Vec::new()),
    }
}

/// Whether the proxy of a session's network noted anything that nobody has taken over yet.
pub(super) fn has_egress_notes(home: &Path, id: &SessionId) -> bool {
    std::fs::metadata(egress_notes(home, id)).is_ok_and(|notes| notes.len() > 0)
}

/// Removes what processes beside a session noted, once the session is gone: it is in its log, or nobody wants it there.
pub(crate) fn forget_notes(home: &Path, id: &SessionId, has_log: bool) {
    let folder = audit_folder(home, id);
    if has_log {
        notes::remove_empty(&folder);
    } else {
        // What stays is in nobody's way.
        drop(notes::remove(&folder));
    }
}

/// Removes the audit log of a session.
///
/// # Errors
///
/// Fails if it cannot be removed.
pub fn forget(home: &Path, id: &SessionId) -> Result<()> {
    let folder = audit_folder(home, id);
    let removed = match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        // After the log, so that one that is only half gone is noticed.
        _ => head::remove(&folder, id).and(notes::remove(&folder)),
    };
    removed.map_err(|error| {
        let message = format!("cannot remove what is on record about session {id}: {error}");
        Error::new(ErrorKind::Io, message).with_source(error)
    })
}

/// Puts what happens to one session on record.
#[derive(Clone)]
pub(crate) struct Auditor {
    log: Arc<AuditLog>,
    /// What every record ends with: who acts, and under which receipt.
    always: Fields,
    on_error: OnError,
    report: Option<Report>,
    /// What there was no room for, and has to be written before anything else.
    deferred: Arc<Mutex<Vec<Fields>>>,
}

impl Auditor {
    pub(crate) fn new(
        options: &AuditOptions,
        home: &Path,
        id: &SessionId,
        report: Option<&Report>,
    ) -> Self {
        let mut actor = json!({
            "uid": rustix::process::getuid().as_raw(),
            "pid": std::process::id(),
        });
        if let (Some(name), Value::Object(actor)) = (&options.actor, &mut actor) {
            actor.insert("name".to_owned(), name.as_str().into());
        }
        let log = AuditLog::new(
            audit_folder(home, id),
            id.clone(),
            options.segment_bytes,
            options.key.clone(),
        );
        Self {
            log: Arc::new(log),
            always: Fields::default().with("actor", Bounded::value(&actor)),
            on_error: options.on_error,
            report: report.cloned(),
            deferred: Arc::default(),
        }
    }

    /// The same for a machine that is up: records name what is in force there.
    pub(crate) fn with_receipt(mut self, receipt: &Receipt) -> Self {
        self.always.put("receipt", digest_of(receipt));
        self
    }

    /// Puts an event on record.
    pub(crate) async fn event(&self, recorded: &RecordedEvent) -> Result<()> {
        self.put("op", of_event(recorded)).await
    }

    /// Puts an event on record without waiting for anybody.
    pub(crate) fn event_now(&self, recorded: &RecordedEvent) {
        let written = self.log.append_now("op", &self.record(of_event(recorded)));
        // There is nobody left to fail.
        drop(self.judge(written));
    }

    /// Puts a change of the session's state on record.
    pub(crate) async fn state(&self, state: &str, data: Value) -> Result<()> {
        drop(self.take_notes().await?);
        let fields = Fields::default().with("state", state).with("data", Bounded::value(&data));
        self.put("state", fields).await
    }

    /// Puts on record what processes beside the session have only noted; gives what its network's proxy did.
    pub(super) async fn take_notes(&self) -> Result<Vec<Value>> {
        let mut of_network = Vec::new();
        for kind in NoteKind::ALL {
            let notes = match Notes::take(self.log.folder(), kind) {
                Ok(notes) => notes,
                Err(error) => return self.judge(Err(error)).map(|()| of_network),
            };
            let Some(notes) = notes else { continue };
            let all = notes.read();
            for note in &all {
                let fields = Fields::default().with("data", Bounded::value(note));
                self.put(kind.record(), fields).await?;
            }
            self.judge(notes.empty())?;
            if kind == NoteKind::Egress {
                of_network = all;
            }
        }
        Ok(of_network)
    }

    /// Has a change of the session's state put on record, late, before anything else is.
    pub(crate) fn defer_state(&self, state: &str, mut data: Value) {
        if let Value::Object(data) = &mut data {
            data.insert("late".to_owned(), true.into());
        }
        let fields = Fields::default().with("state", state).with("data", Bounded::value(&data));
        self.deferred().push(fields);
    }

    fn deferred(&self) -> MutexGuard<'_, Vec<Fields>> {
        // Nobody panics while holding it.
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it on the disk.
    pub(crate) async fn sync(&self) {
        self.log.sync().await;
    }

    async fn put(&self, kind: &'static str, fields: Fields) -> Result<()> {
        loop {
            let Some(deferred) = self.deferred().first().cloned() else { break };
            let written = self.log.append("state", &self.record(deferred)).await;
            self.judge(written)?;
            self.deferred().remove(0);
        }
        let written = self.log.append(kind, &self.record(fields)).await;
        self.judge(written)
    }

    fn record(&self, mut fields: Fields) -> Fields {
        fields.join(&self.always);
        fields
    }

    fn judge(&self, written: std::io::Result<()>) -> Result<()> {
        let Err(error) = written else { return Ok(()) };
        let folder = self.log.folder().display().to_string();
        let message = format!("cannot write the audit log {folder}: {error}");
        match (self.on_error, &self.report) {
            (OnError::Raise, _) => Err(Error::new(ErrorKind::Io, message)
                .with_context("path", folder)
                .with_source(error)
                .with_hint("nothing is done that cannot be put on record")),
            (OnError::Log, Some(report)) => {
                report(&message);
                Ok(())
            }
            (OnError::Log | OnError::Ignore, _) => Ok(()),
        }
    }
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auditor").field("log", &self.log).finish_non_exhaustive()
    }
}

/// What tells receipts apart.
pub(crate) fn digest_of(receipt: &Receipt) -> String {
    let text = serde_json::to_string(receipt).unwrap_or_default();
    hex::encode(&blake3::hash(text.as_bytes()).as_bytes()[..8])
}

fn of_event(recorded: &RecordedEvent) -> Fields {
    let event = &recorded.event;
    let mut fields = Fields::default();
    fields.put("op", event.op);
    fields.put("phase", event.phase());
    fields.put("span", &event.span_id);
    if let (Some(trace), Some(parent)) = (&event.trace_id, &event.parent_span_id) {
        fields.put("trace", trace);
        fields.put("parent", parent);
    }
    fields.put("data", Bounded::maps(&event.data, &recorded.extra));
    if let Some(finish) = &event.finish {
        fields.put("ok", finish.ok);
        fields.put("duration_ms", (finish.duration_ms * 1000.0).round() / 1000.0);
        if let Some(error) = &finish.error_type {
            fields.put("error_type", error);
            fields.put("error_code", finish.error_code);
            fields.put("error_message", finish.error_message.as_deref().map(bounded_text));
            if is_refusal(finish.error_code, error) {
                fields.put("decision", "refused");
            }
        }
    }
    fields
}

/// Whether an operation failed because it may not be done, not because it cannot.
fn is_refusal(code: Option<&str>, class: &str) -> bool {
    matches!(code, Some("invalid_manifest_path" | "mount_config_invalid"))
        || matches!(class, "permission_denied" | "unsupported" | "limit_exceeded" | "conflict")
}

/// The time, as records have it.
fn time() -> String {
    now().to_string()
}
