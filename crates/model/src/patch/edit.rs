//! One operation on one file, as a conversation with whoever holds the files.

use super::diff::{DiffMode, apply_diff};
use super::{PatchKind, PatchOperation};
use crate::PosixPath;
use crate::error::raise;
use crate::error::{Error, ErrorClass, ErrorKind, Result};
use crate::paths::{PathInput, SandboxWorkspaceScope, WorkspacePathPolicy};
use crate::text::trim;

/// A file operation to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRequest {
    /// Say where a path of the workspace leads, links followed, or refuse it.
    Resolve(PosixPath),
    /// Read a whole file.
    Read(PosixPath),
    /// Make the missing folders on the way and write a file in place.
    Write {
        /// Where.
        path: PosixPath,
        /// All of it.
        content: Vec<u8>,
    },
    /// Make the missing folders on the way and a file that must not exist, not even as a link.
    Create {
        /// Where.
        path: PosixPath,
        /// All of it.
        content: Vec<u8>,
    },
    /// Write a file under another name and rename it into place.
    Replace {
        /// Where.
        path: PosixPath,
        /// All of it.
        content: Vec<u8>,
    },
    /// Remove a file.
    Remove(PosixPath),
    /// Say whether two paths are one file, links at the end not followed.
    SameFile(PosixPath, PosixPath),
    /// Rename a file.
    Rename {
        /// The old name.
        from: PosixPath,
        /// The new name.
        to: PosixPath,
    },
}

/// What came of a file operation. A failure that is not here ends the run, and is the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAnswer {
    /// It leads there.
    Resolved(PosixPath),
    /// The file holds this.
    Content(Vec<u8>),
    /// There is no such file.
    Missing,
    /// There is such a file already.
    Exists,
    /// Whether the two are one file.
    Same(bool),
    /// Done.
    Done,
}

/// Which files operations mean, for one workspace and one run.
#[derive(Debug, Clone)]
pub struct WorkspaceEditor {
    policy: WorkspacePathPolicy,
    scope: SandboxWorkspaceScope,
}

impl WorkspaceEditor {
    /// An editor of the workspace of `policy` for a run that sees it through `scope`.
    #[must_use]
    pub fn new(policy: WorkspacePathPolicy, scope: SandboxWorkspaceScope) -> Self {
        Self { policy, scope }
    }

    /// The operation with its paths spelled from the workspace's folder, for whoever approves it.
    ///
    /// # Errors
    /// `ApplyPatchPathError` if a path is empty or outside the workspace.
    pub fn normalize_operation(&self, operation: &PatchOperation) -> Result<PatchOperation> {
        let canonical = |path: &str| self.workspace_path(path).map(|path| path.to_string());
        Ok(PatchOperation {
            kind: operation.kind,
            path: canonical(&operation.path)?,
            diff: operation.diff.clone(),
            move_to: operation.move_to.as_deref().map(canonical).transpose()?,
        })
    }

    /// The path from the workspace's folder. Grants are not for patches.
    fn workspace_path(&self, path: &str) -> Result<PosixPath> {
        if trim(path).is_empty() {
            return Err(raise::apply_patch_path(path, "empty"));
        }
        let anchored = PosixPath::new(&self.scope.anchor(&PosixPath::typed(path)));
        self.policy.relative_path(&anchored).map_err(|error| {
            match error.class() == Some(ErrorClass::InvalidManifestPathError) {
                true => raise::apply_patch_path(path, "escape_root").with_source(error),
                false => error,
            }
        })
    }

    /// The path from the workspace's folder, and the one to show.
    fn target(&self, path: &str) -> Result<Target> {
        let relative = self.workspace_path(path)?;
        let shown = self.scope.display_path(&PosixPath::typed(path), &relative)?.to_string();
        Ok(Target { relative, shown })
    }

    /// Starts an operation: what to do first, and how to go on.
    pub(super) fn start(&self, operation: PatchOperation) -> Result<(FileRequest, Edit)> {
        let target = self.target(&operation.path)?;
        let request = FileRequest::Resolve(target.relative.clone());
        Ok((request, Edit { operation, target, state: State::Resolving }))
    }

