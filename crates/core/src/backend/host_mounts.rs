//! Cloud storage that a program of the host serves to a session: the keys stay outside.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::state::SessionFolder;

/// Mounting cloud storage in running sessions from outside.
#[async_trait]
pub trait HostMounts: Send + Sync {
    /// Mounts a store in a session, after it was found usable. When this returns, either commands see
    /// the store's content or nothing was mounted. A path that has this very mount already is left as
    /// it is.
    async fn mount(&self, folder: &SessionFolder, mount: HostMount) -> Result<()>;

    /// Has everything stored that was written, for at most `deadline`, and unmounts. A path without a
    /// mount is no error.
    async fn unmount(&self, folder: &SessionFolder, path: &str, deadline: Duration) -> Result<()>;

    /// The mounts of a session, in the order in which they were made.
    async fn status(&self, folder: &SessionFolder) -> Result<Vec<HostMountStatus>>;
}

/// A store to mount. It holds keys, so it is never serialized and its `Debug` form leaves them out.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct HostMount {
    /// Where: an absolute path inside, beneath the workspace.
    pub path: String,
    /// The provider, as it is called in manifests: `s3`, `r2`, `gcs` or `azure_blob`.
    pub provider: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Which store, with its keys: the `MountSpec` of `bastide-mount` as JSON, of which `source` is
    /// required. `id`, `read_only`, `uid`, `gid` and `resumed` are set by the backend.
    pub store: Value,
    /// How many bytes of disk the cache of the home may take.
    pub cache_size: u64,
    /// Who owns everything in it, as commands see it; whoever commands run as by default, if none.
    pub owner: Option<(u32, u32)>,
}

impl HostMount {
    /// The size of the cache unless another is asked for.
    pub const CACHE_SIZE: u64 = 4 << 30;

    /// A read-only mount at `path` of what `store` describes.
    #[must_use]
    pub fn new(path: impl Into<String>, provider: impl Into<String>, store: Value) -> Self {
        Self {
            path: path.into(),
            provider: provider.into(),
            read_only: true,
            store,
            cache_size: Self::CACHE_SIZE,
            owner: None,
        }
    }

    /// Allows changes.
    #[must_use]
    pub fn writable(mut self) -> Self {
        self.read_only = false;
        self
    }

    /// Bounds the cache.
    #[must_use]
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.cache_size = bytes;
        self
    }

    /// Gives everything to another user and group, as commands number them.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }
}

impl fmt::Debug for HostMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMount")
            .field("path", &self.path)
            .field("provider", &self.provider)
            .field("read_only", &self.read_only)
            .field("cache_size", &self.cache_size)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// What became of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostMountStatus {
    /// Where it is inside.
    pub path: String,
    /// The provider.
    pub provider: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether somebody answers for it.
    pub state: HostMountState,
    /// When it was mounted, in milliseconds since 1970.
    pub since_ms: u64,
    /// How many reads were answered.
    pub reads: u64,
    /// How many writes were taken.
    pub writes: u64,
    /// How many blocks came out of the cache.
    pub cache_hits: u64,
}

impl HostMountStatus {
    /// A mount that nothing was done with yet.
    #[must_use]
    pub fn new(path: impl Into<String>, provider: impl Into<String>, since_ms: u64) -> Self {
        Self {
            path: path.into(),
            provider: provider.into(),
            read_only: true,
            state: HostMountState::Mounted,
            since_ms,
            reads: 0,
            writes: 0,
            cache_hits: 0,
        }
    }
}

/// Whether somebody answers for a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostMountState {
    /// Its program does.
    Mounted,
    /// Its program died and is being started again; calls wait.
    Restarting,
    /// Nobody, because its program died too often: calls fail.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_no_key() {
        let store = serde_json::json!({"source": {"type": "s3", "keys": "hidden"}});
        let mount = HostMount::new("/workspace/data", "s3", store);
        assert!(!format!("{mount:?}").contains("hidden"));
    }
}
