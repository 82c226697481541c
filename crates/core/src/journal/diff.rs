//! What is different between two points.

use super::context::JournalContext;
use super::file::Journal;
use super::lines;
use super::names;
use super::transition::tree_path;
use crate::snapshot::store::points::{Change, Node, NodeKind, OpenPoint, TreePath, shown};
use crate::{Error, ErrorKind, Result};

/// The longest file whose lines are compared.
const MAX_TEXT: u64 = 1 << 20;

/// How many files are compared line by line.
const MAX_TEXTS: usize = 2000;

/// How something is different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its content is different, or it is something else now.
    Changed,
    /// Only its permissions, owner, times or attributes are different.
    Attributes,
    /// It is gone.
    Removed,
}

impl ChangeKind {
    /// The word programs see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Attributes => "attributes",
            Self::Removed => "removed",
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileDiff {
    /// The path from the workspace on.
    pub path: String,
    /// How it is different.
    pub kind: ChangeKind,
    /// What it is or was: `file`, `folder`, `link` or `pipe`.
    pub what: &'static str,
    /// How many bytes the file had before.
    pub size_before: Option<u64>,
    /// How many bytes the file has after.
    pub size_after: Option<u64>,
    /// The permissions before and after, if they differ.
    pub modes: Option<(u32, u32)>,
    /// How many lines are new, if it is text.
    pub lines_added: Option<u64>,
    /// How many lines are gone, if it is text.
    pub lines_removed: Option<u64>,
    /// The difference as `diff -u` writes it, if it was asked for and is text.
    pub text: Option<String>,
}

/// All differences.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiffReport {
    /// What is compared: the earlier one.
    pub from: String,
    /// The later one.
    pub to: String,
    /// The differences, by path.
    pub files: Vec<FileDiff>,
}

impl JournalContext {
    /// Compares two points, or a point with what is there now. Without a range: what an undo would take
    /// back.
    pub(crate) async fn diff(&self, range: Option<&str>, path: Option<&str>) -> Result<DiffReport> {
        let path = path.map(tree_path).transpose()?.unwrap_or_default();
        let (_lock, mut journal) = self.locked().await?;
        let Some(range) = range else {
            let (now, from, title) = self.undoable(&journal).await?;
            self.commit(&mut journal)?;
            return report(title, "now".to_owned(), from, now, path).await;
        };
        let (from, to) = names::range(&journal, range)?;
        let earlier = self.open(&from.tree, &from.title).await?;
        let (later, title) = match &to {
            Some(to) => (self.open(&to.tree, &to.title).await?, to.title.clone()),
            None => {
                let (saved, ..) = self.save().await?;
                let now = self.open(&saved.fingerprint, "the workspace").await?;
                // It is no point: nothing needs it any more.
                self.commit(&mut journal)?;
                (now, "now".to_owned())
            }
        };
        report(from.title, title, earlier, later, path).await
    }

    /// What the workspace is now, what an undo would make of it, and what that is called. Without anything to undo, the
    /// beginning.
    async fn undoable(&self, journal: &Journal) -> Result<(OpenPoint, OpenPoint, String)> {
        if journal.points.is_empty() {
            names::find(journal, "0")?;
        }
        let (saved, ..) = self.save().await?;
        let now = self.open(&saved.fingerprint, "the workspace").await?;
        let Ok(index) = self.step_back(journal, &saved, 1) else {
            let first = names::find(journal, "0")?;
            return Ok((now, self.open(&first.tree, &first.title).await?, first.title));
        };
        let point = &journal.points[index];
        let title = match point.kind {
            super::PointKind::Checkpoint => point.title(),
            _ => format!("before {}", point.title()),
        };
        // Where an undo would be refused, all that is different is shown.
        let reverted = match self.in_place {
            true => self.reverted(journal, &now, index, 0).await.ok(),
            false => None,
        };
        let tree = reverted.as_ref().unwrap_or(&point.before);
        let from = self.open(tree, &title).await?;
        Ok((now, from, title))
    }
}

async fn report(
    from: String,
    to: String,
    earlier: OpenPoint,
    later: OpenPoint,
    path: TreePath,
) -> Result<DiffReport> {
    if earlier.tree.get(&path).is_none() && later.tree.get(&path).is_none() && !path.is_empty() {
        let message = format!("there is no {} in {from}, and none in {to}", shown(&path));
        return Err(Error::new(ErrorKind::NotFound, message)
            .with_hint("write it as it is from the workspace on, such as src/main.rs"));
    }
    let compare = move || compare(&earlier, &later, &path);
    let files = tokio::task::spawn_blocking(compare).await.map_err(|error| {
        Error::new(ErrorKind::Internal, "work on a difference was lost").with_source(error)
    })??;
    Ok(DiffReport { from, to, files })
}

