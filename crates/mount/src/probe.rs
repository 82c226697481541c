//! Whether a store can be used, said before anything is mounted.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::spec::MountSpec;
use crate::store::{Store, StoreError, Unreachable};

/// How far clocks may be apart for signatures to be believed, in seconds.
const MAX_SKEW: u64 = 15 * 60;

/// Why a store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum ProbeError {
    /// What was asked for makes no sense.
    #[error("{message}; correct the mount's settings")]
    Settings {
        /// What is wrong.
        message: String,
    },
    /// There is no such server.
    #[error("{place}: no server has this name ({message}); check the endpoint")]
    UnknownHost {
        /// Where.
        place: String,
        /// What the resolver said.
        message: String,
    },
    /// The server does not listen there.
    #[error(
        "{place}: the connection was refused; check the endpoint's port, and that the server runs"
    )]
    Refused {
        /// Where.
        place: String,
    },
    /// The server does not answer, or not in time.
    #[error("{place}: no answer ({message}); check the endpoint and the network")]
    Unreachable {
        /// Where.
        place: String,
        /// What happened.
        message: String,
    },
    /// The server cannot prove that it is the right one.
    #[error("{place}: {message}; set the file of certificates to trust")]
    Tls {
        /// Where.
        place: String,
        /// What is wrong with its certificate.
        message: String,
    },
    /// Something listens there that is not this kind of store.
    #[error("{place}: not a store of this kind ({message}); check the endpoint and the provider")]
    WrongEndpoint {
        /// Where.
        place: String,
        /// What it answered.
        message: String,
    },
    /// The bucket or container is not there.
    #[error("{place}: there is no such bucket; create it or correct its name")]
    MissingBucket {
        /// Where.
        place: String,
    },
    /// The keys are not known, or do not fit.
    #[error("{place}: the keys are not accepted ({message}); check them")]
    BadKey {
        /// Where.
        place: String,
        /// What the store said.
        message: String,
    },
    /// The keys were good for some time.
    #[error("{place}: the token has expired; get a new one")]
    ExpiredToken {
        /// Where.
        place: String,
    },
    /// The clocks are too far apart for signatures.
    #[error("{place}: this clock and the store's are {seconds} s apart; set this machine's clock")]
    ClockSkew {
        /// Where.
        place: String,
        /// How far.
        seconds: u64,
    },
    /// The keys are good, for something else.
    #[error("{place}: these keys may not list it ({message}); grant them that")]
    Denied {
        /// Where.
        place: String,
        /// What the store said.
        message: String,
    },
    /// What should be a folder is a file.
    #[error("{place}: the prefix {prefix:?} is a file, not a folder; name the folder it is in")]
    PrefixIsFile {
        /// Where.
        place: String,
        /// What.
        prefix: String,
    },
}

/// Asks a store for one name under the prefix, with the keys.
///
/// # Errors
/// Why it cannot be used.
pub async fn probe(spec: &MountSpec) -> Result<(), ProbeError> {
    let settings = |fault: StoreError| ProbeError::Settings { message: fault.to_string() };
    let store = Store::open(spec).map_err(settings)?;
    let root = spec.root();
    let explain = |fault: &StoreError| explain(store.store_address(), fault);
    let page = store.list(&root, true, None, 1).await.map_err(|fault| explain(&fault))?;
    if root.is_empty() || !page.objects.is_empty() {
        return Ok(());
    }
    let prefix = root.trim_end_matches('/');
    match store.head(prefix).await {
        Ok(Some(_)) => Err(ProbeError::PrefixIsFile {
            place: store.store_address().to_owned(),
            prefix: prefix.to_owned(),
        }),
        Ok(None) => Ok(()),
        Err(fault) => Err(explain(&fault)),
    }
}

