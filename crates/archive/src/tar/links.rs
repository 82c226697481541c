//! Symbolic links that point into the workspace by its absolute path, made relative.

use std::collections::HashMap;

use super::TarKind;
use crate::EntryPath;

/// As many links as Linux follows in one path.
const MAX_HOPS: usize = 40;

/// What an archive has where, to follow links in.
#[derive(Debug, Default)]
pub struct LinkTree {
    members: HashMap<EntryPath, (TarKind, Vec<u8>)>,
}

impl LinkTree {
    /// Adds a member; `target` is what a link points to.
    pub fn insert(&mut self, name: &[u8], kind: TarKind, target: &[u8]) {
        self.members.insert(EntryPath::new(name), (kind, target.to_vec()));
    }

    fn kind(&self, path: &EntryPath) -> Option<TarKind> {
        self.members.get(path).map(|(kind, _)| *kind)
    }
}

/// Whether a link's relative target leads to a file or folder of the archive, by folders and
/// relative links of the archive alone. Only then does it still lead there in another workspace.
#[must_use]
pub fn target_stays_inside(tree: &LinkTree, link_name: &[u8], target: &[u8]) -> bool {
    let start = EntryPath::new(link_name).parent();
    let target = EntryPath::new(target);
    let names = start.names().chain(target.names());
    let mut pending: Vec<Vec<u8>> = names.rev().map(<[u8]>::to_vec).collect();
    let mut resolved: Vec<Vec<u8>> = Vec::new();
    let mut hops = 0;
    while let Some(name) = pending.pop() {
        if name == b".." {
            if resolved.pop().is_none() {
                return false;
            }
            continue;
        }
        resolved.push(name);
        let Some((kind, link)) = tree.members.get(&EntryPath::new(&resolved.join(&b'/'))) else {
            return false;
        };
        match kind {
            TarKind::Symlink => {
                hops += 1;
                if hops > MAX_HOPS || link.starts_with(b"/") {
                    return false;
                }
                resolved.pop();
                pending.extend(EntryPath::new(link).names().rev().map(<[u8]>::to_vec));
            }
            TarKind::Dir => {}
            TarKind::File if pending.is_empty() => {}
            _ => return false,
        }
    }
    true
}

/// The names below `root` of an absolute target that consists of plain names only. Anything else
/// means what it means only where its links do.
fn plain_names<'a>(target: &'a [u8], root: &[u8]) -> Option<Vec<&'a [u8]>> {
    let inner = trim_slashes(target.strip_prefix(b"/")?);
    let root = trim_slashes(root);
    let root = &root[..root.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1)];
    let rest = match root {
        [] => inner.strip_prefix(b"/")?,
        _ => inner.strip_prefix(root)?.strip_prefix(b"/")?,
    };
    let rest = trim_slashes(rest);
    if rest.is_empty() || rest.ends_with(b"/") {
        return None;
    }
    let names: Vec<_> = rest.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    (!names.iter().any(|name| matches!(*name, b"." | b".."))).then_some(names)
}

fn trim_slashes(text: &[u8]) -> &[u8] {
    text.get(text.iter().take_while(|byte| **byte == b'/').count()..).unwrap_or_default()
}

/// An absolute target below `root` as seen from the link itself; `None` if it is none or not plain.
#[must_use]
pub fn rebase_link(target: &[u8], link_name: &[u8], root: &str) -> Option<Vec<u8>> {
    let names = plain_names(target, root.as_bytes())?;
    let depth = EntryPath::new(link_name).parent().names().count();
    let climb = std::iter::repeat_n(&b".."[..], depth);
    Some(climb.chain(names).collect::<Vec<_>>().join(&b'/'))
}

/// Whether the archive itself makes everything that a rebased target walks through, so that what
/// is in the destination already cannot lead it elsewhere.
pub(super) fn archive_makes_way(
    tree: &LinkTree,
    target: &[u8],
    link: &EntryPath,
    root: &str,
) -> bool {
    let Some(names) = plain_names(target, root.as_bytes()) else { return false };
    let leaf = EntryPath::new(&names.join(&b'/'));
    let folders = |mut path: EntryPath| {
        while !path.is_root() {
            if tree.kind(&path) != Some(TarKind::Dir) {
                return false;
            }
            path = path.parent();
        }
        true
    };
    folders(link.parent()) && folders(leaf.parent()) && tree.kind(&leaf) == Some(TarKind::File)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebases_plain_targets_only() {
        let rebase = |target: &str, link: &str, root: &str| {
            let rebased = rebase_link(target.as_bytes(), link.as_bytes(), root)?;
            String::from_utf8(rebased).ok()
        };
        assert_eq!(rebase("/ws/sub/data", "sub/up", "/ws").as_deref(), Some("../sub/data"));
        assert_eq!(rebase("//ws//a//b", "l", "ws/").as_deref(), Some("a/b"));
        for target in ["/ws", "/ws/", "/ws2/a", "/ws/a/", "/ws/./a", "/ws/a/../b", "a", "/etc"] {
            assert_eq!(rebase(target, "l", "/ws"), None, "{target}");
        }
    }
}
