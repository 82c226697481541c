//! Going from what a workspace is to what it was.

use super::context::{JournalContext, new_point, summarize};
use super::file::{Journal, PendingTransition, UndonePoint};
use super::freeze::Freeze;
use super::{ChangeSummary, Point, PointKind, conflicts, names};
use crate::snapshot::store::Tree;
use crate::snapshot::store::points::{FileTree, OpenPoint, SavedPoint, TreePath, shown};
use crate::{Condition, Error, ErrorKind, Result};

/// The result of an undo, a redo, a restore or a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransitionReport {
    /// What the workspace is now, for people: which point it is at.
    pub at: String,
    /// How many processes were ended.
    pub ended: u32,
    /// What changed in the workspace.
    pub changes: ChangeSummary,
    /// The points that were undone or redone, oldest first.
    pub points: Vec<Point>,
}

/// A workspace in which nothing runs.
pub(super) struct FrozenWorkspace {
    pub(super) saved: SavedPoint,
    /// What the workspace is.
    pub(super) now: OpenPoint,
    pub(super) ended: u32,
    freeze: Freeze,
}

/// Where to go, and what is on record then.
pub(super) struct TransitionTarget {
    pub(super) tree: String,
    pub(super) applied: usize,
    pub(super) undone: Vec<UndonePoint>,
    pub(super) point: Option<Point>,
}

impl JournalContext {
    /// Keeps what the workspace is, while everything in it stands still. Whatever speaks against going elsewhere is
    /// to be found out before anything is ended.
    pub(super) async fn still(&self) -> Result<FrozenWorkspace> {
        let (saved, freeze) = self.save_frozen().await?;
        let now = self.open(&saved.fingerprint, "the workspace").await?;
        self.replaced_tree(&saved, &now.tree)?;
        Ok(FrozenWorkspace { saved, now, ended: 0, freeze })
    }

    /// Ends what stands still, and keeps what it had written by then; the same and true if anything ran.
    pub(super) async fn ended(&self, still: FrozenWorkspace) -> Result<(FrozenWorkspace, bool)> {
        if still.freeze.processes == 0 {
            return Ok((still, false));
        }
        still.freeze.end().await?;
        let freeze = Freeze::begin(self.link.as_ref(), true).await?;
        // What they wrote until their end is to come back by a redo.
        let (saved, _) = self.save_once().await?;
        let now = self.open(&saved.fingerprint, "the workspace").await?;
        Ok((FrozenWorkspace { saved, now, ended: freeze.processes, freeze }, true))
    }

    /// Makes the workspace another tree. It is one or the other, whatever happens meanwhile.
    pub(super) async fn go(
        &self,
        journal: &mut Journal,
        frozen_workspace: FrozenWorkspace,
        transition_target: TransitionTarget,
    ) -> Result<(u32, ChangeSummary)> {
        let FrozenWorkspace { saved, now: from, ended, freeze } = frozen_workspace;
        let to = self.open(&transition_target.tree, "the point").await?;
        let tree = self.replaced_tree(&saved, &from.tree)?;
        let TransitionTarget { tree: to_name, applied, undone, point } = transition_target;
        let changes = summarize(&from.tree, &to.tree);
        let point = point.map(|point| Point { changes: changes.clone(), ..point });
        journal.pending = Some(PendingTransition {
            from: saved.fingerprint,
            to: to_name,
            applied,
            undone,
            point,
        });
        journal.write(&self.folder)?;
        let restored = self.store.restore_difference(&tree, &from.tree, &to).await;
        if let Err(error) = restored {
            // A guest that is there has left everything as it was; of one that is not nobody knows.
            if error.kind() != ErrorKind::AgentLost {
                journal.pending = None;
                journal.write(&self.folder)?;
            }
            return Err(match error.kind() {
                ErrorKind::Conflict => error.with_hint("try again when nobody writes to them"),
                _ => error,
            });
        }
        self.complete(journal)?;
        freeze.end().await?;
        Ok((ended, changes))
    }

