//! Taking changes back in a folder that others change, too.

use super::context::JournalContext;
use super::file::Journal;
use super::names::PointRef;
use super::{Point, PointKind};
use crate::snapshot::store::points::{FileTree, Node, OpenPoint, TreePath, shown};
use crate::{Condition, Error, ErrorKind, Result};

/// How many paths an error names.
const NAMED: usize = 10;

impl JournalContext {
    /// What a folder of the caller's becomes: what commands changed is taken back, what others changed
    /// stays. `live` commands run as far as anybody knows.
    pub(super) async fn reverted(
        &self,
        journal: &Journal,
        now: &OpenPoint,
        index: usize,
        live: usize,
    ) -> Result<String> {
        // Every command is a point that has no end until it ends. With as many commands as such points, all of them
        // run, and have changed whatever changed since.
        let is_open = |point: &&Point| point.after.is_none() && !point.aside;
        let all_run = journal.active().iter().filter(is_open).count() == live;
        let mut next = now.clone();
        let mut pairs: Vec<(OpenPoint, OpenPoint)> = Vec::new();
        for point in journal.active()[index..].iter().rev() {
            // At a checkpoint nothing changed.
            if point.aside || point.kind == PointKind::Checkpoint {
                continue;
            }
            let before = self.open(&point.before, &point.title()).await?;
            let after = match &point.after {
                Some(after) => self.open(after, &point.title()).await?,
                None if all_run => next,
                None => return Err(unfinished(point)),
            };
            next = before.clone();
            pairs.push((before, after));
        }
        let pairs: Vec<(&FileTree, &FileTree)> =
            pairs.iter().map(|(before, after)| (&*before.tree, &*after.tree)).collect();
        let tree = revert(FileTree::clone(&now.tree), &pairs)?;
        if !self.options.commands {
            self.refuse_unknown(&journal.points[index], &tree).await?;
        }
        self.store.compose()?.keep(&self.id, &tree)
    }

    /// Refuses to leave a folder of the caller's as something else than what was asked for: without a journal nobody
    /// knows who changed what.
    async fn refuse_unknown(&self, point: &Point, tree: &FileTree) -> Result<()> {
        let wanted = self.open(&point.before, &point.title()).await?;
        let left: Vec<TreePath> =
            wanted.tree.changes_to(tree).into_iter().map(|change| change.path).collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(conflict("nobody knows who changed these since", &left)
                .with_condition(Condition::EditsUnattributed)),
        }
    }

    /// Refuses to replace what others than commands changed in a folder of the caller's since a point, or since the
    /// last checkpoint: that was asked for, and keeps what was there.
    pub(super) async fn refuse_foreign(
        &self,
        journal: &Journal,
        point_ref: &PointRef,
        path: &TreePath,
        now: &OpenPoint,
    ) -> Result<()> {
        let active: Vec<&Point> = journal.active().iter().filter(|point| !point.aside).collect();
        let asked = |point: &&&Point| point.kind == PointKind::Checkpoint;
        let checkpoint = active.iter().rev().find(asked).filter(|it| it.number > point_ref.order);
        let (since, start) = match checkpoint {
            Some(point) => (point.number, point.before.clone()),
            None => (point_ref.order, point_ref.tree.clone()),
        };
        let mut foreign: Vec<TreePath> = Vec::new();
        let mut at = self.open(&start, &point_ref.title).await?;
        let mut edits = |from: &OpenPoint, to: &OpenPoint| {
            let changes = from.tree.changes_to(&to.tree).into_iter().map(|change| change.path);
            foreign.extend(changes.filter(|change| change.starts_with(path)));
        };
        for point in active.iter().filter(|point| point.number > since) {
            let before = self.open(&point.before, &point.title()).await?;
            edits(&at, &before);
            at = match &point.after {
                Some(after) => self.open(after, &point.title()).await?,
                // What it changed cannot be told from what others did.
                None => before,
            };
        }
        edits(&at, now);
        foreign.sort();
        foreign.dedup();
        match foreign.is_empty() {
            true => Ok(()),
            false => Err(refused(&foreign).with_condition(Condition::EditsInTheWay)),
        }
    }
}

