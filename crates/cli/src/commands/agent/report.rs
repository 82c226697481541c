//! What came of a run, for people and for programs.

use std::path::Path;
use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result};
use bastide_runs::agents::AgentSpec;
use bastide_runs::collect::{ChangeStatus, ChangedFile};
use bastide_runs::{RunReport, RunResult};
use serde_json::Value;

use crate::ui::{Table, Ui};

/// The file in the folder of results that has all that is known of the run.
const RECORD: &str = "result.json";

/// Puts the run on record beside its log: the command with the agent's version, and what came of it.
pub(super) fn keep(result: &RunResult) -> Result<()> {
    let report = result.report();
    let Some(folder) = report.log.as_deref().and_then(Path::parent) else { return Ok(()) };
    let file = folder.join(RECORD);
    let text = serde_json::to_vec(result).map_err(|error| unwritten(&error.to_string()))?;
    std::fs::write(&file, text).map_err(|error| unwritten(&format!("{}: {error}", file.display())))
}

fn unwritten(why: &str) -> Error {
    Error::new(ErrorKind::Io, format!("cannot keep what came of the run: {why}"))
}

/// Says what to do where the agent's program is not there.
pub(super) fn missing_program(ui: &mut Ui, spec: &AgentSpec, result: &RunResult) {
    let is_missing = result.returncode == 127
        && result.metadata.get("reason").and_then(Value::as_str) == Some("not_started");
    if !is_missing {
        return;
    }
    let message = format!("{} is not installed inside", spec.command.program);
    let mut error = Error::new(ErrorKind::NotFound, message);
    if !spec.command.install.is_empty() {
        error = error.with_hint(spec.command.install.clone());
    }
    // The exit code is that of the run.
    let _ = ui.failure(&error);
}

pub(super) fn object(result: &RunResult) -> Result<Value> {
    serde_json::to_value(result.report()).map_err(|error| unwritten(&error.to_string()))
}

pub(super) fn exit_code(result: &RunResult) -> ExitCode {
    ExitCode::from(u8::try_from(result.returncode).unwrap_or(u8::MAX))
}

pub(super) fn table(ui: &mut Ui, result: &RunResult) -> Result<()> {
    let RunReport { exit_code, reason, duration_seconds, changed_files, artifacts, log, .. } =
        result.report();
    let mut table = Table::new(&["WHAT", "VALUE", "DETAIL"]);
    let mut row = |what: &str, value: String, detail: String| {
        table.row([what.to_owned(), value, detail]);
    };
    row("exit", exit_code.to_string(), reason);
    row("duration", format!("{duration_seconds:.3} s"), String::new());
    row("changed", changed_files.len().to_string(), total(&changed_files));
    for file in &changed_files {
        row(status(file.status), path(file), counts(file));
    }
    let listed = |key: &str| {
        let list = result.metadata.get(key).and_then(Value::as_array);
        list.map(Vec::as_slice).unwrap_or_default()
    };
    for one in listed("left_out") {
        let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        row("left out", text("path"), text("why"));
    }
    for one in listed("new_repositories").iter().filter_map(Value::as_str) {
        row("repository", one.to_owned(), "is new: git there runs what it says".to_owned());
    }
    if let Some(branch) = &result.branch {
        row("branch", branch.clone(), String::new());
    }
    for (kind, files) in &artifacts {
        for file in files {
            row(kind, file.display().to_string(), String::new());
        }
    }
    if let Some(log) = log {
        row("log", log.display().to_string(), String::new());
    }
    if let Some(usage) = &result.usage {
        row("usage", usage.to_string(), String::new());
    }
    if let Some(cost) = result.metadata.get("cost") {
        row("cost", cost.to_string(), String::new());
    }
    ui.table(&table)
}

fn status(status: ChangeStatus) -> &'static str {
    match status {
        ChangeStatus::Added => "added",
        ChangeStatus::Deleted => "deleted",
        ChangeStatus::Renamed => "renamed",
        ChangeStatus::TypeChanged => "type_changed",
        _ => "modified",
    }
}

fn path(file: &ChangedFile) -> String {
    match &file.old_path {
        Some(old) => format!("{old} -> {}", file.path),
        None => file.path.clone(),
    }
}

fn counts(file: &ChangedFile) -> String {
    match (file.additions, file.deletions) {
        (Some(more), Some(less)) => format!("+{more} -{less}"),
        _ => "binary".to_owned(),
    }
}

/// How many lines came and went.
pub(super) fn lines(files: &[ChangedFile]) -> (u64, u64) {
    let more = files.iter().filter_map(|file| file.additions).sum();
    (more, files.iter().filter_map(|file| file.deletions).sum())
}

pub(super) fn total(files: &[ChangedFile]) -> String {
    let (more, less) = lines(files);
    format!("+{more} -{less}")
}
