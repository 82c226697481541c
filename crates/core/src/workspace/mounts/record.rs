//! What is remembered about the mounts of a session, for whoever comes to it later. No key is in it.

use std::time::{SystemTime, UNIX_EPOCH};

use bastide_model::manifest::MountTarget;
use bastide_model::{Entry, Manifest, Registry};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// One mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    pub(crate) path: String,
    /// The mount as manifests say it, without its credentials.
    pub(crate) mount: Value,
    /// When it was mounted, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// The fields of credentials that commands can get at.
    pub(crate) exposed: Vec<String>,
    /// A folder inside that is removed when it is unmounted.
    #[serde(default)]
    pub(crate) private: Option<String>,
}

impl MountRecord {
    pub(super) fn of(target: &MountTarget<'_>, registry: &Registry) -> Result<Self> {
        let mut manifest = Manifest::default();
        let entry: &Entry = target.entry;
        manifest.entries.insert("mount".to_owned(), entry.clone());
        let stored = manifest.sanitized(registry)?.value;
        let mount = bastide_model::lax::Dump::dump(&stored)?["entries"]["mount"].take();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            path: target.path.normalized().to_string(),
            mount,
            since_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            exposed: target.mount.exposed_fields().iter().map(|&field| field.to_owned()).collect(),
            private: None,
        })
    }

    /// Whether both are the same store at the same path, by the same means.
    pub(super) fn is_same_mount(&self, other: &Self) -> bool {
        (&self.path, &self.mount) == (&other.path, &other.mount)
    }
}
