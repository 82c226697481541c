//! Git's index, read as data: which files are tracked, and how they were when git last looked.
//!
//! Nothing here is believed but as a hint that saves hashing a file: an entry counts only while all of
//! what it says of the file is still so. Every extension is passed over, those that name programs or
//! other files included.

use super::oid::{HashKind, Oid};

/// One tracked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) path: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) oid: Oid,
    pub(crate) ctime: (u32, u32),
    pub(crate) mtime: (u32, u32),
    pub(crate) ino: u32,
    pub(crate) size: u32,
    /// Whether git was told to look at the file itself: no conflict, and no bit that says otherwise.
    pub(crate) is_plain: bool,
}

impl IndexEntry {
    /// Whether it is the commit of a submodule.
    pub(crate) fn is_gitlink(&self) -> bool {
        self.mode & 0o170_000 == 0o160_000
    }
}

const ASSUME_VALID: u16 = 0x8000;
const EXTENDED: u16 = 0x4000;
const STAGE: u16 = 0x3000;
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;

/// Reads an index; `None` for one of a version we do not know, or one that is broken: then every file
/// is looked at.
pub(crate) fn parse(data: &[u8], hash: HashKind) -> Option<Vec<IndexEntry>> {
    let mut reader = Reader { data };
    if reader.take(4)? != b"DIRC" {
        return None;
    }
    let version = reader.u32()?;
    if !(2..=4).contains(&version) {
        return None;
    }
    let count = reader.u32()? as usize;
    // An entry has more than this many bytes, so a count cannot ask for more memory than the file has.
    let mut entries = Vec::with_capacity(count.min(data.len() / 62));
    let mut previous = Vec::new();
    for _ in 0..count {
        let entry = reader.entry(version, hash, &previous)?;
        previous.clone_from(&entry.path);
        if leads_nowhere_else(&entry.path) {
            entries.push(entry);
        }
    }
    Some(entries)
}

/// Whether a path is one that git would check out: beneath the work tree, and in no `.git` of it. An index can say
/// anything, and its submodules become folders that are closed or opened to an agent.
fn leads_nowhere_else(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .all(|name| !matches!(name, b"" | b"." | b"..") && !name.eq_ignore_ascii_case(b".git"))
}

struct Reader<'d> {
    data: &'d [u8],
}

impl<'d> Reader<'d> {
    fn take(&mut self, count: usize) -> Option<&'d [u8]> {
        let (taken, rest) = self.data.split_at_checked(count)?;
        self.data = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn entry(&mut self, version: u32, hash: HashKind, previous: &[u8]) -> Option<IndexEntry> {
        let before = self.data.len();
        let ctime = (self.u32()?, self.u32()?);
        let mtime = (self.u32()?, self.u32()?);
        let (_device, ino, mode) = (self.u32()?, self.u32()?, self.u32()?);
        let (_uid, _gid, size) = (self.u32()?, self.u32()?, self.u32()?);
        let oid = Oid::from_bytes(hash, self.take(hash.len())?)?;
        let flags = self.u16()?;
        let more = if flags & EXTENDED != 0 { self.u16()? } else { 0 };
        let path = match version {
            4 => self.prefixed(previous)?,
            _ => {
                let name = self.until_nul()?.to_vec();
                // Entries are padded with one to eight zeros; one was taken with the name.
                let length = before - self.data.len();
                self.take(length.next_multiple_of(8) - length)?;
                name
            }
        };
        let is_plain =
            flags & (ASSUME_VALID | STAGE) == 0 && more & (SKIP_WORKTREE | INTENT_TO_ADD) == 0;
        Some(IndexEntry { path, mode, oid, ctime, mtime, ino, size, is_plain })
    }

    fn until_nul(&mut self) -> Option<&'d [u8]> {
        let end = self.data.iter().position(|byte| *byte == 0)?;
        let taken = self.take(end)?;
        self.take(1)?;
        Some(taken)
    }

    /// A name that begins as the one before it.
    fn prefixed(&mut self, previous: &[u8]) -> Option<Vec<u8>> {
        let mut strip = 0usize;
        loop {
            let byte = *self.take(1)?.first()?;
            strip = strip.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
            if byte & 0x80 == 0 {
                break;
            }
            strip = strip.checked_add(1)?;
        }
        let kept = previous.get(..previous.len().checked_sub(strip)?)?;
        let mut name = kept.to_vec();
        name.extend_from_slice(self.until_nul()?);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What real indexes say, in each version git writes.
    #[test]
    fn reads_what_git_writes() {
        for version in ["2", "3", "4"] {
            let folder = tempfile::tempdir().unwrap();
            let git = |arguments: &[&str]| {
                let ran = Command::new("git").current_dir(&folder).args(arguments).output();
                assert!(ran.unwrap().status.success(), "{arguments:?}");
            };
            git(&["init", "-q"]);
            let names = ["a", "a-much-longer-name", "dir/deep/file", "dir/deep/file2", "z"];
            std::fs::create_dir_all(folder.path().join("dir/deep")).unwrap();
            for name in names {
                std::fs::write(folder.path().join(name), name).unwrap();
            }
            git(&["add", "-A"]);
            git(&["update-index", "--skip-worktree", "z"]);
            git(&["update-index", "--index-version", version]);
            let data = std::fs::read(folder.path().join(".git/index")).unwrap();
            let entries = parse(&data, HashKind::Sha1).unwrap();
            let got: Vec<_> = entries.iter().map(|entry| entry.path.as_slice()).collect();
            assert_eq!(got, names.map(str::as_bytes), "version {version}");
            for entry in &entries {
                assert_eq!(entry.oid, HashKind::Sha1.of_blob(&entry.path));
                assert_eq!(entry.is_plain, entry.path != b"z");
                assert_eq!(entry.mode, 0o100_644);
            }
        }
    }

    #[test]
    fn takes_nothing_that_is_cut_short() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "x").unwrap();
        for arguments in [&["init", "-q"][..], &["add", "-A"]] {
            assert!(
                Command::new("git")
                    .current_dir(&folder)
                    .args(arguments)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let data = std::fs::read(folder.path().join(".git/index")).unwrap();
        for length in 0..72 {
            assert_eq!(parse(&data[..length], HashKind::Sha1), None, "{length}");
        }
        let mut huge = data[..12].to_vec();
        huge[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(parse(&huge, HashKind::Sha1), None);
    }

    #[test]
    fn passes_over_paths_that_lead_elsewhere() {
        for path in ["/etc", "../up", "a/../../b", "a//b", "./a", "a/.", "sub/.GIT/hooks", "", "a/"]
        {
            assert!(!leads_nowhere_else(path.as_bytes()), "{path:?}");
        }
        for path in ["a", "a/b", "..a", "a/..b", ".gitignore", ".git2/x"] {
            assert!(leads_nowhere_else(path.as_bytes()), "{path:?}");
        }
    }
}
