//! What is remembered about sessions, so that any later process finds them.
//!
//! The folder of a session is the truth: `machine.json` says what the session is, written whole or not
//! at all, and first of all as an intent, before anything else happens. Whoever keeps the session
//! alive holds a lock on the file `lock`, which the kernel lets go of whatever happens to them; whoever
//! changes what the session is, one on `transition.lock`. The database beside the folders is an index over
//! them and can be rebuilt at any time.

mod config;
mod deletion;
mod folder;
mod format;
mod identity;
mod index;
mod names;
mod origin;
mod record;
mod saved;

use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bastide_proto::warden::GONE_PREFIX;
use tokio::time::Instant;

use crate::backend::SessionId;
use crate::host::sync_folder;
use crate::snapshot::store::Store;
use crate::{Condition, Error, ErrorKind, Result};

pub(crate) use config::HomeConfig;
pub(crate) use deletion::{Deletion, DeletionAttempt};
pub use folder::SessionFolder;
pub(crate) use folder::{
    ClaimAttempt, Liveness, Transition, TransitionAttempt, has_tombstone, reopen, write_tombstone,
};
pub use format::check_home;
pub use identity::home_identity;
pub use names::{SessionName, session_named};
pub use origin::Origin;
pub(crate) use origin::{is_owned_root, remove_unnoted_root};
pub(crate) use record::{Record, Stage, Stamp, Summary};

use index::Index;
pub(crate) use index::lock_for_fork as hold_index;

/// The folder of all sessions.
const SESSIONS: &str = "sessions";

/// The folder of the store.
const SNAPSHOTS: &str = "snapshots";

/// How long the index may take to answer before the folders are read instead.
const INDEX: Duration = Duration::from_secs(2);

/// How long whoever is changing a session is waited for.
pub(crate) const BUSY: Duration = Duration::from_secs(30);

/// How long to wait before looking again.
pub(crate) const AGAIN: Duration = Duration::from_millis(5);

/// Whatever is remembered, by home.
static ALL: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

