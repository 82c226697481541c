//! What a manifest asks of Docker: mounts, privileges, and which grants cannot be kept.

use std::collections::HashSet;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::Result;
use crate::checksum::sha256_hex_of;
use crate::error::raise;
use crate::lax::Dump;
use crate::manifest::{Manifest, MountTarget, mount_target};
use crate::mount::{MountPattern, MountStrategy, RcloneMode, VolumeDriver};
use crate::paths::{HostFiles, grant_host_path};
use crate::posix_path::PosixPath;

/// Something of the host, or of a volume driver, inside a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerMount {
    /// Where it appears.
    pub target: String,
    /// The path on the host, or the name of the volume.
    pub source: String,
    /// Whether it can only be read.
    pub read_only: bool,
    /// The driver of a volume; nothing for a path of the host.
    pub driver: Option<VolumeDriver>,
}

/// The words of Docker's own interface.
impl Dump for DockerMount {
    fn dump(&self) -> Result<Value> {
        let mut mount = json!({
            "Target": self.target,
            "Source": self.source,
            "Type": if self.driver.is_some() { "volume" } else { "bind" },
            "ReadOnly": self.read_only,
        });
        if let Some(driver) = &self.driver {
            mount["VolumeOptions"] = json!({
                "DriverConfig": {"Name": driver.driver, "Options": driver.options.dump()?},
            });
        }
        Ok(mount)
    }
}

/// The name of the volume that appears at `path` in a session.
///
/// Paths that look alike once they are made into a name are told apart by a hash.
///
/// ```
/// use bastide_model::PosixPath;
/// use bastide_model::docker::volume_name;
///
/// let name = volume_name(None, &PosixPath::new("/workspace/a/b"));
/// assert_eq!(name, "sandbox_212366248685_workspace_a_b");
/// ```
#[must_use]
pub fn volume_name(session: Option<Uuid>, path: &PosixPath) -> String {
    let session = session.map(|id| format!("{}_", id.simple())).unwrap_or_default();
    let hash = &sha256_hex_of(path.as_str().as_bytes())[..12];
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let readable: String =
        path.as_str().trim_matches('/').chars().map(|c| if plain(c) { c } else { '_' }).collect();
    let readable = if readable.is_empty() { "workspace" } else { &readable };
    format!("sandbox_{session}{hash}_{readable}")
}

/// Everything that Docker mounts into the container of a session: first grants with a path on the
/// host, then volumes. `files` tells where links on the host lead.
///
/// # Errors
///
/// `InvalidManifestPathError`, `MountConfigError`, or the `ValueError` of a grant.
pub fn container_mounts(
    manifest: &Manifest,
    session: Option<Uuid>,
    files: &dyn HostFiles,
) -> Result<Vec<DockerMount>> {
    let mut mounts = Vec::new();
    for grant in manifest.extra_path_grants.iter().filter(|grant| grant.host_path.is_some()) {
        mounts.push(DockerMount {
            target: grant.path.clone(),
            source: grant_host_path(grant, files)?.to_string(),
            read_only: grant.read_only,
            driver: None,
        });
    }
    mounts.extend(volume_mounts(manifest, session)?);
    Ok(mounts)
}

/// The volumes among these.
///
/// # Errors
///
/// `InvalidManifestPathError` or `MountConfigError`.
pub fn volume_mounts(manifest: &Manifest, session: Option<Uuid>) -> Result<Vec<DockerMount>> {
    let mount = |(target, driver): (MountTarget<'_>, VolumeDriver)| DockerMount {
        target: target.path.to_string(),
        source: volume_name(session, &target.path),
        read_only: driver.read_only,
        driver: Some(driver),
    };
    Ok(volumes(manifest)?.into_iter().map(mount).collect())
}

/// Every mount that a volume driver makes, in the order of the manifest.
fn volumes(manifest: &Manifest) -> Result<Vec<(MountTarget<'_>, VolumeDriver)>> {
    let root = manifest.root_path();
    let mut volumes = Vec::new();
    for step in manifest.walk()? {
        let (path, entry) = step?;
        let Some(mount) = entry.as_mount() else { continue };
        if let Some(driver) = mount.volume_driver()? {
            volumes.push((mount_target(&root, path, entry, mount)?, driver));
        }
    }
    Ok(volumes)
}

