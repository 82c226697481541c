//! The index over the folders of all sessions: one SQLite database under the home.
//!
//! One thread owns the one connection of this process. It is started when the index is first needed,
//! and sent changes without being waited for, so neither opening the database nor a commit is in
//! anybody's way. What it fails to keep, it learns from the folders later.

mod database;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::record::{Stamp, Summary};
use crate::backend::SessionId;
use database::Database;

/// How much the index may be behind. What it is told beyond that, it learns from the folders.
const BEHIND: usize = 1024;

/// Locked while a thread is in SQLite, which has locks of its own.
static IN_DATABASE: Mutex<()> = Mutex::new(());

/// How long to wait before the lock is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// Keeps the threads of all indexes out of SQLite; `None` if one does not come out in that time.
pub(crate) fn lock_for_fork(time_limit: Duration) -> Option<MutexGuard<'static, ()>> {
    let deadline = Instant::now() + time_limit;
    loop {
        match IN_DATABASE.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => thread::park_timeout(AGAIN),
        }
    }
}

fn in_database() -> MutexGuard<'static, ()> {
    IN_DATABASE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The index of one home.
#[derive(Debug)]
pub(super) struct Index {
    requests: SyncSender<IndexRequest>,
}

/// The rows of the index: each with the stamp of the record it was made from.
pub(super) type Rows = HashMap<SessionId, (Stamp, Summary)>;

/// What the thread is told.
enum IndexRequest {
    Put(Stamp, Box<Summary>),
    Forget(SessionId),
    All(oneshot::Sender<Option<Rows>>),
    Replace(Vec<(Stamp, Summary)>, oneshot::Sender<Result<(), String>>),
    Flush(oneshot::Sender<()>),
}

impl Index {
    pub(super) fn new(home: PathBuf) -> Self {
        let (requests, received) = sync_channel(BEHIND);
        // Without a thread the channel is closed, and every answer is "not known".
        let started = thread::Builder::new()
            .name("bastide-index".to_owned())
            .spawn(move || serve(&home, &received));
        drop(started);
        Self { requests }
    }

    /// Notes a session.
    pub(super) fn put(&self, stamp: Stamp, summary: Summary) {
        drop(self.requests.try_send(IndexRequest::Put(stamp, Box::new(summary))));
    }

    /// Forgets a session.
    pub(super) fn forget(&self, id: SessionId) {
        drop(self.requests.try_send(IndexRequest::Forget(id)));
    }

    /// Everything in the index; `None` if it cannot be read.
    pub(super) async fn all(&self) -> Option<Rows> {
        let (answer, answered) = oneshot::channel();
        self.requests.try_send(IndexRequest::All(answer)).ok()?;
        answered.await.ok()?
    }

    /// Puts these rows in the place of all others; `None` if nobody is there to do it.
    pub(super) async fn replace(&self, rows: Vec<(Stamp, Summary)>) -> Option<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        self.requests.try_send(IndexRequest::Replace(rows, answer)).ok()?;
        answered.await.ok()
    }

    /// Waits until everything said before is kept.
    pub(super) async fn flush(&self) {
        let (answer, answered) = oneshot::channel();
        if self.requests.try_send(IndexRequest::Flush(answer)).is_ok() {
            drop(answered.await);
        }
    }
}

/// The life of the thread: until nobody can tell it anything any more.
fn serve(home: &Path, received: &Receiver<IndexRequest>) {
    let opened = {
        let _in_database = in_database();
        Database::open(home)
    };
    let mut database = match opened {
        // Nobody is made to wait for it again: the folders say the same.
        Err(error) if database::is_busy(&error) => return,
        opened => opened.ok(),
    };
    while let Ok(first) = received.recv() {
        // Everything that waits goes into one transaction.
        let mut changes = Vec::new();
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                IndexRequest::Put(stamp, summary) => changes.push(Change::Put(stamp, summary)),
                IndexRequest::Forget(id) => changes.push(Change::Forget(id)),
                asked => {
                    keep(home, &mut database, &mut changes);
                    answer(home, &mut database, asked);
                }
            }
            next = received.try_recv().ok();
        }
        keep(home, &mut database, &mut changes);
    }
    let _in_database = in_database();
    drop(database);
}

/// One change of the index.
#[derive(Debug, Clone)]
enum Change {
    Put(Stamp, Box<Summary>),
    Forget(SessionId),
}

fn keep(home: &Path, database: &mut Option<Database>, changes: &mut Vec<Change>) {
    let changes = std::mem::take(changes);
    if changes.is_empty() {
        return;
    }
    // A failure is not worth telling: what is missing is learned from the folders.
    drop(with(home, database, |database| database.apply(&changes)));
}

fn answer(home: &Path, database: &mut Option<Database>, asked: IndexRequest) {
    match asked {
        IndexRequest::All(answer) => {
            // Nobody may be listening any more.
            drop(answer.send(with(home, database, Database::all).ok()));
        }
        IndexRequest::Replace(rows, answer) => {
            let replaced = with(home, database, |database| database.replace(&rows));
            drop(answer.send(replaced.map_err(|error| error.to_string())));
        }
        IndexRequest::Flush(answer) => drop(answer.send(())),
        IndexRequest::Put(..) | IndexRequest::Forget(_) => {}
    }
}

/// Does something with the database, which is opened again if it could not be opened before, and made
/// anew if it turns out to be damaged.
fn with<T>(
    home: &Path,
    database: &mut Option<Database>,
    mut act: impl FnMut(&mut Database) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let _in_database = in_database();
    if database.is_none() {
        *database = Some(Database::open(home)?);
    }
    let first = database.as_mut().map(&mut act);
    match first {
        Some(Err(error)) if database::is_damaged(&error) => {
            *database = None;
            act(database.insert(Database::make_anew(home)?))
        }
        Some(done) => done,
        None => Err(rusqlite::Error::InvalidQuery),
    }
}
