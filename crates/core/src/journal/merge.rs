//! Taking the changes of a fork over.

use super::context::{JournalContext, new_point};
use super::file::{ForkOrigin, Journal};
use super::lines;
use super::transition::{Goal, TransitionReport};
use super::{Point, PointKind};
use crate::snapshot::store::points::{
    Change, Composer, FileTree, Node, NodeKind, OpenPoint, TreePath, shown,
};
use crate::{Error, ErrorKind, Result};

/// The longest file whose lines are merged.
const MAX_TEXT: u64 = 4 << 20;

/// The longest name of a file.
const MAX_NAME: usize = 255;

/// The result of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeReport {
    /// What changed in the session.
    pub transition: TransitionReport,
    /// Files of which both had changed different lines.
    pub merged: Vec<String>,
    /// What both had changed in the same place, each with where the fork's is: the session's own is in its place.
    /// Nothing lies beside what the fork had removed.
    pub conflicts: Vec<(String, Option<String>)>,
}

impl JournalContext {
    /// Puts on record what a session was forked from.
    pub(crate) fn begin_fork(&self, origin: ForkOrigin) -> Result<()> {
        let mut journal = Journal::read(&self.folder)?;
        journal.last = Some(origin.tree.clone());
        journal.origin = Some(origin);
        journal.write(&self.folder)
    }

    /// Takes over what was changed in a fork.
    pub(crate) async fn merge(&self, fork: &Self) -> Result<MergeReport> {
        if self.id == fork.id {
            let message = format!("{} cannot be merged into itself", self.id);
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("name a fork of the session"));
        }
        // Always in the same order, so that nobody waits for somebody who waits for them.
        let (first, second) = if self.id < fork.id { (self, fork) } else { (fork, self) };
        let (_first, one) = first.locked().await?;
        let (_second, two) = second.locked().await?;
        let (mut journal, other) = if self.id < fork.id { (one, two) } else { (two, one) };
        let (base_of, base) = common(self, &journal, fork, &other)?;
        let base = self.store.open_point(&base_of, &base).await?;
        let (theirs, ..) = fork.save().await?;
        let theirs = fork.open(&theirs.fingerprint, "the fork").await?;
        let quiet = self.quiet(|_| Ok(())).await?;
        let ours = self.open(&quiet.saved.fingerprint, "the workspace").await?;
        let base = base.owned_as(&ours);
        let theirs = theirs.owned_as(&ours);
        let (store, id, from) = (self.store.clone(), self.id.clone(), fork.id.clone());
        let work = move || {
            let composer = store.compose()?;
            let mut merge = Merge {
                tree: FileTree::clone(&ours.tree),
                base: &base,
                ours: &ours,
                theirs: &theirs,
                composer: &composer,
                ending: format!(".fork-{from}").into_bytes(),
                merged: Vec::new(),
                conflicts: Vec::new(),
            };
            merge.run()?;
            let Merge { tree, merged, conflicts, .. } = merge;
            Ok((composer.keep(&id, &tree)?, merged, conflicts))
        };
        let (tree, merged, conflicts) =
            tokio::task::spawn_blocking(work).await.map_err(|error| {
                Error::new(ErrorKind::Internal, "work on a merge was lost").with_source(error)
            })??;
        let label = format!("merge {}", fork.id);
        let before = quiet.saved.fingerprint.clone();
        let made = Point {
            after: Some(tree.clone()),
            ..new_point(&journal, PointKind::Merge, label, before)
        };
        let goal = Goal { tree, applied: 0, undone: Vec::new(), point: Some(made.clone()) };
        let (ended, changes) = self.go(&mut journal, quiet, goal).await?;
        let points = vec![made.clone()];
        let transition = TransitionReport { at: made.title(), ended, changes, points };
        Ok(MergeReport { transition, merged, conflicts })
    }
}

/// What two sessions have in common: whose point it is, and which.
fn common(
    one: &JournalContext,
    journal: &Journal,
    two: &JournalContext,
    other: &Journal,
) -> Result<(String, String)> {
    match (&journal.origin, &other.origin) {
        (_, Some(origin)) if origin.session == one.id => Ok((two.id.clone(), origin.tree.clone())),
        (Some(origin), _) if origin.session == two.id => Ok((one.id.clone(), origin.tree.clone())),
        (Some(mine), Some(theirs)) if mine == theirs => Ok((two.id.clone(), mine.tree.clone())),
        _ => {
            let message = format!("sessions {} and {} have nothing in common", one.id, two.id);
            Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("a session can take over what was changed in its forks: `bastide fork`"))
        }
    }
}

