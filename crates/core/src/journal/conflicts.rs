//! Taking changes back in a folder that others change, too.

use crate::snapshot::store::points::{FileTree, Node, TreePath, shown};
use crate::{Error, ErrorKind, Result};

/// How many paths an error names.
const NAMED: usize = 10;

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

fn is_same(one: Option<&Node>, other: Option<&Node>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.is_like(other),
        (None, None) => true,
        _ => false,
    }
}

/// Somebody else changed what is to be taken back.
pub(super) fn refused(paths: &[TreePath]) -> Error {
    let mut named: Vec<String> = paths.iter().take(NAMED).map(shown).collect();
    if paths.len() > NAMED {
        named.push(format!("{} more", paths.len() - NAMED));
    }
    let message = format!("changed by somebody else since: {}", named.join(", "));
    Error::new(ErrorKind::Conflict, message)
        .with_context("paths", paths.iter().take(1000).map(shown).collect::<Vec<_>>())
        .with_hint("nothing was changed; move those files away, or undo your own edits first")
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
                Some(size) => NodeKind::File { size, pieces: Vec::new(), group: None },
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
