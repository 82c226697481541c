//! A manifest as a tree that people and models can read.

use indexmap::IndexMap;

use super::Manifest;
use super::tree::{Drawing, Tree};
use super::walk::coerce_rel_path;
use crate::Result;
use crate::entry::Entry;
use crate::error::raise;
use crate::posix_path::PosixPath;
use crate::text::is_blank;

/// How long a description is at most, in characters.
pub const MAX_DESCRIPTION_CHARS: i64 = 5000;

impl Manifest {
    /// Draws the workspace as a tree, `depth` levels deep or all of them.
    ///
    /// ```
    /// use bastide_model::{Entry, Manifest};
    ///
    /// let mut manifest = Manifest::default();
    /// manifest.entries.insert("a.txt".into(), Entry::file("x").described("notes"));
    /// assert_eq!(
    ///     manifest.describe(Some(1))?,
    ///     "/workspace\n└── a.txt  # /workspace/a.txt — notes\n",
    /// );
    /// # Ok::<(), bastide_model::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `ValueError` if `depth` is not positive; `InvalidManifestPathError` for the first wrong path.
    pub fn describe(&self, depth: Option<i64>) -> Result<String> {
        let entries = self.validated_entries()?;
        render_description(&self.root, entries, depth, Some(MAX_DESCRIPTION_CHARS))
    }
}

/// Draws entries below `root` as a tree, `depth` levels deep or all of them, at most `max_chars`
/// long.
///
/// # Errors
///
/// `ValueError` if a limit is not positive; `InvalidManifestPathError` for a path that is absolute
/// on Windows.
pub fn render_description(
    root: &str,
    entries: &IndexMap<String, Entry>,
    depth: Option<i64>,
    max_chars: Option<i64>,
) -> Result<String> {
    let depth = limit(depth, "depth")?;
    limit(max_chars, "max_chars")?;
    let root = match root.trim_end_matches('/') {
        "" => "/",
        root => root,
    };
    let root_path = PosixPath::typed(root);
    let mut tree = Tree::default();
    for (key, entry) in entries {
        let path = coerce_rel_path(key)?;
        let full_path = entry.as_mount().map(|mount| match &mount.mount_path {
            Some(mounted) => root_path.join(mounted),
            None => root_path.join(&path),
        });
        tree.insert_entry(PosixPath::relative(path.names()), entry, full_path, depth)?;
    }
    let drawing = Drawing::new(root, &root_path, &tree, depth);
    let text = drawing.write(max_chars);
    Ok(truncate(text, drawing.length, max_chars))
}

/// A limit that is positive, or none.
fn limit(value: Option<i64>, name: &str) -> Result<Option<usize>> {
    match value {
        Some(value) if value <= 0 => {
            Err(raise::value_error(format!("{name} must be a non-zero positive integer or None")))
        }
        value => Ok(value.and_then(|value| usize::try_from(value).ok())),
    }
}

/// Cuts a description that is longer than `max_chars` and says so at its end.
#[must_use]
pub fn truncate_description(description: &str, max_chars: Option<i64>) -> String {
    truncate(description.to_owned(), description.chars().count(), max_chars)
}

/// Cuts a text of `length` characters of which `text` is at least as much as can be kept.
fn truncate(text: String, length: usize, max_chars: Option<i64>) -> String {
    let Some(max) = max_chars.map(|max| usize::try_from(max).unwrap_or(0)) else {
        return text;
    };
    if length <= max {
        return text;
    }
    // The notice says how much is missing, and is part of what there is room for: its own length
    // depends on what it says. Each round can only make it longer.
    let mut omitted = length - max;
    let (notice, kept) = loop {
        let notice = notice(omitted);
        let kept = max.saturating_sub(notice.chars().count());
        if length - kept == omitted {
            break (notice, kept);
        }
        omitted = length - kept;
    };
    if kept == 0 {
        return notice.chars().take(max).collect();
    }
    let start: String = text.chars().take(kept).collect();
    format!("{}{notice}", start.trim_end_matches(is_blank))
}

fn notice(omitted: usize) -> String {
    format!(
        "\n... (truncated {omitted} chars)\n\nThe filesystem layout above was truncated. Use `ls` \
         to explore specific directories before relying on omitted paths.\n"
    )
}
