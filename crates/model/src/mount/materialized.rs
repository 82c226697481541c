//! Where a manifest puts something.

use std::collections::HashMap;

use crate::Result;
use crate::entry::{Entry, EntryKind};
use crate::manifest::Manifest;
use crate::posix_path::PosixPath;

impl Manifest {
    /// Whether an entry puts something at `path`, or may put something below it where `path` is. A
    /// folder alone does not.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path on the way.
    pub fn materializes_path(&self, path: &str) -> Result<bool> {
        let target = PosixPath::new(&absolute_manifest_path(&self.root, path));
        for step in self.walk()? {
            let (path, entry) = step?;
            let path = PosixPath::new(&absolute_manifest_path(&self.root, path.as_str()));
            if target.is_below(&path) && !is_only_a_folder(entry) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_only_a_folder(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Dir { .. } | EntryKind::LocalDir { src: None })
}

/// A path below `root` as an absolute one with every `..` taken back as text.
///
/// ```
/// use bastide_model::mount::absolute_manifest_path;
///
/// assert_eq!(absolute_manifest_path("/workspace", "a/../../b"), "/b");
/// ```
#[must_use]
pub fn absolute_manifest_path(root: &str, path: &str) -> String {
    let path = PosixPath::new(root).join(&PosixPath::new(path));
    format!("/{}", folded_names(&path).join("/"))
}

/// The names of a path with every `..` taken back as text. Two slashes at the start are a name like
/// any other here, because the reference takes them for one.
pub(super) fn folded_names(path: &PosixPath) -> Vec<&str> {
    let mut names = Vec::new();
    if path.as_str().starts_with("//") {
        names.push("//");
    }
    for name in path.names() {
        if name == ".." {
            names.pop();
        } else {
            names.push(name);
        }
    }
    names
}

/// The paths at which a manifest puts something, by their names: asking costs as much as the path
/// that is asked about is long.
#[derive(Default)]
pub(super) struct OccupiedPaths<'m> {
    root: &'m str,
    /// The first is the root of the file system.
    places: Vec<OccupiedNode>,
}

#[derive(Default)]
struct OccupiedNode {
    is_taken: bool,
    inside: HashMap<String, usize>,
}

impl<'m> OccupiedPaths<'m> {
    /// The paths of `manifest`.
    pub(super) fn of(manifest: &'m Manifest) -> Result<Self> {
        let mut paths = Self { root: &manifest.root, places: vec![OccupiedNode::default()] };
        for step in manifest.walk()? {
            let (path, entry) = step?;
            if !is_only_a_folder(entry) {
                paths.take(path.as_str());
            }
        }
        Ok(paths)
    }

    fn take(&mut self, path: &str) {
        let path = PosixPath::new(&absolute_manifest_path(self.root, path));
        let mut at = 0;
        for name in path.names() {
            let new = self.places.len();
            let Some(place) = self.places.get_mut(at) else { return };
            at = *place.inside.entry(name.to_owned()).or_insert(new);
            if at == new {
                self.places.push(OccupiedNode::default());
            }
        }
        if let Some(place) = self.places.get_mut(at) {
            place.is_taken = true;
        }
    }

    /// Whether one of them is `path`, or a folder that `path` is in.
    pub(super) fn is_at_or_above(&self, path: &str) -> bool {
        let path = PosixPath::new(&absolute_manifest_path(self.root, path));
        let mut names = path.names();
        let mut at = Some(0);
        while let Some(place) = at.and_then(|at| self.places.get(at)) {
            if place.is_taken {
                return true;
            }
            at = names.next().and_then(|name| place.inside.get(name)).copied();
        }
        false
    }
}
