//! The text of paths, read as the reference reads it.

use std::fmt;

/// A path in the form the reference shows it: single slashes, no `.` parts, no slash at the end,
/// `..` left alone, `.` for the empty path. Exactly two slashes at the start stay two.
///
/// ```
/// use bastide_model::paths::PosixPath;
///
/// assert_eq!(PosixPath::parse("a//./b/../c/").as_str(), "a/b/../c");
/// assert_eq!(PosixPath::parse("//srv///x").as_str(), "//srv/x");
/// assert_eq!(PosixPath::coerce(r"\opt\x").as_str(), "/opt/x");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PosixPath(String);

impl PosixPath {
    /// Reads a path whose backslashes are ordinary letters.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::build(leading_slashes(text), text.split('/'))
    }

    /// Reads a text that somebody typed, where a backslash means a slash.
    #[must_use]
    pub fn coerce(text: &str) -> Self {
        Self::parse(&text.replace('\\', "/"))
    }

    fn build<'a>(root: &str, parts: impl Iterator<Item = &'a str>) -> Self {
        let mut text = root.to_owned();
        for part in parts.filter(|part| !matches!(*part, "" | ".")) {
            if text.len() > root.len() {
                text.push('/');
            }
            text.push_str(part);
        }
        Self(if text.is_empty() { ".".to_owned() } else { text })
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it starts at the root.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        self.0.starts_with('/')
    }

    /// Whether it is the root itself.
    #[must_use]
    pub fn is_filesystem_root(&self) -> bool {
        self.is_absolute() && self.names().next().is_none()
    }

    /// The names on the way, without the root.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        self.0.split('/').filter(|part| !matches!(*part, "" | "."))
    }

    /// How many parts it has, the root counting as one.
    #[must_use]
    pub fn part_count(&self) -> usize {
        self.names().count() + usize::from(self.is_absolute())
    }

    /// Whether a part of it is `..`.
    #[must_use]
    pub fn has_parent_parts(&self) -> bool {
        self.names().any(|name| name == "..")
    }

    /// `other` seen from here: below this path, or as it is if it is absolute.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        if other.is_absolute() {
            return other.clone();
        }
        Self::build(leading_slashes(&self.0), self.names().chain(other.names()))
    }

    /// The path with `.` and `..` folded by name, links unseen.
    #[must_use]
    pub fn normalized(&self) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for name in self.names() {
            match (name, names.last()) {
                ("..", None) if self.is_absolute() => {}
                ("..", Some(last)) if *last != ".." => {
                    names.pop();
                }
                _ => names.push(name),
            }
        }
        Self::build(leading_slashes(&self.0), names.into_iter())
    }

    /// Whether it is `root` or below it, by name.
    #[must_use]
    pub fn is_under(&self, root: &Self) -> bool {
        self.relative_to(root).is_some()
    }

    /// What is left of it below `root`; `.` for `root` itself.
    #[must_use]
    pub fn relative_to(&self, root: &Self) -> Option<Self> {
        if leading_slashes(&self.0) != leading_slashes(&root.0) {
            return None;
        }
        let mut names = self.names();
        for expected in root.names() {
            if names.next() != Some(expected) {
                return None;
            }
        }
        Some(Self::build("", names))
    }

    /// Whether one of the two is the other or holds it, by name.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_under(other) || other.is_under(self)
    }

    /// How to get here from `start`, both relative to the same folder and normalized.
    #[must_use]
    pub(super) fn seen_from(&self, start: &Self) -> Self {
        let shared = self.names().zip(start.names()).take_while(|(a, b)| a == b).count();
        let up = start.names().skip(shared).map(|_| "..");
        Self::build("", up.chain(self.names().skip(shared)))
    }
}

impl fmt::Display for PosixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A path as a caller hands it over: text somebody typed, or a path that was read before.
#[derive(Debug, Clone, Copy)]
pub enum PathInput<'a> {
    /// Text, where a backslash means a slash.
    Text(&'a str),
    /// A path, whose backslashes are ordinary letters.
    Path(&'a PosixPath),
}

impl<'a> From<&'a str> for PathInput<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a PosixPath> for PathInput<'a> {
    fn from(path: &'a PosixPath) -> Self {
        Self::Path(path)
    }
}

impl PathInput<'_> {
    /// The path it means inside a sandbox.
    #[must_use]
    pub fn to_posix(self) -> PosixPath {
        match self {
            Self::Text(text) => PosixPath::coerce(text),
            Self::Path(path) => path.clone(),
        }
    }

    /// The path it means on a Unix host, where a backslash is a letter even in text.
    #[must_use]
    pub fn to_host(self) -> PosixPath {
        PosixPath::parse(self.as_str())
    }

    /// The text as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Path(path) => path.as_str(),
        }
    }

    /// Whether it is absolute on any system, a backslash in text not counting as a slash.
    #[must_use]
    pub(crate) fn is_absolute_anywhere(&self) -> bool {
        self.as_str().starts_with('/') || windows_absolute_path(self.as_str()).is_some()
    }
}

fn leading_slashes(text: &str) -> &'static str {
    match text.len() - text.trim_start_matches('/').len() {
        0 => "",
        2 => "//",
        _ => "/",
    }
}

/// `text` with `.`, `..` and doubled slashes folded by name.
///
/// ```
/// assert_eq!(bastide_model::paths::normalize("/a//b/../c/."), "/a/c");
/// ```
#[must_use]
pub fn normalize(text: &str) -> String {
    PosixPath::parse(text).normalized().0
}

/// The slash form of a path that starts at a Windows drive, such as `C:/x` for `C:\x`.
///
/// Paths of shared folders (`\\srv\share`) are not meant: with slashes they are absolute as they
/// stand, and refused as such.
#[must_use]
pub fn windows_absolute_path(text: &str) -> Option<String> {
    let (drive, rest) = text.split_at_checked(2)?;
    let is_drive = drive.as_bytes()[0].is_ascii_alphabetic() && drive.ends_with(':');
    if !is_drive || !rest.starts_with(['/', '\\']) {
        return None;
    }
    let below = PosixPath::build("", rest.split(['/', '\\']));
    let below = if below.as_str() == "." { "" } else { below.as_str() };
    Some(format!("{drive}/{below}"))
}
