//! Area `apply_patch`: diffs, patches, and patches on files.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind as IoKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bastide_model::error::raise;
use bastide_model::patch::{
    DiffMode, FileAnswer, FileRequest, PatchOperation, PatchRun, PatchStep, WorkspaceEditor,
    apply_diff, coerce_operations, parse_tool_input,
};
use bastide_model::paths::{PathUse, SandboxWorkspaceScope, WorkspacePathPolicy};
use bastide_model::{PosixPath, Result};
use serde_json::{Value, json};

use super::case::malformed;
use super::compare::error_object;
use super::paths::Disk;
use super::tree::{self, Modes};
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("apply_diff", diff),
    ("parse_patch_input", |case| {
        Ok(parse_tool_input(case.text("raw_input")?)?.iter().map(show).collect())
    }),
    ("apply_patch", |case| {
        let workspace = Workspace::new(case)?;
        let operations = coerce_operations(case.get("operations"))?;
        workspace.apply(&mut PatchRun::new(workspace.editor(case)?, operations))?;
        workspace.with_tree(json!({"result": "Done!"}))
    }),
    ("apply_operation", |case| {
        let workspace = Workspace::new(case)?;
        let mut run = PatchRun::new(workspace.editor(case)?, vec![operation(case)?]);
        workspace.apply(&mut run)?;
        workspace.with_tree(json!({"output": run.outputs().first()}))
    }),
    ("normalize_operation", |case| {
        let normalized =
            Workspace::new(case)?.editor(case)?.normalize_operation(&operation(case)?)?;
        let PatchOperation { kind, path, move_to, .. } = normalized;
        Ok(json!({"type": kind.as_str(), "path": path, "move_to": move_to}))
    }),
    ("apply_patch_tool", |case| {
        let workspace = Workspace::new(case)?;
        let output = workspace.apply_tool(case)?;
        workspace.with_tree(json!({"output": output}))
    }),
    ("apply_patch_tool_outcome", |case| {
        let workspace = Workspace::new(case)?;
        let result = match workspace.apply_tool(case) {
            Ok(output) => json!({"output": output}),
            Err(error) => error_object(&error),
        };
        workspace.with_tree(json!({"result": result}))
    }),
];

fn diff(case: &Case<'_>) -> Result<Value> {
    let mode = match case.optional_text("mode")? {
        Some("create") => DiffMode::Create,
        _ => DiffMode::Update,
    };
    Ok(apply_diff(case.text("input")?, case.text("diff")?, mode)?.into())
}

fn show(operation: &PatchOperation) -> Value {
    let PatchOperation { kind, path, diff, move_to } = operation;
    json!({"type": kind.as_str(), "path": path, "diff": diff, "move_to": move_to})
}

fn operation(case: &Case<'_>) -> Result<PatchOperation> {
    let operations = coerce_operations(case.get("operation"))?;
    operations.into_iter().next().ok_or_else(|| malformed("operation", "an operation"))
}

/// A workspace on this machine's disk, as the reference's local backend has it.
struct Workspace {
    root: PathBuf,
    policy: WorkspacePathPolicy,
}

impl Workspace {
    fn new(case: &Case<'_>) -> Result<Self> {
        let scratch = case.scratch.path()?;
        tree::create(scratch, case.list("tree")?)?;
        let root = scratch.join("ws");
        fs::create_dir_all(&root).map_err(|_| malformed("tree", "a workspace"))?;
        let policy = WorkspacePathPolicy::new(root.to_string_lossy().as_ref(), Vec::new())?;
        Ok(Self { root, policy })
    }

    fn editor(&self, case: &Case<'_>) -> Result<WorkspaceEditor> {
        let scope = SandboxWorkspaceScope::from_cwd(case.optional_text("cwd")?)?;
        Ok(WorkspaceEditor::new(self.policy.clone(), scope))
    }

    fn apply_tool(&self, case: &Case<'_>) -> Result<String> {
        let mut run = PatchRun::of_tool_input(self.editor(case)?, case.text("raw_input")?)?;
        self.apply(&mut run)?;
        Ok(run.tool_output())
    }

