//! What a path given to a session may reach.

use super::resolve::{HostFiles, grant_host_path, resolve_links};
use super::{PathInput, invalid_path, refuse_filesystem_root};
use crate::error::raise;
use crate::error::{Error, Result};
use crate::{PathGrant, PosixPath, WindowsPath};

/// What a path is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathUse {
    /// What is there is only read.
    Read,
    /// What is there is written, made or removed.
    Write,
}

/// The rules for paths of one session: the workspace's folder, and the grants outside it.
///
/// Relative paths start at the workspace's folder and stay below it. Absolute ones may also lie
/// below a grant; of several, the deepest decides, and the first of equally deep ones.
///
/// ```
/// use bastide_model::paths::{PathUse, WorkspacePathPolicy};
///
/// let policy = WorkspacePathPolicy::new("/workspace", Vec::new())?;
/// assert_eq!(policy.normalize_path("src/../a.py", PathUse::Read)?.as_str(), "/workspace/a.py");
/// assert!(policy.normalize_path("../etc/passwd", PathUse::Read).is_err());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspacePathPolicy {
    root: PosixPath,
    grants: Vec<PathGrant>,
}

impl WorkspacePathPolicy {
    /// Rules for the workspace at `root`.
    ///
    /// # Errors
    /// `root` is not absolute.
    pub fn new<'a>(root: impl Into<PathInput<'a>>, grants: Vec<PathGrant>) -> Result<Self> {
        let root = root.into().to_posix();
        if !root.is_absolute() {
            return Err(raise::value_error("sandbox workspace root must be absolute"));
        }
        Ok(Self { root: root.normalized(), grants })
    }

    /// The workspace's folder.
    #[must_use]
    pub fn sandbox_root(&self) -> &PosixPath {
        &self.root
    }

    /// The absolute path of something in the workspace, links unseen; grants do not count.
    ///
    /// # Errors
    /// `InvalidManifestPathError` if it is outside.
    pub fn absolute_workspace_path<'a>(&self, path: impl Into<PathInput<'a>>) -> Result<PosixPath> {
        let path = path.into();
        refuse_windows_absolute(path)?;
        self.below_root(&path.to_posix())
    }

    /// The path of something in the workspace from its folder; grants do not count.
    ///
    /// # Errors
    /// `InvalidManifestPathError` if it is outside.
    pub fn relative_path<'a>(&self, path: impl Into<PathInput<'a>>) -> Result<PosixPath> {
        let path = path.into();
        let absolute = self.absolute_workspace_path(path)?;
        absolute.below(&self.root).ok_or_else(|| refused(&path.to_posix()))
    }

    /// The absolute path that `path` means, in the workspace or a grant, links unseen.
    ///
    /// # Errors
    /// `InvalidManifestPathError` if it is in neither, `WorkspaceArchiveWriteError` if it is to be
    /// written and its grant is read-only.
    pub fn normalize_path<'a>(
        &self,
        path: impl Into<PathInput<'a>>,
        path_use: PathUse,
    ) -> Result<PosixPath> {
        let path = path.into();
        refuse_windows_absolute(path)?;
        let original = path.to_posix();
        let (result, grant) = self.lexical(&original)?;
        if path_use == PathUse::Write {
            refuse_read_only(&result, grant)?;
        }
        Ok(result)
    }

    /// As [`normalize_path`](Self::normalize_path), with links followed as `files` describes them.
    /// What need not exist need not exist.
    ///
    /// # Errors
    /// As `normalize_path`, for the place the links lead to; a `RuntimeError` if they lead nowhere.
    pub fn normalize_path_resolving<'a>(
        &self,
        path: impl Into<PathInput<'a>>,
        path_use: PathUse,
        files: &dyn HostFiles,
    ) -> Result<PosixPath> {
        let path = path.into();
        refuse_windows_absolute(path)?;
        let original = path.to_host();
        let root = resolve_links(&self.root, files)?;
        let resolved = match original.is_absolute() {
            true => resolve_links(&original, files)?,
            false => resolve_links(&self.below_root(&original)?, files)?,
        };
        if resolved.is_below(&root) {
            return Ok(resolved);
        }
        let mut grants = Vec::new();
        for grant in &self.grants {
            grants.push((grant, grant_host_path(grant, files)?));
        }
        let grant = deepest(&resolved, grants).ok_or_else(|| refused(&original))?;
        if path_use == PathUse::Write {
            refuse_read_only(&resolved, Some(grant))?;
        }
        Ok(resolved)
    }

    /// Refuses to remove a tree that holds something read-only.
    ///
    /// # Errors
    /// As [`normalize_path`](Self::normalize_path) for writing, for the path or a grant below it.
    pub fn validate_recursive_remove<'a>(&self, path: impl Into<PathInput<'a>>) -> Result<()> {
        let top = self.normalize_path(path, PathUse::Write)?;
        for grant in self.grants.iter().filter(|grant| grant.read_only) {
            let below = PosixPath::typed(&grant.path);
            if below.is_below(&top) {
                // Asked again because the workspace or a deeper grant may override this one.
                self.normalize_path(&below, PathUse::Write)?;
            }
        }
        Ok(())
    }

    /// The grants for somebody who resolves links inside the sandbox: where, and whether read-only.
    ///
    /// # Errors
    /// `ValueError` if a grant is not a path of the sandbox, or is all of it.
    pub fn extra_path_grant_rules(&self) -> Result<Vec<(PosixPath, bool)>> {
        let mut rules = Vec::new();
        for grant in &self.grants {
            if WindowsPath::absolute(&grant.path).is_some() {
                return Err(raise::value_error("sandbox path grant path must be POSIX absolute"));
            }
            let root = PosixPath::typed(&grant.path);
            refuse_filesystem_root(&root)?;
            rules.push((root, grant.read_only));
        }
        Ok(rules)
    }

    fn absolute(&self, path: &PosixPath) -> PosixPath {
        self.root.join(path).normalized()
    }

    fn below_root(&self, path: &PosixPath) -> Result<PosixPath> {
        let absolute = self.absolute(path);
        if absolute.is_below(&self.root) { Ok(absolute) } else { Err(refused(path)) }
    }

    fn lexical(&self, original: &PosixPath) -> Result<(PosixPath, Option<&PathGrant>)> {
        if !original.is_absolute() {
            return Ok((self.below_root(original)?, None));
        }
        let path = self.absolute(original);
        if path.is_below(&self.root) {
            return Ok((path, None));
        }
        let mut grants = Vec::new();
        for grant in &self.grants {
            let root = PosixPath::typed(&grant.path);
            refuse_filesystem_root(&root)?;
            grants.push((grant, root));
        }
        match deepest(&path, grants) {
            Some(grant) => Ok((path, Some(grant))),
            None => Err(refused(original)),
        }
    }
}

/// The grant that decides about `path`.
fn deepest<'a>(path: &PosixPath, grants: Vec<(&'a PathGrant, PosixPath)>) -> Option<&'a PathGrant> {
    let matching = grants.into_iter().filter(|(_, root)| path.is_below(root));
    // Reversed, because of equally deep ones the first decides and `max_by_key` takes the last.
    let deepest = matching.rev().max_by_key(|(_, root)| root.depth());
    deepest.map(|(grant, _)| grant)
}

fn refused(path: &PosixPath) -> Error {
    invalid_path(path.as_str(), path.is_absolute())
}

fn refuse_windows_absolute(path: PathInput<'_>) -> Result<()> {
    match WindowsPath::absolute(path.as_str()) {
        Some(windows) => Err(invalid_path(&windows.to_posix(), true)),
        None => Ok(()),
    }
}

fn refuse_read_only(path: &PosixPath, grant: Option<&PathGrant>) -> Result<()> {
    match grant {
        Some(grant) if grant.read_only => Err(raise::workspace_archive_write(path)
            .with_context("reason", "read_only_extra_path_grant")
            .with_context("grant_path", grant.path.as_str())),
        _ => Ok(()),
    }
}
