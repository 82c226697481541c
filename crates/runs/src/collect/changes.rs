//! What differs between then and now.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use bastide::{Error, Result};
use rustix::fs::{AtFlags, FileType, statat};
use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Entry, kind_of};
use super::content::{self, Content};
use super::oid::Oid;
use super::open::open_folder;
use super::patch::Patch;
use super::rename::{self, RenameCandidate};
use super::scan::{FileMode, FoundFile, ScanResult, scan};
use super::{ChangedFile, Deadline, LeftOut};

/// The complete change of a workspace, but for the patch, which is in a file of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Changes {
    /// The files that changed, by path.
    pub files: Vec<ChangedFile>,
    /// How many bytes the patch has.
    pub patch_bytes: u64,
    /// What is there and hidden by `.gitignore`; folders end with a slash.
    pub ignored: Vec<String>,
    /// What is there and cannot be in a patch.
    pub left_out: Vec<LeftOut>,
    /// Folders that became repositories. Whoever runs git in one runs what its configuration says.
    pub new_repositories: Vec<String>,
}

/// A file that differs.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(crate) path: Vec<u8>,
    /// Where it was, where that is another place, and how much of it is the same, in percent.
    pub(crate) old_path: Option<(Vec<u8>, u8)>,
    pub(super) old: Option<Entry>,
    pub(crate) new: Option<NewFile>,
}

/// Whether there are files beneath a path by now.
fn is_folder_now(path: &[u8], deltas: &[Delta]) -> bool {
    let is_beneath =
        |other: &Delta| other.path.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
    deltas.iter().any(|other| other.new.is_some() && is_beneath(other))
}

/// A file as it is now.
#[derive(Debug, Clone)]
pub(crate) struct NewFile {
    pub(crate) mode: FileMode,
    pub(crate) oid: Oid,
    pub(super) size: u64,
}

/// What is in a file, and how much of it there is.
pub(crate) struct FileStream {
    pub(crate) size: u64,
    pub(crate) data: Box<dyn io::Read + Send>,
}

impl Baseline {
    /// Looks at the workspace again, writes what changed as a patch to `patch`, and says what it is.
    ///
    /// Nothing of the workspace is run, followed out of it, or waited for.
    ///
    /// # Errors
    ///
    /// If the workspace cannot be looked through, or not in time; and if the patch cannot be written.
    pub fn collect(&self, patch: &Path) -> Result<Changes> {
        self.write_changes(patch).map_err(|error| {
            let what = format!("cannot collect what changed: {error}");
            Error::new(kind_of(&error), what).with_context("patch", patch.display().to_string())
        })
    }

    fn write_changes(&self, patch: &Path) -> io::Result<Changes> {
        let deadline = Deadline::after(self.options.time_limit);
        let (deltas, scanned) = self.deltas(deadline)?;
        self.write_patch(&deltas, scanned, patch, deadline)
    }

    fn write_patch(
        &self,
        deltas: &[Delta],
        scanned: ScanResult,
        patch: &Path,
        deadline: Deadline,
    ) -> io::Result<Changes> {
        let out = BufWriter::new(File::create_new(patch)?);
        let mut patch = Patch::new(self, out);
        let mut files = Vec::with_capacity(deltas.len());
        for delta in deltas {
            deadline.check()?;
            files.extend(patch.add(delta)?);
        }
        files.sort_by(|one: &ChangedFile, other| one.path.cmp(&other.path));
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        let is_new = |folder: &&Vec<u8>| !self.had_repository(folder) && self.is_repository(folder);
        let mut changes = Changes {
            files,
            patch_bytes: patch.finish()?,
            ignored: scanned.ignored.iter().map(text).collect(),
            left_out: scanned.left_out,
            new_repositories: scanned.repositories.iter().filter(is_new).map(text).collect(),
        };
        let is_new = |folder: &&Vec<u8>| !self.had_bare(folder);
        changes.new_repositories.extend(scanned.bare.iter().filter(is_new).map(text));
        changes.ignored.sort();
        Ok(changes)
    }

