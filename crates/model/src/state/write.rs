//! States on their way into storage.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{REDACTED_HOST_PATH_GRANTS, SessionState};
use crate::Result;
use crate::lax::{Dump as _, Object};
use crate::manifest::Manifest;
use crate::mount::{REDACTED_MOUNT_AUTHORITY, Sanitized, cannot_be_written, sanitize_manifest};
use crate::registry::Registry;

impl SessionState {
    /// The state as it may be stored: without the credentials of mounts and the paths of the host.
    ///
    /// # Errors
    ///
    /// Where the manifest cannot be written without credentials; nothing of them is in the error.
    pub fn serialize(&self, registry: &Registry) -> Result<Value> {
        self.serialized(registry)
            .map_err(|error| error.redacted_if(self.manifest.holds_mount_authority()))
    }

    fn serialized(&self, registry: &Registry) -> Result<Value> {
        let (backed, kept): (Vec<_>, Vec<_>) = self
            .manifest
            .extra_path_grants
            .iter()
            .cloned()
            .partition(|grant| grant.host_path.is_some());
        let mut paths: BTreeSet<&str> = backed.iter().map(|grant| grant.path.as_str()).collect();
        paths.extend(self.path_grants_to_rebind.iter().map(String::as_str));
        let manifest = Manifest { extra_path_grants: kept, ..self.manifest.clone() };
        let mut state = self.write(&manifest, registry)?;
        if !paths.is_empty() {
            state[REDACTED_HOST_PATH_GRANTS] = paths.into_iter().collect();
        }
        Ok(state)
    }

    /// The state without the credentials of mounts, for somebody who may know the paths of the host.
    ///
    /// # Errors
    ///
    /// As [`serialize`](Self::serialize).
    pub fn dump(&self, registry: &Registry) -> Result<Value> {
        self.write(&self.manifest, registry)
            .map_err(|error| error.redacted_if(self.manifest.holds_mount_authority()))
    }

    fn write(&self, manifest: &Manifest, registry: &Registry) -> Result<Value> {
        manifest.check_mount_types()?;
        let sanitized = manifest.dump().and_then(|raw| sanitize_manifest(raw, registry));
        let Sanitized { value: raw_manifest, redacted } =
            sanitized.map_err(|error| match manifest.holds_mount_authority() {
                true => cannot_be_written(),
                false => error,
            })?;
        let mut out = Object::new();
        out.put("type", self.type_name())?;
        out.put("session_id", &self.session_id.to_string())?;
        out.put("snapshot", &self.snapshot)?;
        out.put("manifest", &raw_manifest)?;
        out.put("exposed_ports", &self.exposed_ports)?;
        out.put("snapshot_fingerprint", &self.snapshot_fingerprint)?;
        out.put("snapshot_fingerprint_version", &self.snapshot_fingerprint_version)?;
        out.put("workspace_root_ready", &self.workspace_root_ready)?;
        self.backend.put_fields(&mut out)?;
        let mut state = out.into_map();
        if redacted || self.mount_authority_redacted {
            state.insert(REDACTED_MOUNT_AUTHORITY.to_owned(), true.into());
            self.backend.forget_identity(&mut state);
        }
        Ok(Value::Object(state))
    }
}
