//! Paths of requests: one normal form, in which they are decided and sent, and globs over it.

use std::fmt;

use crate::lax::{Checked, FromInput, Input};

/// The longest path that is decided.
const MAX_PATH: usize = 16 << 10;

/// A path in its normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NormalPath {
    text: String,
    is_ambiguous: bool,
}

/// A path that has no normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPath(&'static str);

impl InvalidPath {
    /// Why.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for InvalidPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl NormalPath {
    /// The normal form of a path without its query: what need not be encoded is not, what is encoded is so in upper
    /// case, and dot segments are resolved.
    ///
    /// ```
    /// use bastide_model::policy::NormalPath;
    ///
    /// let normal = |path: &str| NormalPath::parse(path).map(|path| path.as_str().to_owned());
    /// assert_eq!(normal("/a/%2e%2E/b/./%7euser%c3%a4").as_deref(), Ok("/b/~user%C3%A4"));
    /// assert!(normal("/a%00").is_err() && normal("/a\\b").is_err() && normal("/../a").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// If it does not begin with a slash, leaves the root, or has a character that servers read in different ways.
    pub fn parse(raw: &str) -> Result<Self, InvalidPath> {
        if raw.len() > MAX_PATH {
            return Err(InvalidPath("the path is too long"));
        }
        let rest =
            raw.strip_prefix('/').ok_or(InvalidPath("the path does not begin with a slash"))?;
        let mut is_ambiguous = false;
        let mut segments: Vec<String> = Vec::new();
        let mut ends_open = false;
        for raw_segment in rest.split('/') {
            let segment = decoded(raw_segment, &mut is_ambiguous)?;
            ends_open = false;
            match segment.as_str() {
                "." => ends_open = true,
                ".." => {
                    segments.pop().ok_or(InvalidPath("the path leaves the root"))?;
                    ends_open = true;
                }
                _ => segments.push(segment),
            }
        }
        if ends_open {
            segments.push(String::new());
        }
        let last = segments.len().saturating_sub(1);
        // Some servers take several slashes for one.
        is_ambiguous |= segments.iter().take(last).any(String::is_empty);
        Ok(Self { text: format!("/{}", segments.join("/")), is_ambiguous })
    }

    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether servers may take it for another path: it has an empty segment, an encoded slash or a semicolon. Where a
    /// rule is about paths, such a request is refused.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }
}

/// One segment in its normal form.
fn decoded(raw: &str, is_ambiguous: &mut bool) -> Result<String, InvalidPath> {
    let mut segment = String::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                let (Some(high), Some(low)) = (high, low) else {
                    return Err(InvalidPath("a percent sign is not followed by two digits"));
                };
                let value = high * 16 + low;
                let value = u8::try_from(value).map_err(|_| InvalidPath("a digit is none"))?;
                match value {
                    b'-' | b'.' | b'_' | b'~' => segment.push(char::from(value)),
                    _ if value.is_ascii_alphanumeric() => segment.push(char::from(value)),
                    0..=0x1f | 0x7f | b'\\' => {
                        return Err(InvalidPath("the path has an encoded control or backslash"));
                    }
                    _ => {
                        *is_ambiguous |= matches!(value, b'/' | b';' | b'%');
                        segment.push_str(&format!("%{value:02X}"));
                    }
                }
            }
            0..=0x20 | 0x7f..=0xff => {
                return Err(InvalidPath("the path has a character that must be encoded"));
            }
            b'\\' => return Err(InvalidPath("the path has a backslash")),
            b'?' | b'#' => return Err(InvalidPath("the path has a query or a fragment")),
            b';' => {
                *is_ambiguous = true;
                segment.push(';');
            }
            _ => segment.push(char::from(byte)),
        }
    }
    // Some servers drop parameters before they look for dots.
    if segment.contains(';') && matches!(segment.split(';').next(), Some("." | "..")) {
        return Err(InvalidPath("the path has a dot segment with parameters"));
    }
    Ok(segment)
}

/// A glob over paths: `*` within one segment, `**` for any number of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathGlob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Any,
    One(String),
}