fn unfinished(point: &Point) -> Error {
    let message = format!("nobody saw the command of {} end", point.title());
    Error::new(ErrorKind::Conflict, message).with_condition(Condition::CommandEndUnseen)
}

/// Takes one change of a tree after the other back, the last one first: from what was after it to what
/// was before it. What others changed since stays; where both changed the same, nothing is done at all.
pub(super) fn revert(mut tree: FileTree, changes: &[(&FileTree, &FileTree)]) -> Result<FileTree> {
    let mut conflicts: Vec<TreePath> = Vec::new();
    for (before, after) in changes {
        for change in after.changes_to(before) {
            let now = tree.get(&change.path);
            if is_same(now, change.before.as_ref()) {
                match change.after {
                    Some(node) => drop(tree.0.insert(change.path, node)),
                    None => drop(tree.0.remove(&change.path)),
                }
            } else if !is_same(now, change.after.as_ref()) {
                conflicts.push(change.path);
            }
        }
        // Folders that nobody else changed get their times back.
        for (path, node) in before.0.iter().filter(|(_, node)| node.is_dir()) {
            if let Some(now) = tree.0.get_mut(path)
                && after.get(path) == Some(now)
            {
                now.clone_from(node);
            }
        }
    }
    conflicts.extend(tree.stray().cloned());
    match conflicts.is_empty() {
        true => Ok(tree),
        false => Err(refused(&conflicts)),
    }
}

/// Whether the same is in two places, or nothing is in either.
pub(super) fn is_same(one: Option<&Node>, other: Option<&Node>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.is_like(other),
        (None, None) => true,
        _ => false,
    }
}

/// Somebody else changed what is to be taken back.
pub(super) fn refused(paths: &[TreePath]) -> Error {
    conflict("changed since, and not by a command", paths)
        .with_hint("nothing was changed; move those files away, or undo your own edits first")
}

/// These stand in the way.
fn conflict(why: &str, paths: &[TreePath]) -> Error {
    let mut named: Vec<String> = paths.iter().take(NAMED).map(shown).collect();
    if paths.len() > NAMED {
        named.push(format!("{} more", paths.len() - NAMED));
    }
    Error::new(ErrorKind::Conflict, format!("{why}: {}", named.join(", ")))
        .with_context("paths", paths.iter().take(1000).map(shown).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bastide_proto::files::FileTime;

    use super::*;
    use crate::snapshot::store::points::NodeKind;

    fn tree(entries: &[(&str, Option<u64>)]) -> FileTree {
        let node = |size: Option<u64>| Node {
            kind: match size {
                Some(size) => NodeKind::File { size, file_parts: Vec::new(), group: None },
                None => NodeKind::Dir,
            },
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: FileTime { seconds: 0, nanos: 0 },
            attributes: Vec::new(),
        };
        let path = |text: &str| -> TreePath {
            text.split('/').filter(|name| !name.is_empty()).map(|name| name.into()).collect()
        };
        let mut nodes = BTreeMap::from([(TreePath::new(), node(None))]);
        nodes.extend(entries.iter().map(|(text, size)| (path(text), node(*size))));
        FileTree(nodes)
    }

    #[test]
    fn takes_back_only_what_was_changed_and_nobody_touched_since() {
        let before = tree(&[("a", Some(1)), ("b", Some(1))]);
        let after = tree(&[("a", Some(2)), ("b", Some(1)), ("new", None), ("new/x", Some(1))]);
        let now = tree(&[
            ("a", Some(2)),
            ("b", Some(7)),
            ("mine", Some(3)),
            ("new", None),
            ("new/x", Some(1)),
        ]);
        let want = tree(&[("a", Some(1)), ("b", Some(7)), ("mine", Some(3))]);
        assert_eq!(revert(now.clone(), &[(&before, &after)]).unwrap(), want);
        let mut edited = now.clone();
        edited.0.extend(tree(&[("a", Some(9))]).0);
        assert_eq!(revert(edited, &[(&before, &after)]).unwrap_err().kind(), ErrorKind::Conflict);
        let mut inside = now;
        inside.0.extend(tree(&[("new/y", Some(9))]).0);
        let refused = revert(inside, &[(&before, &after)]).unwrap_err();
        assert!(refused.message().contains("new/y"), "{refused}");
    }
}