    /// Whether git would take the `.git` of a folder for a repository, or for what leads to one.
    fn is_repository(&self, folder: &[u8]) -> bool {
        let Ok(folder) = open_folder(&self.root, folder) else { return false };
        let is_there = |path: &str| statat(&folder, path, AtFlags::SYMLINK_NOFOLLOW);
        match is_there(".git") {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                is_there(".git/HEAD").is_ok()
            }
            found => found.is_ok(),
        }
    }

    /// What differs, and all that was seen.
    pub(crate) fn differences(&self) -> io::Result<Vec<Delta>> {
        Ok(self.deltas(Deadline::after(self.options.time_limit))?.0)
    }

    /// A file as it is now, whole or deflated.
    pub(super) fn now(&self, path: &[u8], mode: FileMode) -> io::Result<Option<Content>> {
        content::read(&self.root, path, mode, self.hash, &self.options.scratch)
    }

    /// A file as it is now, as a stream of a known length; `None` if it went.
    pub(crate) fn content_now(
        &self,
        path: &[u8],
        mode: FileMode,
    ) -> io::Result<Option<FileStream>> {
        Ok(match self.now(path, mode)? {
            Some(Content::Whole(content)) => Some(FileStream {
                size: content.len() as u64,
                data: Box::new(io::Cursor::new(content)),
            }),
            Some(Content::Deflated { data, size, .. }) => {
                let data = Box::new(flate2::read::ZlibDecoder::new(data));
                Some(FileStream { size, data })
            }
            Some(Content::Unknown(_)) | None => None,
        })
    }

    fn deltas(&self, deadline: Deadline) -> io::Result<(Vec<Delta>, ScanResult)> {
        let mut scanned = scan(&self.root, &mut self.filter(), deadline)?;
        let mut deltas = Vec::new();
        let mut is_there = vec![false; self.entries.len()];
        for found in std::mem::take(&mut scanned.files) {
            deadline.check()?;
            match self.place(&found.path) {
                Some(at) => {
                    let Some(delta) = self.compare(at, found)? else { continue };
                    if let Some(slot) = is_there.get_mut(at) {
                        *slot = true;
                    }
                    deltas.extend(delta);
                }
                None => deltas.extend(self.added(found)?),
            }
        }
        for (entry, is_there) in self.entries.iter().zip(is_there) {
            if !is_there {
                let (path, old) = (entry.path.clone(), Some(entry.clone()));
                deltas.push(Delta { path, old_path: None, old, new: None });
            }
        }
        deltas.sort_by(|one, other| one.path.cmp(&other.path));
        Ok((self.with_renames(deltas)?, scanned))
    }

    /// What became of a file that was there: `None` if it went while this looked.
    #[expect(clippy::option_option, reason = "gone, unchanged or changed")]
    fn compare(&self, at: usize, found: FoundFile) -> io::Result<Option<Option<Delta>>> {
        let Some(entry) = self.entries.get(at) else { return Ok(None) };
        if entry.is_settled && entry.stamp == found.stamp {
            return Ok(Some(None));
        }
        let Some(oid) = content::name(&self.root, &found.path, found.mode, self.hash)? else {
            return Ok(None);
        };
        let is_same = || oid == entry.oid || self.content(entry).oid(self.hash) == oid;
        if found.mode == entry.mode && is_same() {
            return Ok(Some(None));
        }
        let new = Some(NewFile { mode: found.mode, oid, size: found.stamp.size });
        let old = Some(entry.clone());
        Ok(Some(Some(Delta { path: found.path, old_path: None, old, new })))
    }

    fn added(&self, found: FoundFile) -> io::Result<Option<Delta>> {
        let oid = content::name(&self.root, &found.path, found.mode, self.hash)?;
        Ok(oid.map(|oid| {
            let new = Some(NewFile { mode: found.mode, oid, size: found.stamp.size });
            Delta { path: found.path, old_path: None, old: None, new }
        }))
    }

    /// Joins what went and what came where it is the same file.
    fn with_renames(&self, mut deltas: Vec<Delta>) -> io::Result<Vec<Delta>> {
        let (mut went, mut came) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (at, delta) in deltas.iter().enumerate() {
            match (&delta.old, &delta.new) {
                // `git apply` takes a link for gone only where its own end is in the patch.
                (Some(old), None) if old.mode.is_link() && is_folder_now(&delta.path, &deltas) => {}
                (Some(old), None) => {
                    let oid = old.oid;
                    went.0.push(RenameCandidate {
                        oid,
                        is_link: old.mode.is_link(),
                        size: old.stamp.size,
                    });
                    went.1.push(at);
                }
                (None, Some(new)) => {
                    let (oid, is_link) = (new.oid, new.mode.is_link());
                    came.0.push(RenameCandidate { oid, is_link, size: new.size });
                    came.1.push(at);
                }
                _ => {}
            }
        }
        let mut read_old = |side: usize| {
            let delta = deltas.get(*went.1.get(side)?)?;
            delta.old.as_ref().map(|old| self.content(old))
        };
        let mut read_new = |side: usize| {
            let delta = deltas.get(*came.1.get(side)?)?;
            self.now(&delta.path, delta.new.as_ref()?.mode).ok().flatten()
        };
        let pairs = rename::pairs(&went.0, &came.0, &mut read_old, &mut read_new);
        let mut gone = Vec::with_capacity(pairs.len());
        for (from, to, similarity) in pairs {
            let (Some(&from), Some(&to)) = (went.1.get(from), came.1.get(to)) else { continue };
            let Some((old, old_path)) =
                deltas.get_mut(from).map(|delta| (delta.old.take(), delta.path.clone()))
            else {
                continue;
            };
            if let Some(delta) = deltas.get_mut(to) {
                delta.old = old;
                delta.old_path = Some((old_path, similarity));
            }
            gone.push(from);
        }
        gone.sort_unstable();
        let mut at = 0;
        deltas.retain(|_| {
            at += 1;
            gone.binary_search(&(at - 1)).is_err()
        });
        Ok(deltas)
    }
}

