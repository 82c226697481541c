//! Paths inside a sandbox, as text: nothing here looks at a file system.

use std::cmp::Ordering;
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PosixPath {
    root: Root,
    /// The names with a slash between them; nothing for `.` and the root. One text instead of many,
    /// because walks make a path for every entry.
    names: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Root {
    #[default]
    None,
    Slash,
    DoubleSlash,
}

impl Root {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Slash => "/",
            Self::DoubleSlash => "//",
        }
    }
}

impl PosixPath {
    /// Reads a path. A backslash is a letter like any other.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let slashes = text.bytes().take_while(|byte| *byte == b'/').count();
        let root = match slashes {
            0 => Root::None,
            2 => Root::DoubleSlash,
            _ => Root::Slash,
        };
        Self { root, names: joined(text.split('/').filter(|name| !matches!(*name, "" | "."))) }
    }

    /// Reads a path as a person on any system may have typed it: backslashes separate, too.
    #[must_use]
    pub fn typed(text: &str) -> Self {
        Self::new(&text.replace('\\', "/"))
    }

    /// Whether the path starts at the root.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        self.root != Root::None
    }

    /// Whether the path is the root itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.is_absolute() && self.names.is_empty()
    }

    /// Whether the path is `.`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_absolute() && self.names.is_empty()
    }

    /// The names from the root, or from wherever the path is relative to.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.names.split('/').filter(|name| !name.is_empty())
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
        if tail.is_absolute() {
            return tail.clone();
        }
        let parts = [self.names.as_str(), &tail.names];
        Self { root: self.root, names: joined(parts.into_iter().filter(|part| !part.is_empty())) }
    }

    /// What leads from `base` to this path, if it lies at or below it. `..` is not followed.
    #[must_use]
    pub fn below(&self, base: &Self) -> Option<Self> {
        if self.root != base.root {
            return None;
        }
        let names = match self.names.strip_prefix(&base.names)? {
            "" => "",
            rest if base.names.is_empty() => rest,
            rest => rest.strip_prefix('/')?,
        };
        Some(Self { root: Root::None, names: names.to_owned() })
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
        Self { root: self.root, names: joined(names) }
    }

    /// A relative path of these names.
    pub(crate) fn relative<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { root: Root::None, names: joined(names) }
    }
}

fn joined<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = String::new();
    for name in names {
        if !out.is_empty() {
            out.push('/');
        }
        out.push_str(name);
    }
    out
}

impl fmt::Display for PosixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str(".");
        }
        f.write_str(self.root.as_str())?;
        f.write_str(&self.names)
    }
}

/// Paths sort as their texts do.
impl Ord for PosixPath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.to_string().cmp(&other.to_string())
    }
}

impl PartialOrd for PosixPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
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
