//! A session as its journal sees it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::{GuestPath, Request, TREE_TOKEN_VERSION, TreeToken};

use super::file::{Journal, JournalLock, TreeAtRest, has_journal, lock, now_ms};
use super::freeze::Freeze;
use super::{
    ChangeSummary, CheckpointReport, JournalLog, JournalOptions, Mechanism, Point, PointKind, names,
};
use crate::events::Redactor;
use crate::link::{Incoming, Link, broken, decode};
use crate::snapshot::store::points::{FileTree, OpenPoint, PointOwner, SavedPoint, lost, shown};
use crate::snapshot::store::{SnapshotInfo, Store, Tree};
use crate::{Error, ErrorKind, Result, Session};

/// How often a tree is looked through that changes meanwhile.
const ATTEMPTS: usize = 3;

/// How long the disk is tidied at most before whoever made a point goes on.
const TIDYING: Duration = Duration::from_secs(2);

/// How many changed paths a point names.
const NAMED: usize = 8;

/// What it takes to make points of a session, and to go to them.
#[derive(Debug, Clone)]
pub(crate) struct JournalContext {
    pub(super) link: Arc<dyn Link>,
    root: GuestPath,
    pub(super) id: String,
    pub(super) folder: PathBuf,
    pub(super) store: Store,
    left_out: Vec<Vec<u8>>,
    pub(super) in_place: bool,
    pub(super) options: JournalOptions,
    pub(super) redactor: Redactor,
}

impl JournalContext {
    /// The journal of a session.
    pub(crate) fn of(session: &Session) -> Result<Self> {
        let manifest = session.manifest();
        let workspace = session.workspace(&manifest)?;
        let mut left_out: Vec<Vec<u8>> = workspace
            .left_out()
            .iter()
            .chain(workspace.kept_paths())
            .filter(|path| !path.is_empty())
            .map(|path| path.as_str().as_bytes().to_vec())
            .collect();
        left_out.sort();
        left_out.dedup();
        Ok(Self {
            link: Arc::clone(&session.link),
            root: session.root.clone(),
            id: session.id().to_string(),
            folder: session.state.path_of(session.id()),
            store: session.state.store()?,
            left_out,
            in_place: session.life.terms.is_callers,
            options: session.life.terms.journal.unwrap_or_default(),
            redactor: session.redactor(),
        })
    }

    /// Whether there is a journal, or is to be one.
    pub(crate) fn is_begun(&self) -> bool {
        has_journal(&self.folder)
    }

