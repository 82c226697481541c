//! What goes wrong in a store, in words.

use std::io;
use std::path::Path;

use crate::{Condition, Error, ErrorKind};

/// Something in the store is not what was written. Nothing that depends on it is used.
pub(crate) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("the snapshot store is damaged: {what}"))
        .with_condition(Condition::StoreDamaged)
        .with_context("reason", "damaged")
}

/// A system call on a file of the store failed.
pub(crate) fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    };
    let message = format!("cannot {doing} {}: {error}", path.display());
    Error::new(kind, message).with_context("path", path.display().to_string()).with_source(error)
}
