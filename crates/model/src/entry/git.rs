//! Git repositories.

use crate::Result;
use crate::error::raise;
use crate::lax::{Fields, Object};
use crate::posix_path::PosixPath;
use crate::text;
use crate::windows_path::WindowsPath;

/// A git repository, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRepo {
    /// The host, asked over HTTPS.
    pub host: String,
    /// The repository on that host, such as `owner/name`.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub reference: String,
    /// The folder of the repository that is wanted, or all of it. Checked by
    /// [`subpath`](Self::checked_subpath) when it is used, not when it is read.
    pub subpath: Option<String>,
}

impl GitRepo {
    /// A whole repository on GitHub.
    #[must_use]
    pub fn new(repo: &str, reference: &str) -> Self {
        Self {
            host: "github.com".to_owned(),
            repo: repo.to_owned(),
            reference: reference.to_owned(),
            subpath: None,
        }
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let host = fields.or("host", "github.com".to_owned());
        let repo = fields.required("repo");
        let reference = fields.required("ref");
        let subpath = fields.or_default("subpath");
        Some(Self { host: host?, repo: repo?, reference: reference?, subpath: subpath? })
    }

    pub(super) fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("host", &self.host)?;
        out.put("repo", &self.repo)?;
        out.put("ref", &self.reference)?;
        out.put("subpath", &self.subpath)
    }

    /// The folder that is wanted, or `None` for the whole repository.
    ///
    /// # Errors
    ///
    /// `GitSubpathError` if it is blank or leads out of the repository.
    pub fn checked_subpath(&self) -> Result<Option<PosixPath>> {
        let Some(written) = self.subpath.as_deref().filter(|written| !written.is_empty()) else {
            return Ok(None);
        };
        let refused = |reason| Err(raise::git_subpath(&self.repo, written, reason));
        let trimmed = text::trim(written);
        if trimmed.is_empty() {
            return refused("empty");
        }
        let path = PosixPath::new(trimmed);
        if path.is_empty() {
            Ok(None)
        } else if path.is_absolute() {
            refused("absolute")
        } else if written.contains('\\') || !WindowsPath::new(trimmed).drive().is_empty() {
            refused("windows_path")
        } else if path.climbs() {
            refused("parent_traversal")
        } else {
            Ok(Some(path))
        }
    }

    /// Whether the reference may be a commit: those cannot be cloned by name.
    #[must_use]
    pub fn looks_like_commit(&self) -> bool {
        (7..=40).contains(&self.reference.len())
            && self.reference.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}
