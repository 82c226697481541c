//! What of the host a container can be given.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bastide::host::resolve::resolve;
use bastide::model::PathGrant;
use bastide::model::docker::check_path_grants;
use bastide::model::paths::HostFiles;
use bastide::{Error, ErrorKind, Grant, MachineSpec, Result};
use bastide_proto::boot::{InodeId, MountPoint};

/// The files of this host, as they are now.
struct LiveHostFiles;

impl HostFiles for LiveHostFiles {
    fn read_link(&self, path: &str) -> Result<Option<String>> {
        match fs::read_link(path) {
            Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput
                        | io::ErrorKind::NotFound
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => {
                let message = format!("cannot tell where {path} leads: {error}");
                Err(Error::new(ErrorKind::Io, message))
            }
        }
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }
}

/// Refuses grants that a container cannot keep as they are meant, before anything is made.
pub(crate) fn check_grants(spec: &MachineSpec) -> Result<()> {
    let mut manifest = spec.storage.as_deref().cloned().unwrap_or_default();
    manifest.extra_path_grants.clear();
    spec.root.as_str().clone_into(&mut manifest.root);
    for grant in &spec.grants {
        let host = grant.host.to_string_lossy().into_owned();
        manifest.extra_path_grants.push(PathGrant {
            path: grant.path.as_str().to_owned(),
            read_only: grant.read_only,
            description: None,
            host_path: (!host.is_empty()).then_some(host),
        });
    }
    check_path_grants(&manifest, &LiveHostFiles)
}

/// A file or folder of the host that is bound into a container.
#[derive(Debug, Clone)]
pub(crate) struct HostGrant {
    /// Where it is on the host, without links.
    pub(crate) source: PathBuf,
    /// Where it is inside.
    pub(crate) target: String,
    pub(crate) read_only: bool,
    /// Which file that is. The engine follows the path once more when it starts the container; the first process
    /// compares what it finds with this before anything else runs.
    pub(crate) identity: InodeId,
}

/// What of the host is bound into a container, followed through no link that a command of the session could have made.
pub(crate) fn host_grants(spec: &MachineSpec) -> Result<Vec<HostGrant>> {
    let of_host = || spec.grants.iter().filter(|grant| !grant.host.as_os_str().is_empty());
    // One that cannot be found has nothing in it, and is refused below.
    let writable: Vec<_> = of_host()
        .filter(|grant| !grant.read_only)
        .filter_map(|grant| resolve(&grant.host, &[]).ok())
        .map(|found| found.identity)
        .collect();
    of_host().map(|grant| host_grant(grant, &writable)).collect()
}

fn host_grant(grant: &Grant, writable: &[InodeId]) -> Result<HostGrant> {
    let what = format!("{} cannot be granted at {}", grant.host.display(), grant.path);
    let found = resolve(&grant.host, writable);
    let found = found.map_err(|error| error.into_refusal(&what, &grant.host))?;
    Ok(HostGrant {
        source: found.path,
        target: grant.path.as_str().to_owned(),
        read_only: grant.read_only,
        identity: found.identity,
    })
}

/// What has to be in folders of the host for others of them to be mounted there. What is missing the engine would make,
/// as root, and leave.
pub(crate) fn mount_points(grants: &[HostGrant]) -> Vec<MountPoint> {
    let point = |grant: &HostGrant| {
        let target = Path::new(&grant.target);
        let lies_in =
            |other: &&HostGrant| other.target != grant.target && target.starts_with(&other.target);
        let around = grants.iter().filter(lies_in).max_by_key(|other| other.target.len())?;
        // What may only be read is not written for this.
        if around.read_only {
            return None;
        }
        Some(MountPoint {
            folder: around.source.clone(),
            identity: around.identity,
            beneath: target.strip_prefix(&around.target).ok()?.to_owned(),
            is_dir: grant.source.is_dir(),
        })
    };
    grants.iter().filter_map(point).collect()
}
