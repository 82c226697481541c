//! Giving the mounts of a stored manifest their credentials back.

use std::collections::HashMap;

use indexmap::IndexMap;
use serde_json::Value;

use crate::Result;
use crate::entry::{Entry, EntryKind};
use crate::error::ErrorClass;
use crate::error::raise;
use crate::lax::Dump as _;
use crate::manifest::{Manifest, coerce_rel_path};
use crate::posix_path::PosixPath;
use crate::registry::Registry;

impl Manifest {
    /// This stored manifest with the mounts of `trusted`, which a program vouches for, and whatever
    /// it allows the sandbox to see. Apart from credentials, the mounts of both must be the same.
    ///
    /// # Errors
    ///
    /// `MountConfigError` if the mounts differ or `trusted` is refused by
    /// [`check_mount_boundaries`](Self::check_mount_boundaries).
    pub fn with_mount_authority_of(
        &self,
        trusted: &Self,
        backend: &str,
        registry: &Registry,
    ) -> Result<Self> {
        let boundary = trusted.check_mount_boundaries(Some(backend));
        let boundary = match boundary {
            Err(error) if error.class() != Some(ErrorClass::MountConfigError) => {
                return Err(error);
            }
            boundary => boundary,
        };
        let own = self.sanitized(registry)?.value;
        let theirs = trusted.sanitized(registry)?.value;
        let same = own.root == theirs.root && mounts_as_json(&own)? == mounts_as_json(&theirs)?;
        boundary?;
        if !same {
            let message = "sandbox mount configuration can be rebound only from a current trusted \
                           mount configuration with exactly matching credential-free topology";
            return Err(raise::mount_config(message)
                .with_safe_message()
                .with_protection()
                .with_context("sandbox_backend", backend));
        }
        let mut mounts = HashMap::new();
        for step in trusted.walk()? {
            let (path, entry) = step?;
            if entry.as_mount().is_some() {
                mounts.insert(path, entry);
            }
        }
        let mut rebound = self.clone();
        replace_mounts(&mut rebound.entries, &PosixPath::default(), &mounts)?;
        rebound.mount_exposure = trusted.mount_exposure.clone();
        Ok(rebound)
    }
}

fn mounts_as_json(manifest: &Manifest) -> Result<HashMap<PosixPath, Value>> {
    let mut mounts = HashMap::new();
    for step in manifest.walk()? {
        let (path, entry) = step?;
        if entry.as_mount().is_some() {
            mounts.insert(path, entry.dump()?);
        }
    }
    Ok(mounts)
}

fn replace_mounts(
    entries: &mut IndexMap<String, Entry>,
    folder: &PosixPath,
    mounts: &HashMap<PosixPath, &Entry>,
) -> Result<()> {
    for (key, entry) in entries {
        let path = folder.join(&coerce_rel_path(key)?);
        match &mut entry.kind {
            EntryKind::Dir { children } => replace_mounts(children, &path, mounts)?,
            EntryKind::Mount(_) => {
                if let Some(trusted) = mounts.get(&path) {
                    *entry = (*trusted).clone();
                }
            }
            _ => {}
        }
    }
    Ok(())
}
