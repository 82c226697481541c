//! What of the host a container can be given.

use std::fs;
use std::io;
use std::path::Path;

use bastide::model::PathGrant;
use bastide::model::docker::check_path_grants;
use bastide::model::paths::HostFiles;
use bastide::{Error, ErrorKind, MachineSpec, Result};

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
