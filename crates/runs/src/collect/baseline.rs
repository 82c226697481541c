//! What a workspace is before the agent runs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use rustix::fs::fstatfs;
use rustix::time::{ClockId, clock_gettime};

use super::Deadline;
use super::content::{self, Content, MAX_TEXT};
use super::ignore::Rules;
use super::index::IndexEntry;
use super::oid::{HashKind, Oid};
use super::open::open_root;
use super::repository::{Repositories, Repository};
use super::scan::{FileMode, FileStamp, FoundFile, ScanFilter, scan};

/// The most of one file that git does not have, and of all of them, that is kept to compare with. What
/// is beyond is known by its name alone: its change is then in the patch as the whole new file.
const MAX_KEPT_FILE: u64 = 8 << 20;
const MAX_KEPT: u64 = 256 << 20;

/// File systems that change a file's time with every change of it, and tell moments apart well enough.
const EXACT: [i64; 7] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
    0x794C_7630, // overlay
    0x2FC1_2FC1, // zfs
    0xF2F5_2010, // f2fs
];

/// How a workspace is noted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BaselineOptions {
    /// How long looking through the workspace may take, each time.
    pub time_limit: Duration,
    /// Files that are put into the workspace for the agent, relative to it. They are no part of its
    /// change.
    pub hidden: Vec<PathBuf>,
    /// A folder out of the agent's reach, for what has to be kept meanwhile.
    pub scratch: PathBuf,
}

impl BaselineOptions {
    /// Lets looking through the workspace take that long, each time.
    #[must_use]
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Keeps these files out of the change.
    #[must_use]
    pub fn hidden(mut self, hidden: impl IntoIterator<Item = PathBuf>) -> Self {
        self.hidden = hidden.into_iter().collect();
        self
    }
}

impl BaselineOptions {
    /// The usual options.
    #[must_use]
    pub fn new(scratch: impl Into<PathBuf>) -> Self {
        let time_limit = Duration::from_secs(600);
        Self { time_limit, hidden: Vec::new(), scratch: scratch.into() }
    }
}

/// What a workspace was. It holds the workspace's folder, so that what is looked through later is the
/// same one, whatever its path leads to then.
#[derive(Debug)]
pub struct Baseline {
    pub(super) root: OwnedFd,
    pub(super) hash: HashKind,
    /// By path.
    pub(super) entries: Vec<Entry>,
    /// Every folder that has files in it.
    folders: HashSet<Vec<u8>>,
    kept: File,
    repositories: Vec<Repository>,
    /// Folders that git takes for a repository themselves.
    bare: BTreeSet<Vec<u8>>,
    git_folders: BTreeSet<Vec<u8>>,
    by_path: HashMap<Vec<u8>, usize>,
    pub(super) options: BaselineOptions,
}

/// A file as it was.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) mode: FileMode,
    pub(super) stamp: FileStamp,
    /// The name of its content, as git has it.
    pub(super) oid: Oid,
    source: Source,
    /// Whether its stamp is another after any change.
    pub(super) is_settled: bool,
}

/// Where the content of a file can be read again.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// In the object store of this repository.
    Store(usize),
    /// In what was kept.
    Kept {
        at: u64,
        length: u64,
    },
    Nowhere,
}

impl Baseline {
    /// Notes a workspace as it is.
    ///
    /// # Errors
    ///
    /// If it cannot be looked through, or not in time.
    pub fn record(workspace: &Path, options: BaselineOptions) -> Result<Self> {
        Self::note(workspace, options).map_err(|error| {
            let what = format!("cannot note what is in {}: {error}", workspace.display());
            Error::new(kind_of(&error), what).with_context("path", workspace.display().to_string())
        })
    }