    /// The tree to replace. What cannot be kept in a point stays where it is.
    pub(super) fn replaced_tree(&self, saved: &SavedPoint, from: &FileTree) -> Result<Tree<'_>> {
        let mut tree = self.tree();
        let named = u64::try_from(saved.left_out.len()).unwrap_or(0);
        let is_text = |path: &String| !path.contains(char::REPLACEMENT_CHARACTER);
        if saved.left_out_count > named || !saved.left_out.iter().all(|(path, _)| is_text(path)) {
            let message =
                "the workspace holds sockets, devices or closed folders that cannot be named";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("they would be lost: remove them, or move them elsewhere"));
        }
        tree.kept.extend(saved.left_out.iter().map(|(path, _)| path.as_bytes().to_vec()));
        // What lies in no folder that is there is not there either.
        tree.kept.retain(|path| {
            let names: TreePath = path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
            let above = |length: usize| names.get(..length).map(<[_]>::to_vec);
            (1..names.len())
                .filter_map(above)
                .all(|folder| from.get(&folder).is_some_and(|node| node.is_dir()))
        });
        Ok(tree)
    }

    /// Puts on record that the workspace is what it was to become.
    pub(super) fn complete(&self, journal: &mut Journal) -> Result<()> {
        let Some(pending) = journal.pending.take() else { return Ok(()) };
        match pending.point {
            Some(point) => journal.push(point),
            None => {
                journal.applied = pending.applied.min(journal.points.len());
                journal.undone = pending.undone;
            }
        }
        journal.last = Some(pending.to);
        self.commit(journal)
    }

    /// Whether nobody can tell two trees from each other.
    async fn is_same(&self, one: &str, other: &str) -> Result<bool> {
        if one == other {
            return Ok(true);
        }
        let one = self.open(one, "the workspace").await?;
        let other = self.open(other, "the last point").await?;
        Ok(one.tree.changes_to(&other.tree).is_empty())
    }

    /// Goes back by so many steps. `live` commands run as far as anybody knows.
    pub(crate) async fn undo(&self, steps: usize, live: usize) -> Result<TransitionReport> {
        let (_lock, mut journal) = self.locked().await?;
        let frozen_workspace = self.still().await?;
        let mut index = self.step_back(&journal, &frozen_workspace.saved, steps)?;
        let mut tree = self.undone_tree(&journal, &frozen_workspace, index, live).await?;
        let (frozen_workspace, has_ended) = self.ended(frozen_workspace).await?;
        if has_ended {
            index = self.step_back(&journal, &frozen_workspace.saved, steps)?;
            tree = self.undone_tree(&journal, &frozen_workspace, index, live).await?;
        }
        let target = journal.points[index].clone();
        let is_state = target.kind == PointKind::Checkpoint;
        let applied = if is_state { index + 1 } else { index };
        self.close_points(&mut journal, applied, &frozen_workspace.saved.fingerprint).await?;
        let points = journal.points[applied..journal.applied].to_vec();
        let mut undone = journal.undone.clone();
        let redo = frozen_workspace.saved.fingerprint.clone();
        undone.push(UndonePoint { tree: redo, applied: journal.applied });
        let transition_target = TransitionTarget { tree, applied, undone, point: None };
        let (ended, changes) = self.go(&mut journal, frozen_workspace, transition_target).await?;
        let title = target.title();
        let at = if is_state { title } else { format!("before {title}") };
        Ok(TransitionReport { at, ended, changes, points })
    }

    /// What the workspace becomes by going back to before a point, or to it.
    pub(super) async fn undone_tree(
        &self,
        journal: &Journal,
        frozen_workspace: &FrozenWorkspace,
        index: usize,
        live: usize,
    ) -> Result<String> {
        match self.in_place {
            true => self.reverted(journal, &frozen_workspace.now, index, live).await,
            false => Ok(journal.points[index].before.clone()),
        }
    }

    /// Commands that were ended by going back have done what they did until then.
    async fn close_points(&self, journal: &mut Journal, from: usize, now: &str) -> Result<()> {
        let mut next = now.to_owned();
        for index in (from..journal.applied).rev() {
            let point = journal.points[index].clone();
            if point.after.is_none() && !point.aside {
                let changes = self.summary(&point.before, &next).await?;
                let closed = &mut journal.points[index];
                (closed.after, closed.changes) = (Some(next), changes);
            }
            next = point.before;
        }
        Ok(())
    }

    /// Which point to go back to.
    pub(super) fn step_back(
        &self,
        journal: &Journal,
        saved: &SavedPoint,
        steps: usize,
    ) -> Result<usize> {
        let active = journal.active();
        let mut left = steps;
        for (index, point) in active.iter().enumerate().rev() {
            let is_state = point.kind == PointKind::Checkpoint;
            // With a journal every command is a step; without, what somebody asked for is.
            let is_now = is_state && left == steps && point.before == saved.fingerprint;
            let is_step = !(point.aside || is_now || is_state && self.options.commands);
            left -= usize::from(is_step);
            if is_step && left == 0 {
                return Ok(index);
            }
        }
        let count = steps - left;
        let message = match count {
            0 => format!("session {} has nothing to undo", self.id),
            _ => format!("session {} has only {count} steps to undo, not {steps}", self.id),
        };
        let error = Error::new(ErrorKind::NotFound, message);
        Err(match journal.thinned {
            0 if count > 0 => error.with_hint(format!("`-n {count}` goes to the beginning")),
            0 => error.with_condition(Condition::NothingToUndo),
            last => error.with_hint(format!("points up to {last} were removed to make room")),
        })
    }

    /// Takes the last undo back.
    pub(crate) async fn redo(&self) -> Result<TransitionReport> {
        let (_lock, mut journal) = self.locked().await?;
        let Some(back) = journal.undone.last().cloned() else {
            let message = format!("nothing was undone in session {}", self.id);
            return Err(Error::new(ErrorKind::NotFound, message)
                .with_hint("a command or a checkpoint after an undo leaves nothing to redo"));
        };
        let last = journal.last.clone().unwrap_or_default();
        if !self.in_place {
            let (saved, ..) = self.save().await?;
            if !self.is_same(&saved.fingerprint, &last).await? {
                return Err(changed_since());
            }
        }
        let frozen_workspace = self.still().await?;
        let mut tree = self.redone_tree(&back, &last, &frozen_workspace.now).await?;
        let (frozen_workspace, has_ended) = self.ended(frozen_workspace).await?;
        if has_ended {
            tree = self.redone_tree(&back, &last, &frozen_workspace.now).await?;
        }
        let mut undone = journal.undone.clone();
        undone.pop();
        let points = journal.points.get(journal.applied..back.applied).unwrap_or_default().to_vec();
        let transition_target =
            TransitionTarget { tree, applied: back.applied, undone, point: None };
        let (ended, changes) = self.go(&mut journal, frozen_workspace, transition_target).await?;
        let at = match journal.active().last() {
            Some(point) => format!("after {}", point.title()),
            None => "the beginning".to_owned(),
        };
        Ok(TransitionReport { at, ended, changes, points })
    }

    /// What the workspace becomes by taking an undo back that left `last`.
    async fn redone_tree(&self, back: &UndonePoint, last: &str, now: &OpenPoint) -> Result<String> {
        if !self.in_place {
            return Ok(back.tree.clone());
        }
        let to = self.open(&back.tree, "what was undone").await?;
        let from = self.open(last, "the last point").await?;
        let tree = conflicts::revert(FileTree::clone(&now.tree), &[(&to.tree, &from.tree)])?;
        self.store.compose()?.keep(&self.id, &tree)
    }

    /// Makes one path what it was at a point.
    pub(crate) async fn restore_path(&self, path: &str, at: &str) -> Result<TransitionReport> {
        let (_lock, mut journal) = self.locked().await?;
        let point_ref = names::find(&journal, at)?;
        let path = tree_path(path)?;
        let point = self.open(&point_ref.tree, &point_ref.title).await?;
        if point.tree.get(&path).is_none() {
            let message = format!("there is no {} in {}", shown(&path), point_ref.title);
            return Err(Error::new(ErrorKind::NotFound, message)
                .with_condition(Condition::PathNotInPoint(at.to_owned())));
        }
        let frozen_workspace = self.still().await?;
        let mut tree = self
            .restored_tree(&journal, &point_ref, (&point, &path), &frozen_workspace.now)
            .await?;
        let (frozen_workspace, has_ended) = self.ended(frozen_workspace).await?;
        if has_ended {
            tree = self
                .restored_tree(&journal, &point_ref, (&point, &path), &frozen_workspace.now)
                .await?;
        }
        let label = format!("restore {}@{at}", shown(&path));
        let before = frozen_workspace.saved.fingerprint.clone();
        let made = Point {
            after: Some(tree.clone()),
            ..new_point(&journal, PointKind::Restore, label, before)
        };
        let transition_target =
            TransitionTarget { tree, applied: 0, undone: Vec::new(), point: Some(made.clone()) };
        let (ended, changes) = self.go(&mut journal, frozen_workspace, transition_target).await?;
        let made = Point { changes: changes.clone(), ..made };
        Ok(TransitionReport { at: made.title(), ended, changes, points: vec![made] })
    }

    /// The workspace in which one path is what it was at a point.
    async fn restored_tree(
        &self,
        journal: &Journal,
        point_ref: &names::PointRef,
        (point, path): (&OpenPoint, &TreePath),
        now: &OpenPoint,
    ) -> Result<String> {
        if self.in_place {
            self.refuse_foreign(journal, point_ref, path, now).await?;
        }
        let tree = with_path(&now.tree, &point.tree, path);
        if tree.stray().is_some() {
            let message = format!("{} is in a folder that is none any more", shown(path));
            return Err(
                Error::new(ErrorKind::Conflict, message).with_hint("restore the folder it is in")
            );
        }
        self.store.compose()?.keep(&self.id, &tree)
    }
}

