//! Paths that a running session keeps out of snapshots.

use super::Manifest;
use super::walk::rel_path;
use crate::Result;
use crate::error::raise;
use crate::posix_path::PosixPath;

impl Manifest {
    /// Folders of the workspace that programs which mount inside keep for themselves: no snapshot has
    /// them, whoever takes it.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path.
    pub fn mount_scratch_paths(&self) -> Result<Vec<PosixPath>> {
        let mut paths = Vec::new();
        for target in self.mount_targets()? {
            if let Some(pattern) = target.mount.strategy.pattern() {
                paths.extend(pattern.scratch_folders());
            }
        }
        Ok(paths)
    }

    /// The path in the workspace that `path` names, if a session may keep it out of snapshots: one
    /// that holds no mount and lies in none, because those are left out as a whole.
    ///
    /// # Errors
    ///
    /// `ValueError` for the workspace itself; `MountConfigError` where a mount is in the way;
    /// `InvalidManifestPathError` for a path outside.
    pub fn snapshot_skip_path(&self, path: &str) -> Result<PosixPath> {
        let path = rel_path(path)?;
        if path.is_empty() {
            let message = "Persist workspace skip paths must target a concrete relative path.";
            return Err(raise::value_error(message));
        }
        let root = self.root_path().normalized();
        let targets = self.mount_targets()?;
        let in_the_way = targets
            .iter()
            .filter_map(|target| target.path.below(&root))
            .filter(|mount| mount.overlaps(&path))
            .min_by_key(|mount| (mount.depth(), mount.clone()));
        match in_the_way {
            Some(mount) => {
                Err(raise::mount_config("persist workspace skip path must not overlap mount path")
                    .with_context("skip_path", path.as_str())
                    .with_context("mount_path", mount.as_str()))
            }
            None => Ok(path),
        }
    }
}