    fn note(workspace: &Path, options: BaselineOptions) -> io::Result<Self> {
        let deadline = Deadline::after(options.time_limit);
        let root = open_root(workspace)?;
        let hidden = options.hidden.iter().map(|path| path.as_os_str().as_bytes().to_vec());
        let mut repositories = Repositories::of(workspace, hidden.collect());
        let found = scan(&root, &mut repositories, deadline)?;
        repositories.converts |= found.converts;
        let moment = clock_gettime(ClockId::RealtimeCoarse);
        let moment = (moment.tv_sec, u64::try_from(moment.tv_nsec).unwrap_or_default());
        #[expect(clippy::useless_conversion, reason = "the type differs between machines")]
        let is_exact = EXACT.contains(&i64::from(fstatfs(&root)?.f_type));
        let device = rustix::fs::fstat(&root)?.st_dev;
        let mut recorder = Recorder {
            root: &root,
            hash: repositories.hash(),
            repositories: &repositories,
            kept: tempfile::tempfile_in(&options.scratch)?,
            length: 0,
            scratch: &options.scratch,
            deadline,
        };
        let mut entries = Vec::with_capacity(found.files.len());
        for file in found.files {
            let is_settled = is_exact && file.stamp.device == device && file.stamp.ctime < moment;
            entries.extend(recorder.entry(file, is_settled)?);
        }
        let (hash, kept) = (recorder.hash, recorder.kept);
        let by_path = entries.iter().enumerate().map(|(at, entry)| (entry.path.clone(), at));
        let bare = found.bare.into_iter().collect();
        let mut git_folders: BTreeSet<_> = found.repositories.into_iter().collect();
        git_folders.extend(repositories.submodules());
        let mut base = Self {
            git_folders,
            by_path: by_path.collect(),
            folders: HashSet::new(),
            root,
            hash,
            entries,
            kept,
            bare,
            repositories: repositories.into_parts(),
            options,
        };
        for entry in &base.entries {
            let mut folder = super::open::split(&entry.path).0;
            while !folder.is_empty() && base.folders.insert(folder.to_vec()) {
                folder = super::open::split(folder).0;
            }
        }
        Ok(base)
    }

    /// Which entry a path is.
    pub(super) fn place(&self, path: &[u8]) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    /// Every file: its path, what it is, and the name of its content.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&[u8], FileMode, Oid)> {
        self.entries.iter().map(|entry| (entry.path.as_slice(), entry.mode, entry.oid))
    }

    /// A file's mode and the name of its content.
    pub(crate) fn file(&self, path: &[u8]) -> Option<(FileMode, Oid)> {
        self.entries.get(self.place(path)?).map(|entry| (entry.mode, entry.oid))
    }

    /// The folders that had a `.git`, whatever that is, and those that are submodules.
    pub(crate) fn repository_folders(&self) -> &BTreeSet<Vec<u8>> {
        &self.git_folders
    }

    /// The held folder.
    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// The content of a file as it was.
    pub(super) fn content(&self, entry: &Entry) -> Content {
        let found = match entry.source {
            Source::Nowhere => None,
            Source::Kept { at, length } => {
                let mut content = vec![0u8; usize::try_from(length).unwrap_or_default()];
                self.kept.read_exact_at(&mut content, at).ok().map(|()| content)
            }
            Source::Store(number) => {
                let objects =
                    self.repositories.get(number).and_then(|found| found.objects.as_ref());
                let blob = objects.and_then(|objects| objects.blob(&entry.oid, MAX_TEXT));
                blob.and_then(|blob| as_checked_out(blob, entry))
            }
        };
        found.map_or(Content::Unknown(entry.oid), Content::Whole)
    }

    /// Who tells a scan at the end what was there at the beginning.
    pub(super) fn filter(&self) -> impl ScanFilter + '_ {
        BaselineFilter(self)
    }

    /// Whether a folder was a repository without a work tree.
    pub(super) fn had_bare(&self, folder: &[u8]) -> bool {
        self.bare.contains(folder)
    }

    /// Whether there was a repository in a folder.
    pub(super) fn had_repository(&self, folder: &[u8]) -> bool {
        self.repositories.iter().any(|repository| repository.folder == folder)
    }
}

