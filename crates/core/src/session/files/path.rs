//! Paths as callers give them.

use std::io;

use bastide_model::PosixPath;
use bastide_model::paths::{PathUse, WorkspacePathPolicy};
use bastide_proto::{GuestPathError, UnresolvedPath};

use crate::compat::raise;
use crate::{Error, Result};

/// A path a caller gave, and the place it means.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// As it was given.
    pub(super) given: PosixPath,
    /// Its place. A relative path is taken by its names; where an absolute one leads, and whether
    /// that is in the workspace or a grant, is for the guest to find out.
    pub(super) path: UnresolvedPath,
}

/// A path as events show it: its names, and nothing that means nothing.
pub(super) fn shown(path: &str) -> String {
    let path = PosixPath::new(path);
    if path.is_empty() { ".".to_owned() } else { path.to_string() }
}

impl Target {
    /// Reads a path by the rules of the session. What is too long for the system is refused by
    /// `too_long`, which is given the path.
    pub(super) fn new(
        policy: &WorkspacePathPolicy,
        path: &str,
        too_long: impl FnOnce(PosixPath) -> Error,
    ) -> Result<Self> {
        // A backslash is a letter here, as it is to the system.
        let given = PosixPath::new(path);
        let place = match given.is_absolute() {
            // Two slashes at the front are one to this system.
            true => PosixPath::new(&format!("/{}", given.as_str().trim_start_matches('/'))),
            false => policy.normalize_path(&given, PathUse::Read)?,
        };
        let path = place.as_str().parse().map_err(|error| match error {
            GuestPathError::Nul => raise::value_error("embedded null byte"),
            GuestPathError::TooLong => {
                too_long(given.clone()).with_source(io::Error::from_raw_os_error(36))
            }
            GuestPathError::NotAbsolute | GuestPathError::NotNormalized => {
                raise::invalid_manifest_path(&given, "absolute")
            }
        })?;
        Ok(Self { given, path })
    }

    /// The error of a path that leads out.
    pub(super) fn escape(&self) -> Error {
        let reason = if self.given.is_absolute() { "absolute" } else { "escape_root" };
        raise::invalid_manifest_path(&self.given, reason)
    }
}
