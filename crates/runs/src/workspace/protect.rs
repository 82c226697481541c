//! Which parts of a workspace a sandbox must close, so that the next git of the user runs nothing the
//! agent planted.
//!
//! Read-only mounts in their own place. A mount cannot be renamed or removed from inside, but a folder
//! *around* one can: so those are pinned, by mounts of their own that can be written.
//!
//! The whole of `.git` is closed, not some names in it. With a writable index alone an agent could add a
//! submodule at a folder it filled with a repository of its own, and the user's `git status` would run
//! what that one's configuration names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bastide::model::PathGrant;
use bastide::{Condition, Error, ErrorKind, Result};

use crate::collect::Baseline;
use crate::git::location::{self, GitLocation};

/// The most repositories in one workspace; each is a few mounts.
const MOST: usize = 500;

/// What is closed and pinned in the workspace `folder`, whose repository is `place`. `empty` is a folder
/// with nothing in it, for what is to stay missing.
pub(super) fn grants(
    folder: &Path,
    place: Option<&GitLocation>,
    base: &Baseline,
    empty: &Path,
) -> Result<Vec<PathGrant>> {
    let inner = base.repository_folders();
    if inner.len() > MOST {
        let message = format!("there are {} repositories in the workspace", inner.len());
        return Err(
            Error::new(ErrorKind::LimitExceeded, message).with_condition(Condition::CloneAdvised)
        );
    }
    let mut mounts = Mounts { folder, empty, all: BTreeMap::new() };
    mounts.close(&folder.join(".git"))?;
    for beneath in inner.iter().filter(|beneath| !beneath.is_empty()) {
        let beneath = Path::new(OsStr::from_bytes(beneath));
        if !beneath.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(not_closed(&folder.join(beneath), "it is not in the workspace"));
        }
        let path = folder.join(beneath);
        refuse_links(folder, &path)?;
        mounts.pin_around(&path);
        if path.join(".git").symlink_metadata().is_ok() {
            mounts.put(&path, None, false);
            mounts.close(&path.join(".git"))?;
            mounts.close_named(&location::named_in(&path))?;
        } else {
            // A submodule that was never fetched stays empty: what is put there would be its repository.
            mounts.close(&path)?;
        }
    }
    mounts.close_named(&location::named_in(folder))?;
    let mut grants = mounts.into_grants()?;
    if let Some(place) = place.filter(|place| place.is_linked) {
        // Git inside needs it; it is outside of the workspace.
        grants.push(grant(&place.common_dir, None, true)?);
    }
    Ok(grants)
}

struct Mounts<'m> {
    folder: &'m Path,
    empty: &'m Path,
    /// By place; what is behind it where that is another one, and whether it is closed.
    all: BTreeMap<PathBuf, (Option<PathBuf>, bool)>,
}

impl Mounts<'_> {
    /// Closes a path, whether or not there is something.
    fn close(&mut self, path: &Path) -> Result<()> {
        let behind = match path.symlink_metadata() {
            Ok(found) if found.is_dir() || found.is_file() => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(self.empty.to_owned()),
            Ok(_) => return Err(not_closed(path, "it is a link or no file at all")),
            Err(error) => return Err(not_closed(path, &error.to_string())),
        };
        self.put(path, behind, true);
        Ok(())
    }

    /// Closes what the configuration of a repository has git run or read.
    fn close_named(&mut self, paths: &[PathBuf]) -> Result<()> {
        if paths.len() > MOST {
            let message = format!("git's configuration names {} files here", paths.len());
            return Err(Error::new(ErrorKind::LimitExceeded, message)
                .with_condition(Condition::CloneAdvised));
        }
        for path in paths {
            refuse_links(self.folder, path)?;
            self.pin_around(path);
            self.close(path)?;
        }
        Ok(())
    }

    /// Pins the folders between the workspace and a path.
    fn pin_around(&mut self, path: &Path) {
        let top = self.folder;
        for folder in path.ancestors().skip(1).filter(|folder| *folder != top) {
            if folder.starts_with(top) && folder.is_dir() {
                self.put(folder, None, false);
            }
        }
    }

    fn put(&mut self, path: &Path, behind: Option<PathBuf>, is_closed: bool) {
        let known = self.all.entry(path.to_owned()).or_insert((behind, is_closed));
        known.1 |= is_closed;
    }

    fn into_grants(self) -> Result<Vec<PathGrant>> {
        self.all
            .into_iter()
            .map(|(path, (behind, is_closed))| grant(&path, behind.as_deref(), is_closed))
            .collect()
    }
}

/// Refuses a path that a link of the workspace leads to: what lies behind it is not the workspace's, and would be shown to
/// the agent, or opened.
fn refuse_links(folder: &Path, path: &Path) -> Result<()> {
    for around in path.ancestors().skip(1).take_while(|around| *around != folder) {
        if around.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            let why = "a repository names a submodule behind it, and it is a link";
            return Err(not_closed(around, why));
        }
    }
    Ok(())
}

fn not_closed(path: &Path, why: &str) -> Error {
    let message = format!("{} cannot be closed to the agent: {why}", path.display());
    Error::new(ErrorKind::Unsupported, message).with_condition(Condition::CloneAdvised)
}

fn grant(path: &Path, behind: Option<&Path>, read_only: bool) -> Result<PathGrant> {
    let text = |path: &Path| {
        path.to_str().map(str::to_owned).ok_or_else(|| {
            let message = format!("{} cannot be closed: it is not UTF-8", path.display());
            Error::new(ErrorKind::Unsupported, message).with_condition(Condition::CloneAdvised)
        })
    };
    Ok(PathGrant {
        path: text(path)?,
        read_only,
        description: None,
        host_path: behind.map(text).transpose()?,
    })
}
