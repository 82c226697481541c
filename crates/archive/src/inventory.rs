//! Every place an archive writes to, and which of them are in each other's way.

use std::collections::HashMap;

use super::EntryPath;
use super::bounds::{MAX_RETAINED, implies_too_much};

/// What an archive puts in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberKind {
    Dir,
    File,
    Link,
}

/// A place of the archive under a member that is no folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nested {
    /// The member that is below.
    pub(crate) member: Vec<u8>,
    /// What it is below of.
    pub(crate) above: EntryPath,
    pub(crate) above_is: MemberKind,
}

const ROOT: usize = 0;

/// The members seen so far, as a tree of names: one node per name, so that deep paths cost what
/// they weigh and not its square.
#[derive(Debug)]
pub(crate) struct Inventory {
    children: HashMap<(usize, Box<[u8]>), usize>,
    nodes: Vec<NameNode>,
    members: Vec<(usize, Box<[u8]>)>,
    /// How many bytes the names of members have.
    retained: u64,
}

#[derive(Debug)]
struct NameNode {
    parent: usize,
    name: Box<[u8]>,
    occupant: Option<MemberKind>,
    /// The first member below.
    first_below: Option<usize>,
}

/// Why a member cannot be added.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathConflict {
    /// Its place is taken, and not by a folder that it names again.
    Taken,
    /// There are more names than any real archive has.
    TooMany,
}

impl Default for Inventory {
    fn default() -> Self {
        let root =
            NameNode { parent: ROOT, name: Box::default(), occupant: None, first_below: None };
        Self { children: HashMap::new(), nodes: vec![root], members: Vec::new(), retained: 0 }
    }
}

impl Inventory {
    /// Adds a member, unless its place is taken.
    pub(crate) fn add(
        &mut self,
        member: &[u8],
        path: &EntryPath,
        occupant: MemberKind,
    ) -> Result<(), PathConflict> {
        let mut at = ROOT;
        for name in path.names() {
            at = self.child(at, name).ok_or(PathConflict::TooMany)?;
        }
        let node = self.nodes.get_mut(at).ok_or(PathConflict::TooMany)?;
        match (node.occupant, occupant) {
            (None, _) | (Some(MemberKind::Dir), MemberKind::Dir) => {}
            _ => return Err(PathConflict::Taken),
        }
        node.occupant = Some(occupant);
        self.retained += u64::try_from(member.len()).unwrap_or(u64::MAX);
        if self.retained > MAX_RETAINED {
            return Err(PathConflict::TooMany);
        }
        self.members.push((at, member.into()));
        Ok(())
    }

    /// Whether the member added last is below something that is no folder, or an earlier one is
    /// below it. To be asked after every member, or not at all.
    pub(crate) fn last_is_nested(&mut self) -> Option<Nested> {
        let index = self.members.len().checked_sub(1)?;
        let (at, _) = self.members.get(index)?;
        let at = *at;
        if let Some(nested) = self.above(at, index) {
            return Some(nested);
        }
        let node = self.nodes.get(at)?;
        if let (Some(below), Some(occupant)) = (node.first_below, node.occupant)
            && occupant != MemberKind::Dir
        {
            return self.nested(below, at, occupant);
        }
        // Where one ancestor knows of a member below, so do all above it.
        let mut ancestor = node.parent;
        while ancestor != ROOT {
            let node = self.nodes.get_mut(ancestor)?;
            if node.first_below.is_some() {
                break;
            }
            node.first_below = Some(index);
            ancestor = node.parent;
        }
        None
    }

    /// The first member, in the archive's order, below something that is no folder.
    pub(crate) fn first_nested(&self) -> Option<Nested> {
        let members = self.members.iter().enumerate();
        members.into_iter().find_map(|(index, (at, _))| self.above(*at, index))
    }

    /// The nearest non-folder above a place.
    fn above(&self, at: usize, member: usize) -> Option<Nested> {
        let mut at = self.nodes.get(at)?.parent;
        while at != ROOT {
            let node = self.nodes.get(at)?;
            if let Some(occupant) = node.occupant
                && occupant != MemberKind::Dir
            {
                return self.nested(member, at, occupant);
            }
            at = node.parent;
        }
        None
    }

    fn nested(&self, member: usize, above: usize, above_is: MemberKind) -> Option<Nested> {
        let (_, member) = self.members.get(member)?;
        Some(Nested { member: member.to_vec(), above: self.path(above)?, above_is })
    }

    fn path(&self, mut at: usize) -> Option<EntryPath> {
        let mut names = Vec::new();
        while at != ROOT {
            let node = self.nodes.get(at)?;
            names.push(&*node.name);
            at = node.parent;
        }
        names.reverse();
        Some(EntryPath::new(&names.join(&b'/')))
    }

    fn child(&mut self, parent: usize, name: &[u8]) -> Option<usize> {
        let key = (parent, Box::from(name));
        if let Some(child) = self.children.get(&key) {
            return Some(*child);
        }
        let child = self.nodes.len();
        if implies_too_much(child, self.members.len()) {
            return None;
        }
        let name = key.1.clone();
        self.nodes.push(NameNode { parent, name, occupant: None, first_below: None });
        self.children.insert(key, child);
        Some(child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> EntryPath {
        EntryPath::new(text.as_bytes())
    }

    #[test]
    fn a_place_is_taken_once_unless_by_folders() {
        let mut inventory = Inventory::default();
        let mut add = |name: &str, occupant| inventory.add(name.as_bytes(), &path(name), occupant);
        assert_eq!(add("a", MemberKind::Dir), Ok(()));
        assert_eq!(add("./a", MemberKind::Dir), Ok(()));
        assert_eq!(add("a", MemberKind::File), Err(PathConflict::Taken));
        assert_eq!(add("a/b", MemberKind::Link), Ok(()));
        assert_eq!(add("a//b", MemberKind::Link), Err(PathConflict::Taken));
    }

    #[test]
    fn finds_the_first_nested_member_in_either_order() {
        let mut inventory = Inventory::default();
        for (name, occupant) in
            [("x/y/z", MemberKind::File), ("x/w", MemberKind::File), ("x", MemberKind::Link)]
        {
            inventory.add(name.as_bytes(), &path(name), occupant).unwrap();
        }
        let nested =
            Nested { member: b"x/y/z".to_vec(), above: path("x"), above_is: MemberKind::Link };
        assert_eq!(inventory.first_nested(), Some(nested));
    }

    #[test]
    fn finds_nesting_as_members_come() {
        let mut inventory = Inventory::default();
        let mut add = |name: &str, occupant| {
            inventory.add(name.as_bytes(), &path(name), occupant).unwrap();
            inventory.last_is_nested()
        };
        assert_eq!(add("a/b/c", MemberKind::File), None);
        assert_eq!(add("a/b", MemberKind::Dir), None);
        let nested =
            Nested { member: b"a/b/c".to_vec(), above: path("a"), above_is: MemberKind::File };
        assert_eq!(add("a", MemberKind::File), Some(nested));
    }
}
