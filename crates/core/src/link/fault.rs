//! What a guest says went wrong, in the words of our callers.

use bastide_proto::{Fault, FaultKind};

use crate::{Error, ErrorClass, ErrorKind};

/// The guest is gone, or not to be believed any more. Whatever was asked of it, the reference's word for that is the one
/// for a command that cannot be run.
pub(crate) fn agent_lost(what: &str) -> Error {
    Error::new(ErrorKind::AgentLost, what)
        .with_class(ErrorClass::ExecTransportError)
        .with_code("exec_transport_error")
        .with_op("exec")
}

/// The error of a request the guest refused, or of a call that failed on the way.
pub(crate) fn refused(fault: Fault) -> Error {
    let kind = match fault.kind {
        FaultKind::Invalid | FaultKind::Escape => ErrorKind::InvalidInput,
        FaultKind::NotFound => ErrorKind::NotFound,
        FaultKind::Denied | FaultKind::ReadOnly => ErrorKind::PermissionDenied,
        FaultKind::Exists => ErrorKind::Conflict,
        FaultKind::TooMuch => ErrorKind::LimitExceeded,
        FaultKind::Stuck => ErrorKind::Timeout,
        FaultKind::Unsupported => ErrorKind::Unsupported,
        FaultKind::Io => ErrorKind::Io,
        FaultKind::Internal => ErrorKind::Internal,
        // None that a guest of this version has.
        _ => ErrorKind::Internal,
    };
    let error = Error::new(kind, fault.message);
    match fault.errno {
        Some(errno) => error.with_errno(errno),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error as NoSuchVariant, U32Deserializer};

    use super::*;

    /// Every kind a guest can name: the protocol numbers them from 0 on.
    fn all_kinds() -> Vec<FaultKind> {
        let numbered = |index: u32| {
            let index: U32Deserializer<NoSuchVariant> = index.into_deserializer();
            FaultKind::deserialize(index).ok()
        };
        (0..).map_while(numbered).collect()
    }

    #[test]
    fn tells_every_refusal_of_a_guest_by_a_kind_of_its_own_meaning() {
        let table = [
            (FaultKind::Invalid, ErrorKind::InvalidInput),
            (FaultKind::NotFound, ErrorKind::NotFound),
            (FaultKind::Denied, ErrorKind::PermissionDenied),
            (FaultKind::Unsupported, ErrorKind::Unsupported),
            (FaultKind::Escape, ErrorKind::InvalidInput),
            (FaultKind::Exists, ErrorKind::Conflict),
            (FaultKind::ReadOnly, ErrorKind::PermissionDenied),
            (FaultKind::TooMuch, ErrorKind::LimitExceeded),
            (FaultKind::Stuck, ErrorKind::Timeout),
            (FaultKind::Io, ErrorKind::Io),
            (FaultKind::Internal, ErrorKind::Internal),
        ];
        assert_eq!(all_kinds(), table.map(|(fault, _)| fault), "the table has every kind");
        for (fault, kind) in table {
            let error = refused(Fault { errno: Some(5), ..Fault::new(fault, "no") });
            assert_eq!((error.kind(), error.message(), error.errno()), (kind, "no", Some(5)));
        }
    }
}
