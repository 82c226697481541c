//! Denials, in words that whoever is denied can read and act on.

use bastide_model::policy::{DecisionReason, Policy};
use http::{Response, StatusCode};
use serde_json::json;

use crate::body::{Body, full};

/// What was denied.
#[derive(Debug, Clone)]
pub(crate) struct Denial {
    pub(crate) status: StatusCode,
    pub(crate) why: DecisionReason,
    pub(crate) rule: Option<usize>,
    pub(crate) detail: String,
}

impl Denial {
    pub(crate) fn new(status: StatusCode, why: DecisionReason, detail: impl Into<String>) -> Self {
        Self { status, why, rule: None, detail: detail.into() }
    }

    /// Denied by a rule, or because there is none.
    pub(crate) fn by_policy(policy: &Policy, why: DecisionReason, rule: Option<usize>) -> Self {
        let found = rule.and_then(|index| Some((index, policy.rules.get(index)?)));
        let detail = match found {
            None => "no rule of this session's policy allows it".to_owned(),
            Some((index, rule)) => {
                let place =
                    if rule.line == 0 { String::new() } else { format!(" (line {})", rule.line) };
                let whose = if rule.floor { "the floor's rule" } else { "rule" };
                let reason =
                    rule.reason.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
                format!("{whose} {}{place} denies it{reason}", index + 1)
            }
        };
        Self { status: StatusCode::FORBIDDEN, why, rule, detail }
    }

    /// The answer to whoever asked.
    pub(crate) fn response(
        &self,
        host: &str,
        method: &str,
        path: &str,
        session: &str,
    ) -> Response<Body> {
        // What the policy is not the cause of, no other policy mends.
        let is_policys =
            self.status == StatusCode::FORBIDDEN && self.why != DecisionReason::SecretExfiltration;
        let hint = is_policys.then(|| {
            format!(
                "whoever runs this session can allow it: bastide net suggest {session}; do not look for a way around"
            )
        });
        let title = match self.status {
            StatusCode::FORBIDDEN => "Denied by the policy of this sandbox's network",
            StatusCode::BAD_GATEWAY => "The server could not be used",
            StatusCode::MISDIRECTED_REQUEST => "The request is for another host than was dialled",
            StatusCode::SERVICE_UNAVAILABLE => "The session has as many connections as it may",
            _ => "The request is not taken",
        };
        let body = json!({
            "type": "about:blank",
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "why": self.why.as_str(),
            "rule": self.rule.map(|index| index + 1),
            "host": host,
            "method": method,
            "path": path,
            "hint": hint,
        });
        let mut response = Response::new(full(format!("{body}\n").into_bytes()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert("content-type", http::HeaderValue::from_static("application/problem+json"));
        headers.insert("bastide-decision", http::HeaderValue::from_static("deny"));
        headers.insert("cache-control", http::HeaderValue::from_static("no-store"));
        response
    }
}
