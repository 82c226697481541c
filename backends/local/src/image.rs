//! Whether the workspace of a session lies on a file system of its own, so that the limit on disk holds
//! for all of it.

use std::fs;
use std::io;
use std::path::Path;

use bastide::host::sync_folder;
use bastide::{Error, ErrorKind, Result};
use bastide_proto::boot::{Ids, Image};

use crate::plan::PlanInput;

/// The file it lies in, in the session's folder.
const NAME: &str = "work.img";

/// The note that the files of a session lie in an image, in the session's folder. Without it a lost image
/// would look like a session that never had one.
const NOTE: &str = "work.in-image";

/// What makes one.
const MAKER: &str = "mkfs.ext4";

/// Where that is; whatever else is searched is the caller's own.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// What was decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum WorkspaceImage {
    /// There is no limit.
    #[default]
    NotAsked,
    /// It shall have one.
    Own(Image),
    /// It cannot, for this reason.
    Not(String),
}

impl WorkspaceImage {
    /// Decides for a session with a root of its own. Files that are in an image already stay there.
    pub(crate) fn of(input: &PlanInput<'_>, ids: &Ids) -> Result<Self> {
        let path = input.dir.join(NAME);
        let limit = input.spec.limits.disk;
        let is_root = matches!(ids, Ids::Range { .. });
        let own = |maker| Image {
            path: path.clone(),
            bytes: limit.unwrap_or_default(),
            maker,
            instead_of: input.storage.to_owned(),
        };
        if fs::symlink_metadata(&path).is_ok() && input.was_there {
            if !is_root {
                let message =
                    format!("cannot start session {}: only root can mount its files", input.id);
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with_context("path", path.display().to_string()));
            }
            return Ok(Self::Own(own(None)));
        }
        if limit.is_none() {
            return Ok(Self::NotAsked);
        }
        let why = if input.spec.host_workspace.is_some() {
            "the workspace is a folder of the host"
        } else if !is_root {
            "only root can give a workspace a file system of its own"
        } else if input.was_there && !is_noted(input.dir) {
            "the session was made without a file system of its own"
        } else {
            let mut found = FOLDERS.iter().map(|folder| Path::new(folder).join(MAKER));
            match found.find(|path| path.exists()) {
                Some(maker) => return Ok(Self::Own(own(Some(maker)))),
                None => "mkfs.ext4 is missing; `sudo apt-get install e2fsprogs` brings it",
            }
        };
        Ok(Self::Not(why.to_owned()))
    }

    /// Decides for a session on the host's own paths.
    pub(crate) fn on_host(limit: Option<u64>) -> Self {
        match limit {
            Some(_) => {
                let why = "only the rung `namespaces` has workspaces on a file system of their own";
                Self::Not(why.to_owned())
            }
            None => Self::NotAsked,
        }
    }

    /// Whether the session has the files it had. An image that is still to be made holds none.
    pub(crate) fn has_files(&self, otherwise: bool) -> bool {
        self.image().map_or(otherwise, |image| image.maker.is_none())
    }

    /// Notes that the files will be in an image, before there is one.
    pub(crate) fn note(&self, dir: &Path) -> io::Result<()> {
        match self.image() {
            Some(image) if image.maker.is_some() => {
                fs::File::create(dir.join(NOTE))?.sync_all()?;
                sync_folder(dir)
            }
            _ => Ok(()),
        }
    }

    /// The image, if there is to be one.
    pub(crate) fn image(&self) -> Option<&Image> {
        match self {
            Self::Own(image) => Some(image),
            Self::NotAsked | Self::Not(_) => None,
        }
    }
}

/// Whether files of the session were put into an image. Where that cannot be told they were not: an image
/// that is there is used either way.
fn is_noted(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(NOTE)).is_ok()
}
