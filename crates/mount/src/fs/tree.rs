//! The nodes that the kernel knows, by the numbers it knows them by.
//!
//! Numbers are written down before the kernel gets them, so that another process can go on after
//! this one was killed: no handshake comes then, and requests name nodes of before.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::FileNode;

/// The folder that is mounted.
pub(super) const ROOT: u64 = 1;
/// A node of before, whose lookups nobody counted: it stays.
const FOR_GOOD: u64 = u64::MAX / 2;
/// How long the table may grow before it is written anew.
const MAX_LOG: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: u64,
    pub(super) name: Arc<str>,
    /// None of a folder.
    pub(super) file: Option<Arc<FileNode>>,
    lookups: u64,
    children: u64,
    linked: bool,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    names: HashMap<(u64, Arc<str>), u64>,
    next: u64,
    log: NodeLog,
}

impl Tree {
    /// An empty tree whose table is at `path`, or the one that is there.
    pub(super) fn open(path: &Path, resume: bool) -> io::Result<Self> {
        let mut tree = Self {
            nodes: HashMap::new(),
            names: HashMap::new(),
            next: ROOT + 1,
            log: NodeLog::open(path, resume)?,
        };
        let root = Node {
            parent: ROOT,
            name: "".into(),
            file: None,
            lookups: FOR_GOOD,
            children: 0,
            linked: true,
        };
        tree.nodes.insert(ROOT, root);
        if resume {
            for record in NodeLog::read(path)? {
                tree.remember(record);
            }
        }
        Ok(tree)
    }

    /// Takes a line of the table over; a later one about the same node replaces it.
    fn remember(&mut self, (id, parent, name, folder): NodeRecord) {
        self.detach(id);
        let name: Arc<str> = name.into();
        let file = (!folder).then(|| Arc::new(FileNode::default()));
        self.attach(id, Node { parent, name, file, lookups: FOR_GOOD, children: 0, linked: true });
        self.next = self.next.max(id + 1);
    }

    fn attach(&mut self, id: u64, node: Node) {
        if let Some(before) = self.names.insert((node.parent, Arc::clone(&node.name)), id) {
            self.unlinked(before);
        }
        if let Some(parent) = self.nodes.get_mut(&node.parent) {
            parent.children += 1;
        }
        self.nodes.insert(id, node);
    }

    /// Takes a node out, wherever it is.
    fn detach(&mut self, id: u64) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        if node.linked {
            self.names.remove(&(node.parent, Arc::clone(&node.name)));
            self.one_child_less(node.parent);
        }
        Some(node)
    }

    fn one_child_less(&mut self, parent: u64) {
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children = parent.children.saturating_sub(1);
        }
    }

    fn unlinked(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.linked = false;
            let parent = node.parent;
            self.one_child_less(parent);
        }
    }

    pub(super) fn node(&self, id: u64) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(super) fn is_folder(&self, id: u64) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.file.is_none())
    }

    pub(super) fn child(&self, parent: u64, name: &str) -> Option<u64> {
        self.names.get(&(parent, Arc::from(name))).copied()
    }

    /// The node of a name, which gets one if it has none, or one of the other kind.
    pub(super) fn ensure(&mut self, parent: u64, name: &Arc<str>, folder: bool) -> u64 {
        if let Some(id) = self.names.get(&(parent, Arc::clone(name))).copied() {
            if self.is_folder(id) == folder {
                return id;
            }
            self.unlink(parent, name);
        }
        let id = self.next;
        self.next += 1;
        let file = (!folder).then(|| Arc::new(FileNode::default()));
        let name = Arc::clone(name);
        self.log.add(id, parent, &name, folder);
        self.attach(id, Node { parent, name, file, lookups: 0, children: 0, linked: true });
        id
    }

    /// The kernel is about to be told of this node once more.
    pub(super) fn looked_up(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_add(1);
        }
    }

    /// Has everything on disk that the kernel is about to be told. What a process wrote outlives it.
    pub(super) fn record(&mut self) -> io::Result<()> {
        self.log.write()?;
        if self.log.size < MAX_LOG {
            return Ok(());
        }
        let nodes = self.nodes.iter().filter(|(id, node)| **id != ROOT && node.linked);
        self.log
            .replace(nodes.map(|(id, node)| (*id, node.parent, &node.name, node.file.is_none())))
    }

    /// The kernel let go of a node; the files of nodes that nobody needs any more.
    pub(super) fn forget(&mut self, id: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        let in_use = node.file.as_ref().is_some_and(|file| file.is_in_use());
        if node.lookups == 0 && node.children == 0 && !in_use && id != ROOT {
            self.detach(id);
        }
    }

    /// Takes a name away; the node stays for whoever has it open.
    pub(super) fn unlink(&mut self, parent: u64, name: &str) -> Option<u64> {
        let id = self.names.remove(&(parent, Arc::from(name)))?;
        self.unlinked(id);
        Some(id)
    }

    /// Gives a node another name, and takes that from whatever has it.
    pub(super) fn rename(&mut self, id: u64, parent: u64, name: &Arc<str>) {
        let Some(mut node) = self.detach(id) else { return };
        node.parent = parent;
        node.name = Arc::clone(name);
        node.linked = true;
        self.log.add(id, parent, name, node.file.is_none());
        self.attach(id, node);
    }

    /// The path of a node below the root; none once its name was taken away.
    pub(super) fn path(&self, id: u64) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = id;
        while at != ROOT {
            let node = self.nodes.get(&at).filter(|node| node.linked)?;
            parts.push(Arc::clone(&node.name));
            // A table that was tampered with could lead in a circle.
            if parts.len() > 1024 {
                return None;
            }
            at = node.parent;
        }
        parts.reverse();
        Some(parts.join("/"))
    }

    /// Files anywhere below a folder.
    pub(super) fn files_below(&self, folder: u64) -> Vec<(u64, Arc<FileNode>)> {
        let below = |id: u64| {
            let mut at = id;
            for _ in 0..1024 {
                match self.nodes.get(&at) {
                    Some(node) if node.parent == folder => return true,
                    Some(node) if at != ROOT => at = node.parent,
                    _ => return false,
                }
            }
            false
        };
        let files = self.nodes.iter().filter_map(|(id, node)| Some((*id, node.file.clone()?)));
        files.filter(|(id, _)| below(*id)).collect()
    }
}

