//! Paths as callers hand them over.

use crate::{PosixPath, WindowsPath};

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
            Self::Text(text) => PosixPath::typed(text),
            Self::Path(path) => path.clone(),
        }
    }

    /// The path it means on a Unix host, where a backslash is a letter even in text.
    #[must_use]
    pub fn to_host(self) -> PosixPath {
        PosixPath::new(self.as_str())
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
        self.as_str().starts_with('/') || WindowsPath::absolute(self.as_str()).is_some()
    }
}
