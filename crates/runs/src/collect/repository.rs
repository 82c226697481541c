//! What a workspace's repositories say before the agent runs, read as data.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ignore::{self, Rules};
use super::index::{self, IndexEntry};
use super::objects::Objects;
use super::oid::HashKind;
use super::open::{open_folder, open_regular, open_root};
use super::scan::{ScanFilter, converts, join};
use crate::git::location::GitLocation;

/// The largest index that is read.
const MAX_INDEX: u64 = 256 << 20;

/// The repositories of one workspace, each by its folder in it.
#[derive(Debug, Default)]
pub(super) struct Repositories {
    pub(super) all: Vec<Repository>,
    /// The tracked files of all of them, by their paths in the workspace.
    tracked: HashMap<Vec<u8>, TrackedFile>,
    /// Every folder that has tracked files in it.
    folders: std::collections::HashSet<Vec<u8>>,
    workspace: PathBuf,
    hidden: Vec<Vec<u8>>,
    pub(super) converts: bool,
}

/// A repository.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) folder: Vec<u8>,
    pub(super) excludes: Rules,
    /// Where its contents are, if they are all there.
    pub(super) objects: Option<Objects>,
    /// When its index was written. What was changed then or later may have changed without it.
    written: (u32, u32),
}

/// A tracked file, and whose it is.
#[derive(Debug)]
pub(super) struct TrackedFile {
    pub(super) entry: IndexEntry,
    pub(super) repository: usize,
}

impl Repositories {
    pub(super) fn of(workspace: &Path, hidden: Vec<Vec<u8>>) -> Self {
        Self { workspace: workspace.to_owned(), hidden, ..Self::default() }
    }

    /// The tracked file at a path, with the store that has it, if the index was written after its last
    /// change.
    pub(super) fn settled(&self, path: &[u8]) -> Option<(&IndexEntry, usize)> {
        let tracked = self.tracked.get(path)?;
        let repository = self.all.get(tracked.repository)?;
        repository.objects.as_ref()?;
        let is_settled = tracked.entry.is_plain && tracked.entry.mtime < repository.written;
        is_settled.then_some((&tracked.entry, tracked.repository))
    }

    /// The folders that are submodules, whether or not they are there.
    pub(super) fn submodules(&self) -> impl Iterator<Item = Vec<u8>> {
        let links = self.tracked.iter().filter(|(_, tracked)| tracked.entry.is_gitlink());
        links.map(|(path, _)| path.clone())
    }

    /// The rules and folders that are needed at the end, the rest let go.
    pub(super) fn into_parts(self) -> Vec<Repository> {
        self.all
    }

    /// Which hash the outermost repository has.
    pub(super) fn hash(&self) -> HashKind {
        self.all
            .first()
            .and_then(|first| first.objects.as_ref())
            .map_or(HashKind::Sha1, |objects| objects.hash())
    }

    fn load(&mut self, folder: &[u8]) -> io::Result<()> {
        let path = self.workspace.join(std::ffi::OsStr::from_bytes(folder));
        let place = GitLocation::find(&path, &self.workspace)?;
        let (gitdir, common) = (open_root(&place.git_dir)?, open_root(&place.common_dir)?);
        let hash = place.hash;
        let number = self.all.len();
        let mut written = (0, 0);
        if let Ok(file) = open_regular(&gitdir, b"index") {
            written = time_of(&file)?;
            let mut data = Vec::new();
            file.take(MAX_INDEX).read_to_end(&mut data)?;
            for entry in index::parse(&data, hash).unwrap_or_default() {
                let path = join(folder, &entry.path);
                self.note_folders(&path);
                self.tracked.insert(path, TrackedFile { entry, repository: number });
            }
        }
        let info = |name: &[u8]| {
            let info = open_folder(&common, b"info").ok()?;
            super::open::read_small(info, name, ignore::MAX_FILE).ok()
        };
        self.converts |= info(b"attributes").is_some_and(|text| converts(&text));
        let excludes = info(b"exclude").map(|text| Rules::parse(&text)).unwrap_or_default();
        let objects = open_objects(&common, hash);
        let folder = folder.to_vec();
        self.all.push(Repository { folder, excludes, objects, written });
        Ok(())
    }

    fn note_folders(&mut self, path: &[u8]) {
        let mut folder = super::open::split(path).0;
        while !folder.is_empty() && self.folders.insert(folder.to_vec()) {
            folder = super::open::split(folder).0;
        }
    }
}

fn open_objects(common: &OwnedFd, hash: HashKind) -> Option<Objects> {
    let objects = Objects::new(open_folder(common, b"objects").ok()?, hash);
    // What lies in other stores is not read from there: they are none of this workspace.
    (!objects.has_alternates()).then_some(objects)
}

fn time_of(file: &File) -> io::Result<(u32, u32)> {
    let metadata = file.metadata()?;
    let part = |value: i64| u32::try_from(value).unwrap_or_default();
    Ok((part(metadata.mtime()), part(metadata.mtime_nsec())))
}

impl ScanFilter for Repositories {
    fn enter_repository(&mut self, folder: &[u8]) -> Option<Rules> {
        // One that cannot be understood is a folder like any other: all of it is looked at.
        self.load(folder).ok()?;
        self.all.last().map(|repository| repository.excludes.clone())
    }

    fn knows(&self, path: &[u8]) -> bool {
        self.tracked.contains_key(path)
    }

    fn knows_beneath(&self, folder: &[u8]) -> bool {
        self.folders.contains(folder) || self.tracked.contains_key(folder)
    }

    fn hides(&self, path: &[u8]) -> bool {
        self.hidden.iter().any(|hidden| hidden == path)
    }
}
