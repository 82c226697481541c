//! The folder an agent works in: the user's own, a work tree on a branch, or a clone.
//!
//! In the first two the user's repository is there to be read, and nothing of it can be written: its
//! `.git` is mounted read-only, and so is that of every submodule and every repository inside, so that
//! the next git that the user runs finds nothing planted. A clone shares nothing with it, not an inode.
//! What the agent did comes back as a patch, or as one commit on a branch that we write.

mod agent_files;
pub(crate) mod cleanup_log;
pub(crate) mod collected;
mod commit;
mod copy;
mod outputs;
mod protect;
mod uncommitted;
mod worktree;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bastide::model::PathGrant;
use bastide::{Condition, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::agents::MaterialisedFile;
use crate::collect::{Baseline, BaselineOptions, Changes, Oid};
use crate::git::location::GitLocation;
use crate::git::refs;
use cleanup_log::{CleanupLog, RunFolder};

pub(crate) use outputs::check_names;

/// Where an agent works.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WorkspaceMode {
    /// In the folder itself.
    #[default]
    InPlace,
    /// In a work tree of its own, checked out from `HEAD`. The change comes back on a new branch.
    Worktree,
    /// In a clone of its own. The change comes back as a patch, and on a new branch if one is named.
    Clone,
}

/// What is done about work that is not committed, in a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Uncommitted {
    /// The agent gets it.
    #[default]
    CloneState,
    /// The run is refused.
    Refused,
}

/// How a workspace is made ready.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct WorkspaceOptions {
    /// Where the agent works.
    pub mode: WorkspaceMode,
    /// The branch the change comes back on. A work tree has `bastide/ID` unless named.
    pub branch: Option<String>,
    /// What is done about work that is not committed.
    pub uncommitted: Uncommitted,
    /// Files that are put there for the agent. They are no part of the change, but what the agent makes
    /// of them is.
    pub files: Vec<MaterialisedFile>,
}

impl WorkspaceOptions {
    /// Has the agent work there.
    #[must_use]
    pub fn mode(mut self, mode: WorkspaceMode) -> Self {
        self.mode = mode;
        self
    }

    /// Has the change come back on that branch.
    #[must_use]
    pub fn branch(mut self, branch: impl Into<String>) -> Self {
        self.branch = Some(branch.into());
        self
    }

    /// Does that about work that is not committed.
    #[must_use]
    pub fn uncommitted(mut self, uncommitted: Uncommitted) -> Self {
        self.uncommitted = uncommitted;
        self
    }

    /// Puts these files there for the agent.
    #[must_use]
    pub fn files(mut self, files: impl IntoIterator<Item = MaterialisedFile>) -> Self {
        self.files = files.into_iter().collect();
        self
    }
}

/// A workspace that is ready for an agent.
#[derive(Debug)]
pub struct Workspace {
    /// The folder the agent works in.
    folder: PathBuf,
    grants: Vec<PathGrant>,
    base: Baseline,
    /// The repository and the commit the change is put onto, if it is to be on a branch.
    target: Option<Target>,
    run: RunFolder,
    /// Whether what the agent did is here alone, because it could not be collected.
    is_uncollected: AtomicBool,
    /// The folder itself, locked, where others could work in it as well.
    _alone: Option<fs::File>,
}

/// A change that is ready for its branch.
#[derive(Debug)]
pub struct Staged(fs::File);

/// Where a change comes back.
#[derive(Debug, Clone)]
struct Target {
    place: GitLocation,
    /// The full name of the branch.
    name: String,
    /// What it starts from, if there is a commit yet.
    parent: Option<Oid>,
    /// Whether the branch is there already, made by us.
    is_made: bool,
}

