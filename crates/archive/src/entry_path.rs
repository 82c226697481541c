//! Where a member goes, below the folder an archive is unpacked into.

use std::fmt;

/// Names joined by `/`: never absolute, without empty and `.` names. Empty is the folder itself.
///
/// Names are bytes, because file names are.
///
/// ```
/// use bastide_archive::EntryPath;
///
/// let path = EntryPath::new(b"./src//main.rs");
/// assert_eq!(path.to_string(), "src/main.rs");
/// assert!(path.is_within(&EntryPath::new(b"src")));
/// assert_eq!(EntryPath::new(b".").to_string(), ".");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Reads a path, dropping empty and `.` names and a leading `/`. A `..` stays a name.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        let mut path = Self::default();
        for name in text.split(|byte| *byte == b'/') {
            if !name.is_empty() && name != b"." {
                path.push(name);
            }
        }
        path
    }

    /// The path's bytes; empty for the folder itself.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the folder itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The names from the folder down to the entry.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> + Clone {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// The path one name up; the folder itself is its own parent.
    #[must_use]
    pub fn parent(&self) -> Self {
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Self(self.0.get(..end).unwrap_or_default().to_vec())
    }

    /// Whether this is `other` or below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.below(other).is_some()
    }

    /// The part below `other`, if this is `other` or below it.
    #[must_use]
    pub fn below(&self, other: &Self) -> Option<Self> {
        if other.is_root() {
            return Some(self.clone());
        }
        match self.0.strip_prefix(other.0.as_slice())? {
            [] => Some(Self::default()),
            [b'/', rest @ ..] => Some(Self(rest.to_vec())),
            _ => None,
        }
    }

    /// The path without its first name, if that is `name`.
    #[must_use]
    pub(crate) fn without_first(&self, name: &[u8]) -> Option<Self> {
        if name.is_empty() || self.names().next() != Some(name) {
            return None;
        }
        let mut rest = Self::default();
        self.names().skip(1).for_each(|name| rest.push(name));
        Some(rest)
    }

    fn push(&mut self, name: &[u8]) {
        if !self.0.is_empty() {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(name);
    }
}

impl fmt::Display for EntryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_root() {
            true => f.write_str("."),
            false => f.write_str(&String::from_utf8_lossy(&self.0)),
        }
    }
}

/// Whether Windows would read a drive or a network share at the front of `name`.
pub(crate) fn has_windows_drive(name: &[u8]) -> bool {
    let is_separator = |byte: &u8| matches!(byte, b'/' | b'\\');
    match name {
        [letter, b':', ..] => letter.is_ascii_alphabetic(),
        [first, second, rest @ ..] if is_separator(first) && is_separator(second) => {
            if let [b'?', third, ..] = rest
                && is_separator(third)
            {
                return true;
            }
            // A machine, a separator, and not at once another one.
            let machine = rest.iter().position(is_separator);
            machine.is_some_and(|end| end > 0 && !rest.get(end + 1).is_some_and(is_separator))
        }
        _ => false,
    }
}

/// The path of a member name that stays inside, or why it does not.
pub(crate) fn contained_path(name: &[u8]) -> Result<EntryPath, &'static str> {
    if has_windows_drive(name) {
        return Err("windows drive path");
    }
    if name.contains(&b'\\') {
        return Err("windows path separator");
    }
    if name.starts_with(b"/") {
        return Err("absolute path");
    }
    let path = EntryPath::new(name);
    let climbs = path.names().any(|name| name == b"..");
    if climbs { Err("parent traversal") } else { Ok(path) }
}

/// Whether a member name means the folder itself.
pub(crate) fn names_the_root(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"./")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_windows_drives_and_shares() {
        for name in ["c:", "C:a", r"\\srv\x", "//srv/share/a", r"\\?\C:\a", r"\\?\", r"\\srv\"] {
            assert!(has_windows_drive(name.as_bytes()), "{name}");
        }
        for name in ["", "a", "COM1:", "1:/x", "/a", r"\a", "//srv", r"\\\a\b", r"\\srv\\a"] {
            assert!(!has_windows_drive(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn walks_up_and_cuts_prefixes() {
        let path = EntryPath::new(b"a/b/c");
        assert_eq!(path.parent(), EntryPath::new(b"a/b"));
        assert_eq!(EntryPath::new(b"a").parent(), EntryPath::default());
        assert_eq!(path.below(&EntryPath::new(b"a")), Some(EntryPath::new(b"b/c")));
        assert_eq!(path.below(&EntryPath::new(b"a/bc")), None);
        assert_eq!(EntryPath::new(b"ab").below(&EntryPath::new(b"a")), None);
        assert_eq!(path.without_first(b"a"), Some(EntryPath::new(b"b/c")));
    }
}
