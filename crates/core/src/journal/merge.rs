//! Taking the changes of a fork over.

use std::path::Path;

use super::conflicts::is_same;
use super::context::{JournalContext, new_point};
use super::file::{ForkOrigin, Journal};
use super::lines;
use super::transition::{TransitionReport, TransitionTarget};
use super::{Point, PointKind};
use crate::snapshot::store::points::{
    Change, Composer, FileTree, Node, NodeKind, OpenPoint, TreePath, shown,
};
use crate::{Condition, Error, ErrorKind, Result};

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

/// Puts on record what a session was forked from, in the folder of the new one.
pub(crate) fn begin_fork(folder: &Path, origin: ForkOrigin) -> Result<()> {
    let mut journal = Journal::default();
    journal.last = Some(origin.tree.clone());
    journal.origin = Some(origin);
    journal.write(folder)
}

impl JournalContext {
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
        let (frozen_workspace, _) = self.ended(self.still().await?).await?;
        let ours = frozen_workspace.now.clone();
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
                moved: Vec::new(),
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
        let before = frozen_workspace.saved.fingerprint.clone();
        let made = Point {
            after: Some(tree.clone()),
            ..new_point(&journal, PointKind::Merge, label, before)
        };
        let transition_target =
            TransitionTarget { tree, applied: 0, undone: Vec::new(), point: Some(made.clone()) };
        let (ended, changes) = self.go(&mut journal, frozen_workspace, transition_target).await?;
        let made = Point { changes: changes.clone(), ..made };
        let at = made.title();
        let transition = TransitionReport { at, ended, changes, points: vec![made] };
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
                .with_condition(Condition::NothingInCommon))
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
    /// Folders of the fork that lie beside something of the session's: where they are there, and here.
    moved: Vec<(TreePath, TreePath)>,
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
        if let Some((from, to)) = self.moved.iter().find(|(from, _)| path.starts_with(from)) {
            // What is in a folder goes where the folder went.
            let place = [to.as_slice(), &path[from.len()..]].concat();
            if let Some(node) = after {
                self.tree.0.insert(place, node);
            }
            return Ok(());
        }
        let own = self.tree.get(&path).cloned();
        if is_same(own.as_ref(), before.as_ref()) {
            match after {
                Some(node) => drop(self.tree.0.insert(path, node)),
                None => drop(self.tree.0.remove(&path)),
            }
            return Ok(());
        }
        if is_same(own.as_ref(), after.as_ref()) {
            return Ok(());
        }
        let Some(theirs) = after else {
            // It was changed here, and removed there: what is here stays.
            self.conflicts.push((shown(&path), None));
            return Ok(());
        };
        if let (Some(own), Some(before)) = (&own, &before)
            && let Some(node) = self.merged_node(before, own, &theirs)?
        {
            if !node.is_dir() {
                self.merged.push(shown(&path));
            }
            self.tree.0.insert(path, node);
            return Ok(());
        }
        if let Some(own) = &own
            && own.is_dir()
            && theirs.is_dir()
            && before.is_none()
        {
            // Both made a folder of that name; what is in it matters.
            return Ok(());
        }
        self.beside(&path, theirs);
        Ok(())
    }

    /// Both changes of a file or folder, where they do not touch each other.
    fn merged_node(&self, base: &Node, own: &Node, theirs: &Node) -> Result<Option<Node>> {
        let kind = match (&own.kind, &theirs.kind) {
            (own, other) if own == other => own.clone(),
            (own, other) if *other == base.kind => own.clone(),
            (own, other) if *own == base.kind => other.clone(),
            _ => match self.merged_text(base, own, theirs)? {
                Some(kind) => kind,
                None => return Ok(None),
            },
        };
        let (Some(mode), Some(uid), Some(gid), Some(attributes)) = (
            one_of(&base.mode, &own.mode, &theirs.mode),
            one_of(&base.uid, &own.uid, &theirs.uid),
            one_of(&base.gid, &own.gid, &theirs.gid),
            one_of(&base.attributes, &own.attributes, &theirs.attributes),
        ) else {
            return Ok(None);
        };
        let modified = own.modified.max(theirs.modified);
        Ok(Some(Node { kind, mode, uid, gid, modified, attributes }))
    }

    /// Both changes of a text, where they are of different lines.
    fn merged_text(&self, base: &Node, own: &Node, theirs: &Node) -> Result<Option<NodeKind>> {
        let text = |node: &Node, point: &OpenPoint| -> Result<Option<Vec<u8>>> {
            let NodeKind::File { file_parts, .. } = &node.kind else { return Ok(None) };
            let content = point.content(file_parts, MAX_TEXT)?;
            Ok(content.filter(|content| lines::is_text(content)))
        };
        let texts = (text(base, self.base)?, text(own, self.ours)?, text(theirs, self.theirs)?);
        let (Some(before), Some(ours), Some(other)) = texts else { return Ok(None) };
        let Some(content) = lines::merge(&before, &ours, &other) else { return Ok(None) };
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        // Names of one file on both sides stay so: each of them becomes the same.
        let group = own.group().filter(|group| theirs.group() == Some(*group)).cloned();
        Ok(Some(NodeKind::File { size, file_parts: self.composer.file(&content)?, group }))
    }

    /// Puts what the fork has beside what is here, under a name that nothing has. What lies there already and is the
    /// same is that.
    fn beside(&mut self, path: &TreePath, theirs: Node) {
        // As a file of its own: other names of it are somewhere else.
        let node = match theirs.kind {
            NodeKind::File { size, file_parts, .. } => {
                Node { kind: NodeKind::File { size, file_parts, group: None }, ..theirs }
            }
            _ => theirs,
        };
        let mut place = path.clone();
        for number in 1_u32.. {
            let mut ending = self.ending.clone();
            if number > 1 {
                ending.extend(format!(".{number}").into_bytes());
            }
            if let (Some(name), Some(last)) = (path.last(), place.last_mut()) {
                last.clone_from(name);
                last.truncate(MAX_NAME.saturating_sub(ending.len()));
                last.extend(ending);
            }
            let is_known = |tree: &FileTree| tree.get(&place).is_some();
            let is_it = self.tree.get(&place) == Some(&node) && !node.is_dir();
            if is_it || !(is_known(&self.tree) || is_known(&self.theirs.tree)) {
                break;
            }
        }
        self.conflicts.push((shown(path), Some(shown(&place))));
        if node.is_dir() {
            self.moved.push((path.clone(), place.clone()));
        }
        self.tree.0.insert(place, node);
    }

    /// Whatever is to be in the tree lies in a folder. One that either side removed comes back for what the other has in
    /// it; where something else took its place, the session's own stays, and the fork's goes beside it.
    fn complete_folders(&mut self) {
        while let Some(stray) = self.tree.stray().cloned() {
            let above: TreePath = stray[..stray.len() - 1].to_vec();
            let folder_of =
                |point: &OpenPoint| point.tree.get(&above).filter(|node| node.is_dir()).cloned();
            let own = folder_of(self.ours);
            let is_own = own.is_some();
            let folder = own.or_else(|| folder_of(self.theirs)).or_else(|| folder_of(self.base));
            match (self.tree.0.remove(&above), folder) {
                (Some(own), Some(folder)) if !is_own => {
                    self.tree.0.insert(above.clone(), own);
                    self.move_beside(&above, folder);
                }
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

    /// Puts a folder beside what is in its place, with all that is to be in it.
    fn move_beside(&mut self, above: &TreePath, folder: Node) {
        self.beside(above, folder);
        let Some((_, place)) = self.moved.last().cloned() else { return };
        let below = |path: &TreePath| path.starts_with(above) && path.len() > above.len();
        let strays: Vec<TreePath> =
            self.tree.0.keys().filter(|path| below(path)).cloned().collect();
        for path in strays {
            if let Some(node) = self.tree.0.remove(&path) {
                self.tree.0.insert([place.as_slice(), &path[above.len()..]].concat(), node);
            }
        }
        let (from, to) = (format!("{}/", shown(above)), format!("{}/", shown(&place)));
        for beside in self.conflicts.iter_mut().filter_map(|(_, beside)| beside.as_mut()) {
            if let Some(rest) = beside.strip_prefix(&from) {
                *beside = format!("{to}{rest}");
            }
        }
    }
}

/// The value that only one side changed; nothing if both did, and not alike.
fn one_of<T: PartialEq + Clone>(base: &T, own: &T, theirs: &T) -> Option<T> {
    match (own == base, theirs == base) {
        (_, true) => Some(own.clone()),
        (true, _) => Some(theirs.clone()),
        _ => (own == theirs).then(|| own.clone()),
    }
}
