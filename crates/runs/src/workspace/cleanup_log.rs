//! What a run made, on disk before it is made, so that it can be taken back whatever happens to the run.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bastide::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{agent_files, worktree};
use crate::collect::Oid;
use crate::git::location::GitLocation;
use crate::git::refs::{self, RefLock};

/// How many runs are kept results of.
const MOST_RESULTS: usize = 200;

/// The names in a run's folder.
const JOURNAL: &str = "run.json";
const LOCK: &str = "lock";

/// How the name of a folder begins that is being removed.
const GONE: &[u8] = b".gone-";

/// How long somebody may take to begin a run.
const GATE: Duration = Duration::from_secs(10);

/// What a run made outside of its folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CleanupLog {
    /// The repository, by what all its work trees have in common.
    pub(crate) repository: Option<PathBuf>,
    /// The folder of its work tree in the repository.
    pub(crate) worktree: Option<PathBuf>,
    /// The branch that it makes, by its full name, and the commit it starts from.
    pub(crate) branch: Option<(String, Option<String>)>,
    /// The files that were put into a folder of the user's, with the names of their contents, and the
    /// folders that were made for them.
    #[serde(default)]
    pub(crate) files: Vec<(PathBuf, String)>,
    #[serde(default)]
    pub(crate) folders: Vec<PathBuf>,
    /// The session the agent worked in.
    #[serde(default)]
    pub(crate) session: Option<String>,
    /// The label of the containers the agent worked in.
    #[serde(default)]
    pub(crate) containers: Option<String>,
    /// Whether the sandbox was to stay when the run ended, and all of this with it.
    #[serde(default)]
    pub(crate) is_left: bool,
}

/// The folders of runs.
#[derive(Debug, Clone)]
pub struct RunHome {
    path: PathBuf,
}

/// The folder of one run, held by whoever runs it. It is locked as long as this lives, and the kernel
/// lets go of the lock whatever ends the process.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    id: String,
    /// Held for its lock.
    lock: File,
}

/// What a sweep finds.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// Runs whose process ended before they did.
    pub(crate) killed: Vec<RunFolder>,
    /// Folders whose removal was not finished.
    pub(crate) half_removed: Vec<PathBuf>,
    /// What is left alone.
    pub(crate) swept: RunSweep,
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunSweep {
    /// Folders of killed runs that were taken back and removed.
    pub ended: Vec<PathBuf>,
    /// What was removed besides: sessions, and what was in repositories.
    pub removed: Vec<String>,
    /// What nobody can tell, and why; it is kept.
    pub unclear: Vec<(PathBuf, String)>,
    /// How many runs go on.
    pub running: usize,
    /// How many are over, and their sandboxes were to stay.
    pub left: usize,
}

impl RunHome {
    /// Where the log, the patch and the files of a run are kept when it is over.
    #[must_use]
    pub fn results(&self, id: &str) -> PathBuf {
        self.path.join("results").join(id)
    }

    /// The folder of a run that is over and was left; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the run goes on.
    pub(crate) fn take_left(&self, id: &str) -> Result<Option<RunFolder>> {
        let path = self.runs().join(id);
        if !path.is_dir() {
            return Ok(None);
        }
        match self.open_left(&path) {
            Ok(Some(run)) => Ok(Some(run)),
            Ok(None) => {
                let message = format!("the run {id} goes on");
                Err(Error::new(ErrorKind::Conflict, message).with_hint("end it first"))
            }
            Err(error) => {
                let message = format!("cannot tell what {} is: {error}", path.display());
                Err(Error::new(ErrorKind::Io, message))
            }
        }
    }

    fn runs(&self) -> PathBuf {
        self.path.join("runs")
    }

