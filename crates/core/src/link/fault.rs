//! What a guest says went wrong, in the words of our callers.

use bastide_proto::{Fault, FaultKind};

use crate::{Error, ErrorKind};

/// The guest is gone, or not to be believed any more.
pub(crate) fn agent_lost(what: &str) -> Error {
    Error::new(ErrorKind::AgentLost, what)
}

/// The error of a request the guest refused, or of a call that failed on the way.
pub(crate) fn refused(fault: Fault) -> Error {
    let kind = match fault.kind {
        FaultKind::Invalid | FaultKind::Escape => ErrorKind::InvalidInput,
        FaultKind::NotFound => ErrorKind::NotFound,
        FaultKind::Denied => ErrorKind::PermissionDenied,
        FaultKind::Unsupported => ErrorKind::Unsupported,
        FaultKind::Io => ErrorKind::Io,
        FaultKind::Internal => ErrorKind::Internal,
        _ => ErrorKind::Internal,
    };
    let error = Error::new(kind, fault.message);
    match fault.errno {
        Some(errno) => error.with_errno(errno),
        None => error,
    }
}
