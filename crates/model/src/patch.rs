//! Patches: the edits an agent asks for, read from its text or JSON and applied to files.
//!
//! [`apply_diff`] edits one text. [`parse_tool_input`] reads what a model sends to the `apply_patch`
//! tool. [`PatchRun`] applies operations to a workspace without touching a file itself: it asks for
//! one file operation after another and is told what came of it, so that a session over any link
//! and a test over a plain folder drive the same rules.

mod diff;
mod edit;
mod parse;
mod run;

pub use diff::{DiffMode, apply_diff};
pub use edit::{FileAnswer, FileRequest, WorkspaceEditor};
pub use parse::{coerce_operations, parse_tool_input};
pub use run::{PatchRun, PatchStep};

/// What an operation does to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PatchKind {
    /// Makes a file that does not exist.
    CreateFile,
    /// Changes a file, and may move it.
    UpdateFile,
    /// Removes a file.
    DeleteFile,
}

impl PatchKind {
    /// The word for it in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateFile => "create_file",
            Self::UpdateFile => "update_file",
            Self::DeleteFile => "delete_file",
        }
    }

    /// The kind of that word.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::CreateFile, Self::UpdateFile, Self::DeleteFile]
            .into_iter()
            .find(|kind| kind.as_str() == name)
    }
}

/// One edit of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchOperation {
    /// What to do.
    pub kind: PatchKind,
    /// The file, as it was named.
    pub path: String,
    /// The change; needed to create and to update.
    pub diff: Option<String>,
    /// Where an updated file goes.
    pub move_to: Option<String>,
}
