//! Paths inside a sandbox, as text: nothing here looks at a file system.

use std::fmt;

use serde_json::Value;

use crate::Result;
use crate::lax::{Checked, Dump, FromInput, Input};

/// A path with `/` between its parts, as the reference keeps them.
///
/// Empty parts, `.` and trailing slashes vanish; `..` stays, because what it leads to depends on
/// symlinks; exactly two slashes at the start stay two, as POSIX allows them to mean something.
///
/// ```
/// use bastide_model::PosixPath;
///
/// assert_eq!(PosixPath::new("a//b/./c/").to_string(), "a/b/c");
/// assert_eq!(PosixPath::new("").to_string(), ".");
/// assert_eq!(PosixPath::new("//srv").join(&PosixPath::new("x")).to_string(), "//srv/x");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PosixPath {
    /// The whole path in the form it is shown. One text instead of many, because walks make a path
    /// for every entry.
    text: String,
}

impl PosixPath {
    /// Reads a path. A backslash is a letter like any other.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self::build(root_of(text), text.split('/').filter(|name| !matches!(*name, "" | ".")))
    }

    /// Reads a path as a person on any system may have typed it: backslashes separate, too.
    #[must_use]
    pub fn typed(text: &str) -> Self {
        Self::new(&text.replace('\\', "/"))
    }

    fn build<'a>(root: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut text = root.to_owned();
        for name in names {
            if text.len() > root.len() {
                text.push('/');
            }
            text.push_str(name);
        }
        if text.is_empty() { Self::default() } else { Self { text } }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the path starts at the root.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        self.text.starts_with('/')
    }

    /// Whether the path is the root itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        matches!(self.as_str(), "/" | "//")
    }

    /// Whether the path is `.`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text == "."
    }

    /// The names from the root, or from wherever the path is relative to.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        self.text.split('/').filter(|name| !matches!(*name, "" | "."))
    }

    /// How many parts there are, the root being one.
    #[must_use]
    pub fn depth(&self) -> usize {
        usize::from(self.is_absolute()) + self.names().count()
    }

    /// Whether `..` is one of the names.
    #[must_use]
    pub fn climbs(&self) -> bool {
        self.names().any(|name| name == "..")
    }

    /// This path with `tail` below it; an absolute `tail` replaces it.
    #[must_use]
    pub fn join(&self, tail: &Self) -> Self {
        if tail.is_absolute() || self.is_empty() {
            return tail.clone();
        }
        if tail.is_empty() {
            return self.clone();
        }
        let slash = if self.is_root() { "" } else { "/" };
        Self { text: format!("{self}{slash}{tail}") }
    }

    /// What leads from `base` to this path, if it lies at or below it. `..` is not followed.
    #[must_use]
    pub fn below(&self, base: &Self) -> Option<Self> {
        if root_of(&self.text) != root_of(&base.text) {
            return None;
        }
        let mut names = self.names();
        for expected in base.names() {
            if names.next() != Some(expected) {
                return None;
            }
        }
        Some(Self::relative(names))
    }

    /// Whether it is `base` or lies below it. `..` is not followed.
    #[must_use]
    pub fn is_below(&self, base: &Self) -> bool {
        self.below(base).is_some()
    }

    /// Whether one of the two is the other or lies below it. `..` is not followed.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_below(other) || other.is_below(self)
    }

    /// The path with every `..` taken back as text; one that would climb above the root is dropped,
    /// one that climbs above a relative start stays.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for name in self.names() {
            let can_climb = names.last().is_some_and(|last| *last != "..");
            match name {
                ".." if can_climb => {
                    names.pop();
                }
                ".." if self.is_absolute() => {}
                _ => names.push(name),
            }
        }
        Self::build(root_of(&self.text), names)
    }

    /// How to get here from `start`, both relative to the same folder and normalized.
    pub(crate) fn seen_from(&self, start: &Self) -> Self {
        let shared = self.names().zip(start.names()).take_while(|(a, b)| a == b).count();
        let up = start.names().skip(shared).map(|_| "..");
        Self::relative(up.chain(self.names().skip(shared)))
    }

    /// A relative path of these names.
    pub(crate) fn relative<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::build("", names)
    }
}

fn root_of(text: &str) -> &'static str {
    match text.bytes().take_while(|byte| *byte == b'/').count() {
        0 => "",
        2 => "//",
        _ => "/",
    }
}

impl Default for PosixPath {
    fn default() -> Self {
        Self { text: ".".to_owned() }
    }
}

impl fmt::Display for PosixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromInput for PosixPath {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let path = input.value().as_str().map(Self::new);
        path.ok_or_else(|| {
            let message = "Input is not a valid path for <class 'pathlib.Path'>";
            input.field_error("path_type", message)
        })
    }
}

impl Dump for PosixPath {
    fn dump(&self) -> Result<Value> {
        Ok(self.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_posix_keeps() {
        let cases = [
            ("", "."),
            (".", "."),
            ("/", "/"),
            ("//", "//"),
            ("///a", "/a"),
            ("//a/", "//a"),
            ("a/../b", "a/../b"),
            ("a\\b", "a\\b"),
        ];
        for (text, want) in cases {
            assert_eq!(PosixPath::new(text).to_string(), want, "text {text:?}");
        }
    }

    #[test]
    fn takes_parents_back_as_text() {
        let cases = [
            ("/a/../b", "/b"),
            ("/..", "/"),
            ("//..", "//"),
            ("..", ".."),
            ("a/../../b", "../b"),
            ("../../a", "../../a"),
            ("a/..", "."),
        ];
        for (text, want) in cases {
            assert_eq!(PosixPath::new(text).normalized().to_string(), want, "text {text:?}");
        }
    }

    #[test]
    fn is_below_only_the_same_root() {
        let below = |path: &str, base: &str| {
            PosixPath::new(path).below(&PosixPath::new(base)).map(|path| path.to_string())
        };
        assert_eq!(below("/w/a", "/w").as_deref(), Some("a"));
        assert_eq!(below("/w", "/w").as_deref(), Some("."));
        assert_eq!(below("//w/a", "/w"), None);
        assert_eq!(below("/wx", "/w"), None);
    }
}
