//! The database itself.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, Row, TransactionBehavior, params};

use super::{Change, Rows};
use crate::backend::SessionId;
use crate::state::record::{Stage, Stamp, Summary};

/// The database, in the home.
const NAME: &str = "state.db";

/// Locked while the database is opened: two processes that set it up at the same time would be in each
/// other's way.
const LOCK: &str = "state.lock";

/// How long a transaction of another process is waited for, and one that opens the database.
const BUSY: Duration = Duration::from_secs(5);

/// How long to wait before the lock is tried again.
const AGAIN: Duration = Duration::from_millis(2);

/// The form of the database this program reads and writes.
const FORM: i64 = 1;

const TABLES: &str = "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        stamp TEXT NOT NULL,
        backend TEXT NOT NULL,
        stage TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL,
        tied INTEGER NOT NULL,
        root TEXT NOT NULL,
        machine TEXT
    ) STRICT, WITHOUT ROWID;
";

const PUT: &str = "
    INSERT OR REPLACE INTO sessions
        (id, stamp, backend, stage, created_at_ms, tied, root, machine)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
";

/// The one connection of this process.
#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
}

impl Database {
    /// Opens the database, making it if it is not there, and making it anew if it is damaged.
    pub(super) fn open(home: &Path) -> rusqlite::Result<Self> {
        let lock = lock(home)?;
        let opened = match Self::open_locked(home) {
            Err(error) if is_damaged(&error) => {
                remove(home)?;
                Self::open_locked(home)
            }
            opened => opened,
        };
        drop(lock);
        opened
    }

    /// Throws a damaged database away and makes an empty one.
    pub(super) fn make_anew(home: &Path) -> rusqlite::Result<Self> {
        let lock = lock(home)?;
        remove(home)?;
        let opened = Self::open_locked(home);
        drop(lock);
        opened
    }

    fn open_locked(home: &Path) -> rusqlite::Result<Self> {
        let path = home.join(NAME);
        if is_write_ahead(&path) {
            remove(home)?;
        }
        // SQLite itself would make it readable for everybody. Once it has it open, nobody else in
        // this process may open and close it: its locks would be lost.
        if !path.exists() {
            let mut options = File::options();
            drop(options.write(true).create_new(true).mode(0o600).open(&path));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&path, flags)?;
        connection.busy_timeout(BUSY)?;
        // A write-ahead log would need memory shared through a file, and a store into a page of that
        // file for which a full disk has no block is SIGBUS. A rollback journal is read and written
        // by system calls, which answer ENOSPC. The journal makes a transaction of a killed process
        // undone; a crash of the machine may lose or damage the index, which is made anew from the
        // folders, so nothing here is worth an fsync.
        connection.pragma_update(None, "journal_mode", "TRUNCATE")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        match transaction.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))? {
            0 => {
                transaction.execute_batch(TABLES)?;
                transaction.pragma_update(None, "user_version", FORM)?;
            }
            FORM => {}
            // That of a later Bastide, which knows better. The folders say the same.
            _ => return Err(rusqlite::Error::InvalidQuery),
        }
        transaction.commit()?;
        Ok(Self { connection })
    }

    /// Makes changes, all of them or none.
    pub(super) fn apply(&mut self, changes: &[Change]) -> rusqlite::Result<()> {
        self.write(|connection| {
            changes.iter().try_for_each(|change| match change {
                Change::Put(stamp, summary) => put(connection, stamp, summary),
                Change::Forget(id) => {
                    let mut delete =
                        connection.prepare_cached("DELETE FROM sessions WHERE id = ?1")?;
                    delete.execute([id.as_str()]).map(drop)
                }
            })
        })
    }

    /// Puts these rows in the place of all others.
    pub(super) fn replace(&mut self, rows: &[(Stamp, Summary)]) -> rusqlite::Result<()> {
        self.write(|connection| {
            connection.execute("DELETE FROM sessions", [])?;
            rows.iter().try_for_each(|(stamp, summary)| put(connection, stamp, summary))
        })
    }

    fn write(
        &mut self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        change(&transaction)?;
        transaction.commit()
    }

    /// Every row that makes sense; others are as good as missing.
    pub(super) fn all(&mut self) -> rusqlite::Result<Rows> {
        let mut select = self.connection.prepare_cached(
            "SELECT id, stamp, backend, stage, created_at_ms, tied, root, machine FROM sessions",
        )?;
        let rows = select.query_map([], |row| Ok(read(row)))?;
        let mut all = Rows::new();
        for row in rows {
            if let Some((stamp, summary)) = row? {
                all.insert(summary.id.clone(), (stamp, summary));
            }
        }
        Ok(all)
    }
}

fn put(connection: &Connection, stamp: &Stamp, summary: &Summary) -> rusqlite::Result<()> {
    let text = |value: serde_json::Result<String>| {
        value.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    };
    let Summary { id, backend, stage, created_at_ms, tied, root, machine } = summary;
    let machine = machine.as_ref().map(serde_json::to_string).map(text).transpose()?;
    let created_at_ms = i64::try_from(*created_at_ms).unwrap_or(i64::MAX);
    connection.prepare_cached(PUT)?.execute(params![
        id.as_str(),
        stamp.0,
        backend,
        stage.as_str(),
        created_at_ms,
        tied,
        root,
        machine
    ])?;
    Ok(())
}

fn read(row: &Row<'_>) -> Option<(Stamp, Summary)> {
    let id: String = row.get("id").ok()?;
    let machine: Option<String> = row.get("machine").ok()?;
    let created_at_ms: i64 = row.get("created_at_ms").ok()?;
    let summary = Summary {
        id: id.parse::<SessionId>().ok()?,
        backend: row.get("backend").ok()?,
        stage: Stage::named(&row.get::<_, String>("stage").ok()?)?,
        created_at_ms: u64::try_from(created_at_ms).ok()?,
        tied: row.get("tied").ok()?,
        root: row.get("root").ok()?,
        machine: machine.map(|text| serde_json::from_str(&text)).transpose().ok()?,
    };
    Some((Stamp(row.get("stamp").ok()?), summary))
}

/// Whether the file is not, or not any more, a database.
pub(super) fn is_damaged(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Whether somebody else has had the database for longer than anybody needs it.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Whether a database has a write-ahead log, as those of earlier versions have: opening one maps its
/// shared-memory file. The bytes 18 and 19 of the header say so (2, else 1).
fn is_write_ahead(path: &Path) -> bool {
    let mut header = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header[18..] == [2, 2]
}

fn lock(home: &Path) -> rusqlite::Result<File> {
    let mut options = File::options();
    let opened = options.create(true).truncate(false).write(true).mode(0o600).open(home.join(LOCK));
    let lock = opened.map_err(|error| system(&error))?;
    let deadline = Instant::now() + BUSY;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            // Whoever has it may have been stopped. The folders say the same as the index.
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(busy, None));
            }
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(AGAIN),
            Err(TryLockError::Error(error)) => return Err(system(&error)),
        }
    }
}

fn remove(home: &Path) -> rusqlite::Result<()> {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let path: PathBuf = home.join(format!("{NAME}{suffix}"));
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(system(&error)),
            _ => {}
        }
    }
    Ok(())
}

fn system(error: &io::Error) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
        Some(error.to_string()),
    )
}
