//! A whole tree in memory, by path.

use std::collections::{BTreeMap, HashMap};

use bastide_proto::files::FileTime;
use bastide_proto::tree::Attributes;
use serde_bytes::ByteBuf;

use crate::Result;
use crate::snapshot::store::errors::damaged;
use crate::snapshot::store::tree::{Content, Entry, FilePart, Kind, TreeReader};

/// The names that lead to an entry from the top. In their order a folder comes before what is in it,
/// as in a list.
pub(crate) type TreePath = Vec<Vec<u8>>;

/// A path as text.
pub(crate) fn shown(path: &TreePath) -> String {
    match path.is_empty() {
        true => ".".to_owned(),
        false => String::from_utf8_lossy(&path.join(&b'/')).into_owned(),
    }
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: FileTime,
    pub(crate) attributes: Attributes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Dir,
    File {
        size: u64,
        file_parts: Vec<FilePart>,
        /// The first of its names, where it has several in this tree.
        group: Option<TreePath>,
    },
    Symlink {
        target: ByteBuf,
    },
    Fifo,
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == NodeKind::Dir
    }

    pub(crate) fn group(&self) -> Option<&TreePath> {
        match &self.kind {
            NodeKind::File { group, .. } => group.as_ref(),
            _ => None,
        }
    }

    /// Its size, if it is a file.
    pub(crate) fn size(&self) -> Option<u64> {
        match &self.kind {
            NodeKind::File { size, .. } => Some(*size),
            _ => None,
        }
    }

    /// Whether both are the same to whoever looks: the time of a folder changes with what is in it.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match self.is_dir() && other.is_dir() {
            true => self == &Self { modified: self.modified, ..other.clone() },
            false => self == other,
        }
    }
}

/// A difference between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: TreePath,
    pub(crate) before: Option<Node>,
    pub(crate) after: Option<Node>,
}

/// A tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileTree(pub(crate) BTreeMap<TreePath, Node>);

impl FileTree {
    /// Reads a list.
    pub(super) fn read<C: Content>(mut list: TreeReader<C>) -> Result<Self> {
        let mut nodes = BTreeMap::new();
        let mut shared: HashMap<u64, TreePath> = HashMap::new();
        let mut names: HashMap<TreePath, u64> = HashMap::new();
        let mut number = 0;
        while let Some(entry) = list.next()? {
            let path = list.names().to_vec();
            let Entry { kind, mode, uid, gid, modified, attributes, .. } = entry;
            let mut node = Node { kind: NodeKind::Dir, mode, uid, gid, modified, attributes };
            node.kind = match kind {
                Kind::Dir => NodeKind::Dir,
                Kind::Symlink { target } => NodeKind::Symlink { target },
                Kind::Fifo => NodeKind::Fifo,
                Kind::File { size, shared: is_shared, file_parts } => {
                    if is_shared {
                        shared.insert(number, path.clone());
                        names.insert(path.clone(), 1);
                    }
                    let group = is_shared.then(|| path.clone());
                    NodeKind::File { size, file_parts, group }
                }
                Kind::Link { entry } => {
                    let first = shared.get(&entry).ok_or_else(|| damaged("a link to no file"))?;
                    *names.entry(first.clone()).or_default() += 1;
                    let linked: Option<&Node> = nodes.get(first);
                    node = linked.cloned().ok_or_else(|| damaged("a link to no file"))?;
                    node.kind.clone()
                }
            };
            nodes.insert(path, node);
            number += 1;
        }
        let mut tree = Self(nodes);
        tree.ungroup(|group| names.get(group).is_some_and(|count| *count > 1));
        Ok(tree)
    }

    /// Takes files apart that have only one name.
    fn ungroup(&mut self, is_group: impl Fn(&TreePath) -> bool) {
        for node in self.0.values_mut() {
            if let NodeKind::File { group, .. } = &mut node.kind
                && group.as_ref().is_some_and(|first| !is_group(first))
            {
                *group = None;
            }
        }
    }

    pub(crate) fn get(&self, path: &TreePath) -> Option<&Node> {
        self.0.get(path)
    }

    /// The entries of a list of this tree, but those that are not wanted.
    pub(crate) fn entries(&self, is_wanted: impl Fn(&TreePath) -> bool) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        // The number of the first entry of each group, and what it is.
        let mut first: HashMap<&TreePath, (usize, &Node)> = HashMap::new();
        for (path, node) in self.0.iter().filter(|(path, _)| is_wanted(path)) {
            let number = entries.len();
            let kind = match &node.kind {
                NodeKind::Dir => Kind::Dir,
                NodeKind::Symlink { target } => Kind::Symlink { target: target.clone() },
                NodeKind::Fifo => Kind::Fifo,
                NodeKind::File { size, file_parts, group } => {
                    let known = group.as_ref().and_then(|group| first.get(group));
                    match known {
                        Some((entry, same)) if *same == node => {
                            Kind::Link { entry: u64::try_from(*entry).unwrap_or(u64::MAX) }
                        }
                        _ => {
                            if let Some(group) = group {
                                first.insert(group, (number, node));
                            }
                            let (size, file_parts) = (*size, file_parts.clone());
                            Kind::File { size, shared: group.is_some(), file_parts }
                        }
                    }
                }
            };
            entries.push(Entry {
                depth: u32::try_from(path.len()).unwrap_or(u32::MAX),
                name: path.last().cloned().map(ByteBuf::from).unwrap_or_default(),
                kind,
                mode: node.mode,
                uid: node.uid,
                gid: node.gid,
                modified: node.modified,
                attributes: node.attributes.clone(),
            });
        }
        entries
    }

    /// Everything that is different in another tree, by path.
    pub(crate) fn changes_to(&self, other: &Self) -> Vec<Change> {
        self.differing(other, |one, two| one.is_like(two))
            .into_iter()
            .map(|path| {
                let (before, after) = (self.get(&path).cloned(), other.get(&path).cloned());
                Change { path, before, after }
            })
            .collect()
    }

    /// The paths at which the trees are not the same.
    pub(super) fn differing(
        &self,
        other: &Self,
        same: impl Fn(&Node, &Node) -> bool,
    ) -> Vec<TreePath> {
        let mut paths = Vec::new();
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return paths,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((one, _)), Some((two, _))) => one.cmp(two),
            };
            match order {
                std::cmp::Ordering::Less => paths.extend(left.next().map(|(path, _)| path.clone())),
                std::cmp::Ordering::Greater => {
                    paths.extend(right.next().map(|(path, _)| path.clone()));
                }
                std::cmp::Ordering::Equal => {
                    if let (Some((path, one)), Some((_, two))) = (left.next(), right.next())
                        && !same(one, two)
                    {
                        paths.push(path.clone());
                    }
                }
            }
        }
    }

    /// A path that lies in no folder, if there is one: no tree is like that.
    pub(crate) fn stray(&self) -> Option<&TreePath> {
        self.0.keys().find(|path| {
            let parent = path.split_last().map(|(_, above)| above.to_vec());
            parent.is_some_and(|parent| !self.get(&parent).is_some_and(Node::is_dir))
        })
    }

    /// Everything at and below a path.
    pub(crate) fn below<'a>(
        &'a self,
        top: &'a TreePath,
    ) -> impl Iterator<Item = (&'a TreePath, &'a Node)> {
        self.0.range(top.clone()..).take_while(move |(path, _)| path.starts_with(top))
    }
}
