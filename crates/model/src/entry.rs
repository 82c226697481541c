//! What a manifest puts at a path of the workspace.

mod git;
mod read;

use indexmap::IndexMap;
use serde_json::Value;

pub use git::GitRepo;
pub(crate) use read::{BUILTIN, entries};
pub use read::{EntryFields, EntryShape};

use crate::custom::Custom;
use crate::lax::{Dump, Object};
use crate::mount::Mount;
use crate::permissions::Permissions;
use crate::posix_path::PosixPath;
use crate::users::EntryGroup;
use crate::{Error, ErrorClass, ErrorKind, Result};

/// One entry of a manifest: what is true of every sort of entry, and what sort it is.
///
/// ```
/// use bastide_model::Entry;
/// use bastide_model::lax::{self, Dump};
/// use serde_json::json;
///
/// let entry: Entry = lax::read(&json!({"type": "file", "content": "hello", "ephemeral": "yes"}))?;
/// assert_eq!(entry, Entry::file("hello").ephemeral());
/// assert_eq!(entry.dump()?["permissions"]["owner"], 7);
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What it is for, for people and models.
    pub description: Option<String>,
    /// Whether it is made anew at every start and left out of snapshots.
    pub ephemeral: bool,
    /// The group it belongs to, where that is not its owner's.
    pub group: Option<EntryGroup>,
    /// Whether it is meant to be a folder. Only said, not acted upon.
    pub is_dir: bool,
    /// Who may do what with it.
    pub permissions: Permissions,
    /// What it is.
    pub kind: EntryKind,
}

/// The sorts of entries.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryKind {
    /// A folder, with what is in it.
    Dir {
        /// The entries in it, by path.
        children: IndexMap<String, Entry>,
    },
    /// A file, with what is in it.
    File {
        /// The bytes; JSON can only hold them if they are UTF-8.
        content: Vec<u8>,
    },
    /// A file copied from the host.
    LocalFile {
        /// The file on the host.
        src: PosixPath,
    },
    /// A folder copied from the host, or an empty one.
    LocalDir {
        /// The folder on the host.
        src: Option<PosixPath>,
    },
    /// A git repository, or a part of one.
    GitRepo(GitRepo),
    /// Storage of a cloud provider.
    Mount(Box<Mount>),
    /// A type of the program's own; only the program knows how to apply it.
    Custom(Custom),
}

impl Entry {
    /// An entry with the defaults of its sort.
    #[must_use]
    pub fn new(kind: EntryKind) -> Self {
        let is_dir = kind.is_dir();
        let permissions = Permissions { directory: is_dir, ..Permissions::of_entries() };
        let ephemeral = matches!(kind, EntryKind::Mount(_));
        Self { description: None, ephemeral, group: None, is_dir, permissions, kind }
    }

    /// A folder.
    pub fn dir<K: Into<String>>(children: impl IntoIterator<Item = (K, Self)>) -> Self {
        let children = children.into_iter().map(|(path, entry)| (path.into(), entry));
        Self::new(EntryKind::Dir { children: children.collect() })
    }

    /// A file.
    pub fn file(content: impl Into<Vec<u8>>) -> Self {
        Self::new(EntryKind::File { content: content.into() })
    }

    /// A file copied from the host.
    #[must_use]
    pub fn local_file(src: &str) -> Self {
        Self::new(EntryKind::LocalFile { src: PosixPath::new(src) })
    }

    /// A folder copied from the host.
    #[must_use]
    pub fn local_dir(src: &str) -> Self {
        Self::new(EntryKind::LocalDir { src: Some(PosixPath::new(src)) })
    }

    /// A git repository at a branch, tag or commit.
    #[must_use]
    pub fn git_repo(repo: &str, reference: &str) -> Self {
        Self::new(EntryKind::GitRepo(GitRepo::new(repo, reference)))
    }

    /// Storage of a cloud provider.
    ///
    /// # Errors
    ///
    /// `MountConfigError` if the storage cannot be mounted by its strategy.
    pub fn mount(mount: Mount) -> Result<Self> {
        mount.check()?;
        Ok(Self::new(EntryKind::Mount(Box::new(mount))))
    }

    /// The same with a description.
    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// The same, made anew at every start and left out of snapshots.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        self.ephemeral = true;
        self
    }

    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match &self.kind {
            EntryKind::Dir { .. } => "dir",
            EntryKind::File { .. } => "file",
            EntryKind::LocalFile { .. } => "local_file",
            EntryKind::LocalDir { .. } => "local_dir",
            EntryKind::GitRepo(_) => "git_repo",
            EntryKind::Mount(mount) => mount.type_name(),
            EntryKind::Custom(custom) => custom.type_name(),
        }
    }

    /// What is in it, if it is a folder of the manifest.
    #[must_use]
    pub fn children(&self) -> Option<&IndexMap<String, Self>> {
        match &self.kind {
            EntryKind::Dir { children } => Some(children),
            _ => None,
        }
    }

    /// The mount, if it is one.
    #[must_use]
    pub fn as_mount(&self) -> Option<&Mount> {
        match &self.kind {
            EntryKind::Mount(mount) => Some(mount),
            _ => None,
        }
    }
}

impl EntryKind {
    /// Whether entries of this sort are folders unless they say otherwise.
    fn is_dir(&self) -> bool {
        match self {
            Self::Dir { .. } | Self::LocalDir { .. } | Self::GitRepo(_) | Self::Mount(_) => true,
            Self::File { .. } | Self::LocalFile { .. } | Self::Custom(_) => false,
        }
    }
}

impl Dump for Entry {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("type", self.type_name())?;
        out.put("description", &self.description)?;
        out.put("ephemeral", &self.ephemeral)?;
        out.put("group", &self.group)?;
        out.put("is_dir", &self.is_dir)?;
        out.put("permissions", &self.permissions)?;
        match &self.kind {
            EntryKind::Dir { children } => out.put("children", children)?,
            EntryKind::File { content } => out.put("content", text_of(content)?)?,
            EntryKind::LocalFile { src } => out.put("src", src)?,
            EntryKind::LocalDir { src } => out.put("src", src)?,
            EntryKind::GitRepo(repo) => repo.put_fields(&mut out)?,
            EntryKind::Mount(mount) => mount.put_fields(&mut out)?,
            EntryKind::Custom(custom) => out.extend(custom.tagged_fields()?.into_map()),
        }
        Ok(out.into())
    }
}

/// JSON holds text; bytes that are none cannot be written.
fn text_of(content: &[u8]) -> Result<&str> {
    std::str::from_utf8(content).map_err(|error| {
        let message = format!("the content of a file entry is not UTF-8: {error}");
        Error::new(ErrorKind::InvalidInput, message)
            .with_class(ErrorClass::UnicodeDecodeError)
            .with_hint("copy binary content from the host with a `local_file` entry instead")
            .with_source(error)
    })
}