/// Counts what is written.
#[derive(Debug)]
pub(super) struct CountingWriter<W> {
    pub(super) inner: W,
    pub(super) count: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(data)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::collect::{BaselineOptions, ChangeStatus};

    /// Nothing holds a workspace still: the user's editor, a build that goes on outside.
    #[test]
    fn what_goes_while_it_is_collected_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("work");
        fs::create_dir_all(&work).unwrap();
        let long: String = (0..100).map(|line| format!("{line}\n")).collect();
        for name in ["changed", "moved", "stays"] {
            fs::write(work.join(name), format!("{name}\n{long}")).unwrap();
        }
        let base = Baseline::record(&work, BaselineOptions::new(folder.path())).unwrap();
        fs::write(work.join("changed"), "else\n").unwrap();
        fs::write(work.join("added"), "new\n").unwrap();
        fs::rename(work.join("moved"), work.join("a-new-name")).unwrap();
        let deadline = Deadline::after(base.options.time_limit);
        let (deltas, scanned) = base.deltas(deadline).unwrap();
        assert_eq!(deltas.len(), 3, "{deltas:?}");
        for name in ["changed", "added", "a-new-name"] {
            fs::remove_file(work.join(name)).unwrap();
        }
        let patch = folder.path().join("patch");
        let changes = base.write_patch(&deltas, scanned, &patch, deadline).unwrap();
        let said: Vec<_> = changes.files.iter().map(|file| (&*file.path, file.status)).collect();
        let gone = ChangeStatus::Deleted;
        assert_eq!(said, [("changed", gone), ("moved", gone)], "{changes:?}");
    }
}
