//! The folder of the workspace a run starts in, as a model sees it.

use serde_json::Value;

use super::PathInput;
use crate::error::Result;
use crate::error::raise;
use crate::text::trim;
use crate::{PosixPath, WindowsPath};

/// Checks the folder of the workspace that a run starts in.
///
/// # Errors
/// `ValueError` if it is empty, not relative, leads upwards or is spelled with backslashes.
pub fn normalize_sandbox_cwd(cwd: &str) -> Result<PosixPath> {
    let refused = |message| Err(raise::value_error(message));
    if cwd.contains('\\') {
        return refused("sandbox.cwd must use POSIX path separators");
    }
    if trim(cwd).is_empty() {
        return refused("sandbox.cwd must be non-empty");
    }
    let path = PosixPath::new(cwd);
    if path.is_absolute() || WindowsPath::absolute(cwd).is_some() {
        return refused("sandbox.cwd must be workspace-relative");
    }
    if path.climbs() {
        return refused("sandbox.cwd must not contain parent segments");
    }
    Ok(path)
}

/// As [`normalize_sandbox_cwd`], for a value that came from outside.
///
/// # Errors
/// Also `ValueError` if it is not text.
pub fn cwd_from_json(cwd: &Value) -> Result<PosixPath> {
    match cwd {
        Value::String(cwd) => normalize_sandbox_cwd(cwd),
        _ => Err(raise::value_error("sandbox.cwd must be a string or Path")),
    }
}

/// Where the relative paths of one run start, for the tools a model uses.
///
/// It changes where paths start, never what they may reach.
///
/// ```
/// use bastide_model::paths::SandboxWorkspaceScope;
///
/// let scope = SandboxWorkspaceScope::from_cwd(Some("app"))?;
/// assert_eq!(scope.anchor("src/x.py"), "app/src/x.py");
/// assert_eq!(scope.model_path("lib/y.py")?.as_str(), "../lib/y.py");
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxWorkspaceScope {
    cwd: Option<PosixPath>,
}

impl SandboxWorkspaceScope {
    /// The scope of a run that starts in `cwd`, or in the workspace's own folder.
    ///
    /// # Errors
    /// As [`normalize_sandbox_cwd`].
    pub fn from_cwd(cwd: Option<&str>) -> Result<Self> {
        Ok(Self { cwd: cwd.map(normalize_sandbox_cwd).transpose()? })
    }

    /// The folder the run starts in, if it has one of its own.
    #[must_use]
    pub fn cwd(&self) -> Option<&PosixPath> {
        self.cwd.as_ref()
    }

    /// The path a model's `path` means from the workspace's folder. Absolute ones stay as they are
    /// spelled, as does everything if the run has no folder of its own.
    #[must_use]
    pub fn anchor<'a>(&self, path: impl Into<PathInput<'a>>) -> String {
        let path = path.into();
        match &self.cwd {
            Some(cwd) if !path.is_absolute_anywhere() => cwd.join(&path.to_host()).to_string(),
            _ => path.as_str().to_owned(),
        }
    }

    /// A path from the workspace's folder as the model sees it from where it is.
    ///
    /// # Errors
    /// `ValueError` if it is absolute.
    pub fn model_path<'a>(
        &self,
        workspace_relative: impl Into<PathInput<'a>>,
    ) -> Result<PosixPath> {
        let path = workspace_relative.into().to_posix();
        if path.is_absolute() {
            return Err(raise::value_error(
                "workspace-relative display paths must not be absolute",
            ));
        }
        let path = path.normalized();
        Ok(match &self.cwd {
            Some(cwd) => path.seen_from(cwd),
            None => path,
        })
    }

    /// The path of something the session put into the workspace, in a form that stays right when
    /// the model changes folders: absolute if the run has a folder of its own.
    ///
    /// # Errors
    /// `ValueError` if the path is not below the workspace, or the workspace has no absolute path.
    pub fn model_resource_path<'a>(
        &self,
        workspace_root: impl Into<PathInput<'a>>,
        workspace_relative: impl Into<PathInput<'a>>,
    ) -> Result<PosixPath> {
        let refused = |message| Err(raise::value_error(message));
        let path = workspace_relative.into();
        if matches!(path, PathInput::Text(text) if text.contains('\\')) {
            return refused("session resource paths must use POSIX path separators");
        }
        let is_windows = WindowsPath::absolute(path.as_str()).is_some();
        let path = path.to_posix();
        if is_windows || path.is_absolute() || path.climbs() {
            return refused("session resource paths must be workspace-relative");
        }
        if path.depth() == 0 {
            return refused("session resource paths must be non-empty");
        }
        if self.cwd.is_none() {
            return Ok(path);
        }
        let root = workspace_root.into();
        if let Some(windows) = WindowsPath::absolute(root.as_str()) {
            return Ok(PosixPath::new(&windows.to_posix()).join(&path).normalized());
        }
        let has_backslash = matches!(root, PathInput::Text(text) if text.contains('\\'));
        let root = root.to_posix();
        if has_backslash || !root.is_absolute() {
            return refused("sandbox workspace root must be POSIX absolute");
        }
        Ok(root.join(&path).normalized())
    }

    /// The path to show for something the model called `original`.
    ///
    /// # Errors
    /// As [`model_path`](Self::model_path), where the run has a folder and `original` is relative.
    pub fn display_path<'a>(
        &self,
        original: impl Into<PathInput<'a>>,
        workspace_relative: impl Into<PathInput<'a>>,
    ) -> Result<PosixPath> {
        let path = workspace_relative.into();
        if self.cwd.is_none() || original.into().is_absolute_anywhere() {
            return Ok(path.to_posix().normalized());
        }
        self.model_path(path)
    }
}