struct Merge<'a> {
    tree: FileTree,
    base: &'a OpenPoint,
    ours: &'a OpenPoint,
    theirs: &'a OpenPoint,
    composer: &'a Composer,
    ending: Vec<u8>,
    merged: Vec<String>,
    conflicts: Vec<(String, Option<String>)>,
}

impl Merge<'_> {
    fn run(&mut self) -> Result<()> {
        for change in self.base.tree.changes_to(&self.theirs.tree) {
            self.take(change)?;
        }
        self.complete_folders();
        Ok(())
    }

    fn take(&mut self, change: Change) -> Result<()> {
        let Change { path, before, after } = change;
        let own = self.tree.get(&path).cloned();
        let same = |one: &Option<Node>, other: &Option<Node>| match (one, other) {
            (Some(one), Some(other)) => one.is_like(other),
            (None, None) => true,
            _ => false,
        };
        if same(&own, &before) {
            match after {
                Some(node) => drop(self.tree.0.insert(path, node)),
                None => drop(self.tree.0.remove(&path)),
            }
            return Ok(());
        }
        if same(&own, &after) {
            return Ok(());
        }
        let Some(theirs) = after else {
            // It was changed here, and removed there: what is here stays.
            self.conflicts.push((shown(&path), None));
            return Ok(());
        };
        if theirs.is_dir() && own.as_ref().is_some_and(Node::is_dir) {
            return Ok(());
        }
        if let (Some(own), Some(before)) = (&own, &before)
            && let Some(node) = self.merged_file(before, own, &theirs)?
        {
            self.merged.push(shown(&path));
            self.tree.0.insert(path, node);
            return Ok(());
        }
        self.beside(&path, theirs);
        Ok(())
    }

    /// Both changes of a file, where they are of different lines.
    fn merged_file(&self, base: &Node, own: &Node, theirs: &Node) -> Result<Option<Node>> {
        let text = |node: &Node, point: &OpenPoint| -> Result<Option<Vec<u8>>> {
            let NodeKind::File { pieces, .. } = &node.kind else { return Ok(None) };
            let content = point.content(pieces, MAX_TEXT)?;
            Ok(content.filter(|content| lines::is_text(content)))
        };
        let texts = (text(base, self.base)?, text(own, self.ours)?, text(theirs, self.theirs)?);
        let (Some(before), Some(ours), Some(other)) = texts else { return Ok(None) };
        let Some(content) = lines::merge(&before, &ours, &other) else { return Ok(None) };
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let kind = NodeKind::File { size, pieces: self.composer.file(&content)?, group: None };
        let mode = if own.mode == base.mode { theirs.mode } else { own.mode };
        let modified = own.modified.max(theirs.modified);
        Ok(Some(Node { kind, mode, modified, ..own.clone() }))
    }

    /// Puts what the fork has beside what is here.
    fn beside(&mut self, path: &TreePath, theirs: Node) {
        let mut place = path.clone();
        if let Some(name) = place.last_mut() {
            name.truncate(MAX_NAME - self.ending.len());
            name.extend_from_slice(&self.ending);
        }
        self.conflicts.push((shown(path), Some(shown(&place))));
        // As a file of its own: other names of it are somewhere else.
        let node = match theirs.kind {
            NodeKind::File { size, pieces, .. } => {
                Node { kind: NodeKind::File { size, pieces, group: None }, ..theirs }
            }
            _ => theirs,
        };
        self.tree.0.insert(place, node);
    }

    /// Whatever is to be in the tree lies in a folder: one that either side removed comes back for what the other has in
    /// it, and what took its place goes beside it.
    fn complete_folders(&mut self) {
        while let Some(stray) = self.tree.stray().cloned() {
            let above: TreePath = stray[..stray.len() - 1].to_vec();
            let known = [self.ours, self.theirs, self.base];
            let folder = known
                .iter()
                .find_map(|point| point.tree.get(&above).filter(|node| node.is_dir()).cloned());
            match (self.tree.0.remove(&above), folder) {
                (other, Some(folder)) => {
                    self.tree.0.insert(above.clone(), folder);
                    if let Some(other) = other {
                        self.beside(&above, other);
                    }
                }
                (other, None) => {
                    // No tree had it there: it goes where its folder would be.
                    if let Some(other) = other {
                        self.tree.0.insert(above, other);
                    }
                    self.tree.0.remove(&stray);
                }
            }
        }
    }
}
