//! Undo: points of a session's workspace, going back to them, and what its forks bring home. And how long it lasts.

use std::time::Duration;

use bastide::{
    CheckpointReport, DiffReport, ExpiryAction, FileDiff, JournalLog, LeaseChange, LeaseStatus,
    MergeReport, Point, TransitionReport,
};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::bridge::call;
use crate::command::seconds;
use crate::convert;
use crate::session::NativeSession;

/// Makes a point of the workspace as it is now.
#[pyfunction]
#[pyo3(signature = (session, name=None))]
pub(crate) fn checkpoint(
    py: Python<'_>,
    session: &NativeSession,
    name: Option<String>,
) -> PyResult<Py<PyAny>> {
    let session = session.share()?;
    let work = async move { session.journal().checkpoint(name.as_deref()).await };
    call(py, "checkpoint", work, |py, made: CheckpointReport| {
        let mut shown = point(&made.point);
        shown["processes"] = json!(made.processes);
        shown["entries"] = json!(made.entries);
        shown["bytes"] = json!(made.bytes);
        shown["files_read"] = json!(made.files_read);
        shown["bytes_stored"] = json!(made.bytes_stored);
        shown["left_out"] = json!(made.left_out);
        convert::json(py, &shown)
    })
}

/// What is different between two points.
#[pyfunction]
#[pyo3(signature = (session, range=None, path=None))]
pub(crate) fn diff(
    py: Python<'_>,
    session: &NativeSession,
    range: Option<String>,
    path: Option<String>,
) -> PyResult<Py<PyAny>> {
    let session = session.share()?;
    let work = async move { session.journal().diff(range.as_deref(), path.as_deref()).await };
    call(py, "diff", work, |py, found: DiffReport| {
        let files: Vec<_> = found.files.iter().map(file).collect();
        convert::json(py, &json!({ "from": found.from, "to": found.to, "files": files }))
    })
}

/// Takes the last commands back.
#[pyfunction]
pub(crate) fn undo(py: Python<'_>, session: &NativeSession, steps: usize) -> PyResult<Py<PyAny>> {
    let session = session.share()?;
    call(py, "undo", async move { session.journal().undo(steps).await }, transition)
}

/// Takes the last undo back.
#[pyfunction]
pub(crate) fn redo(py: Python<'_>, session: &NativeSession) -> PyResult<Py<PyAny>> {
    let session = session.share()?;
    call(py, "redo", async move { session.journal().redo().await }, transition)
}

/// Makes a file or a folder what it was at a point.
#[pyfunction]
pub(crate) fn restore_path(
    py: Python<'_>,
    session: &NativeSession,
    path: String,
    point: String,
) -> PyResult<Py<PyAny>> {
    let session = session.share()?;
    let work = async move { session.journal().restore_path(&path, &point).await };
    call(py, "restore_path", work, transition)
}

/// Takes over what was changed in a fork.
#[pyfunction]
pub(crate) fn merge(
    py: Python<'_>,
    session: &NativeSession,
    fork: &NativeSession,
) -> PyResult<Py<PyAny>> {
    let (session, fork) = (session.share()?, fork.share()?);
    let work = async move { session.journal().merge(&fork).await };
    call(py, "merge", work, |py, done: MergeReport| {
        let mut shown = changed(&done.transition);
        let conflicts = done.conflicts.iter();
        let conflicts = conflicts.map(|(path, beside)| json!({ "path": path, "beside": beside }));
        shown["conflicts"] = conflicts.collect();
        shown["merged"] = json!(done.merged);
        convert::json(py, &shown)
    })
}

/// The lease of a session, after it was changed: what is not given stays as it is.
#[pyfunction]
#[pyo3(signature = (session, *, ttl=None, idle=None, then=None, forget=false))]
pub(crate) fn lease(
    py: Python<'_>,
    session: &NativeSession,
    ttl: Option<f64>,
    idle: Option<f64>,
    then: Option<&str>,
    forget: bool,
) -> PyResult<Py<PyAny>> {
    let session = session.share()?;
    let mut change = LeaseChange::default();
    change.forget = forget;
    change.ttl = ttl.map(seconds);
    change.idle = idle.map(seconds);
    change.then =
        then.map(|then| if then == "delete" { ExpiryAction::Delete } else { ExpiryAction::Stop });
    let work = async move {
        match change == LeaseChange::default() {
            true => session.lease().status().await,
            false => session.lease().change(change).await,
        }
    };
    call(py, "lease", work, |py, lease: LeaseStatus| {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let shown = json!({
            "remaining": seconds(lease.remaining),
            "idle": seconds(lease.idle),
            "then": lease.then,
        });
        convert::json(py, &shown)
    })
}

/// Everything a journal says.
pub(crate) fn log(py: Python<'_>, log: JournalLog) -> PyResult<Py<PyAny>> {
    let shown = |(index, one): (usize, &Point)| {
        let mut shown = point(one);
        shown["applied"] = json!(index < log.applied && !one.aside);
        shown
    };
    let points: Vec<_> = log.points.iter().enumerate().map(shown).collect();
    convert::json(py, &json!({ "points": points, "redoable": log.redoable }))
}

fn transition(py: Python<'_>, done: TransitionReport) -> PyResult<Py<PyAny>> {
    convert::json(py, &changed(&done))
}

fn changed(done: &TransitionReport) -> Value {
    let points: Vec<_> = done.points.iter().map(point).collect();
    json!({ "at": done.at, "ended": done.ended, "changes": done.changes, "points": points })
}

fn point(point: &Point) -> Value {
    json!({
        "number": point.number,
        "name": point.name,
        "kind": point.kind.as_str(),
        "label": point.label,
        "at_ms": point.at_ms,
        "exit": point.exit,
        "before": point.before,
        "after": point.after,
        "changes": point.changes,
        "mechanism": point.mechanism.as_str(),
    })
}

fn file(file: &FileDiff) -> Value {
    json!({
        "path": file.path,
        "change": file.kind.as_str(),
        "what": file.what,
        "size_before": file.size_before,
        "size_after": file.size_after,
        "modes": file.modes,
        "lines_added": file.lines_added,
        "lines_removed": file.lines_removed,
        "text": file.text,
    })
}