    fn with_tree(&self, mut output: Value) -> Result<Value> {
        output["tree"] = tree::list(&self.root, Modes::Shown)?.into();
        Ok(output)
    }

    fn apply(&self, run: &mut PatchRun) -> Result<()> {
        let mut step = run.start()?;
        while let PatchStep::Do(request) = step {
            step = run.answer(self.perform(request)?)?;
        }
        Ok(())
    }

    fn perform(&self, request: FileRequest) -> Result<FileAnswer> {
        match request {
            FileRequest::Resolve(path) => Ok(FileAnswer::Resolved(
                self.policy.normalize_path_resolving(&path, PathUse::Read, &Disk)?,
            )),
            FileRequest::Read(path) => match read_regular(path.as_str()) {
                Ok(content) => Ok(FileAnswer::Content(content)),
                Err(error) if error.kind() == IoKind::NotFound => Ok(FileAnswer::Missing),
                Err(error) => Err(raise::workspace_archive_read(path).with_source(error)),
            },
            FileRequest::Write { path, content } => {
                self.make_parents(Path::new(path.as_str()))?;
                written(&path, write_regular(path.as_str(), &content))
            }
            FileRequest::Create { path, content } => self.create(&path, &content),
            FileRequest::Replace { path, content } => {
                let staged = format!("{path}.staged");
                written(
                    &path,
                    fs::write(&staged, content).and_then(|()| fs::rename(staged, path.as_str())),
                )
            }
            FileRequest::Remove(path) => written(&path, fs::remove_file(path.as_str())),
            FileRequest::SameFile(first, second) => {
                let identity = |path: &PosixPath| {
                    let metadata = fs::symlink_metadata(path.as_str()).ok()?;
                    Some((metadata.dev(), metadata.ino()))
                };
                let (first, second) = (identity(&first), identity(&second));
                Ok(FileAnswer::Same(first.is_some() && first == second))
            }
            FileRequest::Rename { from, to } => {
                written(&to, fs::rename(from.as_str(), to.as_str()))
            }
        }
    }

    fn create(&self, path: &PosixPath, content: &[u8]) -> Result<FileAnswer> {
        let requested = Path::new(path.as_str());
        let parent = requested.parent().unwrap_or(Path::new("")).to_string_lossy().into_owned();
        let parent = PosixPath::new(&parent);
        let parent = self.policy.normalize_path_resolving(&parent, PathUse::Write, &Disk)?;
        let target = match requested.file_name() {
            Some(name) => Path::new(parent.as_str()).join(name),
            None => PathBuf::from(parent.as_str()),
        };
        let shown = PosixPath::new(&target.to_string_lossy());
        if fs::create_dir_all(parent.as_str()).is_err() {
            return Err(raise::workspace_archive_write(shown));
        }
        match OpenOptions::new().write(true).create_new(true).open(&target) {
            Err(error) if error.kind() == IoKind::AlreadyExists => Ok(FileAnswer::Exists),
            opened => written(&shown, opened.and_then(|mut file| file.write_all(content))),
        }
    }

    fn make_parents(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        let parent = self.policy.normalize_path_resolving(
            &PosixPath::new(&parent),
            PathUse::Write,
            &Disk,
        )?;
        fs::create_dir_all(parent.as_str())
            .map_err(|error| raise::workspace_archive_write(parent).with_source(error))
    }
}

/// Reads a file; a pipe would be waited for.
fn read_regular(path: &str) -> std::io::Result<Vec<u8>> {
    match fs::metadata(path)? {
        file if file.is_file() || file.is_dir() => fs::read(path),
        _ => Err(std::io::Error::other("Not a regular file")),
    }
}

/// Writes a file; a pipe would be waited for.
fn write_regular(path: &str, content: &[u8]) -> std::io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => {
            Err(std::io::Error::other("Not a regular file"))
        }
        _ => fs::write(path, content),
    }
}

fn written(path: &PosixPath, result: std::io::Result<()>) -> Result<FileAnswer> {
    match result {
        Ok(()) => Ok(FileAnswer::Done),
        Err(error) => Err(raise::workspace_archive_write(path).with_source(error)),
    }
}