/// Keeps other threads from looking up what is remembered.
pub(crate) fn lock_for_fork() -> impl Any {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything remembered under one home.
#[derive(Debug)]
pub(crate) struct State {
    home: PathBuf,
    /// The process it was made in: the thread of the index does not exist in a forked child.
    pid: u32,
    /// Made when it is first needed; making and removing sessions does not wait for it.
    index: OnceLock<Index>,
}

impl State {
    /// What is remembered under `home`. There is one in each process, however often it is asked for.
    pub(crate) fn at(home: &Path) -> Arc<Self> {
        let pid = std::process::id();
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|state| state.strong_count() > 0);
        let is_this = |state: &Arc<Self>| state.pid == pid && state.home == home;
        if let Some(state) = all.iter().filter_map(Weak::upgrade).find(is_this) {
            return state;
        }
        let state = Arc::new(Self { home: home.to_owned(), pid, index: OnceLock::new() });
        all.push(Arc::downgrade(&state));
        state
    }

    /// The store of snapshots and points under this home.
    pub(crate) fn store(&self) -> Result<Store> {
        Store::open(self.home.join(SNAPSHOTS))
    }

    /// The home itself.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    fn sessions(&self) -> PathBuf {
        self.home.join(SESSIONS)
    }

    /// Where the folder of a session is, or would be.
    pub(crate) fn path_of(&self, id: &SessionId) -> PathBuf {
        self.sessions().join(id.as_str())
    }

    /// Makes the folder of a new session, with the intent in it.
    pub(crate) async fn reserve(&self, intent: &Record) -> Result<SessionFolder> {
        let folder = folder::reserve(self.path_of(&intent.id), intent.id.clone()).await?;
        let folder = folder.tied(intent.tied);
        match folder.write(intent) {
            Ok(_) => {
                if !intent.tied {
                    // Its name is worth as much as what is in it.
                    sync_folder(&self.sessions()).map_err(|error| self.unlisted(&error))?;
                }
                Ok(folder)
            }
            Err(error) => {
                // There is nothing in it yet.
                drop(fs::remove_dir_all(folder.path()));
                Err(error)
            }
        }
    }

    /// Takes the right to change what a session is, once nobody else has it.
    pub(crate) async fn lock_transition(&self, id: &SessionId) -> Result<TransitionAttempt> {
        let deadline = Instant::now() + BUSY;
        loop {
            match self.try_lock_transition(id)? {
                TransitionAttempt::Taken if Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                turn => return Ok(turn),
            }
        }
    }

    /// Takes the right to change what a session is, if nobody has it.
    pub(crate) fn try_lock_transition(&self, id: &SessionId) -> Result<TransitionAttempt> {
        folder::lock_transition(&self.path_of(id), id)
    }

    /// Takes hold of a session nobody keeps alive.
    pub(crate) fn claim(&self, id: &SessionId) -> Result<ClaimAttempt> {
        folder::claim(self.path_of(id), id)
    }

    /// Whether anybody keeps a session alive.
    pub(crate) fn liveness(&self, id: &SessionId) -> Liveness {
        folder::liveness(&self.path_of(id))
    }

    /// Every session that has a folder, in the order of their names.
    pub(crate) fn ids(&self) -> Result<Vec<SessionId>> {
        let names = self.names()?;
        let mut ids: Vec<SessionId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Folders of sessions that are gone and whose removal was interrupted: of all, or of one.
    pub(crate) fn remains(&self, of: Option<&SessionId>) -> Result<Vec<PathBuf>> {
        let is_its = |name: &String| {
            let rest = name.strip_prefix(GONE_PREFIX);
            rest.is_some_and(|rest| of.is_none_or(|id| rest.starts_with(id.as_str())))
        };
        let gone = self.names()?.into_iter().filter(is_its);
        let gone = gone.map(|name| self.sessions().join(name));
        // Whoever removes one right now holds its lock.
        Ok(gone.filter(|path| !folder::liveness(path).is_kept()).collect())
    }

    fn names(&self) -> Result<Vec<String>> {
        let failed = |error: io::Error| self.unlisted(&error);
        let entries = match fs::read_dir(self.sessions()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<io::Result<_>>().map_err(failed)
    }

    fn unlisted(&self, error: &io::Error) -> Error {
        let message = format!("cannot list {}: {error}", self.sessions().display());
        Error::new(ErrorKind::Io, message)
    }

    /// The backend a session is on, also where nothing else on record can be read.
    pub(crate) fn backend_of(&self, id: &SessionId) -> Option<String> {
        record::backend_in(&self.path_of(id))
    }

    /// Whether a session's folder holds nothing but what is made before the first record.
    pub(crate) fn is_bare(&self, id: &SessionId) -> io::Result<bool> {
        record::is_bare(&self.path_of(id))
    }

    /// What is on record about a session; `None` if there is no such session, or nothing about it.
    pub(crate) fn record(&self, id: &SessionId) -> Result<Option<Record>> {
        Ok(record::read(&self.path_of(id), id)?.map(|(record, _)| record))
    }

    /// Every session there is, as far as it has a record, and those whose record cannot be read, with the
    /// reason. The index saves reading those that did not change.
    pub(crate) async fn summaries(&self) -> Result<(Vec<Summary>, Vec<(SessionId, Error)>)> {
        let ids = self.ids()?;
        let mut known = self.indexed().await;
        let mut found = Vec::with_capacity(ids.len());
        let mut unread = Vec::new();
        for id in ids {
            let Some(stamp) = record::stamp(&self.path_of(&id)) else {
                unread.extend(self.record_error(&id).map(|error| (id, error)));
                continue;
            };
            let summary = match known.remove(&id) {
                Some((known, summary)) if known == stamp => summary,
                _ => match record::read(&self.path_of(&id), &id) {
                    Ok(Some((record, stamp))) => self.note(&record, stamp),
                    // Gone in the meantime.
                    Ok(None) => continue,
                    Err(error) => {
                        unread.push((id, error));
                        continue;
                    }
                },
            };
            found.push(summary);
        }
        // What is left has no folder any more.
        for id in known.into_keys() {
            self.index().forget(id);
        }
        Ok((found, unread))
    }

    /// Why a session has no record that could be looked at; `None` if it is just being made or removed.
    pub(crate) fn record_error(&self, id: &SessionId) -> Option<Error> {
        match (self.record(id), self.is_bare(id)) {
            (Err(error), _) => Some(error),
            (Ok(None), Ok(false)) => {
                let message = format!("session {id} has files, and no record");
                let path = self.path_of(id).display().to_string();
                Some(
                    Error::new(ErrorKind::InvalidInput, message)
                        .with_context("path", path)
                        .with_condition(Condition::RecordMissing),
                )
            }
            // A folder that is gone by now is no trouble.
            (Ok(None), Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                let path = self.path_of(id).display().to_string();
                let message = format!("cannot tell what session {id} is: {error}");
                Some(Error::new(ErrorKind::Io, message).with_context("path", path))
            }
            (Ok(_), _) => None,
        }
    }

    /// Changes what is on record about a session, unless it is gone: what has the name then is another one.
    pub(crate) fn write(&self, record: &Record, transition: &Transition) -> Result<()> {
        let stamp = transition.write(record)?;
        self.note(record, stamp);
        Ok(())
    }

    async fn indexed(&self) -> HashMap<SessionId, (Stamp, Summary)> {
        match tokio::time::timeout(INDEX, self.index().all()).await {
            Ok(Some(rows)) => rows,
            // An index that does not answer is no reason not to: the folders say the same.
            Ok(None) | Err(_) => HashMap::new(),
        }
    }

    /// Tells the index about a session, without waiting for it. Sessions that end with their owner are
    /// too short-lived to be worth it.
    pub(crate) fn note(&self, record: &Record, stamp: Stamp) -> Summary {
        let summary = Summary::of(record);
        if !record.tied {
            self.index().put(stamp, summary.clone());
        }
        summary
    }

    /// Tells the index that a session is gone, without waiting for it, and clears its name away.
    pub(crate) fn forget(&self, id: &SessionId) {
        self.index().forget(id.clone());
        self.tidy_names();
    }

    /// Sessions that their leases deleted with nobody there, and how they ended, as far as nobody has put that on record.
    pub(crate) fn deletions(&self) -> io::Result<Vec<Deletion>> {
        deletion::all(&self.home)
    }

    /// The one of this session that had the name, if it was deleted so.
    pub(crate) fn deletion(&self, id: &SessionId) -> Result<DeletionAttempt> {
        deletion::one(&self.home, id).map_err(|error| {
            let message = format!("cannot tell what is left of an earlier session {id}: {error}");
            let home = self.home.display().to_string();
            Error::new(ErrorKind::Io, message).with_context("path", home)
        })
    }

    /// Forgets that a session was deleted by its lease.
    pub(crate) fn forget_deletion(&self, id: &SessionId) {
        deletion::forget(&self.home, id);
    }

    /// Gives a session a name that no other session has.
    pub(crate) async fn give_name(&self, name: &SessionName, id: &SessionId) -> Result<()> {
        names::give(&self.home, name, id).await
    }

    /// The session that has a name.
    pub(crate) fn named(&self, name: &str) -> Option<SessionId> {
        names::lookup(&self.home, name)
    }

    /// The names of all sessions that have one.
    pub(crate) fn session_names(&self) -> HashMap<SessionId, SessionName> {
        names::all(&self.home)
    }

    /// Clears names away whose sessions are gone.
    pub(crate) fn tidy_names(&self) {
        names::prune(&self.home);
    }

    /// Makes the index anew from the folders.
    pub(crate) async fn rebuild(&self) -> Result<usize> {
        let mut rows = Vec::new();
        for id in self.ids()? {
            if let Ok(Some((record, stamp))) = record::read(&self.path_of(&id), &id)
                && !record.tied
            {
                rows.push((stamp, Summary::of(&record)));
            }
        }
        let count = rows.len();
        let failed = || {
            let message = format!("cannot rebuild the index in {}", self.home.display());
            Error::new(ErrorKind::Io, message)
        };
        match tokio::time::timeout(INDEX * 5, self.index().replace(rows)).await {
            Ok(Some(Ok(()))) => Ok(count),
            Ok(Some(Err(why))) => Err(failed().with_context("detail", why)),
            Ok(None) | Err(_) => Err(failed()),
        }
    }

    /// Waits until the index holds everything it was told, if it was told anything.
    pub(crate) async fn flush(&self) {
        if let Some(index) = self.index.get() {
            // What it does not hold by then, it learns from the folders later.
            drop(tokio::time::timeout(INDEX, index.flush()).await);
        }
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(self.home.clone()))
    }
}

#[cfg(test)]
mod tests;