    pub(super) fn tree(&self) -> Tree<'_> {
        Tree {
            session: Some(self.id.clone()),
            left_out: self.left_out.clone(),
            kept: self.left_out.clone(),
            ..Tree::new(self.link.as_ref(), &self.root)
        }
    }

    /// The journal, which nobody else changes meanwhile, with nothing under way.
    pub(super) async fn locked(&self) -> Result<(JournalLock, Journal)> {
        let lock = lock(&self.folder, &self.id).await?;
        let mut journal = Journal::read(&self.folder)?;
        if journal.pending.is_some() {
            self.settle_pending(&mut journal, false).await?;
        }
        Ok((lock, journal))
    }

    /// Writes the journal down, and removes what it does not need any more.
    pub(super) fn commit(&self, journal: &mut Journal) -> Result<()> {
        journal.thin(&self.options);
        journal.write(&self.folder)?;
        // What stays too long goes with the next point.
        drop(self.store.thin_points(&self.id, &journal.needed()));
        Ok(())
    }

    /// Keeps what the workspace is now, while nothing runs; nothing runs until the freeze is dropped.
    pub(super) async fn save_frozen(&self) -> Result<(SavedPoint, Freeze)> {
        for attempt in 1.. {
            let freeze = Freeze::begin(self.link.as_ref(), false).await?;
            let (saved, is_whole) = self.save_once().await?;
            if is_whole || (attempt >= ATTEMPTS && self.in_place) {
                return Ok((saved, freeze));
            }
            if attempt >= ATTEMPTS {
                break;
            }
        }
        let message = "files changed while they were read, though nothing of the session ran";
        Err(Error::new(ErrorKind::Conflict, message)
            .with_hint("somebody else writes to the workspace: try again when that is over"))
    }

    /// The same, without a word about processes.
    pub(super) async fn save_once(&self) -> Result<(SavedPoint, bool)> {
        let looked = self.store.scan_tree(&self.tree()).await?;
        let saved = self.store.keep_point(looked, &self.id).await?;
        let is_whole = saved.changed.is_empty();
        Ok((saved, is_whole))
    }

    /// Keeps what the workspace is now, and lets everything go on as soon as it was looked through.
    pub(super) async fn save(&self) -> Result<(SavedPoint, Duration, u32)> {
        let mut attempt = 1;
        loop {
            let freeze = Freeze::begin(self.link.as_ref(), false).await?;
            let processes = freeze.processes;
            let looked = self.store.scan_tree(&self.tree()).await?;
            let frozen = freeze.end().await?;
            let saved = self.store.keep_point(looked, &self.id).await?;
            if saved.changed.is_empty() || (attempt >= ATTEMPTS && self.in_place) {
                return Ok((saved, frozen, processes));
            }
            if attempt >= ATTEMPTS {
                let message =
                    "files changed while they were read, though nothing of the session ran";
                return Err(Error::new(ErrorKind::Conflict, message).with_hint(
                    "somebody else writes to the workspace: try again when that is over",
                ));
            }
            attempt += 1;
        }
    }

    /// What is kept of a tree to know later whether it is still what the workspace is.
    pub(super) fn at_rest(&self, saved: &SavedPoint) -> Option<TreeAtRest> {
        // Whoever has a folder of their own in use may store into a mapping of a file, which nobody is told of.
        let token = saved.token.filter(|_| !self.in_place && saved.changed.is_empty())?;
        let (tree, left_out) = (saved.fingerprint.clone(), self.left_out.clone());
        Some(TreeAtRest { tree, token, left_out })
    }

    /// What the workspace is, where that is known without looking through it: nothing ran, no call changed
    /// files, and nobody else did, since it was looked through.
    pub(super) async fn tree_at_rest(&self, journal: &Journal) -> Result<Option<String>> {
        let is_tellable = !self.in_place && self.link.protocol() >= TREE_TOKEN_VERSION;
        let known = journal.at_rest.as_ref().filter(|known| {
            let is_last = journal.last.as_ref() == Some(&known.tree);
            is_tellable && is_last && known.left_out == self.left_out
        });
        let Some(known) = known else { return Ok(None) };
        let mut stream = self.link.open(Request::TreeToken).await?;
        let Incoming::Item(item) = stream.from_guest.next().await? else {
            return Err(broken("not what a tree is known by"));
        };
        let TreeToken { token } = decode(&item)?;
        stream.finish().await?;
        let is_same = token == Some(known.token);
        Ok((is_same && self.store.has_point(&self.id, &known.tree)).then(|| known.tree.clone()))
    }

    /// The tree of a point, whose title is said if it is lost.
    pub(super) async fn open(&self, tree: &str, title: &str) -> Result<OpenPoint> {
        self.store.open_point(&self.id, tree).await.map_err(|error| lost(title, error))
    }

    /// What is different between two trees.
    pub(super) async fn summary(&self, from: &str, to: &str) -> Result<ChangeSummary> {
        if from == to {
            return Ok(ChangeSummary::default());
        }
        let (from, to) =
            tokio::try_join!(self.open(from, "the last point"), self.open(to, "the new point"))?;
        Ok(summarize(&from.tree, &to.tree))
    }

    /// Removes what no point needs any more from the disk, if that may be much. Nobody waits for long: what is not
    /// done by then goes on while this process lives, or is done another time.
    pub(super) async fn collect_garbage(&self) {
        let store = self.store.clone();
        let (done, wait) = tokio::sync::oneshot::channel();
        let work = move || {
            // Whatever it could not remove stays, and is looked at again.
            drop(store.collect_garbage());
            // Somebody may not have waited.
            let _ = done.send(());
        };
        // Not a thread of the runtime, which would be waited for at its end.
        if std::thread::Builder::new().name("tidy".to_owned()).spawn(work).is_ok() {
            drop(tokio::time::timeout(TIDYING, wait).await);
        }
    }

    /// Makes a point.
    pub(crate) async fn checkpoint(&self, name: Option<&str>) -> Result<CheckpointReport> {
        let made = self.make_checkpoint(name).await;
        self.collect_garbage().await;
        made
    }

    async fn make_checkpoint(&self, name: Option<&str>) -> Result<CheckpointReport> {
        let (_lock, mut journal) = self.locked().await?;
        if let Some(name) = name {
            names::check_new(&journal, name)?;
        }
        let (saved, frozen, processes) = self.save().await?;
        let changes = match &journal.last {
            Some(last) => self.summary(last, &saved.fingerprint).await?,
            None => ChangeSummary::default(),
        };
        let tree = saved.fingerprint.clone();
        let point = Point {
            name: name.map(str::to_owned),
            after: Some(tree.clone()),
            changes,
            frozen,
            ..new_point(&journal, PointKind::Checkpoint, String::new(), tree)
        };
        journal.push(point.clone());
        journal.at_rest = self.at_rest(&saved);
        self.commit(&mut journal)?;
        Ok(CheckpointReport {
            point,
            processes,
            entries: saved.entries,
            bytes: saved.bytes,
            files_read: saved.files_read,
            bytes_stored: saved.bytes_stored,
            left_out: saved.left_out,
        })
    }
}

