//! The tree of a description: names, and how they are drawn.
//!
//! A path can have many thousand names, so nothing here recurses, and lines that will be cut off
//! are measured, not written.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::walk::coerce_rel_path;
use crate::Result;
use crate::entry::Entry;
use crate::posix_path::PosixPath;

/// Names below the root; the first node is the root itself.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    nodes: Vec<NameNode<'a>>,
}

#[derive(Debug, Default)]
struct NameNode<'a> {
    /// The nodes below, by name.
    children: BTreeMap<String, usize>,
    description: Option<&'a str>,
    is_dir: bool,
    /// Where it really is, if that is not where it hangs in the tree.
    full_path: Option<String>,
}

impl NameNode<'_> {
    fn slash(&self) -> &'static str {
        if self.is_dir || !self.children.is_empty() { "/" } else { "" }
    }
}

impl Default for Tree<'_> {
    fn default() -> Self {
        Self { nodes: vec![NameNode::default()] }
    }
}

impl<'a> Tree<'a> {
    /// Inserts an entry and all that is in it. Where two entries have the same path, the
    /// reference's order decides whose description is shown: it takes the last child first.
    pub(super) fn insert_entry(
        &mut self,
        path: PosixPath,
        entry: &'a Entry,
        full_path: Option<PosixPath>,
        depth: Option<usize>,
    ) -> Result<()> {
        let mut full_path = full_path;
        let mut waiting = vec![(Rc::new(PosixPath::default()), path, entry)];
        while let Some((folder, path, entry)) = waiting.pop() {
            let path = Rc::new(folder.join(&path));
            self.insert(&path, entry, full_path.take(), depth);
            if depth.is_some_and(|depth| path.depth() >= depth) {
                continue;
            }
            for (key, child) in entry.children().into_iter().flatten() {
                waiting.push((Rc::clone(&path), coerce_rel_path(key)?, child));
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        path: &PosixPath,
        entry: &'a Entry,
        full_path: Option<PosixPath>,
        depth: Option<usize>,
    ) {
        let length = path.names().count();
        if length == 0 {
            return;
        }
        let shown = depth.map_or(length, |depth| depth.min(length));
        let mut at = 0;
        for (index, name) in path.names().take(shown).enumerate() {
            let next = self.nodes.len();
            at = *self.nodes[at].children.entry(name.to_owned()).or_insert(next);
            if at == next {
                self.nodes.push(NameNode::default());
            }
            self.nodes[at].is_dir |= index + 1 < length;
        }
        if shown < length {
            return;
        }
        let node = &mut self.nodes[at];
        node.is_dir |= entry.permissions.directory;
        node.description = node.description.or(entry.description.as_deref());
        node.full_path = full_path.map(|path| path.to_string()).or(node.full_path.take());
    }

    /// Every node that is drawn, from top to bottom.
    fn lines(&self, depth: Option<usize>) -> Vec<Line<'_, 'a>> {
        let mut lines = Vec::new();
        let mut waiting = self.below(&self.nodes[0], 0);
        while let Some(line) = waiting.pop() {
            let level = line.level + 1;
            if depth.is_none_or(|depth| level < depth) {
                waiting.extend(self.below(line.node, level));
            }
            lines.push(line);
        }
        lines
    }

    /// The nodes below one, the last first.
    fn below<'t>(&'t self, node: &'t NameNode<'a>, level: usize) -> Vec<Line<'t, 'a>> {
        let children = node.children.iter().rev().enumerate();
        let line = |(index, (name, at)): (usize, (&'t String, &usize))| Line {
            name,
            node: &self.nodes[*at],
            level,
            is_last: index == 0,
        };
        children.map(line).collect()
    }
}

/// A node that is drawn.
struct Line<'t, 'a> {
    name: &'t str,
    node: &'t NameNode<'a>,
    /// How many nodes hang between it and the root.
    level: usize,
    /// Whether nothing hangs below it from the same node.
    is_last: bool,
}

/// How many characters the connectors of one level take.
const INDENT: usize = 4;

fn chars(text: &str) -> usize {
    text.chars().count()
}

impl Line<'_, '_> {
    /// The width of the connectors and the name.
    fn width(&self) -> usize {
        INDENT * (self.level + 1) + chars(self.name) + self.node.slash().len()
    }

    /// What follows the path, if there is something to say.
    fn remark(&self) -> String {
        match self.node.description {
            None | Some("") => "\n".to_owned(),
            Some(description) => format!(" — {description}\n"),
        }
    }
}

/// A tree that has been measured, ready to be written.
pub(super) struct Drawing<'t, 'a> {
    title: &'t str,
    /// What every path begins with.
    base: String,
    lines: Vec<Line<'t, 'a>>,
    /// The width of the widest line, before its path.
    width: usize,
    /// The length of the whole text in characters.
    pub(super) length: usize,
}

impl<'t, 'a> Drawing<'t, 'a> {
    pub(super) fn new(
        title: &'t str,
        root: &PosixPath,
        tree: &'t Tree<'a>,
        depth: Option<usize>,
    ) -> Self {
        let base = match root.to_string() {
            dot if dot == "." => String::new(),
            root if root.ends_with('/') => root,
            root => root + "/",
        };
        let lines = tree.lines(depth);
        let width = lines.iter().map(Line::width).max().unwrap_or(0);
        let mut drawing = Self { title, base, lines, width, length: chars(title) + 1 };
        drawing.length += drawing.measure();
        drawing
    }

    /// The length of all lines in characters.
    fn measure(&self) -> usize {
        let gap_and_mark = 2 + chars("# ");
        let mut above: Vec<usize> = Vec::new();
        let mut total = 0;
        for line in &self.lines {
            above.truncate(line.level);
            let folder = above.last().copied().unwrap_or_else(|| chars(&self.base));
            let path = folder + chars(line.name);
            above.push(path + 1);
            let shown = line.node.full_path.as_deref().map_or(path, chars);
            total += self.width + gap_and_mark + shown + chars(&line.remark());
        }
        total
    }

    /// The text, or as many lines of it as it takes to fill `max_chars`.
    pub(super) fn write(&self, max_chars: Option<i64>) -> String {
        let enough = max_chars.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        let mut out = format!("{}\n", self.title);
        let mut written = chars(&out);
        let mut above: Vec<&Line<'_, '_>> = Vec::new();
        for line in &self.lines {
            if written >= enough {
                break;
            }
            above.truncate(line.level);
            let text = self.line(line, &above);
            written += chars(&text);
            out.push_str(&text);
            above.push(line);
        }
        out
    }

    fn line(&self, line: &Line<'_, '_>, above: &[&Line<'_, '_>]) -> String {
        let indent = |line: &&Line<'_, '_>| if line.is_last { "    " } else { "│   " };
        let prefix: String = above.iter().map(indent).collect();
        let connector = if line.is_last { "└── " } else { "├── " };
        let gap = " ".repeat(self.width - line.width() + 2);
        let path = line.node.full_path.clone().unwrap_or_else(|| {
            let folders: String = above.iter().map(|line| format!("{}/", line.name)).collect();
            format!("{}{folders}{}", self.base, line.name)
        });
        let (name, slash, remark) = (line.name, line.node.slash(), line.remark());
        format!("{prefix}{connector}{name}{slash}{gap}# {path}{remark}")
    }
}
