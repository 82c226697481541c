//! Where mounts may appear, beside each other and beside everything else of a manifest.

use super::{Manifest, MountTarget};
use crate::error::raise;
use crate::mount::MountStrategy;
use crate::paths::{PathUse, WorkspacePathPolicy};
use crate::posix_path::PosixPath;
use crate::{Error, Result};

impl Manifest {
    /// Checks, before anything happens, that each mount has a place of its own: below the workspace's
    /// root or a granted path, at no other mount, in none, and with no other entry in it. What a volume
    /// driver mounts may lie anywhere, because the engine attaches it.
    ///
    /// # Errors
    ///
    /// `MountConfigError` that names both paths; `InvalidManifestPathError` for a path outside.
    pub fn check_mount_targets(&self) -> Result<()> {
        let targets = self.mount_targets()?;
        if targets.is_empty() {
            return Ok(());
        }
        let policy = WorkspacePathPolicy::new(self.root.as_str(), self.extra_path_grants.clone())?;
        let root = self.root_path().normalized();
        for target in &targets {
            if is_volume(target) {
                continue;
            }
            policy.normalize_path(&target.path, PathUse::Write)?;
            if root.is_below(&target.path.normalized()) {
                let message =
                    format!("nothing can be mounted at {}: the workspace is there", target.path);
                return Err(wrong(message, target));
            }
        }
        self.check_apart(&targets)?;
        self.check_nothing_inside(&targets, &root)
    }

    /// Two mounts at one path, or one in the other.
    fn check_apart(&self, targets: &[MountTarget<'_>]) -> Result<()> {
        for (at, one) in targets.iter().enumerate() {
            let here = one.path.normalized();
            for other in &targets[..at] {
                let there = other.path.normalized();
                if here == there {
                    let message = format!("two mounts are to appear at {here}");
                    return Err(wrong(message, one));
                }
                if here.overlaps(&there) && !(is_volume(one) && is_volume(other)) {
                    // Sorted by depth: the later one is the outer one.
                    let message = format!("the mount at {there} lies in the mount at {here}");
                    return Err(wrong(message, other));
                }
            }
        }
        Ok(())
    }

    /// Entries that would be written into the store instead of the workspace.
    fn check_nothing_inside(&self, targets: &[MountTarget<'_>], root: &PosixPath) -> Result<()> {
        for step in self.walk()? {
            let (path, entry) = step?;
            if entry.as_mount().is_some() {
                continue;
            }
            let place = root.join(&path).normalized();
            for target in targets.iter().filter(|target| !is_volume(target)) {
                let mount = target.path.normalized();
                let is_its_folder =
                    place == mount && entry.children().is_some_and(|all| all.is_empty());
                if place.is_below(&mount) && !is_its_folder {
                    let message = format!(
                        "the entry {path} lies in the mount at {mount}, and would be \
                                           written into the store"
                    );
                    return Err(wrong(message, target));
                }
            }
        }
        Ok(())
    }
}

fn is_volume(target: &MountTarget<'_>) -> bool {
    matches!(target.mount.strategy, MountStrategy::DockerVolume { .. })
}

/// Paths of a manifest are no secrets, so the words stay.
fn wrong(message: String, target: &MountTarget<'_>) -> Error {
    raise::mount_config(message)
        .with_safe_message()
        .with_context("mount_path", target.path.as_str())
        .with_context("mount_type", target.mount.type_name())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(entries: serde_json::Value) -> Option<String> {
        let manifest: Manifest = crate::lax::read(&json!({"entries": entries})).unwrap();
        manifest.check_mount_targets().err().map(|error| error.message().to_owned())
    }

    fn at(path: Option<&str>) -> serde_json::Value {
        json!({"type": "s3_mount", "bucket": "b", "mount_path": path, "mount_strategy":
            {"type": "in_container", "pattern": {"type": "mountpoint"}}})
    }

    #[test]
    fn gives_each_mount_a_place_of_its_own() {
        assert_eq!(checked(json!({"a": at(None), "b": at(Some("c/d"))})), None);
        assert_eq!(checked(json!({"a": {"type": "dir"}, "m": at(Some("a"))})), None);
        let cases = [
            (
                json!({"a": at(None), "b": at(Some("a"))}),
                "two mounts are to appear at /workspace/a",
            ),
            (
                json!({"a": at(None), "b": at(Some("a/b"))}),
                "/workspace/a/b lies in the mount at /workspace/a",
            ),
            (json!({"a": at(Some("."))}), "the workspace is there"),
            (json!({"a": at(Some("/workspace/x/.."))}), "the workspace is there"),
            (json!({"a": at(Some("/elsewhere"))}), "manifest path must be relative"),
            (
                json!({"a": at(None), "a/f": {"type": "file", "content": ""}}),
                "the entry a/f lies in the mount",
            ),
            (
                json!({"a": {"type": "file", "content": ""}, "m": at(Some("a"))}),
                "the entry a lies in the mount",
            ),
        ];
        for (entries, why) in cases {
            let said = checked(entries.clone()).unwrap_or_default();
            assert!(said.contains(why), "{entries}: {said:?}");
        }
    }

    #[test]
    fn lets_volumes_lie_wherever_the_engine_attaches_them() {
        let volume = |path: &str| {
            json!({"type": "s3_mount", "bucket": "b", "mount_path": path,
            "mount_strategy": {"type": "docker_volume", "driver": "rclone"}})
        };
        assert_eq!(checked(json!({"a": volume("/data"), "b": volume("/data/in")})), None);
        let said = checked(json!({"a": volume("/data"), "b": volume("/data")}));
        assert!(said.is_some_and(|said| said.contains("two mounts")), "one place each");
    }
}
