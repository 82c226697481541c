//! How Windows would read a path: a manifest may have been written there, and a path that is
//! absolute to Windows must not become a file name inside the workspace.

use std::fmt;

/// A path in Windows' reading, split into its drive, whether it starts at the drive's root, and its
/// names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsPath {
    drive: String,
    rooted: bool,
    names: Vec<String>,
}

impl WindowsPath {
    /// Reads a path; both slashes separate.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = text.replace('/', "\\");
        let (drive, rooted, rest) = split_root(&text);
        let names = rest.split('\\').filter(|name| !matches!(*name, "" | ".")).map(str::to_owned);
        Self { drive: drive.to_owned(), rooted, names: names.collect() }
    }

    /// Reads a path that is absolute on Windows and nowhere else, such as `C:\x`. What POSIX takes
    /// for absolute, too, such as `\\server\share`, is left to it.
    #[must_use]
    pub fn absolute(text: &str) -> Option<Self> {
        // Only a drive letter makes a difference: shares start with two slashes, as POSIX paths may.
        let has_drive = matches!(
            text.as_bytes(),
            [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic()
        );
        has_drive.then(|| Self::new(text))
    }

    /// Whether the path has a drive and starts at its root.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        self.rooted && !self.drive.is_empty()
    }

    /// Whether the path is the root of its drive.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.is_absolute() && self.names.is_empty()
    }

    /// The drive, such as `C:` or `\\server\share`, or nothing.
    #[must_use]
    pub fn drive(&self) -> &str {
        &self.drive
    }

    /// Whether the drive is a letter.
    #[must_use]
    pub fn has_drive_letter(&self) -> bool {
        matches!(self.drive.as_bytes(), [letter, b':'] if letter.is_ascii_alphabetic())
    }

    /// The same with forward slashes.
    #[must_use]
    pub fn to_posix(&self) -> String {
        self.to_string().replace('\\', "/")
    }
}

impl fmt::Display for WindowsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = if self.rooted { "\\" } else { "" };
        let text = format!("{}{root}{}", self.drive, self.names.join("\\"));
        f.write_str(if text.is_empty() { "." } else { &text })
    }
}

/// Splits off the drive and the root. `text` has backslashes only.
fn split_root(text: &str) -> (&str, bool, &str) {
    if let Some(share) = share_len(text) {
        let (share, rest) = text.split_at(share);
        return (share, true, rest);
    }
    let letter = matches!(text.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    let (drive, rest) = if letter { text.split_at(2) } else { ("", text) };
    (drive, rest.starts_with('\\'), rest)
}

/// How long the `\\server\share` at the start of a path is, if there is one.
fn share_len(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("\\\\").filter(|rest| !rest.starts_with('\\'))?;
    let server = rest.find('\\')?;
    let share = &rest[server + 1..];
    if share.starts_with('\\') {
        return None;
    }
    Some(2 + server + 1 + share.find('\\').unwrap_or(share.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_is_absolute_on_windows_only() {
        let cases = [
            ("C:\\x", Some("C:/x")),
            ("c:/", Some("c:/")),
            ("Z:\\..\\x", Some("Z:/../x")),
            ("C:/x//y/./z", Some("C:/x/y/z")),
            ("C:x", None),
            ("C:", None),
            ("CC:/a", None),
            (" C:/a", None),
            ("\\\\srv\\share\\x", None),
            ("\\\\?\\C:\\x", None),
            ("/x", None),
            ("", None),
        ];
        for (text, want) in cases {
            let got = WindowsPath::absolute(text).map(|path| path.to_posix());
            assert_eq!(got.as_deref(), want, "text {text:?}");
        }
    }

    #[test]
    fn knows_shares() {
        let share = WindowsPath::new("/\\srv\\share/x");
        assert_eq!((share.drive(), share.is_absolute()), ("\\\\srv\\share", true));
        assert!(!WindowsPath::new("\\\\srv").is_absolute());
        assert!(!WindowsPath::new("\\\\srv\\\\x").is_absolute());
    }
}
