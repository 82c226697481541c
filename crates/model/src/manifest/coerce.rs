//! Manifests from where nobody vouches for them.

use serde_json::Value;

use super::{KEYS, Manifest};
use crate::Result;
use crate::entry::EntryKind;
use crate::error::raise;
use crate::lax::Context;
use crate::python::type_name;
use crate::registry::Registry;

impl Manifest {
    /// Reads a manifest that a configuration names `parameter`, without believing it: it must not
    /// reach for anything on the host, and unknown keys are refused.
    ///
    /// # Errors
    ///
    /// `TypeError` if it reaches for the host, has unknown keys or is no object; else as reading
    /// and [walking](Self::walk) it.
    pub fn coerce(value: &Value, parameter: &str, registry: &Registry) -> Result<Self> {
        let untrusted = |what: &str| {
            raise::type_error(format!(
                "{parameter}{what} must be configured on a trusted Manifest instance, not in a \
                 dictionary"
            ))
        };
        let Some(map) = value.as_object() else {
            let name = type_name(value);
            return Err(raise::type_error(format!(
                "{parameter} must be a Manifest instance or a dict, got {name}"
            )));
        };
        let grants = map.get("extra_path_grants");
        if grants.is_some_and(|grants| grants.as_array().is_none_or(|list| !list.is_empty())) {
            return Err(untrusted(".extra_path_grants"));
        }
        let mut unknown: Vec<&str> =
            map.keys().map(String::as_str).filter(|key| !KEYS.contains(key)).collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            let names = unknown.join(", ");
            return Err(raise::type_error(format!("Unknown {parameter} settings: {names}")));
        }
        let manifest: Self = Context::with(registry).read(value)?;
        for entry in manifest.walk()? {
            let (_, entry) = entry?;
            let from_host = matches!(
                entry.kind,
                EntryKind::LocalFile { .. } | EntryKind::LocalDir { src: Some(_) }
            );
            if from_host {
                return Err(untrusted(" local host sources"));
            }
        }
        Ok(manifest)
    }
}
