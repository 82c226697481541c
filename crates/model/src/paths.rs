//! Paths inside a sandbox: how they are read, what they may reach, how a model sees them.
//!
//! Everything here is about names. Where links matter, the caller says what is on the disk through
//! [`HostFiles`], and the answer is only as good as that moment: whoever opens the file must still
//! open it beneath a held folder.

mod input;
mod policy;
mod resolve;
mod scope;

pub use input::PathInput;
pub use policy::{PathUse, WorkspacePathPolicy};
pub use resolve::{
    AbsolutePaths, HostFiles, grant_host_path, resolve_links, resolve_workspace_path,
};
pub use scope::{SandboxWorkspaceScope, cwd_from_json, normalize_sandbox_cwd};

use crate::PosixPath;
use crate::error::Error;
use crate::error::raise;

/// Refuses to grant the whole file system.
fn refuse_filesystem_root(path: &PosixPath) -> Result<(), Error> {
    match path.is_root() {
        true => Err(raise::value_error("sandbox path grant path must not be filesystem root")),
        false => Ok(()),
    }
}

/// Refuses a grant that turns out to be the whole file system.
fn refuse_resolved_filesystem_root(path: &PosixPath) -> Result<(), Error> {
    match path.is_root() {
        true => {
            Err(raise::value_error("sandbox path grant path must not resolve to filesystem root"))
        }
        false => Ok(()),
    }
}

/// The error for a path that is not where it should be.
fn invalid_path(rel: &str, is_absolute: bool) -> Error {
    raise::invalid_manifest_path(rel, if is_absolute { "absolute" } else { "escape_root" })
}