impl JournalContext {
    /// The tree of a point, or of what the workspace is now. It stays until it is released: it need not be a point.
    pub(crate) async fn hold(&self, at: Option<&str>) -> Result<String> {
        let (_lock, mut journal) = self.locked().await?;
        let tree = match at {
            Some(at) => names::find(&journal, at)?.tree,
            None => self.save().await?.0.fingerprint,
        };
        journal.hold(&tree);
        self.commit(&mut journal)?;
        Ok(tree)
    }

    /// Gives up a tree that was held.
    pub(crate) async fn release(&self, tree: &str) {
        let released = async {
            let (_lock, mut journal) = self.locked().await?;
            journal.release(tree);
            self.commit(&mut journal)
        };
        // It goes by itself after a while.
        drop(Box::pin(released).await);
    }

    /// Keeps a point for ever, as a snapshot.
    pub(crate) async fn save_point(&self, at: &str, name: &str) -> Result<SnapshotInfo> {
        let (_lock, journal) = self.locked().await?;
        let point_ref = names::find(&journal, at)?;
        let owner = PointOwner::Snapshot(name.to_owned());
        let shared = self.store.share_point(&self.id, &point_ref.tree, owner).await;
        shared.map_err(|error| lost(&point_ref.title, error))
    }
}

/// A point that is just being made.
pub(super) fn new_point(
    journal: &Journal,
    kind: PointKind,
    label: String,
    before: String,
) -> Point {
    Point {
        number: journal.next,
        name: None,
        kind,
        label,
        at_ms: now_ms(),
        exit: None,
        before,
        after: None,
        changes: ChangeSummary::default(),
        frozen: Duration::ZERO,
        mechanism: Mechanism::default(),
        aside: false,
    }
}

pub(super) fn summarize(from: &FileTree, to: &FileTree) -> ChangeSummary {
    let mut summary = ChangeSummary::default();
    for change in from.changes_to(to) {
        match (&change.before, &change.after) {
            (None, _) => summary.added += 1,
            (_, None) => summary.removed += 1,
            _ => summary.changed += 1,
        }
        if summary.first.len() < NAMED {
            summary.first.push(shown(&change.path));
        }
    }
    summary
}

/// What a journal says, whoever looks at it.
pub(crate) fn read_log(folder: &std::path::Path) -> Result<JournalLog> {
    let journal = Journal::read(folder)?;
    Ok(JournalLog {
        applied: journal.applied,
        redoable: journal.undone.len(),
        thinned: journal.thinned,
        points: journal.points,
    })
}
