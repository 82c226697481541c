//! Several operations, one after another.

use std::collections::VecDeque;
use std::fmt;

use super::edit::{Edit, EditStep, FileAnswer, FileRequest, WorkspaceEditor};
use super::{PatchOperation, parse_tool_input};
use crate::error::{Error, ErrorKind, Result};

/// What a run wants next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchStep {
    /// Do this, and tell the run what came of it.
    Do(FileRequest),
    /// Nothing: all operations are applied.
    Finished,
}

/// A patch being applied.
///
/// Operations apply in order, and what was applied stays when a later one fails.
///
/// ```
/// use bastide_model::patch::{FileAnswer, FileRequest, PatchRun, PatchStep, WorkspaceEditor};
/// use bastide_model::PosixPath;
/// use bastide_model::paths::{SandboxWorkspaceScope, WorkspacePathPolicy};
///
/// let policy = WorkspacePathPolicy::new("/workspace", Vec::new())?;
/// let editor = WorkspaceEditor::new(policy, SandboxWorkspaceScope::default());
/// let patch = "*** Begin Patch\n*** Add File: hi.txt\n+hello\n*** End Patch\n";
/// let mut run = PatchRun::of_tool_input(editor, patch)?;
///
/// let PatchStep::Do(FileRequest::Resolve(path)) = run.start()? else { panic!() };
/// let answer = FileAnswer::Resolved(PosixPath::new("/workspace/hi.txt"));
/// let PatchStep::Do(FileRequest::Create { content, .. }) = run.answer(answer)? else { panic!() };
/// assert_eq!(content, b"hello");
/// assert_eq!(run.answer(FileAnswer::Done)?, PatchStep::Finished);
/// assert_eq!(run.outputs(), ["Created hi.txt"]);
/// # Ok::<(), bastide_model::Error>(())
/// ```
pub struct PatchRun {
    editor: WorkspaceEditor,
    waiting: VecDeque<PatchOperation>,
    edit: Option<Edit>,
    outputs: Vec<String>,
}

impl PatchRun {
    /// Applies operations; each path is checked when its turn comes.
    #[must_use]
    pub fn new(editor: WorkspaceEditor, operations: Vec<PatchOperation>) -> Self {
        Self { editor, waiting: operations.into(), edit: None, outputs: Vec::new() }
    }

    /// Applies what a model sent to the `apply_patch` tool; all paths are checked before any file
    /// is touched.
    ///
    /// # Errors
    /// The input cannot be read, or names a path outside the workspace.
    pub fn of_tool_input(editor: WorkspaceEditor, raw: &str) -> Result<Self> {
        let operations = parse_tool_input(raw)?;
        for operation in &operations {
            editor.normalize_operation(operation)?;
        }
        Ok(Self::new(editor, operations))
    }

    /// The first step.
    ///
    /// # Errors
    /// The first operation cannot be applied.
    pub fn start(&mut self) -> Result<PatchStep> {
        match self.waiting.pop_front() {
            None => Ok(PatchStep::Finished),
            Some(operation) => {
                let (request, edit) = self.editor.start(operation)?;
                self.edit = Some(edit);
                Ok(PatchStep::Do(request))
            }
        }
    }

    /// The step after the one that had this answer.
    ///
    /// # Errors
    /// The operation under way cannot be applied, or the next one cannot.
    pub fn answer(&mut self, answer: FileAnswer) -> Result<PatchStep> {
        let Some(edit) = &mut self.edit else {
            return Err(Error::new(ErrorKind::Internal, "an answer nobody asked for"));
        };
        match edit.turn(&self.editor, answer)? {
            EditStep::Do(request) => Ok(PatchStep::Do(request)),
            EditStep::Done(output) => {
                self.edit = None;
                self.outputs.push(output);
                self.start()
            }
        }
    }

    /// What the operations applied so far say, one text for each.
    #[must_use]
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The text of the `apply_patch` tool for the model.
    #[must_use]
    pub fn tool_output(&self) -> String {
        self.outputs.join("\n")
    }
}

impl fmt::Debug for PatchRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatchRun")
            .field("waiting", &self.waiting.len())
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}
