//! Walking the entries of a manifest, and what follows from where they lie.

use std::collections::BTreeSet;
use std::rc::Rc;

use indexmap::IndexMap;

use super::Manifest;
use crate::entry::Entry;
use crate::error::raise;
use crate::mount::Mount;
use crate::posix_path::PosixPath;
use crate::windows_path::WindowsPath;
use crate::{Error, ErrorKind, Result};

/// No file system takes a longer path; every entry below one costs its length again.
pub(crate) const MAX_KEY: usize = 64 * 1024;

/// A key of an entry map as a path. Backslashes separate, because the manifest may come from
/// Windows.
///
/// # Errors
///
/// `InvalidManifestPathError` if it is absolute on Windows, where nothing else would notice; a
/// limit if it is absurdly long.
pub(crate) fn coerce_rel_path(key: &str) -> Result<PosixPath> {
    if key.len() > MAX_KEY {
        let message = format!("a path of a manifest is longer than {MAX_KEY} bytes");
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    refuse_windows(key)?;
    Ok(PosixPath::typed(key))
}

/// A key of an entry map as a path inside the workspace.
///
/// ```
/// use bastide_model::manifest::rel_path;
///
/// assert_eq!(rel_path("a\\b/./c")?.to_string(), "a/b/c");
/// assert_eq!(rel_path("a/../b").unwrap_err().context()["reason"], "escape_root");
/// # Ok::<(), bastide_model::Error>(())
/// ```
///
/// # Errors
///
/// `InvalidManifestPathError` if it is absolute anywhere, or has a `..` in it.
pub fn rel_path(key: &str) -> Result<PosixPath> {
    let path = coerce_rel_path(key)?;
    check_rel_path(&path)?;
    Ok(path)
}

fn refuse_windows(text: &str) -> Result<()> {
    match WindowsPath::absolute(text) {
        Some(windows) => Err(raise::invalid_manifest_path(windows.to_posix(), "absolute")),
        None => Ok(()),
    }
}

/// Checks that a path stays inside the workspace without asking where `..` leads.
pub(super) fn check_rel_path(path: &PosixPath) -> Result<()> {
    refuse_windows(&path.to_string())?;
    if path.is_absolute() {
        return Err(raise::invalid_manifest_path(path, "absolute"));
    }
    if path.climbs() {
        return Err(raise::invalid_manifest_path(path, "escape_root"));
    }
    Ok(())
}

/// Takes every `..` of `path` back as text; `shown` is the path that an error speaks of.
pub(crate) fn normalize_within_root(path: &PosixPath, shown: &PosixPath) -> Result<PosixPath> {
    refuse_windows(&shown.to_string())?;
    if path.is_absolute() {
        return Err(raise::invalid_manifest_path(shown, "absolute"));
    }
    let mut names: Vec<&str> = Vec::new();
    for name in path.names() {
        if name != ".." {
            names.push(name);
        } else if names.pop().is_none() {
            return Err(raise::invalid_manifest_path(shown, "escape_root"));
        }
    }
    Ok(PosixPath::relative(names))
}

/// A path at or below `root` with every `..` taken back as text, or `None` if it lies elsewhere. A
/// relative path is below the root.
///
/// # Errors
///
/// `InvalidManifestPathError` if it climbs out of the root, or is absolute on Windows.
pub fn normalize_in_workspace(root: &PosixPath, path: &PosixPath) -> Result<Option<PosixPath>> {
    refuse_windows(&path.to_string())?;
    let below = if path.is_absolute() { path.below(root) } else { Some(path.clone()) };
    let Some(below) = below else {
        return Ok(None);
    };
    Ok(Some(root.join(&normalize_within_root(&below, path)?)))
}

impl Manifest {
    /// The root as a path.
    #[must_use]
    pub fn root_path(&self) -> PosixPath {
        PosixPath::typed(&self.root)
    }

    /// Walks every entry, a folder before what is in it, in the order they were written. Each path
    /// is checked when its entry is reached; nothing follows a path that is wrong.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` if any of the outermost paths is absolute on Windows.
    pub fn walk(&self) -> Result<Walk<'_>> {
        let top = Rc::new(PosixPath::default());
        let mut waiting = Vec::with_capacity(self.entries.len());
        // From the last to the first: that is the order in which the reference notices.
        for (key, entry) in self.entries.iter().rev() {
            waiting.push((Rc::clone(&top), coerce_rel_path(key)?, entry));
        }
        Ok(Walk { waiting, last: None })
    }

    /// The outermost entries, once every path at any depth has been checked.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn validated_entries(&self) -> Result<&IndexMap<String, Entry>> {
        for step in self.walk()? {
            step?;
        }
        Ok(&self.entries)
    }

    /// The paths of entries that say of themselves that they are ephemeral, at any depth.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn ephemeral_entry_paths(&self) -> Result<BTreeSet<PosixPath>> {
        let mut paths = BTreeSet::new();
        for step in self.walk()? {
            let (path, entry) = step?;
            if entry.ephemeral {
                paths.insert(path);
            }
        }
        Ok(paths)
    }

    /// Every mount and where it appears, the deepest first: the order in which they can be
    /// unmounted.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn mount_targets(&self) -> Result<Vec<MountTarget<'_>>> {
        let root = self.root_path();
        let mut targets = Vec::new();
        for step in self.walk()? {
            let (path, entry) = step?;
            let Some(mount) = entry.as_mount() else {
                continue;
            };
            targets.push(mount_target(&root, path, entry, mount)?);
        }
        targets.sort_by_key(|target| std::cmp::Reverse(target.path.depth()));
        Ok(targets)
    }

    /// The [mount targets](Self::mount_targets) that are left out of snapshots.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn ephemeral_mount_targets(&self) -> Result<Vec<MountTarget<'_>>> {
        let mut targets = self.mount_targets()?;
        targets.retain(|target| target.entry.ephemeral);
        Ok(targets)
    }

    /// Every path below the root that a snapshot leaves out: ephemeral entries, and where
    /// ephemeral mounts really appear.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn ephemeral_persistence_paths(&self) -> Result<BTreeSet<PosixPath>> {
        let root = self.root_path();
        let mut paths = self.ephemeral_entry_paths()?;
        let targets = self.ephemeral_mount_targets()?;
        let below = targets.iter().filter_map(|target| target.path.below(&root));
        paths.extend(below.filter(|path| !path.is_empty()));
        Ok(paths)
    }

    /// What a start that restores everything else still has to make: the outermost ephemeral
    /// entries, each with all that is in it.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn ephemeral_entries(&self) -> Result<Vec<(PosixPath, &Entry)>> {
        let mut found = Vec::new();
        for (key, entry) in &self.entries {
            collect_ephemeral(coerce_rel_path(key)?, entry, &mut found)?;
        }
        Ok(found)
    }
}