fn changed_since() -> Error {
    let message = "the workspace changed since it was undone, so a redo would lose that";
    Error::new(ErrorKind::Conflict, message).with_condition(Condition::ChangedSinceUndo)
}

/// The names of a path of the workspace.
pub(super) fn tree_path(path: &str) -> Result<TreePath> {
    let names: TreePath = path
        .split('/')
        .filter(|name| !matches!(*name, "" | "."))
        .map(|name| name.as_bytes().to_vec())
        .collect();
    if path.starts_with('/') || names.iter().any(|name| name == b"..") {
        let message = format!("{path:?} is no path in the workspace");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("write it as it is from the workspace on, such as src/main.rs"));
    }
    Ok(names)
}

/// A tree in which one path is what it is in another.
fn with_path(now: &FileTree, other: &FileTree, path: &TreePath) -> FileTree {
    let mut tree = FileTree(
        now.0
            .iter()
            .filter(|(at, _)| !at.starts_with(path))
            .map(|(at, it)| (at.clone(), it.clone()))
            .collect(),
    );
    tree.0.extend(other.below(path).map(|(at, node)| (at.clone(), node.clone())));
    for length in 0..path.len() {
        let above = path[..length].to_vec();
        if let (None, Some(node)) = (tree.get(&above), other.get(&above)) {
            tree.0.insert(above, node.clone());
        }
    }
    tree
}