fn explain(place: &str, fault: &StoreError) -> ProbeError {
    let (place, message) = (place.to_owned(), fault.to_string());
    match fault {
        StoreError::Settings(_) => ProbeError::Settings { message },
        StoreError::Credentials(_) => ProbeError::BadKey { place, message },
        StoreError::Unreachable { kind: Unreachable::Name, .. } => {
            ProbeError::UnknownHost { place, message }
        }
        StoreError::Unreachable { kind: Unreachable::Refused, .. } => ProbeError::Refused { place },
        StoreError::Unreachable { kind: Unreachable::Tls, .. } => {
            ProbeError::Tls { place, message }
        }
        StoreError::Unreachable { .. } | StoreError::Stalled(_) => {
            ProbeError::Unreachable { place, message }
        }
        StoreError::Inconsistent(_) => ProbeError::WrongEndpoint { place, message },
        StoreError::Refused { status, code, skew, .. } => {
            let skew = skew.filter(|seconds| *seconds > MAX_SKEW);
            explain_refusal(place, message, *status, code, skew)
        }
    }
}

fn explain_refusal(
    place: String,
    message: String,
    status: StatusCode,
    code: &str,
    skew: Option<u64>,
) -> ProbeError {
    let forbidden = matches!(status.as_u16(), 400 | 401 | 403);
    match (code, skew) {
        ("NoSuchBucket" | "ContainerNotFound" | "NotFound" | "notFound", _) => {
            ProbeError::MissingBucket { place }
        }
        ("RequestTimeTooSkewed", skew) => {
            ProbeError::ClockSkew { place, seconds: skew.unwrap_or(MAX_SKEW) }
        }
        (_, Some(seconds)) if forbidden => ProbeError::ClockSkew { place, seconds },
        ("ExpiredToken" | "TokenRefreshRequired", _) => ProbeError::ExpiredToken { place },
        (
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "InvalidClientTokenId"
            | "AuthenticationFailed"
            | "InvalidAuthenticationInfo"
            | "authError"
            | "required"
            | "AuthFailure"
            | "InvalidSecurity"
            | "AuthorizationHeaderMalformed"
            | "AuthorizationFailure",
            _,
        ) => ProbeError::BadKey { place, message },
        (_, _) if status == StatusCode::UNAUTHORIZED => ProbeError::BadKey { place, message },
        (_, _) if status == StatusCode::FORBIDDEN => ProbeError::Denied { place, message },
        // Google's emulator and some proxies say no more than that.
        ("", _) if status == StatusCode::NOT_FOUND => ProbeError::MissingBucket { place },
        _ if status.is_server_error() => ProbeError::Unreachable { place, message },
        _ => ProbeError::WrongEndpoint { place, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(status: u16, code: &str, skew: Option<u64>) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        let fault = StoreError::Refused { status, code: code.into(), message: String::new(), skew };
        let error = serde_json::to_value(explain("p", &fault)).unwrap();
        error["reason"].as_str().unwrap().to_owned()
    }

    #[test]
    fn says_which_it_is() {
        let table = [
            (404, "NoSuchBucket", None, "missing_bucket"),
            (404, "ContainerNotFound", None, "missing_bucket"),
            (403, "InvalidAccessKeyId", None, "bad_key"),
            (403, "SignatureDoesNotMatch", Some(3), "bad_key"),
            (403, "AuthenticationFailed", None, "bad_key"),
            (401, "authError", None, "bad_key"),
            (400, "ExpiredToken", None, "expired_token"),
            (403, "RequestTimeTooSkewed", Some(4000), "clock_skew"),
            (403, "AuthenticationFailed", Some(4000), "clock_skew"),
            (403, "AccessDenied", None, "denied"),
            (301, "PermanentRedirect", None, "wrong_endpoint"),
            (302, "", None, "wrong_endpoint"),
            (503, "SlowDown", None, "unreachable"),
        ];
        for (status, code, skew, reason) in table {
            assert_eq!(explained(status, code, skew), reason, "{status} {code}");
        }
    }
}