    /// Runs are kept beneath `path`, which must lie outside of the home of sessions: agents work in
    /// folders of it.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let make = |name| DirBuilder::new().recursive(true).mode(0o700).create(path.join(name));
        let made = make("runs").and_then(|()| make("results"));
        let path = made.and_then(|()| path.canonicalize()).map_err(|error| {
            let message = format!("cannot keep runs in {}: {error}", path.display());
            Error::new(ErrorKind::Io, message)
        })?;
        Ok(Self { path })
    }

    /// Makes the folder of a run.
    ///
    /// # Errors
    ///
    /// If there is one of that name, or it cannot be made.
    pub fn begin(&self, id: &str) -> Result<RunFolder> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
        if id.is_empty() || id.len() > 64 || !id.chars().all(is_plain) {
            let message = format!("{id:?} cannot be the name of a run");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("use letters, digits, `-` and `_`"));
        }
        let path = self.runs().join(id);
        self.prune_results(id);
        let begin = || {
            let gate = self.gate()?;
            DirBuilder::new().mode(0o700).create(&path)?;
            let lock = File::create_new(path.join(LOCK))?;
            lock.try_lock().map_err(io::Error::from)?;
            drop(gate);
            for folder in ["scratch", "empty", "home"] {
                fs::create_dir(path.join(folder))?;
            }
            let run = RunFolder { path: path.clone(), id: id.to_owned(), lock };
            run.write(&CleanupLog::default())?;
            Ok(run)
        };
        begin().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::Conflict, format!("there is a run {id} already"))
            }
            _ => Error::new(ErrorKind::Io, format!("cannot begin run {id}: {error}")),
        })
    }

    /// Removes what is kept of the oldest runs, so that the next one has room. What cannot be looked at, or
    /// belongs to a run that is not over, stays.
    fn prune_results(&self, next: &str) {
        let results = self.path.join("results");
        let entries = fs::read_dir(&results).into_iter().flatten().flatten();
        let aged = entries.filter_map(|entry| {
            let changed = entry.metadata().ok()?.modified().ok()?;
            Some((changed, entry.file_name()))
        });
        let mut aged: Vec<_> = aged.filter(|(_, name)| name.as_os_str() != next).collect();
        aged.sort();
        let excess = (aged.len() + 1).saturating_sub(MOST_RESULTS);
        for (_, name) in aged.into_iter().take(excess) {
            if matches!(self.runs().join(&name).try_exists(), Ok(false)) {
                // The next run tries again.
                drop(fs::remove_dir_all(results.join(name)));
            }
        }
    }

    /// What a sweep finds: runs that were killed, with their locks, and what was being removed.
    pub(crate) fn left(&self) -> Result<Leftovers> {
        let failed = |error: io::Error| {
            let message = format!("cannot look through {}: {error}", self.path.display());
            Error::new(ErrorKind::Io, message)
        };
        let mut left = Leftovers::default();
        for entry in fs::read_dir(self.runs()).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(GONE)) {
                left.half_removed.push(path);
                continue;
            }
            match self.open_left(&path) {
                Ok(None) => left.swept.running += 1,
                Ok(Some(run)) => match run.read() {
                    Ok(journal) if journal.is_left => left.swept.left += 1,
                    Ok(_) => left.killed.push(run),
                    Err(error) => left.swept.unclear.push((path, error.to_string())),
                },
                Err(error) => left.swept.unclear.push((path, error.to_string())),
            }
        }
        Ok(left)
    }

    /// The folder of a run that is over; `None` if it goes on.
    fn open_left(&self, path: &Path) -> io::Result<Option<RunFolder>> {
        let id = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let lock = match File::open(path.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.lock_empty(path)?,
            lock => lock?,
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(RunFolder { path: path.to_owned(), id, lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The lock of a folder whose maker was killed before there was one. That folder is empty.
    fn lock_empty(&self, path: &Path) -> io::Result<File> {
        let _gate = self.gate()?;
        // Whoever was just making it has finished.
        match File::open(path.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            lock => return lock,
        }
        if fs::read_dir(path)?.next().is_some() {
            return Err(io::Error::other("it has no lock"));
        }
        File::create_new(path.join(LOCK))
    }

    /// Keeps others from being between the making of a run's folder and of its lock.
    fn gate(&self) -> io::Result<File> {
        let gate = File::options().create(true).append(true).open(self.path.join("runs.lock"))?;
        let deadline = Instant::now() + GATE;
        loop {
            match gate.try_lock() {
                Ok(()) => return Ok(gate),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    // Whoever has it makes two files, and lets go.
                    std::thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl RunFolder {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it keeps what the agent cannot reach.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// Where the agent keeps what is its own: it is in no workspace, and goes with the run.
    pub(crate) fn home(&self) -> PathBuf {
        self.path.join("home")
    }

    /// A folder with nothing in it.
    pub(crate) fn empty(&self) -> Result<PathBuf> {
        let path = self.path.join("empty");
        let checked = fs::read_dir(&path).map(|mut entries| entries.next().is_none());
        match checked {
            Ok(true) => Ok(path),
            Ok(false) => {
                let message = format!("{} is not empty any more", path.display());
                Err(Error::new(ErrorKind::Internal, message))
            }
            Err(error) => {
                Err(Error::new(ErrorKind::Io, format!("cannot use {}: {error}", path.display())))
            }
        }
    }

    /// What a program that works for the run reads, which is nothing: it holds the run's lock as long as
    /// that program lives, so that no sweep takes back what it still writes to when the run was killed.
    pub(crate) fn hold(&self) -> Result<File> {
        self.lock.try_clone().map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot hold the lock of run {}: {error}", self.id))
        })
    }

    /// Changes the journal, on the disk when this returns.
    pub(crate) fn note(&self, change: impl FnOnce(&mut CleanupLog)) -> io::Result<()> {
        let mut journal = self.read()?;
        change(&mut journal);
        self.write(&journal)
    }

    pub(crate) fn read(&self) -> io::Result<CleanupLog> {
        match fs::read(self.path.join(JOURNAL)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            // It was killed before it made anything.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CleanupLog::default()),
            Err(error) => Err(error),
        }
    }

    fn write(&self, journal: &CleanupLog) -> io::Result<()> {
        let fresh = self.path.join("run.json.new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(journal)?)?;
        file.sync_all()?;
        fs::rename(&fresh, self.path.join(JOURNAL))?;
        File::open(&self.path)?.sync_all()
    }

    /// Takes back everything the run made outside of its folder but for a branch that is kept. What was
    /// removed, for people.
    pub(crate) fn undo(&self) -> io::Result<Vec<String>> {
        let journal = self.read()?;
        let mut removed = Vec::new();
        agent_files::clean_up(&journal.files, &journal.folders)?;
        let Some(repository) = journal.repository.as_ref().filter(|path| path.is_dir()) else {
            self.write(&CleanupLog::default())?;
            return Ok(removed);
        };
        let Some(place) = GitLocation::bare(repository) else {
            let message = format!("{} is no repository any more", repository.display());
            return Err(io::Error::other(message));
        };
        if let Some(folder) = &journal.worktree
            && worktree::forget(&place, &self.id, &self.path)?
        {
            removed.push(format!("the work tree {}", folder.display()));
        }
        if let Some((name, parent)) = &journal.branch {
            refs::release_left(&place, name, &self.id)?;
            if self.remove_branch(&place, name, parent.as_deref())? {
                removed.push(format!("the branch {name}"));
            }
        }
        self.write(&CleanupLog::default())?;
        Ok(removed)
    }

    /// Takes everything back, and gives the run's folder a name by which everybody knows that it is being
    /// removed: without its lock and its journal nobody could tell what the rest of it is.
    pub(crate) fn retire(self) -> io::Result<(PathBuf, Vec<String>)> {
        let removed = self.undo()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let gone = self.path.with_file_name(format!(".gone-{}-{now:x}", self.id));
        fs::rename(&self.path, &gone)?;
        Ok((gone, removed))
    }

    /// Removes a branch that still is where it was made; anything else on it is somebody's work.
    fn remove_branch(
        &self,
        place: &GitLocation,
        name: &str,
        parent: Option<&str>,
    ) -> io::Result<bool> {
        let Some(parent) = parent.and_then(Oid::from_hex) else { return Ok(false) };
        if refs::resolve(place, name)?.is_none() {
            return Ok(false);
        }
        let lock = RefLock::take(place, name, &self.id).map_err(io::Error::other)?;
        if refs::resolve(place, name)? != Some(parent) {
            return Ok(false);
        }
        lock.remove().map_err(io::Error::other)?;
        Ok(true)
    }
}
