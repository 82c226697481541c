//! What a cluster says, as failures that name the thing, the reason and what to do.

use std::error::Error as StdError;

use bastide::{Error, ErrorKind};
use kube::client::AuthError;
use serde::Deserialize;

/// The most that is passed on of what somebody else says.
const MOST_SAID: usize = 2000;

/// What an API server answers instead of what was asked for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiStatus {
    pub(crate) message: String,
    pub(crate) reason: String,
    pub(crate) code: u16,
}

/// What to do about missing rights.
pub(crate) const APPLY: &str =
    "`bastide kubernetes manifest | kubectl apply -f -` gives them, if you may";

/// Refuses what an option was given. It is named as the library has it, in backticks: a front end puts its own name there.
pub(crate) fn wrong_option(option: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("`{option}`: {why}")).with_context("option", option)
}

/// Makes a failure of an answer.
pub(crate) fn refused(what: &str, status: u16, api_status: &ApiStatus) -> Error {
    let text = api_status.message.as_str();
    let says = |phrases: &str| text.contains(phrases);
    let (kind, hint) = match status {
        400 | 422 => (ErrorKind::InvalidInput, None),
        401 => (
            ErrorKind::PermissionDenied,
            Some(
                "sign in to the cluster again; the credentials of this context are not valid any more",
            ),
        ),
        403 if says("exceeded quota") => (
            ErrorKind::LimitExceeded,
            Some(
                "ask for less with `ResourceLimits::memory` and `ResourceLimits::cpu_millis`, or wait until others have ended",
            ),
        ),
        403 if says("violates PodSecurity") => (
            ErrorKind::PermissionDenied,
            Some("leave out the option that asks for more than the namespace allows"),
        ),
        403 if says("is being terminated") => (
            ErrorKind::Conflict,
            Some("the namespace is being removed; choose another with `ClusterAccess::namespace`"),
        ),
        403 if says("admission webhook") || says("is forbidden: error looking up") => {
            (ErrorKind::PermissionDenied, None)
        }
        403 if says("no PriorityClass") || says("RuntimeClass") => {
            (ErrorKind::NotFound, Some("does the cluster have a class of that name?"))
        }
        403 => (ErrorKind::PermissionDenied, Some(APPLY)),
        404 => (ErrorKind::NotFound, None),
        409 => (ErrorKind::Conflict, None),
        410 => (ErrorKind::Conflict, None),
        413 => (ErrorKind::LimitExceeded, None),
        429 => (ErrorKind::LimitExceeded, Some("the server has too much to do; try again later")),
        500..=599 => (ErrorKind::Io, None),
        _ => (ErrorKind::Io, None),
    };
    let shown = match text.is_empty() {
        true => format!("the server answered {status} {}", api_status.reason),
        false => shortened(text),
    };
    let passing = [429, 500, 502, 503, 504].contains(&status).then_some(true);
    let error = Error::new(kind, format!("cannot {what}: {}", shown.trim_end()))
        .with_status(status)
        .with_retryable(passing);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Nobody is there, or nobody that may be trusted.
pub(crate) fn unreachable(server: &str, by: &str, why: &str) -> Error {
    let why = shortened(why);
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| why.contains(phrase));
    let hint = if says(&[
        "UnknownIssuer",
        "invalid peer certificate",
        "NotValidForName",
        "BadSignature",
    ]) {
        "the server is not the one whose certificate authority the kubeconfig names"
    } else if says(&[
        "Connection refused",
        "unreachable",
        "timed out",
        "deadline",
        "dns error",
        "failed to lookup",
    ]) {
        "is the cluster up, and can this machine reach it? `kubectl version` asks the same"
    } else {
        "`kubectl version` asks the same server"
    };
    let message = format!("cannot reach the cluster at {server} ({by}): {why}");
    Error::new(ErrorKind::BackendLost, message)
        .with_context("reason", "backend_lost")
        .with_hint(hint)
}

/// The server does not say anything.
pub(crate) fn silent(server: &str, what: &str) -> Error {
    let message = format!("cannot {what}: the cluster at {server} does not answer");
    Error::new(ErrorKind::BackendLost, message)
        .with_context("reason", "backend_lost")
        .with_hint("look at its API server; what runs in the cluster goes on meanwhile")
}

/// What was heard is no answer of an API server.
pub(crate) fn malformed(server: &str, what: &str, why: &str) -> Error {
    let message =
        format!("cannot {what}: what {server} answers is not Kubernetes: {}", shortened(why));
    Error::new(ErrorKind::BackendLost, message)
        .with_context("reason", "backend_lost")
        .with_hint("does the context name an API server, or something before it?")
}

/// No credentials could be had.
pub(crate) fn not_signed_in(by: &str, error: &AuthError) -> Error {
    let why = match error {
        AuthError::AuthExecRun { cmd, out } => {
            // Its arguments, and what it says on standard output, may be credentials.
            let (stderr, status) = (String::from_utf8_lossy(&out.stderr), out.status);
            let program =
                cmd.split_whitespace().find(|part| !part.contains('=')).unwrap_or_default();
            format!(
                "the credential plug-in {} failed ({status}): {}",
                program.trim_matches('"'),
                stderr.trim()
            )
        }
        AuthError::AuthExecParse(_) => {
            "what the credential plug-in says is no ExecCredential".to_owned()
        }
        other => innermost(other),
    };
    let message = format!("cannot sign in to the cluster by {by}: {}", shortened(&why));
    Error::new(ErrorKind::PermissionDenied, message)
        .with_hint("see whether `kubectl get pods` works with the same context")
}

/// What went wrong at the bottom: what lies above only says that something did.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error: &dyn StdError = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Text of others, on one line and not without end.
pub(crate) fn shortened(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .take(MOST_SAID + 1)
        .collect();
    if line.chars().count() > MOST_SAID {
        line.pop();
        line.push('…');
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_refusals_apart_by_what_the_server_says() {
        let table = [
            (
                403,
                "pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
                ErrorKind::LimitExceeded,
            ),
            (
                403,
                "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": privileged",
                ErrorKind::PermissionDenied,
            ),
            (
                403,
                "unable to create new content in namespace x because it is being terminated",
                ErrorKind::Conflict,
            ),
            (401, "Unauthorized", ErrorKind::PermissionDenied),
            (404, "namespaces \"x\" not found", ErrorKind::NotFound),
            (422, "Job.batch \"x\" is invalid", ErrorKind::InvalidInput),
            (429, "too many requests", ErrorKind::LimitExceeded),
            (503, "", ErrorKind::Io),
        ];
        for (status, message, kind) in table {
            let api_status = ApiStatus { message: message.to_owned(), ..ApiStatus::default() };
            let error = refused("make the job", status, &api_status);
            assert_eq!(error.kind(), kind, "{status} {message}");
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.status(), Some(status));
        }
    }

    #[test]
    fn passes_on_text_without_line_breaks_and_without_end() {
        assert_eq!(shortened("a\nb\x1b[31m"), "a b [31m");
        assert!(shortened(&"x".repeat(10_000_000)).len() < MOST_SAID + 8);
    }
}
