//! Listings of folders, and reading them from `ls -la`.

use serde_json::{Value, json};

use crate::error::Result;
use crate::permissions::Permissions;
use crate::text::{parse_integer, split_lines, split_words};

/// What an entry of a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A folder.
    Directory,
    /// A plain file.
    File,
    /// A symbolic link.
    Symlink,
    /// A device, a socket, a pipe.
    Other,
}

impl FileKind {
    /// The word for it in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::File => "file",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Its absolute path.
    pub path: String,
    /// What its owner, its group and others may do.
    pub permissions: Permissions,
    /// The owner's name, or number.
    pub owner: String,
    /// The group's name, or number.
    pub group: String,
    /// Its size in bytes; 0 for a device.
    pub size: i128,
    /// What it is.
    pub kind: FileKind,
}

impl FileEntry {
    /// Whether it is a folder.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The entry as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "path": self.path,
            "permissions": {
                "owner": self.permissions.owner,
                "group": self.permissions.group,
                "other": self.permissions.other,
                "directory": self.permissions.directory,
            },
            "owner": self.owner,
            "group": self.group,
            "size": self.size,
            "kind": self.kind.as_str(),
        })
    }
}

/// Reads the output of `ls -la` for the folder `base`. Lines that are no entries are passed over,
/// as are `.` and `..`.
///
/// ```
/// use bastide_model::listing::parse_ls_la;
///
/// let entries = parse_ls_la("-rw-r--r-- 1 root root 5 Jan  1 00:00 a b.txt\n", "/workspace")?;
/// assert_eq!((entries[0].path.as_str(), entries[0].size), ("/workspace/a b.txt", 5));
/// # Ok::<(), bastide_model::Error>(())
/// ```
///
/// # Errors
/// `ValueError` if an entry has permissions that cannot be read.
pub fn parse_ls_la(output: &str, base: &str) -> Result<Vec<FileEntry>> {
    let lines = split_lines(output).filter(|line| !line.starts_with("total"));
    lines.filter_map(|line| parse_line(line, base)).collect()
}

fn parse_line(line: &str, base: &str) -> Option<Result<FileEntry>> {
    let words = split_words(line, 9);
    let [mode, _, owner, group, size, _, _, _, name] = words[..] else { return None };
    let kind_letter = mode.chars().next().unwrap_or_default();
    let (size, name) = match kind_letter {
        // GNU shows two numbers instead of a size, which moves the name; BSD shows one.
        'c' | 'b' if size.ends_with(',') => (0, *split_words(line, 10).get(9)?),
        'c' | 'b' => (0, name),
        _ => (parse_integer(size)?, name),
    };
    let kind = match kind_letter {
        'd' => FileKind::Directory,
        '-' => FileKind::File,
        'l' => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let name = match name.split_once(" -> ") {
        Some((name, _)) if kind == FileKind::Symlink => name,
        _ => name,
    };
    if matches!(name, "." | "..") {
        return None;
    }
    // Permissions know folders and files only.
    let rest = &mode[kind_letter.len_utf8()..];
    let is_plain = matches!(kind, FileKind::Directory | FileKind::File) || rest.is_empty();
    let mode = if is_plain { mode.to_owned() } else { format!("-{rest}") };
    let path = match name.starts_with('/') {
        true => name.to_owned(),
        false => format!("{}/{name}", base.trim_end_matches('/')),
    };
    Some(Permissions::parse(&mode).map(|permissions| FileEntry {
        path,
        permissions,
        owner: owner.to_owned(),
        group: group.to_owned(),
        size,
        kind,
    }))
}