impl PathGlob {
    /// Reads a glob.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        // Whatever the path's normal form is, the glob's is the same; the stars are not touched by it.
        let normal =
            NormalPath::parse(text).map_err(|bad| format!("{text:?} is no path: {bad}"))?;
        if normal.is_ambiguous() {
            return Err(format!(
                "{text:?} has an empty segment, an encoded slash or a semicolon; requests with these are refused"
            ));
        }
        let mut parts = Vec::new();
        for segment in normal.as_str()[1..].split('/') {
            match segment {
                "**" => parts.push(Part::Any),
                _ if segment.contains("**") => {
                    return Err(format!("{text:?}: `**` stands for whole segments, alone"));
                }
                _ => parts.push(Part::One(segment.to_owned())),
            }
        }
        Ok(Self { text: normal.as_str().to_owned(), parts })
    }

    /// Whether a path is meant. A `**` at the end wants a slash before it: `/a/**` is not about `/a`.
    #[must_use]
    pub fn fits(&self, path: &NormalPath) -> bool {
        let segments: Vec<&str> = path.as_str()[1..].split('/').collect();
        // `reached[n]`: the parts so far fit the first n segments.
        let mut reached = vec![false; segments.len() + 1];
        reached[0] = true;
        for (index, part) in self.parts.iter().enumerate() {
            let mut next = vec![false; segments.len() + 1];
            match part {
                Part::Any => {
                    let is_last = index + 1 == self.parts.len();
                    let mut open = false;
                    for at in 0..=segments.len() {
                        next[at] = if is_last { open } else { open || reached[at] };
                        open |= reached[at];
                    }
                }
                Part::One(glob) => {
                    for (at, segment) in segments.iter().enumerate() {
                        next[at + 1] = reached[at] && text_fits(glob, segment);
                    }
                }
            }
            reached = next;
        }
        reached[segments.len()]
    }
}

/// Whether a text fits a glob in which `*` stands for any characters. A star alone wants something.
pub(super) fn text_fits(glob: &str, text: &str) -> bool {
    if glob == "*" {
        return !text.is_empty();
    }
    let mut chunks = glob.split('*');
    let first = chunks.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = chunks.next_back() else { return rest.is_empty() };
    for chunk in chunks {
        let Some(at) = rest.find(chunk) else { return false };
        rest = &rest[at + chunk.len()..];
    }
    rest.ends_with(last)
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromInput for PathGlob {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let text = String::from_input(input)?;
        Self::parse(&text).map_err(|message| input.value_error(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> Option<(String, bool)> {
        let path = NormalPath::parse(path).ok()?;
        Some((path.text.clone(), path.is_ambiguous))
    }

    #[test]
    fn has_one_form_or_none() {
        let plain = |text: &str| Some((text.to_owned(), false));
        let odd = |text: &str| Some((text.to_owned(), true));
        for (path, form) in [
            ("/", plain("/")),
            ("/a/", plain("/a/")),
            ("/a/./b/../c", plain("/a/c")),
            ("/a/..", plain("/")),
            ("/a/%2e%2e/b", plain("/b")),
            ("/a/%2E", plain("/a/")),
            ("/%41%5f", plain("/A_")),
            ("/a//b", odd("/a//b")),
            ("//a", odd("//a")),
            ("/a%2fb", odd("/a%2Fb")),
            ("/a;x=1/b", odd("/a;x=1/b")),
            ("/a%252fb", odd("/a%252fb")),
            ("/..", None),
            ("/a/../../b", None),
            ("/a%5cb", None),
            ("/a\\b", None),
            ("/a%00", None),
            ("/a%0d%0a", None),
            ("/a b", None),
            ("/a%", None),
            ("/a%g0", None),
            ("/..;/a", None),
            ("/ä", None),
            ("a", None),
            ("*", None),
            ("", None),
            ("http://a/b", None),
        ] {
            assert_eq!(normal(path), form, "{path}");
            if let Some((text, flag)) = form {
                assert_eq!(normal(&text), Some((text, flag)), "{path} twice");
            }
        }
    }

    #[test]
    fn globs_stand_for_segments() {
        let fits = |glob: &str, path: &str| {
            PathGlob::parse(glob).unwrap().fits(&NormalPath::parse(path).unwrap())
        };
        for (glob, path, expected) in [
            ("/acme/**", "/acme/", true),
            ("/acme/**", "/acme/a/b", true),
            ("/acme/**", "/acme", false),
            ("/acme/**", "/acmes/a", false),
            ("/acme/*/x", "/acme/a/x", true),
            ("/acme/*/x", "/acme/a/b/x", false),
            ("/**/x", "/x", true),
            ("/**/x", "/a/b/x", true),
            ("/a/**/b/**/c", "/a/1/b/2/3/c", true),
            ("/a/**/b/**/c", "/a/1/2/3/c", false),
            ("/*.git/info", "/x.git/info", true),
            ("/a*b*c", "/a1b2c", true),
            ("/a*b*c", "/a1c", false),
            ("/a*a", "/a", false),
            ("/**", "/", true),
            ("/*", "/", false),
        ] {
            assert_eq!(fits(glob, path), expected, "{glob} {path}");
        }
        assert!(PathGlob::parse("/a**").is_err() && PathGlob::parse("a").is_err());
    }
}
