//! Restoring only what is different.
//!
//! Whatever is the same in both trees is named as kept, so that the guest leaves it where it is: a file
//! that is not to change is not touched, whoever has it open.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bastide_proto::tree::TreeChecksum;

use super::OpenPoint;
use super::file_tree::{FileTree, Node, TreePath};
use crate::Result;
use crate::snapshot::store::Tree;
use crate::snapshot::store::errors::damaged;
use crate::snapshot::store::restore::{EntrySource, send_tree};
use crate::snapshot::store::tree::{Entry, Kind, Order};

/// How many bytes of kept paths go with a request; where there are more, everything is made anew.
const MAX_KEPT: usize = 3 << 20;

/// Entries that are in memory.
#[derive(Debug)]
struct ListedEntries {
    entries: std::vec::IntoIter<Entry>,
    order: Order,
}

impl EntrySource for ListedEntries {
    fn next(&mut self) -> Result<Option<Entry>> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        let is_dir = entry.kind == Kind::Dir;
        self.order.next(entry.depth, &entry.name, is_dir).map_err(damaged)?;
        Ok(Some(entry))
    }

    fn names(&self) -> &[Vec<u8>] {
        self.order.names()
    }
}

/// Makes a tree all that a point has.
pub(super) async fn send_all(tree: &Tree<'_>, to: &OpenPoint) -> Result<()> {
    send(tree, to, to.tree.entries(|_| true), tree.kept.clone(), None).await
}

/// Makes a tree that is `from` what a point says.
pub(super) async fn send_difference(
    tree: &Tree<'_>,
    from: &FileTree,
    to: &OpenPoint,
) -> Result<()> {
    if *from == *to.tree {
        return Ok(());
    }
    let changed = changed(from, &to.tree);
    let on_the_way = on_the_way(from, &changed);
    let mut kept = unchanged(from, &changed, &on_the_way);
    kept.extend(tree.kept.iter().cloned());
    if kept.iter().map(|path| path.len() + 8).sum::<usize>() > MAX_KEPT {
        let replaced = replaced(from, &tree.kept);
        return send(tree, to, to.tree.entries(|_| true), tree.kept.clone(), Some(replaced)).await;
    }
    let is_sent = |path: &TreePath| changed.contains(path) || on_the_way.contains(path);
    let replaced = replaced(from, &kept);
    send(tree, to, to.tree.entries(is_sent), kept, Some(replaced)).await
}

/// What makes room for something else: everything that does not stay. Whatever somebody else put there or changed
/// meanwhile is not in the sum, so that it is not lost.
fn replaced(from: &FileTree, kept: &[Vec<u8>]) -> TreeChecksum {
    let kept: HashSet<&[u8]> = kept.iter().map(Vec::as_slice).collect();
    let mut sum = TreeChecksum::default();
    let mut stays: Option<&TreePath> = None;
    for (path, node) in &from.0 {
        if path.is_empty() || stays.is_some_and(|top| path.starts_with(top)) {
            continue;
        }
        if kept.contains(path.join(&b'/').as_slice()) {
            stays = Some(path);
            continue;
        }
        let names = path.iter().map(Vec::as_slice);
        match node.is_dir() {
            true => sum.folder(names),
            false => sum.other(names, node.size(), node.modified),
        }
    }
    sum
}

async fn send(
    tree: &Tree<'_>,
    to: &OpenPoint,
    entries: Vec<Entry>,
    kept: Vec<Vec<u8>>,
    replaced: Option<TreeChecksum>,
) -> Result<()> {
    let size = |entry: &Entry| match &entry.kind {
        Kind::File { size, .. } => *size,
        _ => 0,
    };
    let total = (u64::try_from(entries.len()).unwrap_or(0), entries.iter().map(size).sum());
    let source = ListedEntries { entries: entries.into_iter(), order: Order::default() };
    let tree = Tree { kept, ..tree.clone() };
    send_tree(&tree, Arc::clone(&to.reader), source, total, replaced).await.map(drop)
}

/// Every path that has to be made anew, or goes.
fn changed(from: &FileTree, to: &FileTree) -> BTreeSet<TreePath> {
    let mut changed: BTreeSet<TreePath> =
        from.differing(to, |one, two| one == two).into_iter().collect();
    // A folder that stays keeps its extended attributes, so one that is to have others is made anew.
    let is_remade = |path: &&TreePath| match (from.get(path), to.get(path)) {
        (Some(one), Some(two)) => one.is_dir() && two.is_dir() && one.attributes != two.attributes,
        _ => false,
    };
    let remade: Vec<TreePath> =
        changed.iter().filter(|path| !path.is_empty()).filter(is_remade).cloned().collect();
    for top in &remade {
        changed.extend(to.below(top).map(|(path, _)| path.clone()));
    }
    // All names of a file change together.
    loop {
        let of = |tree: &FileTree, path: &TreePath| tree.get(path).and_then(Node::group).cloned();
        let groups: HashSet<TreePath> =
            changed.iter().flat_map(|path| [of(from, path), of(to, path)]).flatten().collect();
        let before = changed.len();
        for tree in [from, to] {
            let named = tree
                .0
                .iter()
                .filter(|(_, node)| node.group().is_some_and(|group| groups.contains(group)));
            changed.extend(named.map(|(path, _)| path.clone()));
        }
        if changed.len() == before {
            return changed;
        }
    }
}

/// The folders that lead to what changes, and those that change and stay.
fn on_the_way(from: &FileTree, changed: &BTreeSet<TreePath>) -> HashSet<TreePath> {
    let mut folders = HashSet::from([TreePath::new()]);
    for path in changed {
        if from.get(path).is_some_and(Node::is_dir) {
            folders.insert(path.clone());
        }
        for length in (1..path.len()).rev() {
            // Whatever is above a folder that is known is known.
            if !folders.insert(path[..length].to_vec()) {
                break;
            }
        }
    }
    folders
}

/// What stays as it is: the topmost paths.
fn unchanged(
    from: &FileTree,
    changed: &BTreeSet<TreePath>,
    on_the_way: &HashSet<TreePath>,
) -> Vec<Vec<u8>> {
    let stays = |path: &&TreePath| {
        let Some((_, above)) = path.split_last() else { return false };
        on_the_way.contains(above) && !changed.contains(*path) && !on_the_way.contains(*path)
    };
    from.0.keys().filter(stays).map(|path| path.join(&b'/')).collect()
}
