//! The journal on the disk.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{JournalOptions, Point};
use crate::host::sync_folder;
use crate::{Error, ErrorKind, Result};

const NAME: &str = "journal.json";
const LOCK: &str = "journal.lock";

/// The form of journals this program writes and reads.
const FORM: u32 = 1;

/// The longest journal that is read.
const MAX_BYTES: u64 = 64 << 20;

/// How long whoever makes a point is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(2);

/// How long a tree is held for somebody who does not come back.
const HOLD: u64 = 60 * 60 * 1000;

/// How many names of points that are gone are remembered.
const GONE_NAMES: usize = 200;

/// What is in the journal of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Journal {
    form: u32,
    /// The number of the next point.
    pub(super) next: u64,
    /// Oldest first.
    pub(super) points: Vec<Point>,
    /// How many of them are in effect.
    pub(super) applied: usize,
    /// Where `redo` goes, the last one first.
    pub(super) undone: Vec<UndonePoint>,
    /// What the workspace was when it was last looked at.
    pub(super) last: Option<String>,
    /// What somebody is about to do to the workspace.
    pub(super) pending: Option<PendingTransition>,
    /// The highest number of a point that was thinned out.
    pub(super) thinned: u64,
    /// The names of points that were thinned out.
    pub(super) thinned_names: Vec<String>,
    /// What the session was forked from.
    pub(super) origin: Option<ForkOrigin>,
    /// Trees that forks are being made of.
    #[serde(default)]
    held: Vec<TreePin>,
    /// What the workspace was when nothing ran any more.
    #[serde(default)]
    pub(super) at_rest: Option<TreeAtRest>,
}

/// A tree of which the guest can say whether anything may have changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TreeAtRest {
    pub(super) tree: String,
    /// What the guest knows it by.
    pub(super) token: [u8; 16],
    /// What was no part of it.
    pub(super) left_out: Vec<Vec<u8>>,
}

/// A tree that somebody needs though it may be no point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TreePin {
    tree: String,
    /// When whoever wanted it is taken for dead, in milliseconds since 1970.
    until_ms: u64,
}

/// What `redo` goes back to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UndonePoint {
    pub(super) tree: String,
    pub(super) applied: usize,
}

/// A workspace that is about to become another tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingTransition {
    pub(super) from: String,
    pub(super) to: String,
    /// What is in effect afterwards.
    pub(super) applied: usize,
    pub(super) undone: Vec<UndonePoint>,
    /// The point this makes, if it makes one.
    pub(super) point: Option<Point>,
}

/// What a session was forked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForkOrigin {
    pub(crate) session: String,
    pub(crate) tree: String,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            form: FORM,
            next: 1,
            points: Vec::new(),
            applied: 0,
            undone: Vec::new(),
            last: None,
            pending: None,
            thinned: 0,
            thinned_names: Vec::new(),
            origin: None,
            held: Vec::new(),
            at_rest: None,
        }
    }
}

/// The right to make points, for as long as this is held. The kernel takes it from a process that is
/// killed.
#[derive(Debug)]
pub(super) struct JournalLock {
    _lock: File,
}

/// Takes the right to make points.
pub(super) async fn lock(folder: &Path, session: &str) -> Result<JournalLock> {
    let path = folder.join(LOCK);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("there is no session {session}"))
        }
        _ => Error::new(ErrorKind::Io, format!("cannot lock the journal of {session}: {error}"))
            .with_context("path", path.display().to_string()),
    };
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let lock = options.open(&path).map_err(failed)?;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(JournalLock { _lock: lock }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(TryLockError::WouldBlock) => {
                let message =
                    format!("somebody has been using the journal of {session} for a minute");
                return Err(Error::new(ErrorKind::Conflict, message)
                    .with_hint("wait for the checkpoint, undo, fork or merge that is under way"));
            }
        }
    }
}