fn compare(from: &OpenPoint, to: &OpenPoint, path: &TreePath) -> Result<Vec<FileDiff>> {
    let changes = from.tree.changes_to(&to.tree);
    let changes = changes.into_iter().filter(|change| change.path.starts_with(path));
    let mut files = Vec::new();
    for change in changes {
        let is_counted = files.len() < MAX_TEXTS;
        let mut file = described(&change);
        if is_counted {
            compare_lines(&change, from, to, &mut file)?;
        }
        files.push(file);
    }
    Ok(files)
}

fn described(change: &Change) -> FileDiff {
    let kind = match (&change.before, &change.after) {
        (None, _) => ChangeKind::Added,
        (_, None) => ChangeKind::Removed,
        (Some(before), Some(after)) if before.kind == after.kind => ChangeKind::Attributes,
        _ => ChangeKind::Changed,
    };
    let node = change.after.as_ref().or(change.before.as_ref());
    let modes = match (&change.before, &change.after) {
        (Some(before), Some(after)) if before.mode != after.mode => Some((before.mode, after.mode)),
        _ => None,
    };
    FileDiff {
        path: shown(&change.path),
        kind,
        what: node.map_or("file", |node| match &node.kind {
            NodeKind::Dir => "folder",
            NodeKind::File { .. } => "file",
            NodeKind::Symlink { .. } => "link",
            NodeKind::Fifo => "pipe",
        }),
        size_before: change.before.as_ref().and_then(Node::size),
        size_after: change.after.as_ref().and_then(Node::size),
        modes,
        lines_added: None,
        lines_removed: None,
        text: None,
    }
}

/// Compares both contents line by line, where both are text.
fn compare_lines(
    change: &Change,
    from: &OpenPoint,
    to: &OpenPoint,
    file: &mut FileDiff,
) -> Result<()> {
    let text = |node: &Option<Node>, point: &OpenPoint| -> Result<Option<String>> {
        match node.as_ref().map(|node| &node.kind) {
            None => Ok(Some(String::new())),
            Some(NodeKind::File { file_parts, .. }) => {
                let content = point.content(file_parts, MAX_TEXT)?;
                Ok(content
                    .filter(|content| lines::is_text(content))
                    .and_then(|content| String::from_utf8(content).ok()))
            }
            Some(_) => Ok(None),
        }
    };
    let is_file = |node: &Option<Node>| node.as_ref().is_none_or(|node| node.size().is_some());
    if !is_file(&change.before) || !is_file(&change.after) {
        return Ok(());
    }
    if let (Some(before), Some(after)) = (text(&change.before, from)?, text(&change.after, to)?) {
        let (text, added, removed) = lines::unified(&before, &after);
        file.lines_added = Some(added);
        file.lines_removed = Some(removed);
        file.text = (!text.is_empty()).then(|| {
            let name = |is_there: bool, side: &str| match is_there {
                true => quoted(&format!("{side}/{}", file.path)),
                false => "/dev/null".to_owned(),
            };
            let (old, new) =
                (name(change.before.is_some(), "a"), name(change.after.is_some(), "b"));
            format!("--- {old}\n+++ {new}\n{text}")
        });
    }
    Ok(())
}

/// A name as it stands in a patch: in quotes, as git has them, where it would be taken for something else.
fn quoted(name: &str) -> String {
    let is_odd = |letter: char| letter.is_control() || matches!(letter, '"' | '\\');
    if !name.contains(is_odd) {
        return name.to_owned();
    }
    let mut text = String::from('"');
    for letter in name.chars() {
        match letter {
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '"' | '\\' => text.extend(['\\', letter]),
            letter if letter.is_control() => {
                let mut bytes = [0; 4];
                let bytes = letter.encode_utf8(&mut bytes).bytes();
                text.extend(bytes.map(|byte| format!("\\{byte:03o}")));
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_patch_are_names() {
        let cases = [
            ("a/plain name", "a/plain name"),
            ("a/ä", "a/ä"),
            ("a/new\nline\t", "\"a/new\\nline\\t\""),
            ("a/\"\\\u{1b}\u{85}", "\"a/\\\"\\\\\\033\\302\\205\""),
        ];
        for (name, want) in cases {
            assert_eq!(quoted(name), want);
        }
    }
}