/// Whether something in the manifest mounts with FUSE inside the container, which takes `/dev/fuse`
/// and `SYS_ADMIN`.
///
/// # Errors
///
/// `InvalidManifestPathError` for the first wrong path on the way.
pub fn requires_fuse(manifest: &Manifest) -> Result<bool> {
    any_pattern(manifest, |pattern| match pattern {
        MountPattern::Fuse(_) | MountPattern::Mountpoint(_) => true,
        MountPattern::Rclone(rclone) => rclone.mode == RcloneMode::Fuse,
        MountPattern::S3Files(_) => false,
    })
}

/// Whether something in the manifest mounts inside the container without FUSE, which takes
/// `SYS_ADMIN` alone.
///
/// # Errors
///
/// `InvalidManifestPathError` for the first wrong path on the way.
pub fn requires_sys_admin(manifest: &Manifest) -> Result<bool> {
    any_pattern(manifest, |pattern| match pattern {
        MountPattern::Rclone(rclone) => rclone.mode == RcloneMode::Nfs,
        MountPattern::S3Files(_) => true,
        MountPattern::Fuse(_) | MountPattern::Mountpoint(_) => false,
    })
}

fn any_pattern(manifest: &Manifest, wanted: impl Fn(&MountPattern) -> bool) -> Result<bool> {
    for step in manifest.walk()? {
        let (_, entry) = step?;
        match entry.as_mount().map(|mount| &mount.strategy) {
            Some(MountStrategy::InContainer { pattern }) if wanted(pattern) => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// Refuses grants that Docker cannot keep as they are meant: two at one place, one at the workspace
/// or a volume, one of the whole host, or a read-only one beside mounts whose privileges would let
/// the sandbox make it writable.
///
/// # Errors
///
/// `ValueError`; `MountConfigError` for the last.
pub fn check_path_grants(manifest: &Manifest, files: &dyn HostFiles) -> Result<()> {
    let grants = &manifest.extra_path_grants;
    let has_read_only = grants.iter().any(|grant| grant.host_path.is_some() && grant.read_only);
    if has_read_only && (requires_fuse(manifest)? || requires_sys_admin(manifest)?) {
        let message = "Docker read-only host_path grants cannot be combined with in-container \
                       storage mounts that require SYS_ADMIN; remove the host grant or use a \
                       storage strategy that does not require container mount privileges";
        return Err(raise::mount_config(message).with_safe_message().with_protection());
    }
    let root = place(&manifest.root_path());
    let volumes = volumes(manifest)?;
    let volumes: HashSet<PosixPath> =
        volumes.iter().map(|(target, _)| place(&target.path)).collect();
    let mut granted = HashSet::new();
    let mut backed_by_host = HashSet::new();
    for grant in grants {
        let target = place(&PosixPath::typed(&grant.path));
        let is_backed = grant.host_path.is_some();
        if granted.contains(&target) && (is_backed || backed_by_host.contains(&target)) {
            let message = format!("duplicate Docker sandbox path grant target: {}", grant.path);
            return Err(raise::value_error(message));
        }
        granted.insert(target.clone());
        if !is_backed {
            continue;
        }
        grant_host_path(grant, files)?;
        if target.overlaps(&root) {
            return Err(raise::value_error(format!(
                "Docker sandbox path grant host_path target must be outside the workspace root: {}",
                grant.path
            )));
        }
        if volumes.contains(&target) {
            return Err(raise::value_error(format!(
                "Docker sandbox path grant target conflicts with a manifest mount: {}",
                grant.path
            )));
        }
        backed_by_host.insert(target);
    }
    Ok(())
}

/// The one spelling of a place in a container: Linux takes any number of slashes at the start for
/// one.
fn place(path: &PosixPath) -> PosixPath {
    match path.as_str().strip_prefix("//") {
        Some(rest) => PosixPath::new(&format!("/{rest}")).normalized(),
        None => path.normalized(),
    }
}
