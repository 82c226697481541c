//! A work tree of the user's repository, made without git running in that repository.
//!
//! `git worktree add` would run its hooks and filters. What it makes is a folder with three small files
//! in the repository, one in the work tree, and a checkout; all of that is made here, the checkout by a
//! git in a repository of our own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind, Result};

use super::{WorkspaceOptions, WorkspaceParts, announce, io_error, protect, target};
use crate::collect::{Baseline, BaselineOptions};
use crate::git::location::{self, GitLocation};
use crate::git::refs::RefLock;
use crate::git::{GitContext, GitDir};
use crate::workspace::agent_files::{ExistingFile, put};
use crate::workspace::cleanup_log::RunFolder;

pub(super) async fn make(
    source: &Path,
    place: GitLocation,
    options: &WorkspaceOptions,
    run: &RunFolder,
) -> Result<WorkspaceParts> {
    let default = format!("bastide/{}", run.id());
    let mut target = target(&place, options.branch.as_deref().unwrap_or(&default))?;
    let Some(parent) = target.parent else {
        let message = format!("{} has no commit yet to make a work tree of", source.display());
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("commit something, or run in place"));
    };
    let admin = admin_of(&place, run.id())
        .map_err(io_error("cannot make a work tree of the repository"))?;
    announce(run, |journal| {
        journal.repository = Some(place.common_dir.clone());
        journal.worktree = Some(admin.clone());
        journal.branch = Some((target.name.clone(), Some(parent.to_string())));
    })?;
    let folder = run.path().join("work");
    fs::create_dir(&folder).map_err(io_error("cannot make the work tree"))?;
    let git = GitDir::make(&run.path().join("git"), &place)
        .map_err(io_error("cannot read the repository"))?;
    let index = run.scratch().join("index");
    let context = GitContext { work_tree: Some(&folder), index: Some(&index), objects: None };
    let checkout = ["read-tree", "--reset", "-u", &parent.to_string()];
    git.run(&context, checkout, run.hold()?).await?;
    RefLock::take(&place, &target.name, run.id())?.set(&parent)?;
    target.is_made = true;
    register(&admin, &folder, &index, &target.name)
        .map_err(io_error("cannot make the work tree known to its repository"))?;
    let linked =
        GitLocation::find(&folder, &folder).map_err(io_error("cannot use the work tree"))?;
    put(&folder, &options.files, run, ExistingFile::Extended)?;
    let base = Baseline::record(&folder, BaselineOptions::new(run.scratch()))?;
    let grants = protect::grants(&folder, Some(&linked), &base, &run.empty()?)?;
    Ok(WorkspaceParts { folder, grants, base, target: Some(target), alone: None })
}

/// The files by which git knows a work tree.
fn register(admin: &Path, folder: &Path, index: &Path, branch: &str) -> io::Result<()> {
    if let Some(all) = admin.parent() {
        fs::create_dir_all(all)?;
    }
    fs::create_dir(admin)?;
    let pointer = folder.join(".git");
    let line = |path: &Path| match path.to_str().filter(|path| !path.contains('\n')) {
        Some(path) => Ok(format!("{path}\n")),
        None => Err(io::Error::other(format!("{} cannot be written down", path.display()))),
    };
    fs::write(admin.join("gitdir"), line(&pointer)?)?;
    fs::write(admin.join("commondir"), "../..\n")?;
    fs::write(admin.join("HEAD"), format!("ref: {branch}\n"))?;
    fs::write(admin.join("locked"), "an agent works in it\n")?;
    fs::copy(index, admin.join("index"))?;
    fs::write(pointer, format!("gitdir: {}", line(admin)?))
}

/// Where a repository keeps what it knows of the work tree of a run.
fn admin_of(place: &GitLocation, run: &str) -> io::Result<PathBuf> {
    place.common(&format!("worktrees/bastide-{run}"))
}

/// Has a repository forget the work tree of a run, whose folder is `run`. Whether there was one. Where that is follows
/// from the run, not from what is written down.
pub(super) fn forget(place: &GitLocation, id: &str, run: &Path) -> io::Result<bool> {
    let admin = &admin_of(place, id)?;
    let pointer = match location::read(&admin.join("gitdir")) {
        // Killed in the middle of writing it, the line has no end.
        Ok(pointer) => Some(pointer).filter(|pointer| pointer.ends_with('\n')),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match pointer {
        Some(pointer) if !Path::new(pointer.trim_end_matches('\n')).starts_with(run) => {
            let message = format!("{} is of another work tree", admin.display());
            return Err(io::Error::other(message));
        }
        // It was killed before it wrote anything; its name is the run's.
        None if !admin.is_dir() => return Ok(false),
        _ => {}
    }
    fs::remove_dir_all(admin)?;
    Ok(true)
}
