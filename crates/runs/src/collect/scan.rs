//! Looking through a workspace, whatever is in it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Access, AtFlags, Dir, FileType, Stat, accessat, statat};

use super::ignore::{self, Rules, Stack};
use super::open::{may_be_there, open_folder, read_small, split};
use super::{Deadline, LeftOut, MAX_LISTED};

/// The longest path that is followed; git and the kernel take no longer ones.
const MAX_PATH: usize = 4095;

/// Why something that nobody may read is left out.
const UNREADABLE: &str = "it cannot be read";

/// The largest file that is read: a sparse one takes no room, and days to read.
const MAX_SIZE: i64 = 16 << 30;

/// What a file is, as git tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileMode {
    Plain,
    Executable,
    Link,
}

impl FileMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "100644",
            Self::Executable => "100755",
            Self::Link => "120000",
        }
    }

    pub(crate) fn is_link(self) -> bool {
        self == Self::Link
    }
}

/// Everything that changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) mtime: (i64, u64),
    /// Nobody can set this one.
    pub(super) ctime: (i64, u64),
}

impl FileStamp {
    #[expect(clippy::cast_sign_loss, reason = "a size is never negative")]
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            mode: stat.st_mode,
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            ctime: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// A file that was found.
#[derive(Debug, Clone)]
pub(super) struct FoundFile {
    pub(super) path: Vec<u8>,
    pub(super) mode: FileMode,
    pub(super) stamp: FileStamp,
}

/// What a scan asks of whoever knows the workspace.
pub(super) trait ScanFilter {
    /// A folder that has a `.git` was found. What its own excludes say, if it is a repository whose
    /// rules count.
    fn enter_repository(&mut self, folder: &[u8]) -> Option<Rules>;
    /// Whether a file is tracked, so that no rule hides it.
    fn knows(&self, path: &[u8]) -> bool;
    /// Whether there are tracked files beneath a folder.
    fn knows_beneath(&self, folder: &[u8]) -> bool;
    /// Whether something is none of the agent's change.
    fn hides(&self, path: &[u8]) -> bool;
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// By path.
    pub(super) files: Vec<FoundFile>,
    /// What the rules hide; folders end with a slash.
    pub(super) ignored: Vec<Vec<u8>>,
    pub(super) left_out: Vec<LeftOut>,
    /// Folders that have a `.git`.
    pub(super) repositories: Vec<Vec<u8>>,
    /// Folders that git takes for a repository themselves.
    pub(super) bare: Vec<Vec<u8>>,
    /// Whether attributes may have contents look otherwise in git than in the folder.
    pub(super) converts: bool,
}

/// Looks through everything beneath `root`.
pub(super) fn scan(
    root: &OwnedFd,
    filter: &mut dyn ScanFilter,
    deadline: Deadline,
) -> io::Result<ScanResult> {
    let mut scanned = ScanResult::default();
    // Folders still to be looked into, with the rules around them; `None` where no rules count.
    let mut waiting: Vec<(Vec<u8>, Option<Stack>)> = vec![(Vec::new(), None)];
    while let Some((path, around)) = waiting.pop() {
        deadline.check()?;
        let folder = match open_folder(root, &path) {
            Ok(folder) => folder,
            // It went, or became something else, while this looked.
            Err(error) if !path.is_empty() && !may_be_there(&error) => continue,
            // Whatever was in it before would count as deleted.
            Err(error) if path.is_empty() || filter.knows_beneath(&path) => {
                let message = format!("{}: {error}", String::from_utf8_lossy(&path));
                return Err(io::Error::new(error.kind(), message));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                scanned.leave_out(path, UNREADABLE);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut walk =
            Walk { folder: &folder, path: &path, filter, scanned: &mut scanned, deadline };
        walk.look(around, &mut waiting)?;
    }
    scanned.files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(scanned)
}

/// One folder that is looked into.
struct Walk<'w> {
    folder: &'w OwnedFd,
    path: &'w [u8],
    filter: &'w mut dyn ScanFilter,
    scanned: &'w mut ScanResult,
    deadline: Deadline,
}

impl Walk<'_> {
    fn look(
        &mut self,
        around: Option<Stack>,
        waiting: &mut Vec<(Vec<u8>, Option<Stack>)>,
    ) -> io::Result<()> {
        let names = names_in(self.folder)?;
        let rules = self.rules(around, &names);
        for (name, kind) in names {
            if name == b".git" {
                continue;
            }
            self.deadline.check()?;
            let path = join(self.path, &name);
            let stat = match kind {
                FileType::Directory => None,
                _ => match statat(self.folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => Some(stat),
                    Err(rustix::io::Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            let kind = stat.as_ref().map_or(kind, |stat| FileType::from_raw_mode(stat.st_mode));
            if self.filter.hides(&path) || self.is_ignored(rules.as_ref(), &path, kind) {
                continue;
            }
            if let Some(why) = refused_by_git(&name, &path, kind) {
                self.scanned.leave_out(path, why);
            } else if kind == FileType::Directory {
                waiting.push((path, rules.clone()));
            } else if let Some(stat) = stat {
                self.note(path, kind, &stat)?;
            }
        }
        Ok(())
    }

    /// The rules in this folder.
    fn rules(&mut self, around: Option<Stack>, names: &[(Vec<u8>, FileType)]) -> Option<Stack> {
        let has = |wanted: &[u8]| names.iter().any(|(name, _)| name == wanted);
        let mut rules = around;
        if has(b".git") {
            self.scanned.repositories.push(self.path.to_vec());
            if let Some(excludes) = self.filter.enter_repository(self.path) {
                rules = Some(Stack::default().with(self.path, excludes));
            }
        }
        // Ignored or not: whoever runs git in such a folder runs what its configuration says.
        if has(b"HEAD") && (has(b"objects") && has(b"refs") || has(b"commondir")) {
            self.scanned.bare.push(self.path.to_vec());
        }
        if has(b".gitattributes") {
            let text = read_small(self.folder, b".gitattributes", ignore::MAX_FILE);
            self.scanned.converts |= text.is_ok_and(|text| converts(&text));
        }
        let rules = rules?;
        if !has(b".gitignore") {
            return Some(rules);
        }
        Some(match read_small(self.folder, b".gitignore", ignore::MAX_FILE) {
            Ok(text) => rules.with(self.path, Rules::parse(&text)),
            Err(_) => rules,
        })
    }

    fn is_ignored(&mut self, rules: Option<&Stack>, path: &[u8], kind: FileType) -> bool {
        let is_dir = kind == FileType::Directory;
        let Some(rules) = rules else { return false };
        let is_known = || match is_dir {
            true => self.filter.knows_beneath(path),
            false => self.filter.knows(path),
        };
        if is_known() || !rules.ignores(path, is_dir) {
            return false;
        }
        if self.scanned.ignored.len() < MAX_LISTED {
            let mut path = path.to_vec();
            if is_dir {
                path.push(b'/');
            }
            self.scanned.ignored.push(path);
        }
        true
    }

    fn note(&mut self, path: Vec<u8>, kind: FileType, stat: &Stat) -> io::Result<()> {
        let mode = match kind {
            FileType::RegularFile if stat.st_mode & 0o100 != 0 => FileMode::Executable,
            FileType::RegularFile => FileMode::Plain,
            FileType::Symlink => FileMode::Link,
            _ => {
                self.scanned.leave_out(path, "it is neither a file, a folder nor a link");
                return Ok(());
            }
        };
        if self.is_closed(&path, kind, stat) {
            self.scanned.leave_out(path, UNREADABLE);
            return Ok(());
        }
        if stat.st_size > MAX_SIZE {
            // Left out, one that was there before would count as deleted.
            if self.filter.knows(&path) {
                let path = String::from_utf8_lossy(&path).into_owned();
                return Err(io::Error::other(format!("{path} has more than 16 GiB now")));
            }
            self.scanned.leave_out(path, "it has more than 16 GiB");
            return Ok(());
        }
        self.scanned.files.push(FoundFile { path, mode, stamp: FileStamp::of(stat) });
        Ok(())
    }

    /// Whether a new file cannot be read. One that was there before is tried, and its failure told: it did not go.
    fn is_closed(&self, path: &[u8], kind: FileType, stat: &Stat) -> bool {
        let (_, name) = split(path);
        kind == FileType::RegularFile
            && stat.st_mode & 0o400 == 0
            && !self.filter.knows(path)
            && accessat(self.folder, name, Access::READ_OK, AtFlags::EACCESS).is_err()
    }
}

impl ScanResult {
    fn leave_out(&mut self, path: Vec<u8>, why: &'static str) {
        if self.left_out.len() < MAX_LISTED {
            let path = String::from_utf8_lossy(&path).into_owned();
            self.left_out.push(LeftOut { path, why: why.to_owned() });
        }
    }
}

/// What is in a folder that is held. One that was removed meanwhile has nothing in it.
fn names_in(folder: &OwnedFd) -> io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = match entry {
            Err(rustix::io::Errno::NOENT) => break,
            entry => entry?,
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(names)
}

pub(super) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder.is_empty() {
        true => name.to_vec(),
        false => [folder, b"/", name].concat(),
    }
}

/// Whether attributes name something that changes contents on their way into git beyond line ends.
/// (Those change a file's length, which is compared.)
pub(super) fn converts(attributes: &[u8]) -> bool {
    [&b"filter"[..], b"ident", b"encoding"]
        .iter()
        .any(|word| attributes.windows(word.len()).any(|window| window == *word))
}

/// Why git would take no patch with this path, if so.
fn refused_by_git(name: &[u8], path: &[u8], kind: FileType) -> Option<&'static str> {
    let end = name.iter().position(|byte| b":\\".contains(byte)).unwrap_or(name.len());
    let stem = name.get(..end).unwrap_or_default().to_ascii_lowercase();
    let stem = stem.trim_ascii_end();
    let dots = stem.iter().rev().take_while(|byte| b". ".contains(byte)).count();
    let stem = stem.get(..stem.len() - dots).unwrap_or_default();
    if stem == b".git" || stem == b"git~1" {
        return Some("its name is one that git keeps for itself");
    }
    if kind == FileType::Symlink && name.eq_ignore_ascii_case(b".gitmodules") {
        return Some("git takes no link of this name");
    }
    (path.len() > MAX_PATH).then_some("its path is longer than any that can be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_removed_has_nothing_in_it() {
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let held = crate::collect::open_root(&folder).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        assert_eq!(names_in(&held).unwrap(), []);
    }

    #[test]
    fn knows_the_names_git_refuses() {
        for name in [".GIT", ".git ", ".git.", "git~1", "GIT~1", ".git::$x", ".git\\x"] {
            let refused = refused_by_git(name.as_bytes(), b"x", FileType::RegularFile);
            assert!(refused.is_some(), "{name}");
        }
        for name in [".gitignore", "git", ".gitx", "git~2", ".gitmodules", "x.git"] {
            let refused = refused_by_git(name.as_bytes(), b"x", FileType::RegularFile);
            assert_eq!(refused, None, "{name}");
        }
        let link = refused_by_git(b".gitmodules", b".gitmodules", FileType::Symlink);
        assert!(link.is_some());
    }
}