    fn decode_path(&self, edit: &Edit, resolved: &PosixPath) -> PosixPath {
        let given = edit.operation.path.as_str();
        match self.scope.cwd() {
            None => resolved.clone(),
            Some(_) if PathInput::Text(given).is_absolute_anywhere() => PosixPath::typed(given),
            Some(_) => PosixPath::typed(&edit.target.shown),
        }
    }
}

/// A path of an operation.
#[derive(Debug)]
struct Target {
    relative: PosixPath,
    shown: String,
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Edit {
    operation: PatchOperation,
    target: Target,
    state: State,
}

/// What the last request was for.
#[derive(Debug)]
enum State {
    Resolving,
    /// Reading the file to see that it is there.
    Checking {
        file: PosixPath,
    },
    Reading {
        file: PosixPath,
    },
    Creating,
    ResolvingMove {
        file: PosixPath,
        text: String,
        moved: String,
    },
    Comparing {
        file: PosixPath,
        to: PosixPath,
        text: String,
        moved: String,
    },
    WritingMoved {
        file: PosixPath,
        moved: String,
    },
    Replacing {
        file: PosixPath,
        to: PosixPath,
        moved: String,
    },
    ComparingAgain {
        file: PosixPath,
        to: PosixPath,
        moved: String,
    },
    /// The last request; what to say once it is done.
    Finishing {
        output: String,
    },
}

/// What to do after an answer.
pub(super) enum EditStep {
    Do(FileRequest),
    Done(String),
}

impl Edit {
    /// Goes on after an answer.
    pub(super) fn turn(
        &mut self,
        editor: &WorkspaceEditor,
        answer: FileAnswer,
    ) -> Result<EditStep> {
        let state = std::mem::replace(&mut self.state, State::Resolving);
        let (state, request) = match (state, answer) {
            (State::Resolving, FileAnswer::Resolved(file)) => self.resolved(file)?,
            (State::Checking { .. }, FileAnswer::Missing) => {
                let path = PosixPath::new(&self.target.shown);
                return Err(raise::apply_patch_file_not_found(path));
            }
            (State::Checking { file }, FileAnswer::Content(_)) => {
                let output = format!("Deleted {}", self.target.shown);
                (State::Finishing { output }, FileRequest::Remove(file))
            }
            (State::Reading { .. }, FileAnswer::Missing) => {
                let path = PosixPath::new(&self.operation.path);
                return Err(raise::apply_patch_file_not_found(path));
            }
            (State::Reading { file }, FileAnswer::Content(content)) => {
                self.update(editor, file, content)?
            }
            (State::Creating, FileAnswer::Exists) => return Err(self.already_exists()),
            (State::Creating, FileAnswer::Done) => {
                return Ok(EditStep::Done(format!("Created {}", self.target.shown)));
            }
            (State::ResolvingMove { file, text, moved }, FileAnswer::Resolved(to)) => {
                self.move_text(file, to, text, moved)
            }
            (State::Comparing { file, to, text, moved }, FileAnswer::Same(same)) => {
                let content = text.into_bytes();
                match same {
                    // Writing and then removing would remove what was just written.
                    true => {
                        let request = FileRequest::Replace { path: to.clone(), content };
                        (State::Replacing { file, to, moved }, request)
                    }
                    false => {
                        let request = FileRequest::Write { path: to, content };
                        (State::WritingMoved { file, moved }, request)
                    }
                }
            }
            (State::WritingMoved { file, moved }, FileAnswer::Done) => {
                let output = self.moved(&moved);
                (State::Finishing { output }, FileRequest::Remove(file))
            }
            (State::Replacing { file, to, moved }, FileAnswer::Done) => {
                let request = FileRequest::SameFile(file.clone(), to.clone());
                (State::ComparingAgain { file, to, moved }, request)
            }
            (State::ComparingAgain { file, to, moved }, FileAnswer::Same(true)) => {
                let output = self.moved(&moved);
                if file.names().next_back() == to.names().next_back() {
                    return Ok(EditStep::Done(output));
                }
                // The file system folds names, and kept the old spelling.
                (State::Finishing { output }, FileRequest::Rename { from: file, to })
            }
            (State::ComparingAgain { .. }, FileAnswer::Same(false)) => {
                return Err(raise::apply_patch_diff(
                    "Move destination was updated, but source and destination no longer identify \
                     the same file; source was left untouched",
                ));
            }
            (State::Finishing { output }, FileAnswer::Done) => return Ok(EditStep::Done(output)),
            (state, answer) => {
                let message = format!("{answer:?} is no answer while {state:?}");
                return Err(Error::new(ErrorKind::Internal, message));
            }
        };
        self.state = state;
        Ok(EditStep::Do(request))
    }

