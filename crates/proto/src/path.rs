//! Paths inside a sandbox.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest path the kernel takes, its closing NUL included.
const PATH_MAX: usize = 4096;

/// An absolute, normalized path inside a sandbox.
///
/// A guest path never names anything on the host, so it has no `AsRef<Path>`: passing one to
/// `std::fs` does not compile. Only the guest turns it into a real path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuestPath(String);

/// An absolute path inside a sandbox that may contain `..`. Where it leads depends on symbolic
/// links, so only the guest can resolve it; otherwise it is like a [`GuestPath`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnresolvedPath(String);

/// Why a text is not a [`GuestPath`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuestPathError {
    /// It does not start at the root.
    #[error("the path is not absolute")]
    NotAbsolute,
    /// It has an empty, `.` or `..` part, or ends in a slash.
    #[error("the path is not normalized")]
    NotNormalized,
    /// It holds a NUL byte.
    #[error("the path holds a NUL byte")]
    Nul,
    /// It is longer than the kernel accepts.
    #[error("the path is too long")]
    TooLong,
}

impl GuestPath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of `relative` beneath this one.
    ///
    /// # Errors
    ///
    /// Fails if `relative` is absolute or not normalized.
    pub fn join(&self, relative: &str) -> Result<Self, GuestPathError> {
        if relative.starts_with('/') {
            return Err(GuestPathError::NotNormalized);
        }
        match self.0.as_str() {
            "/" => format!("/{relative}").parse(),
            root => format!("{root}/{relative}").parse(),
        }
    }
}

/// Refuses a text that is not an absolute path of names that are not `refused`.
fn check(text: &str, refused: fn(&str) -> bool) -> Result<(), GuestPathError> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err(GuestPathError::NotAbsolute);
    };
    if text.contains('\0') {
        return Err(GuestPathError::Nul);
    }
    if text.len() >= PATH_MAX {
        return Err(GuestPathError::TooLong);
    }
    if !rest.is_empty() && rest.split('/').any(refused) {
        return Err(GuestPathError::NotNormalized);
    }
    Ok(())
}

impl FromStr for GuestPath {
    type Err = GuestPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        check(text, |name| matches!(name, "" | "." | ".."))?;
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for UnresolvedPath {
    type Err = GuestPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        check(text, |name| matches!(name, "" | "."))?;
        Ok(Self(text.to_owned()))
    }
}

impl UnresolvedPath {
    /// The route as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for UnresolvedPath {
    type Error = GuestPathError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<UnresolvedPath> for String {
    fn from(route: UnresolvedPath) -> Self {
        route.0
    }
}

impl From<GuestPath> for UnresolvedPath {
    fn from(path: GuestPath) -> Self {
        Self(path.0)
    }
}

impl fmt::Display for UnresolvedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for GuestPath {
    type Error = GuestPathError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<GuestPath> for String {
    fn from(path: GuestPath) -> Self {
        path.0
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_absolute_normalized_paths() {
        let long = format!("/{}", "a".repeat(PATH_MAX));
        let cases: &[(&str, Result<&str, GuestPathError>)] = &[
            ("/", Ok("/")),
            ("/box/src", Ok("/box/src")),
            ("/a/..b", Ok("/a/..b")),
            ("work", Err(GuestPathError::NotAbsolute)),
            ("", Err(GuestPathError::NotAbsolute)),
            ("/box/../etc", Err(GuestPathError::NotNormalized)),
            ("/box/", Err(GuestPathError::NotNormalized)),
            ("//box", Err(GuestPathError::NotNormalized)),
            ("/a\0b", Err(GuestPathError::Nul)),
            (&long, Err(GuestPathError::TooLong)),
        ];
        for (input, want) in cases {
            let got = input.parse::<GuestPath>();
            assert_eq!(
                got.as_ref().map(GuestPath::as_str),
                want.as_ref().copied(),
                "input {input:?}"
            );
        }
    }

    #[test]
    fn a_route_may_lead_up() {
        for (input, fine) in [("/a/../b", true), ("/..", true), ("/a/./b", false), ("a/..", false)]
        {
            assert_eq!(input.parse::<UnresolvedPath>().is_ok(), fine, "input {input:?}");
        }
    }

    #[test]
    fn joins_beneath_itself_only() {
        let root: GuestPath = "/work".parse().unwrap();
        assert_eq!(root.join("a/b").unwrap().as_str(), "/work/a/b");
        assert_eq!(root.join("../etc"), Err(GuestPathError::NotNormalized));
        assert_eq!(root.join("/etc"), Err(GuestPathError::NotNormalized));
    }
}
