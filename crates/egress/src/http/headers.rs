//! Headers that are changed on their way.

use bastide_model::policy::DecisionReason;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};

use crate::denial::Denial;
use crate::secrets::InjectedSecrets;

/// Headers between two ends of one connection.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "expect",
];

/// Takes out headers that are not for the other end.
pub(super) fn clean(headers: &mut HeaderMap, is_upgrade: bool) {
    let wants_trailers =
        headers.get(header::TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    for name in named.iter().map(String::as_str).chain(HOP_BY_HOP) {
        // What says where a message ends, or whom it is for, is nobody's to name there.
        if !matches!(name, "content-length" | "host" | "") {
            headers.remove(name);
        }
    }
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if is_upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
}

/// Takes secrets out of the headers of an answer.
pub(super) fn redact_headers(
    headers: &mut HeaderMap,
    sent: &InjectedSecrets,
) -> Result<(), Denial> {
    if sent.is_empty() {
        return Ok(());
    }
    let encoded = headers.get(header::CONTENT_ENCODING);
    if encoded.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let message = "the server encodes its answer though it was asked not to; it cannot be looked through for secrets";
        return Err(Denial::new(
            StatusCode::BAD_GATEWAY,
            DecisionReason::UpstreamUnreachable,
            message,
        ));
    }
    // The length may change.
    headers.remove(header::CONTENT_LENGTH);
    for value in headers.values_mut() {
        if let Some(clean) = sent.redacted(value) {
            *value = clean;
        }
    }
    Ok(())
}

/// HTTP/2 may have each cookie in a header of its own, HTTP/1 has all of them in one: they are decided as they are sent.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if all.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}