impl Workspace {
    /// Makes the folder `source` ready for the run whose folder is `run`.
    ///
    /// # Errors
    ///
    /// If the mode is not possible there, with what would be; if the branch exists; if there is
    /// uncommitted work and that is refused. Nothing is left of what was begun.
    pub async fn prepare(
        source: &Path,
        options: &WorkspaceOptions,
        run: RunFolder,
    ) -> Result<Self> {
        let source = source.canonicalize().map_err(|error| {
            let message = format!("cannot work in {}: {error}", source.display());
            Error::new(ErrorKind::NotFound, message)
        })?;
        refuse_linked_git(&source)?;
        let place = match GitLocation::find(&source, &source) {
            Ok(place) => Some(place),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if options.mode == WorkspaceMode::InPlace => {
                // It is a folder like any other, whose `.git` is closed like any other.
                drop(error);
                None
            }
            Err(error) => {
                let message = format!("cannot use the repository: {error}");
                return Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("run in place; the change is complete there, too"));
            }
        };
        let prepared = match options.mode {
            WorkspaceMode::InPlace => Self::in_place(&source, place.as_ref(), options, &run),
            WorkspaceMode::Worktree => {
                let place = place.ok_or_else(|| no_repository(&source))?;
                worktree::make(&source, place, options, &run).await
            }
            WorkspaceMode::Clone => {
                let bare = || GitLocation::bare(&source);
                let place = place.or_else(bare).ok_or_else(|| no_repository(&source))?;
                copy::make(&source, place, options, &run).await
            }
        };
        match prepared {
            Ok(parts) => Ok(parts.with(run)),
            Err(error) => match run.undo() {
                // The folder is for the caller to remove.
                Ok(_) => Err(error),
                Err(left) => Err(error.with_hint(format!("`sweep` removes what is left: {left}"))),
            },
        }
    }

    fn in_place(
        source: &Path,
        place: Option<&GitLocation>,
        options: &WorkspaceOptions,
        run: &RunFolder,
    ) -> Result<WorkspaceParts> {
        if place.is_none() && GitLocation::bare(source).is_some() {
            return Err(no_files(source));
        }
        if options.branch.is_some() {
            let message = "a run in place leaves its change in the folder, not on a branch";
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("choose the mode `worktree` or `clone`"));
        }
        let alone = Some(be_alone(source)?);
        agent_files::put(source, &options.files, run, agent_files::ExistingFile::Refused)?;
        let base = Baseline::record(source, BaselineOptions::new(run.scratch()))?;
        let grants = protect::grants(source, place, &base, &run.empty()?)?;
        Ok(WorkspaceParts { folder: source.to_owned(), grants, base, target: None, alone })
    }

    /// The folder the agent works in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What of it a sandbox has to close or pin, as grants of the session.
    #[must_use]
    pub fn grants(&self) -> &[PathGrant] {
        &self.grants
    }

    /// The run's folder.
    #[must_use]
    pub fn run(&self) -> &RunFolder {
        &self.run
    }

    /// Writes what changed as a patch, and says what it is.
    ///
    /// # Errors
    ///
    /// As [`Baseline::collect`].
    pub fn collect(&self, patch: &Path) -> Result<Changes> {
        self.base.collect(patch)
    }

    /// Makes the change ready for its branch, if it is to be on one and there is any. This reads files.
    ///
    /// # Errors
    ///
    /// As [`collect`](Self::collect).
    pub fn stage(&self, message: &str) -> Result<Option<Staged>> {
        let staged = match &self.target {
            Some(target) => commit::stage(target, &self.base, &self.run, message)?,
            None => None,
        };
        Ok(staged.map(Staged))
    }

    /// Puts a change that was made ready onto its branch: the branch's name.
    ///
    /// # Errors
    ///
    /// If it cannot be written; the branch is then as it was.
    pub async fn commit(&self, staged: Staged) -> Result<Option<String>> {
        match &self.target {
            Some(target) => commit::write(target, &self.run, staged.0).await,
            None => Ok(None),
        }
    }

    /// Notes which session the agent works in, before there is one.
    pub(crate) fn note_session(&self, session: &str) -> Result<()> {
        announce(&self.run, |journal| journal.session = Some(session.to_owned()))
    }

    /// Notes by which label the agent's containers are known, before there is one.
    pub(crate) fn note_containers(&self, label: &str) -> Result<()> {
        announce(&self.run, |journal| journal.containers = Some(label.to_owned()))
    }

    /// Notes that the change could not be collected: a workspace of the run's own is then all there is of it. Returns
    /// where it stays.
    pub(crate) fn note_uncollected(&self) -> Option<&Path> {
        let is_own = self.folder.starts_with(self.run.path());
        self.is_uncollected.store(is_own, Ordering::Release);
        is_own.then_some(&*self.folder)
    }

    /// Whether it has to stay, for what could not be collected.
    pub(crate) fn is_uncollected(&self) -> bool {
        self.is_uncollected.load(Ordering::Acquire)
    }

    /// Lets go of a workspace that is to stay with its sandbox.
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn leave(self) -> Result<()> {
        announce(&self.run, |journal| journal.is_left = true)
    }

    /// Takes back what was made in the repository but for a branch with the change on it, and lets go of
    /// the run's folder, which is for the caller to remove: where it is now.
    ///
    /// # Errors
    ///
    /// If something of it cannot be removed; `sweep` tries again.
    pub fn close(self) -> Result<PathBuf> {
        let retired = self.run.retire().map_err(|error| {
            let message = format!("cannot take back what the run made: {error}");
            Error::new(ErrorKind::Io, message)
        })?;
        Ok(retired.0)
    }
}