impl Journal {
    /// The journal in a session's folder; an empty one if there is none.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        let damaged = |why: String| {
            let message = format!("the journal in {} cannot be read: {why}", folder.display());
            Error::new(ErrorKind::Io, message)
                .with_context("path", path.display().to_string())
                .with_hint("its points stay in the store; the session itself is not affected")
        };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            opened => opened.map_err(|error| damaged(error.to_string()))?,
        };
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| damaged(error.to_string()))?;
        let journal: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        match journal.form == FORM && journal.applied <= journal.points.len() {
            true => Ok(journal),
            false => Err(damaged(format!("its form is {}", journal.form))),
        }
    }

    /// Writes the journal, whole or not at all: it is on the disk when this returns.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let unfinished = folder.join(format!("{NAME}.new"));
        let written = || -> io::Result<()> {
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&unfinished)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&unfinished, folder.join(NAME))?;
            sync_folder(folder)
        };
        written().map_err(|error| {
            drop(fs::remove_file(&unfinished));
            let message = format!("cannot write the journal in {}: {error}", folder.display());
            Error::new(ErrorKind::Io, message)
                .with_context("path", folder.display().to_string())
                .with_hint("the last point that was made is still there")
        })
    }

    /// The points that are in effect.
    pub(super) fn active(&self) -> &[Point] {
        self.points.get(..self.applied).unwrap_or(&self.points)
    }

    /// Gives up what was undone: something else comes after it now. What has a name can still be named.
    pub(super) fn branch(&mut self) {
        let undone = self.points.split_off(self.applied.min(self.points.len()));
        self.undone.clear();
        let named = undone.into_iter().filter(|point| point.name.is_some());
        self.points.extend(named.map(|point| Point { aside: true, ..point }));
        self.points.sort_by_key(|point| point.number);
        self.applied = self.points.len();
    }

    /// Adds a point.
    pub(super) fn push(&mut self, point: Point) {
        self.branch();
        self.next = self.next.max(point.number + 1);
        self.last = point.after.clone().or_else(|| Some(point.before.clone()));
        self.points.push(point);
        self.applied = self.points.len();
    }

    /// Takes a point back that nothing came of.
    pub(super) fn withdraw(&mut self, number: u64) {
        let last = self.applied.checked_sub(1).and_then(|last| self.points.get(last));
        if last.is_some_and(|point| point.number == number && point.after.is_none()) {
            self.applied -= 1;
            self.points.remove(self.applied);
        }
    }

    /// Keeps a tree for a while, whatever becomes of its point.
    pub(super) fn hold(&mut self, tree: &str) {
        let now = now_ms();
        self.held.retain(|hold| hold.until_ms > now);
        self.held.push(TreePin { tree: tree.to_owned(), until_ms: now + HOLD });
    }

    /// Gives up a tree that was kept for a while. Others may hold it, too.
    pub(super) fn release(&mut self, tree: &str) {
        if let Some(index) = self.held.iter().position(|hold| hold.tree == tree) {
            self.held.remove(index);
        }
    }

    /// Removes the oldest points there are too many of. What was undone goes last.
    pub(super) fn thin(&mut self, keep: &JournalOptions) {
        let now = now_ms();
        let age = keep.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let is_old = |point: &Point| age.is_some_and(|age| now.saturating_sub(point.at_ms) > age);
        while self.points.len() > 1
            && self.applied > 1
            && (self.points.len() > keep.most || self.points.first().is_some_and(is_old))
        {
            let gone = self.points.remove(0);
            self.applied -= 1;
            self.thinned = self.thinned.max(gone.number);
            self.thinned_names.extend(gone.name);
            for undone in &mut self.undone {
                undone.applied = undone.applied.saturating_sub(1);
            }
        }
        let many = self.thinned_names.len().saturating_sub(GONE_NAMES);
        self.thinned_names.drain(..many);
    }

    /// The trees that are still needed.
    pub(super) fn needed(&self) -> HashSet<String> {
        let of_points = self.points.iter().flat_map(|point| {
            [Some(point.before.clone()), point.after.clone()].into_iter().flatten()
        });
        let pending =
            self.pending.iter().flat_map(|pending| [pending.from.clone(), pending.to.clone()]);
        of_points
            .chain(pending)
            .chain(self.undone.iter().map(|undone| undone.tree.clone()))
            .chain(self.last.clone())
            .chain(self.origin.iter().map(|origin| origin.tree.clone()))
            .chain(self.held.iter().map(|hold| hold.tree.clone()))
            .collect()
    }
}

/// Where the folder of a session's journal is.
pub(super) fn has_journal(folder: &Path) -> bool {
    let path: PathBuf = folder.join(NAME);
    path.exists()
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{ChangeSummary, Mechanism, PointKind};

    fn point(number: u64, name: Option<&str>) -> Point {
        Point {
            number,
            name: name.map(str::to_owned),
            kind: PointKind::Checkpoint,
            label: String::new(),
            at_ms: now_ms(),
            exit: None,
            before: format!("tree {number}"),
            after: Some(format!("tree {number}")),
            changes: ChangeSummary::default(),
            frozen: Duration::ZERO,
            mechanism: Mechanism::Store,
            aside: false,
        }
    }

    #[test]
    fn thins_the_oldest_first_and_remembers_their_names() {
        let mut journal = Journal::default();
        for number in 1..=5 {
            journal.push(point(number, (number == 1).then_some("first")));
        }
        journal.thin(&JournalOptions::default().most(2));
        let left: Vec<u64> = journal.points.iter().map(|point| point.number).collect();
        assert_eq!((left, journal.applied, journal.thinned), (vec![4, 5], 2, 3));
        assert_eq!(journal.thinned_names, ["first"]);
        journal.points[0].at_ms = 0;
        journal.thin(&JournalOptions::default());
        assert_eq!(journal.points.len(), 1, "what is old goes, and the last one stays");
    }

    #[test]
    fn keeps_what_has_a_name_when_history_goes_another_way() {
        let mut journal = Journal::default();
        journal.push(point(1, None));
        journal.push(point(2, Some("kept")));
        journal.push(point(3, None));
        journal.applied = 1;
        journal.undone.push(UndonePoint { tree: "tree 3".to_owned(), applied: 3 });
        journal.push(point(4, None));
        let left: Vec<_> = journal.points.iter().map(|it| (it.number, it.aside)).collect();
        assert_eq!(left, [(1, false), (2, true), (4, false)]);
        assert!(journal.undone.is_empty() && journal.applied == 3);
    }

    #[test]
    fn comes_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Journal::read(folder.path()).unwrap().points, []);
        let mut journal = Journal::default();
        journal.push(point(1, Some("one")));
        journal.write(folder.path()).unwrap();
        assert_eq!(Journal::read(folder.path()).unwrap().points, journal.points);
        fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(Journal::read(folder.path()).unwrap_err().kind(), ErrorKind::Io);
    }
}