    fn resolved(&self, file: PosixPath) -> Result<(State, FileRequest)> {
        let operation = &self.operation;
        if operation.kind == PatchKind::DeleteFile {
            let request = FileRequest::Read(file.clone());
            return Ok((State::Checking { file }, request));
        }
        let Some(diff) = &operation.diff else {
            let (kind, path) = (operation.kind.as_str(), operation.path.as_str());
            let message = format!("Missing diff for operation type {kind} on path {path}");
            return Err(raise::apply_patch_diff(message).with_context("path", path));
        };
        if operation.kind == PatchKind::UpdateFile {
            let request = FileRequest::Read(file.clone());
            return Ok((State::Reading { file }, request));
        }
        let text = self.diffed("", diff, DiffMode::Create)?;
        // By its own name and not where it leads: what is at the name must not exist.
        let path = self.target.relative.clone();
        Ok((State::Creating, FileRequest::Create { path, content: text.into_bytes() }))
    }

    fn update(
        &self,
        editor: &WorkspaceEditor,
        file: PosixPath,
        content: Vec<u8>,
    ) -> Result<(State, FileRequest)> {
        let original = String::from_utf8(content).map_err(|error| {
            raise::apply_patch_decode(editor.decode_path(self, &file)).with_source(error)
        })?;
        let diff = self.operation.diff.as_deref().unwrap_or_default();
        let text = self.diffed(&original, diff, DiffMode::Update)?;
        let Some(move_to) = &self.operation.move_to else {
            let output = format!("Updated {}", self.target.shown);
            let request = FileRequest::Write { path: file, content: text.into_bytes() };
            return Ok((State::Finishing { output }, request));
        };
        let Target { relative, shown: moved } = editor.target(move_to)?;
        Ok((State::ResolvingMove { file, text, moved }, FileRequest::Resolve(relative)))
    }

    fn move_text(
        &self,
        file: PosixPath,
        to: PosixPath,
        text: String,
        moved: String,
    ) -> (State, FileRequest) {
        if file == to {
            // No move at all: writing in place keeps what the file is besides its content.
            let output = self.moved(&moved);
            let request = FileRequest::Write { path: file, content: text.into_bytes() };
            return (State::Finishing { output }, request);
        }
        let request = FileRequest::SameFile(file.clone(), to.clone());
        (State::Comparing { file, to, text, moved }, request)
    }

    fn diffed(&self, original: &str, diff: &str, mode: DiffMode) -> Result<String> {
        apply_diff(original, diff, mode).map_err(|error| {
            raise::apply_patch_diff(error.message())
                .with_context("path", self.operation.path.as_str())
                .with_source(error)
        })
    }

    fn moved(&self, to: &str) -> String {
        let from = &self.target.shown;
        format!("Updated {from}\nMoved {from} to {to}")
    }

    fn already_exists(&self) -> Error {
        let shown = &self.target.shown;
        raise::apply_patch_diff(format!(
            "apply_patch cannot create {shown} because it already exists. \
             Use an update_file operation to change an existing file."
        ))
        .with_context("path", shown.as_str())
    }
}
