//! What goes wrong with files, in the words of the reference.

use bastide_model::PosixPath;
use bastide_model::paths::{PathUse, WorkspacePathPolicy};
use bastide_proto::{Fault, FaultKind};

use super::path::Target;
use crate::Error;
use crate::compat::raise;
use crate::link::fault::refused;

/// The longest path of a guest that is shown.
const MAX_SHOWN: usize = 4096;

/// Why a call about files failed.
#[derive(Debug)]
pub(super) enum FilesError {
    /// The guest says why.
    Fault(Fault),
    /// It could not be asked, or not be believed.
    Other(Error),
}

impl From<Error> for FilesError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<Fault> for FilesError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Whether the failure is that something does not exist.
pub(super) fn is_missing(fault: &Fault) -> bool {
    fault.kind == FaultKind::NotFound
}

/// Whether the failure is one the reference has no word for.
fn is_ours(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::TooMuch | FaultKind::Stuck | FaultKind::Internal)
}

/// Where a failure was, as far as the guest can be believed: a path is only shown, never used.
pub(super) fn path_of(fault: &Fault, target: &Target) -> String {
    match &fault.path {
        Some(path) if path.starts_with('/') && path.len() <= MAX_SHOWN => path.clone(),
        _ => target.path.as_str().to_owned(),
    }
}

impl FilesError {
    /// Turns trouble with a target into an error; what is special about the operation is `other`.
    pub(super) fn into_error(
        self,
        policy: &WorkspacePathPolicy,
        target: &Target,
        other: impl FnOnce(Fault) -> Error,
    ) -> Error {
        let fault = match self {
            Self::Other(error) => return error,
            Self::Fault(fault) => fault,
        };
        match fault.kind {
            FaultKind::Escape => target.escape(),
            FaultKind::ReadOnly => read_only(policy, &path_of(&fault, target)),
            _ if is_ours(&fault) => refused(fault),
            _ => other(fault),
        }
    }

    /// As [`into_error`](Self::into_error), for an operation that writes.
    pub(super) fn into_write_error(self, policy: &WorkspacePathPolicy, target: &Target) -> Error {
        self.into_error(policy, target, |fault| {
            raise::workspace_archive_write(path_of(&fault, target)).with_source(refused(fault))
        })
    }
}

/// The error of writing where only reading is granted.
pub(super) fn read_only(policy: &WorkspacePathPolicy, path: &str) -> Error {
    // The policy says it in its own words, if it agrees with the guest about the grant.
    match policy.normalize_path(&PosixPath::new(path), PathUse::Write) {
        Err(error) => error,
        Ok(path) => raise::workspace_archive_write(path)
            .with_context("reason", "read_only_extra_path_grant"),
    }
}