/// What git made of a blob when it checked it out: the same, or with the line ends of another system.
fn as_checked_out(blob: Vec<u8>, entry: &Entry) -> Option<Vec<u8>> {
    if blob.len() as u64 == entry.stamp.size {
        return Some(blob);
    }
    let mut converted = Vec::with_capacity(blob.len());
    for line in blob.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) if !line.ends_with(b"\r") => {
                converted.extend_from_slice(line);
                converted.extend_from_slice(b"\r\n");
            }
            _ => converted.extend_from_slice(line),
        }
    }
    (converted.len() as u64 == entry.stamp.size).then_some(converted)
}

struct Recorder<'r> {
    root: &'r OwnedFd,
    hash: HashKind,
    repositories: &'r Repositories,
    kept: File,
    length: u64,
    scratch: &'r Path,
    deadline: Deadline,
}

impl Recorder<'_> {
    /// One file; `None` if it went meanwhile.
    fn entry(&mut self, found: FoundFile, is_settled: bool) -> io::Result<Option<Entry>> {
        let FoundFile { path, mode, stamp } = found;
        if !self.repositories.converts
            && let Some((tracked, number)) = self.repositories.settled(&path)
            && is_same(tracked, mode, &stamp)
        {
            let (oid, source) = (tracked.oid, Source::Store(number));
            return Ok(Some(Entry { path, mode, stamp, oid, source, is_settled }));
        }
        self.deadline.check()?;
        if stamp.size <= MAX_KEPT_FILE && self.length + stamp.size <= MAX_KEPT {
            match content::read(self.root, &path, mode, self.hash, self.scratch)? {
                Some(Content::Whole(content)) => {
                    let (at, length) = (self.length, content.len() as u64);
                    self.kept.write_all(&content)?;
                    self.length += length;
                    let oid = self.hash.of_blob(&content);
                    let source = Source::Kept { at, length };
                    return Ok(Some(Entry { path, mode, stamp, oid, source, is_settled }));
                }
                None => return Ok(None),
                // It grew beyond what is kept since it was found.
                Some(Content::Deflated { .. } | Content::Unknown(_)) => {}
            }
        }
        let oid = content::name(self.root, &path, mode, self.hash)?;
        let source = Source::Nowhere;
        Ok(oid.map(|oid| Entry { path, mode, stamp, oid, source, is_settled }))
    }
}

/// Whether a file is what the index says of it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the index keeps the lower half of each"
)]
fn is_same(tracked: &IndexEntry, mode: FileMode, stamp: &FileStamp) -> bool {
    let time = |(seconds, nanos): (i64, u64)| (seconds as u32, nanos as u32);
    let wanted = match mode {
        FileMode::Plain => 0o100_644,
        FileMode::Executable => 0o100_755,
        FileMode::Link => 0o120_000,
    };
    tracked.mode == wanted
        && tracked.size == stamp.size as u32
        && tracked.ino == stamp.inode as u32
        && tracked.mtime == time(stamp.mtime)
        && tracked.ctime == time(stamp.ctime)
}

struct BaselineFilter<'b>(&'b Baseline);

impl ScanFilter for BaselineFilter<'_> {
    /// The excludes count as they were: whoever can write a repository's could hide files with them.
    fn enter_repository(&mut self, folder: &[u8]) -> Option<Rules> {
        let mut all = self.0.repositories.iter();
        all.find(|repository| repository.folder == folder).map(|found| found.excludes.clone())
    }

    fn knows(&self, path: &[u8]) -> bool {
        self.0.by_path.contains_key(path)
    }

    fn knows_beneath(&self, folder: &[u8]) -> bool {
        self.0.folders.contains(folder)
    }

    fn hides(&self, path: &[u8]) -> bool {
        self.0.options.hidden.iter().any(|hidden| hidden.as_os_str().as_bytes() == path)
    }
}

pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::TimedOut => ErrorKind::Timeout,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    }
}
