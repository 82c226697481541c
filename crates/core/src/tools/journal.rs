//! The tools by which a model keeps what it has, looks at what it changed, and takes it back.

use bastide_model::tools::{ToolDefinition, ToolInput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Tools;
use crate::{ErrorKind, Result, TransitionReport};

/// How many letters of a difference a model is shown.
const SHOWN: usize = 20_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CheckpointCall {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UndoCall {
    steps: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DiffCall {
    points: Option<String>,
    path: Option<String>,
}

impl Tools<'_> {
    /// The definitions of `checkpoint`, `undo` and `diff`, which are not among the reference's tools.
    #[must_use]
    pub fn journal_definitions() -> Vec<ToolDefinition> {
        let object = |properties: Value| {
            ToolInput::Arguments(
                json!({"type": "object", "properties": properties, "required": []}),
            )
        };
        vec![
            ToolDefinition {
                name: "checkpoint",
                description: "Keeps the files of the workspace as they are now, to come back to. \
                              Processes are not kept.",
                input: object(json!({
                    "name": {"type": "string", "description": "What to call it. Not a number."},
                })),
            },
            ToolDefinition {
                name: "undo",
                description: "Makes the files of the workspace what they were before the last commands; without a \
                              journal of commands, at the last checkpoint. Ends running processes.",
                input: object(json!({
                    "steps": {"type": "integer", "minimum": 1, "description": "How many. Default 1."},
                })),
            },
            ToolDefinition {
                name: "diff",
                description: "Shows what changed in the workspace; by default what undo would take back.",
                input: object(json!({
                    "points": {"type": "string", "description": "A..B, points by number or name; A.. is from A to now."},
                    "path": {"type": "string", "description": "Only what is at this path and below it."},
                })),
            },
        ]
    }

    /// Makes a checkpoint.
    ///
    /// # Errors
    ///
    /// Fails if the session does. Mistakes of the model are reported in the text.
    pub async fn checkpoint(&self, raw: &str) -> Result<String> {
        let call: CheckpointCall = match read(raw) {
            Ok(call) => call,
            Err(text) => return Ok(text),
        };
        let made = self.session.journal().checkpoint(call.name.as_deref()).await;
        answer(made.map(|made| format!("{} was made.", made.point.title())))
    }

    /// Takes commands back.
    ///
    /// # Errors
    ///
    /// As [`checkpoint`](Self::checkpoint).
    pub async fn undo(&self, raw: &str) -> Result<String> {
        let call: UndoCall = match read(raw) {
            Ok(call) => call,
            Err(text) => return Ok(text),
        };
        let undone = self.session.journal().undo(call.steps.unwrap_or(1)).await;
        answer(undone.map(|undone| {
            let TransitionReport { at, ended, changes, .. } = undone;
            let count = changes.added + changes.changed + changes.removed;
            format!("The workspace is at {at}: {count} files changed, {ended} processes ended.")
        }))
    }

    /// Shows what changed.
    ///
    /// # Errors
    ///
    /// As [`checkpoint`](Self::checkpoint).
    pub async fn diff(&self, raw: &str) -> Result<String> {
        let call: DiffCall = match read(raw) {
            Ok(call) => call,
            Err(text) => return Ok(text),
        };
        let found = self.session.journal().diff(call.points.as_deref(), call.path.as_deref()).await;
        answer(found.map(|found| {
            let mut text = format!("From {} to {}:\n", found.from, found.to);
            for file in &found.files {
                text.push_str(&format!("{} {} {}\n", file.kind.as_str(), file.what, file.path));
            }
            for shown in found.files.iter().filter_map(|file| file.text.as_ref()) {
                text.push_str(shown);
            }
            match text.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("{}\n(cut; ask for a path)\n", &text[..end]),
                None => text,
            }
        }))
    }
}

/// Reads what a model sent; what is wrong with it is for the model to know.
fn read<'a, T: Deserialize<'a> + Default>(raw: &'a str) -> Result<T, String> {
    if raw.trim().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_str(raw).map_err(|error| format!("The arguments cannot be read: {error}"))
}

/// What a model is told; only what is no matter of its own is an error.
fn answer(done: Result<String>) -> Result<String> {
    match done {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Conflict
            ) =>
        {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            Ok(format!("Error: {error}{hint}"))
        }
        done => done,
    }
}
