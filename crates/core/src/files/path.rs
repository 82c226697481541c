//! Paths as callers give them.

use bastide_model::PosixPath;
use bastide_model::paths::WorkspacePathPolicy;
use bastide_proto::{GuestPathError, GuestRoute};

use crate::{Error, ErrorKind, Result};

/// A path a caller gave, and the place it means.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// As it was given.
    pub(super) given: PosixPath,
    /// Its place. A relative path is taken by its names; where an absolute one leads, and whether
    /// that is in the workspace or a grant, is for the guest to find out.
    pub(super) path: GuestRoute,
}

impl Target {
    /// Reads a path by the rules of the session.
    pub(super) fn new(policy: &WorkspacePathPolicy, path: &str) -> Result<Self> {
        // A backslash is a letter here, as it is to the system.
        let given = PosixPath::new(path);
        let place = match given.is_absolute() {
            true => given.clone(),
            false => policy.normalize_path(&given, false)?,
        };
        let path = place.as_str().parse().map_err(|error| match error {
            GuestPathError::Nul => Error::value_error("embedded null byte"),
            GuestPathError::TooLong => {
                let message = format!("{}...: the path is too long", first(&given));
                Error::new(ErrorKind::InvalidInput, message)
            }
            // Two slashes at the front mean something else than one.
            GuestPathError::NotAbsolute | GuestPathError::NotNormalized => {
                Error::invalid_manifest_path(&given, "absolute")
            }
        })?;
        Ok(Self { given, path })
    }

    /// The error of a path that leads out.
    pub(super) fn escape(&self) -> Error {
        let reason = if self.given.is_absolute() { "absolute" } else { "escape_root" };
        Error::invalid_manifest_path(&self.given, reason)
    }
}

fn first(path: &PosixPath) -> String {
    path.as_str().chars().take(80).collect()
}
