//! Who may do what with an entry of the workspace.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde_json::Value;

use crate::lax::{Checked, Dump, FromInput, Input, Object};
use crate::python::repr;
use crate::{Error, ErrorClass, ErrorKind, Result};

/// What one class of users may do: bits that add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileMode;

impl FileMode {
    /// Everything.
    pub const ALL: i128 = 7;
    /// Nothing.
    pub const NONE: i128 = 0;
    /// Read, or list a folder.
    pub const READ: i128 = 4;
    /// Write, or change a folder.
    pub const WRITE: i128 = 2;
    /// Execute, or enter a folder.
    pub const EXEC: i128 = 1;

    /// Every name and its value, in the reference's order.
    pub const NAMED: [(&'static str, i128); 5] = [
        ("ALL", Self::ALL),
        ("NONE", Self::NONE),
        ("READ", Self::READ),
        ("WRITE", Self::WRITE),
        ("EXEC", Self::EXEC),
    ];
}

/// The bit of a mode that says "folder".
const FOLDER: i128 = 0o040_000;

/// The permissions of an entry, as three digits and a folder flag.
///
/// The digits are not range checked, as in the reference; two permissions are equal if their
/// [modes](Self::mode) are.
///
/// ```
/// use bastide_model::Permissions;
///
/// let permissions = Permissions::parse("drwxr-x---")?;
/// assert_eq!(permissions.mode(), 0o040_750);
/// assert_eq!(permissions.to_string(), "drwxr-x---");
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Permissions {
    /// What the owner may do.
    pub owner: i128,
    /// What the group may do.
    pub group: i128,
    /// What everybody else may do.
    pub other: i128,
    /// Whether this is a folder.
    pub directory: bool,
}

impl Default for Permissions {
    /// Everything for the owner, nothing for anybody else.
    fn default() -> Self {
        Self {
            owner: FileMode::ALL,
            group: FileMode::NONE,
            other: FileMode::NONE,
            directory: false,
        }
    }
}

impl Permissions {
    /// What an entry has if nobody says otherwise: everybody may read and execute.
    #[must_use]
    pub fn of_entries() -> Self {
        let others = FileMode::READ | FileMode::EXEC;
        Self { owner: FileMode::ALL, group: others, other: others, directory: false }
    }

    /// The mode bits, with the folder bit.
    #[must_use]
    pub fn mode(&self) -> i128 {
        let folder = if self.directory { FOLDER } else { 0 };
        (self.owner << 6) | (self.group << 3) | self.other | folder
    }

    /// The last three digits and the folder bit of a mode; everything else is dropped.
    #[must_use]
    pub fn from_mode(mode: i128) -> Self {
        Self {
            owner: (mode >> 6) & FileMode::ALL,
            group: (mode >> 3) & FileMode::ALL,
            other: mode & FileMode::ALL,
            directory: mode & FOLDER != 0,
        }
    }

    /// Reads the first column of a long listing, such as `drwxr-xr-x`.
    ///
    /// A marker for access lists, extended attributes or labels after it is dropped, and so are
    /// set-id and sticky bits, except for the execute bit they are written over.
    ///
    /// # Errors
    ///
    /// `ValueError` if it is anything but a file's or a folder's ten letters.
    pub fn parse(text: &str) -> Result<Self> {
        let mut letters: Vec<char> = text.chars().collect();
        if letters.len() == 11 && matches!(letters[10], '@' | '+' | '.') {
            letters.truncate(10);
        }
        let shown = || repr(&letters.iter().collect::<String>());
        if letters.len() != 10 {
            return Err(refused("permissions string length", &shown()));
        }
        if !matches!(letters[0], 'd' | '-') {
            return Err(refused("permissions type", &shown()));
        }
        Ok(Self {
            owner: triplet(&letters[1..4], ['s', 'S'])?,
            group: triplet(&letters[4..7], ['s', 'S'])?,
            other: triplet(&letters[7..], ['t', 'T'])?,
            directory: letters[0] == 'd',
        })
    }

    /// The same with other rights for the owner.
    #[must_use]
    pub fn owner_can(self, owner: i128) -> Self {
        Self { owner, ..self }
    }

    /// The same with other rights for the group.
    #[must_use]
    pub fn group_can(self, group: i128) -> Self {
        Self { group, ..self }
    }

    /// The same with other rights for everybody else.
    #[must_use]
    pub fn others_can(self, other: i128) -> Self {
        Self { other, ..self }
    }
}

fn refused(what: &str, shown: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("invalid {what}: {shown}"))
        .with_class(ErrorClass::ValueError)
}

/// Three letters of a listing; `special` are a set-id or sticky bit with and without execute.
fn triplet(letters: &[char], special: [char; 2]) -> Result<i128> {
    let shown = || repr(&letters.iter().collect::<String>());
    let [read, write, exec] = *letters else {
        return Err(refused("permissions triplet", &shown()));
    };
    let flag = |letter: char, on: char, value: i128, what: &str| match letter {
        '-' => Ok(FileMode::NONE),
        letter if letter == on => Ok(value),
        _ => Err(refused(what, &shown())),
    };
    let read = flag(read, 'r', FileMode::READ, "read flag")?;
    let write = flag(write, 'w', FileMode::WRITE, "write flag")?;
    let exec = match exec {
        letter if letter == special[0] => FileMode::EXEC,
        letter if letter == special[1] => FileMode::NONE,
        letter => flag(letter, 'x', FileMode::EXEC, "exec flag")?,
    };
    Ok(read | write | exec)
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.directory { "d" } else { "-" })?;
        for digit in [self.owner, self.group, self.other] {
            for (bit, letter) in
                [(FileMode::READ, "r"), (FileMode::WRITE, "w"), (FileMode::EXEC, "x")]
            {
                f.write_str(if digit & bit == 0 { "-" } else { letter })?;
            }
        }
        Ok(())
    }
}

impl PartialEq for Permissions {
    fn eq(&self, other: &Self) -> bool {
        self.mode() == other.mode()
    }
}

impl Eq for Permissions {}

impl Hash for Permissions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mode().hash(state);
    }
}

impl FromInput for Permissions {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let default = Self::default();
        let mut fields = input.fields("Permissions")?;
        let owner = fields.or("owner", default.owner);
        let group = fields.or("group", default.group);
        let other = fields.or("other", default.other);
        let directory = fields.or("directory", default.directory);
        fields.build(|| {
            Some(Self { owner: owner?, group: group?, other: other?, directory: directory? })
        })
    }
}

impl Dump for Permissions {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("owner", &self.owner)?;
        out.put("group", &self.group)?;
        out.put("other", &self.other)?;
        out.put("directory", &self.directory)?;
        Ok(out.into())
    }
}
