//! The errors of archives.

use std::fmt::Display;
use std::io;

use serde_json::Value;

use bastide_model::error::raise;
use bastide_model::python::repr_bytes;
use bastide_model::{Error, ErrorClass, ErrorKind};

/// A member of a tar that must not be unpacked.
pub(crate) fn unsafe_tar_member(member: &[u8], reason: impl Into<String>) -> Error {
    unsafe_member(ErrorClass::UnsafeTarMemberError, "tar", member, reason.into())
}

/// A member of a zip that must not be unpacked.
pub(crate) fn unsafe_zip_member(member: &[u8], reason: impl Into<String>) -> Error {
    unsafe_member(ErrorClass::UnsafeZipMemberError, "zip", member, reason.into())
}

fn unsafe_member(class: ErrorClass, kind: &str, member: &[u8], reason: String) -> Error {
    let message = format!("unsafe {kind} member {}: {reason}", repr_bytes(member));
    Error::new(ErrorKind::InvalidInput, message)
        .with_class(class)
        .with_context("member", String::from_utf8_lossy(member).as_ref())
        .with_context("reason", reason)
}

/// An archive that unpacks to more than its limits allow.
pub(crate) fn over_limit(reason: &str, limit: u64, actual: u64, member: &[u8]) -> Error {
    Error::new(ErrorKind::LimitExceeded, reason)
        .with_class(ErrorClass::ArchiveResourceLimitError)
        .with_context("reason", reason)
        .with_context("limit", limit)
        .with_context("actual", actual)
        .with_context("member", String::from_utf8_lossy(member).as_ref())
}

/// An archive that goes beyond what any may cost: see [`bounds`](super::bounds).
pub(crate) fn over_bound(reason: &str, limit: u64, actual: u64, member: &[u8]) -> Error {
    let message = format!("{reason}: {actual}, of {limit} at most");
    Error::new(ErrorKind::LimitExceeded, message)
        .with_class(ErrorClass::ArchiveResourceLimitError)
        .with_context("reason", reason)
        .with_context("limit", limit)
        .with_context("actual", actual)
        .with_context("member", String::from_utf8_lossy(member).as_ref())
}

/// Bytes that are not a whole tar archive.
pub(crate) fn unreadable_tar(detail: impl Display) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("not a readable tar archive: {detail}"))
        .with_class(ErrorClass::ReadError)
}

/// Bytes that are not a whole zip archive.
pub(crate) fn unreadable_zip(detail: impl Display) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("not a readable zip archive: {detail}"))
        .with_class(ErrorClass::BadZipFile)
}

/// A failure of the operating system below an archive.
pub(crate) fn os_failure(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, error.to_string()).with_class(ErrorClass::OSError).with_source(error)
}

/// What an operation says when an archive is refused: that writing failed, and for a member or a
/// limit which and why.
pub(crate) fn archive_write_error(path: &str, cause: Error) -> Error {
    let mut error = raise::workspace_archive_write(path);
    let names_a_member = matches!(
        cause.class(),
        Some(
            ErrorClass::UnsafeTarMemberError
                | ErrorClass::UnsafeZipMemberError
                | ErrorClass::ArchiveResourceLimitError
        )
    );
    if names_a_member {
        for (key, value) in cause.context() {
            error = error.with_context(key, Value::clone(value));
        }
    }
    if let Some(hint) = cause.hint() {
        error = error.with_hint(hint);
    }
    error.with_source(cause)
}