/// What a workspace is made of, before its run is its own.
#[derive(Debug)]
struct WorkspaceParts {
    folder: PathBuf,
    grants: Vec<PathGrant>,
    base: Baseline,
    target: Option<Target>,
    alone: Option<fs::File>,
}

impl WorkspaceParts {
    fn with(self, run: RunFolder) -> Workspace {
        let Self { folder, grants, base, target, alone } = self;
        let is_uncollected = AtomicBool::new(false);
        Workspace { folder, grants, base, target, run, is_uncollected, _alone: alone }
    }
}

/// Refuses a folder that another run works in: each would find the other's change, and the first to end takes away what
/// the second one's mounts lie on.
fn be_alone(folder: &Path) -> Result<fs::File> {
    let locked = fs::File::open(folder).and_then(|held| {
        held.try_lock()?;
        Ok(held)
    });
    locked.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let message = format!("another run works in {}", folder.display());
            Error::new(ErrorKind::Conflict, message).with_condition(Condition::CloneAdvised)
        }
        _ => Error::new(ErrorKind::Io, format!("cannot lock {}: {error}", folder.display())),
    })
}

fn no_repository(source: &Path) -> Error {
    if GitLocation::bare(source).is_some() {
        return no_files(source);
    }
    let message = format!("{} is not the top of a git repository", source.display());
    Error::new(ErrorKind::InvalidInput, message)
        .with_hint("run in place; the change is complete there, too")
}

/// Refuses a folder whose `.git` is a link: what is behind it can be neither closed to an agent nor believed in a clone.
fn refuse_linked_git(source: &Path) -> Result<()> {
    let git = source.join(".git");
    if !git.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
        return Ok(());
    }
    let message = format!("{} is a link, in which no agent can work in any mode", git.display());
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_hint("put the repository that it leads to in its place, or work in a clone by git"))
}

fn no_files(source: &Path) -> Error {
    let message = format!("{} is a bare repository: it has no files", source.display());
    Error::new(ErrorKind::InvalidInput, message).with_condition(Condition::CloneAdvised)
}

/// Refuses to write to a repository that is somebody else's: its owner could not use what we make.
fn require_own(place: &GitLocation) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let failed = |error: io::Error| {
        let what = place.common_dir.display();
        Error::new(ErrorKind::Io, format!("cannot look at {what}: {error}"))
    };
    let owner = fs::metadata(&place.common_dir).map_err(failed)?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let what = place.common_dir.display();
    let message = format!("{what} belongs to another user ({owner}): nothing is written there");
    Err(Error::new(ErrorKind::PermissionDenied, message)
        .with_hint("run as that user, run in place, or take the change of a clone as a patch"))
}

/// The branch a change is to come back on, which must be free.
fn target(place: &GitLocation, branch: &str) -> Result<Target> {
    require_own(place)?;
    let name = refs::branch(branch)?;
    refs::require_free(place, &name)?;
    let head = refs::head(place)?;
    Ok(Target { place: place.clone(), name, parent: head.commit, is_made: false })
}

/// Notes something in the journal before it is made.
fn announce(run: &RunFolder, note: impl FnOnce(&mut CleanupLog)) -> Result<()> {
    run.note(note).map_err(|error| {
        let what = run.path().display();
        Error::new(ErrorKind::Io, format!("cannot write the journal of the run in {what}: {error}"))
    })
}

fn io_error(what: &str) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::new(ErrorKind::Io, format!("{what}: {error}"))
}