/// Node, parent, name, whether it is a folder.
type NodeRecord = (u64, u64, String, bool);

/// The table on disk: one line for each node, and one more when it gets another name.
#[derive(Debug)]
struct NodeLog {
    path: PathBuf,
    file: File,
    waiting: Vec<u8>,
    size: u64,
}

impl NodeLog {
    fn open(path: &Path, resume: bool) -> io::Result<Self> {
        let mut options = File::options();
        options.create(true).mode(0o600);
        let file = if resume {
            options.append(true).open(path)?
        } else {
            options.write(true).truncate(true).open(path)?
        };
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, waiting: Vec::new(), size })
    }

    fn read(path: &Path) -> io::Result<Vec<NodeRecord>> {
        let mut records = Vec::new();
        for line in BufReader::new(File::open(path)?).split(b'\n') {
            // A line that was cut short was told to nobody.
            if let Ok(record) = serde_json::from_slice(&line?) {
                records.push(record);
            }
        }
        Ok(records)
    }

    fn add(&mut self, id: u64, parent: u64, name: &str, folder: bool) {
        // Writing numbers and text to memory does not fail.
        drop(serde_json::to_writer(&mut self.waiting, &(id, parent, name, folder)));
        self.waiting.push(b'\n');
    }

    fn write(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.file.write_all(&self.waiting)?;
        self.size += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    fn replace<'a>(
        &mut self,
        nodes: impl Iterator<Item = (u64, u64, &'a Arc<str>, bool)>,
    ) -> io::Result<()> {
        let path = self.path.with_extension("new");
        let mut shorter = Self::open(&path, false)?;
        for (id, parent, name, folder) in nodes {
            shorter.add(id, parent, name, folder);
            if shorter.waiting.len() > 1 << 16 {
                shorter.write()?;
            }
        }
        shorter.write()?;
        fs::rename(&path, &self.path)?;
        shorter.path = std::mem::take(&mut self.path);
        *self = shorter;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn another_process_knows_the_nodes_of_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes");
        let mut tree = Tree::open(&path, false).unwrap();
        let a = tree.ensure(ROOT, &name("a"), true);
        let b = tree.ensure(a, &name("b\n\"x"), false);
        let c = tree.ensure(a, &name("c"), false);
        tree.rename(c, ROOT, &name("d"));
        tree.record().unwrap();
        // Killed while it wrote.
        let mut torn = File::options().append(true).open(&path).unwrap();
        torn.write_all(b"[99,1,\"to").unwrap();

        let mut again = Tree::open(&path, true).unwrap();
        assert_eq!(again.path(b).as_deref(), Some("a/b\n\"x"));
        assert_eq!(again.path(c).as_deref(), Some("d"));
        assert!(again.is_folder(a) && again.node(99).is_none());
        assert!(again.ensure(ROOT, &name("new"), false) > c);
        again.forget(b, 1);
        assert!(again.node(b).is_some(), "nobody knows how often it was looked up");
    }

    #[test]
    fn lets_go_of_what_the_kernel_forgot() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(&folder.path().join("nodes"), false).unwrap();
        let a = tree.ensure(ROOT, &name("a"), true);
        let b = tree.ensure(a, &name("b"), false);
        tree.looked_up(a);
        tree.looked_up(b);
        tree.looked_up(b);
        tree.forget(a, 1);
        assert!(tree.node(a).is_some(), "b is in it");
        tree.forget(b, 2);
        assert!(tree.node(b).is_none() && tree.child(a, "b").is_none());
    }

    #[test]
    fn a_name_that_is_taken_loses_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(&folder.path().join("nodes"), false).unwrap();
        let a = tree.ensure(ROOT, &name("a"), false);
        let b = tree.ensure(ROOT, &name("b"), false);
        tree.rename(a, ROOT, &name("b"));
        assert_eq!(tree.child(ROOT, "b"), Some(a));
        assert_eq!((tree.path(a).as_deref(), tree.path(b)), (Some("b"), None));
    }
}