fn collect_ephemeral<'a>(
    path: PosixPath,
    entry: &'a Entry,
    found: &mut Vec<(PosixPath, &'a Entry)>,
) -> Result<()> {
    check_rel_path(&path)?;
    if entry.ephemeral {
        found.push((path, entry));
        return Ok(());
    }
    for (key, child) in entry.children().into_iter().flatten() {
        collect_ephemeral(path.join(&coerce_rel_path(key)?), child, found)?;
    }
    Ok(())
}

/// Where the mount of the entry at `path` appears.
pub(crate) fn mount_target<'a>(
    root: &PosixPath,
    path: PosixPath,
    entry: &'a Entry,
    mount: &'a Mount,
) -> Result<MountTarget<'a>> {
    let target = mount.resolve_path(root, &root.join(&path))?;
    let target = normalize_in_workspace(root, &target)?.unwrap_or(target);
    Ok(MountTarget { entry_path: path, entry, mount, path: target })
}

/// A mount and where it appears.
#[derive(Debug, Clone, PartialEq)]
pub struct MountTarget<'a> {
    /// The path of its entry in the manifest.
    pub entry_path: PosixPath,
    /// Its entry.
    pub entry: &'a Entry,
    /// The mount.
    pub mount: &'a Mount,
    /// Where it appears in the sandbox.
    pub path: PosixPath,
}

/// The entries of a manifest, one after the other; see [`Manifest::walk`].
#[derive(Debug)]
pub struct Walk<'a> {
    /// What comes next is last; each with the folder it is in.
    waiting: Vec<(Rc<PosixPath>, PosixPath, &'a Entry)>,
    /// The entry that was handed out last: what is in it comes before what is waiting.
    last: Option<(PosixPath, &'a Entry)>,
}

impl<'a> Walk<'a> {
    fn step(&mut self) -> Result<Option<(PosixPath, &'a Entry)>> {
        if let Some((path, entry)) = self.last.take() {
            let folder = Rc::new(path);
            for (key, child) in entry.children().into_iter().flatten().rev() {
                self.waiting.push((Rc::clone(&folder), coerce_rel_path(key)?, child));
            }
        }
        let Some((folder, path, entry)) = self.waiting.pop() else {
            return Ok(None);
        };
        let path = folder.join(&path);
        check_rel_path(&path)?;
        self.last = Some((path.clone(), entry));
        Ok(Some((path, entry)))
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<(PosixPath, &'a Entry)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.waiting.clear();
        }
        step.transpose()
    }
}
