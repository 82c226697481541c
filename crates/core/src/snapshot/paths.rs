//! What lies at the paths of an archive: one node for each name, so that deep paths cost what they weigh and
//! not its square.

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;

use bastide_archive::bounds::implies_too_much;

/// A place in a [`PathTree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(u32);

/// Things by their paths.
#[derive(Debug)]
pub(crate) struct PathTree<T> {
    nodes: Vec<PathNode<T>>,
    /// How many nodes hold something.
    held: usize,
}

#[derive(Debug)]
struct PathNode<T> {
    parent: NodeId,
    name: Arc<[u8]>,
    below: BTreeMap<Arc<[u8]>, NodeId>,
    value: Option<T>,
}

/// Something that was come by on a [walk](PathTree::walk).
#[derive(Debug)]
pub(crate) struct PathVisit<'a, T> {
    /// How many names lead there.
    pub(crate) depth: usize,
    pub(crate) name: &'a [u8],
    pub(crate) place: NodeId,
    pub(crate) value: Option<&'a T>,
    /// Whether anything lies below.
    pub(crate) is_above: bool,
}

impl<T> Default for PathTree<T> {
    fn default() -> Self {
        let name: Arc<[u8]> = Arc::from(&b""[..]);
        let top = PathNode { parent: NodeId(0), name, below: BTreeMap::new(), value: None };
        Self { nodes: vec![top], held: 0 }
    }
}

impl<T> PathTree<T> {
    fn node(&self, place: NodeId) -> Option<&PathNode<T>> {
        self.nodes.get(usize::try_from(place.0).ok()?)
    }

    fn node_mut(&mut self, place: NodeId) -> Option<&mut PathNode<T>> {
        self.nodes.get_mut(usize::try_from(place.0).ok()?)
    }

    /// The place of a path, if there is one.
    pub(crate) fn find(&self, names: &[Vec<u8>]) -> Option<NodeId> {
        let mut at = NodeId(0);
        for name in names {
            at = *self.node(at)?.below.get(name.as_slice())?;
        }
        Some(at)
    }

    /// The place of a path, which is made if there is none. `None` if there are too many that hold nothing.
    pub(crate) fn reach(&mut self, names: &[Vec<u8>]) -> Option<NodeId> {
        let mut at = NodeId(0);
        for name in names {
            if let Some(below) = self.node(at)?.below.get(name.as_slice()) {
                at = *below;
                continue;
            }
            if implies_too_much(self.nodes.len(), self.held) {
                return None;
            }
            let next = NodeId(u32::try_from(self.nodes.len()).ok()?);
            let name: Arc<[u8]> = Arc::from(name.as_slice());
            self.node_mut(at)?.below.insert(Arc::clone(&name), next);
            self.nodes.push(PathNode { parent: at, name, below: BTreeMap::new(), value: None });
            at = next;
        }
        Some(at)
    }

    /// What is in a place.
    pub(crate) fn get(&self, place: NodeId) -> Option<&T> {
        self.node(place)?.value.as_ref()
    }

    /// Puts something in a place.
    pub(crate) fn put(&mut self, place: NodeId, value: T) {
        let Some(node) = self.node_mut(place) else { return };
        let is_new = node.value.replace(value).is_none();
        self.held += usize::from(is_new);
    }

    /// Whether anything lies below a place.
    pub(crate) fn is_above(&self, place: NodeId) -> bool {
        self.node(place).is_some_and(|node| !node.below.is_empty())
    }

    /// The places above one, the nearest first.
    pub(crate) fn above(&self, place: NodeId) -> impl Iterator<Item = NodeId> {
        let parent = |place: &NodeId| (place.0 != 0).then(|| self.node(*place)).flatten();
        std::iter::successors(parent(&place).map(|node| node.parent), move |place| {
            parent(place).map(|node| node.parent)
        })
    }

    /// The names that lead to a place.
    pub(crate) fn names(&self, place: NodeId) -> Vec<Vec<u8>> {
        let places = std::iter::once(place).chain(self.above(place));
        let named = places.filter(|place| place.0 != 0).filter_map(|place| self.node(place));
        let mut names: Vec<Vec<u8>> = named.map(|node| node.name.to_vec()).collect();
        names.reverse();
        names
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Goes through all places: one, then those in it by name, each with all below it.
    pub(crate) fn walk(&self) -> Walk<'_, T> {
        Walk { tree: self, levels: Vec::new(), has_begun: false }
    }
}

/// Goes through all places of a tree.
#[derive(Debug)]
pub(crate) struct Walk<'a, T> {
    tree: &'a PathTree<T>,
    levels: Vec<btree_map::Iter<'a, Arc<[u8]>, NodeId>>,
    has_begun: bool,
}

impl<'a, T> Iterator for Walk<'a, T> {
    type Item = PathVisit<'a, T>;

    fn next(&mut self) -> Option<PathVisit<'a, T>> {
        let place = loop {
            if !self.has_begun {
                self.has_begun = true;
                break NodeId(0);
            }
            match self.levels.last_mut()?.next() {
                Some((_, place)) => break *place,
                None => drop(self.levels.pop()),
            }
        };
        let node = self.tree.node(place)?;
        let depth = self.levels.len();
        self.levels.push(node.below.iter());
        let (value, is_above) = (node.value.as_ref(), !node.below.is_empty());
        Some(PathVisit { depth, name: &node.name, place, value, is_above })
    }
}

#[cfg(test)]
mod tests {
    use bastide_archive::bounds::{MAX_DEPTH, MAX_IMPLIED};

    use super::*;

    fn names(path: &str) -> Vec<Vec<u8>> {
        path.split('/').filter(|name| !name.is_empty()).map(|name| name.into()).collect()
    }

    #[test]
    fn walks_in_the_order_of_names() {
        let mut tree = PathTree::default();
        for path in ["b", "a/z", "a!", "a/b/c"] {
            let place = tree.reach(&names(path)).unwrap();
            tree.put(place, path);
            assert_eq!(tree.names(place), names(path));
        }
        let walked: Vec<_> = tree.walk().map(|step| (step.depth, step.name, step.value)).collect();
        let held = |text| Some(text);
        assert_eq!(
            walked,
            [
                (0, &b""[..], None),
                (1, b"a", None),
                (2, b"b", None),
                (3, b"c", held(&"a/b/c")),
                (2, b"z", held(&"a/z")),
                (1, b"a!", held(&"a!")),
                (1, b"b", held(&"b")),
            ]
        );
        let deep = tree.find(&names("a/b/c")).unwrap();
        assert_eq!(tree.above(deep).count(), 3);
        assert!(tree.find(&names("a/c")).is_none());
    }

    #[test]
    fn folders_that_nobody_names_are_bounded() {
        let mut tree = PathTree::<()>::default();
        let deep = |first: usize| -> Vec<Vec<u8>> {
            std::iter::once(first.to_string().into())
                .chain(vec![b"a".to_vec(); MAX_DEPTH - 1])
                .collect()
        };
        let reached = (0..).take_while(|first| tree.reach(&deep(*first)).is_some()).count();
        assert!(reached <= MAX_IMPLIED / MAX_DEPTH + 1, "{reached}");
    }

    #[test]
    fn archives_may_be_as_deep_as_trees() {
        assert_eq!(MAX_DEPTH, bastide_proto::tree::MAX_DEPTH);
    }
}
