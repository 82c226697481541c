//! One request and its answer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bastide_model::policy::{
    DecisionReason, Explanation, Flow, Host, HttpRequest, NormalPath, Verdict,
};
use bastide_proto::egress::{Answer, PendingFlow};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::Connection;
use super::headers::{clean, join_cookies, redact_headers};
use super::upgraded::relay_upgraded;
use super::upstream::UpstreamSender;
use crate::body::{Body, GuardedBody, ResponseBody, empty};
use crate::denial::Denial;
use crate::flow::{InFlight, RequestGuard};
use crate::notes::Note;
use crate::package_cache::{CacheKey, PackageCache, is_kept, plain_headers};
use crate::secrets::InjectedSecrets;
use crate::state::ActivePolicy;

/// How much of a path is shown to somebody who is asked.
pub(crate) const MAX_SHOWN_PATH: usize = 1024;

/// How long a server may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(600);

/// A request that was decided.
struct DecidedRequest {
    found: Explanation,
    request: InFlight,
}

impl Connection {
    /// The answer to a request.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let method = request.method().to_string();
        let path = request.uri().path().to_owned();
        // Nothing that follows one was looked at as requests are.
        let upgrades = request.headers().contains_key(header::UPGRADE);
        let active = self.shared.active();
        match Arc::clone(&self).exchange(&active, request).await {
            Ok(response) => response,
            Err(denial) => {
                self.note_denial(&denial, &method, &path);
                let host = self.flow.host.to_string();
                let session = &self.shared.start.session_id;
                let mut response = denial.response(&host, &method, &path, session);
                let is_malformed = matches!(
                    denial.status,
                    StatusCode::BAD_REQUEST | StatusCode::MISDIRECTED_REQUEST
                );
                if (is_malformed || upgrades) && !self.is_http2 {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                response
            }
        }
    }

    fn note_denial(&self, denial: &Denial, method: &str, path: &str) {
        let mut note = self.noted("deny", denial.why, denial.rule, method).with_path(path);
        note.status = Some(denial.status.as_u16());
        note.detail = Some(denial.detail.clone());
        self.shared.note(note);
    }

    fn noted(
        &self,
        decision: &'static str,
        why: DecisionReason,
        rule: Option<usize>,
        method: &str,
    ) -> Note {
        let mut note = Note::new(decision, why, &self.flow.host.to_string(), self.flow.port);
        note.rule = rule.map(|index| index + 1);
        note.protocol = self.flow.protocol.as_str();
        note.intercepted = self.is_tls;
        note.method = Some(method.to_owned());
        note.address = self.flow.address();
        note
    }

    async fn exchange(
        self: Arc<Self>,
        active: &ActivePolicy,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Denial> {
        if let (Some(why), "BAD") = (self.bad.get(), request.method().as_str()) {
            return Err(Denial::new(StatusCode::BAD_REQUEST, DecisionReason::BadRequest, *why));
        }
        if self.shared.is_over_quota() {
            let message = "the session has had as many bytes as its policy lets it";
            return Err(Denial::new(StatusCode::FORBIDDEN, DecisionReason::Limit, message));
        }
        // What is not for the other end is gone before anything is decided: what was decided is what is sent.
        let upgrade = wanted_upgrade(&mut request)?;
        clean(request.headers_mut(), upgrade.is_some());
        join_cookies(request.headers_mut());
        let DecidedRequest { mut found, request: in_flight } =
            self.decide(active, &request).await?;
        // From here on a new policy ends it; one that came while somebody was asked is what counts.
        let guard = self.flow.begin(in_flight.clone());
        let now = self.shared.active();
        if now.number != active.number {
            let again = explain(&now, &self.flow.host, self.flow.port, &in_flight);
            if again.verdict == Verdict::Deny {
                return Err(Denial::by_policy(&now.policy, again.why, again.rule));
            }
            found = again;
        }
        let active = &*now;
        let (mut parts, body) = request.into_parts();
        let mut authority = authority_of(&parts)?;
        let target = match &in_flight.query {
            Some(query) => format!("{}?{query}", in_flight.path.as_str()),
            None => in_flight.path.as_str().to_owned(),
        };
        let sent = self.put_secrets(active, &found, &target, &mut parts.headers)?;
        // What a program sends along might change what others get.
        let package = self.package(active, &found, &in_flight, &parts.headers, &sent);
        let package = package.filter(|_| body.is_end_stream());
        if let Some((cache, key)) = &package {
            if let Some(response) = cache.find(key).await {
                self.note_allowed(active, &found, &in_flight, response.status(), true);
                let kept = response.map(|body| GuardedBody::new(body, guard).boxed());
                return Ok(kept);
            }
            plain_headers(&mut parts.headers);
            authority = HeaderValue::from_str(key.authority()).unwrap_or(authority);
        }
        let upstream_sender =
            self.upstream_sender(active, found.rule, upgrade.is_some()).await.map_err(|error| {
                let status = match error.why {
                    DecisionReason::Private => StatusCode::FORBIDDEN,
                    DecisionReason::Limit => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::BAD_GATEWAY,
                };
                Denial { rule: found.rule, ..Denial::new(status, error.why, error.message) }
            })?;
        let body = body.map_err(Into::into).boxed();
        let outgoing = outgoing(parts, body, &upstream_sender, &authority, &target)?;
        let answered = tokio::time::timeout(ANSWER, upstream_sender.send(outgoing)).await;
        let unreachable = |message| {
            Denial::new(StatusCode::BAD_GATEWAY, DecisionReason::UpstreamUnreachable, message)
        };
        let (mut response, sender) = match answered {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return Err(unreachable(format!("the server failed: {error}"))),
            Err(_) => return Err(unreachable("the server does not answer in time".to_owned())),
        };
        self.note_allowed(active, &found, &in_flight, response.status(), false);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            redact_headers(response.headers_mut(), &sent)?;
            return self.switch(upgrade, response, guard, sent);
        }
        let (mut parts, body) = response.into_parts();
        let package_writer =
            package.and_then(|(cache, key)| cache.keep(key, parts.status, &parts.headers));
        clean(&mut parts.headers, false);
        redact_headers(&mut parts.headers, &sent)?;
        if upgrade.is_some() && !self.is_http2 {
            // What follows was not looked at as requests are.
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        parts.version = Version::HTTP_11;
        let upstream_sender = sender.map(|sender| (Arc::clone(&self), sender));
        let body = ResponseBody::new(body, guard, sent, upstream_sender).kept(package_writer);
        Ok(Response::from_parts(parts, body.boxed()))
    }

    /// Where a package is kept, if a request is for one.
    fn package(
        &self,
        active: &ActivePolicy,
        found: &Explanation,
        request: &InFlight,
        headers: &HeaderMap,
        sent: &InjectedSecrets,
    ) -> Option<(&PackageCache, CacheKey)> {
        let cache = self.shared.cache.as_ref()?;
        let rule = found.rule.and_then(|index| active.policy.rules.get(index))?;
        let path = request.path.as_str();
        let is_kept = rule.cache
            && self.is_tls
            && rule.inject.is_empty()
            && sent.is_empty()
            && is_kept(&request.method, path, request.query.as_deref(), headers);
        let key = || CacheKey::new(&active.policy, rule, &self.flow.host, self.flow.port, path);
        is_kept.then(|| (cache, key()))
    }

    fn note_allowed(
        &self,
        active: &ActivePolicy,
        found: &Explanation,
        request: &InFlight,
        status: StatusCode,
        is_kept: bool,
    ) {
        let mut note = self.noted("allow", found.why, found.rule, &request.method);
        note = note.with_path(request.path.as_str());
        note.status = Some(status.as_u16());
        note.secrets = if self.is_tls { found.secrets.clone() } else { Vec::new() };
        note.secrets.retain(|name| active.policy.secrets.contains_key(name));
        note.detail = is_kept.then(|| "from the package cache".to_owned());
        self.shared.note(note);
    }

    /// Whether a request may go out, asking somebody if need be.
    async fn decide(
        &self,
        active: &ActivePolicy,
        request: &Request<Incoming>,
    ) -> Result<DecidedRequest, Denial> {
        let bad = |why: &str| Denial::new(StatusCode::BAD_REQUEST, DecisionReason::BadRequest, why);
        if request.method() == http::Method::CONNECT {
            return Err(bad("CONNECT is not allowed"));
        }
        // Methods have capital letters; some servers take others for the same.
        if request.method().as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err(bad("the method has small letters"));
        }
        self.check_host(request)?;
        let path = NormalPath::parse(request.uri().path()).map_err(|why| bad(why.as_str()))?;
        let headers = request.headers().iter().map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        let request = InFlight {
            method: request.method().to_string(),
            path,
            query: request.uri().query().map(str::to_owned),
            headers: headers.collect(),
        };
        let mut found = explain(active, &self.flow.host, self.flow.port, &request);
        match found.verdict {
            Verdict::Allow => {}
            Verdict::Deny if found.why == DecisionReason::BadRequest => {
                let message = "the path can be read in several ways, and a rule is about paths";
                return Err(Denial { rule: found.rule, ..bad(message) });
            }
            Verdict::Deny => return Err(Denial::by_policy(&active.policy, found.why, found.rule)),
            Verdict::Ask => {
                let pending = PendingFlow {
                    id: 0,
                    host: self.flow.host.to_string(),
                    port: self.flow.port,
                    method: Some(request.method.clone()),
                    path: Some(request.path.as_str().chars().take(MAX_SHOWN_PATH).collect()),
                    left_ms: 0,
                };
                let time_limit = Duration::from_secs(active.policy.ask_seconds);
                match self.shared.approvals.wait_for_approval(pending, time_limit).await {
                    Some(Answer::Once | Answer::Session) => found.verdict = Verdict::Allow,
                    Some(Answer::Deny) => {
                        let message = "somebody was asked, and denied it";
                        return Err(Denial {
                            rule: found.rule,
                            ..Denial::new(StatusCode::FORBIDDEN, found.why, message)
                        });
                    }
                    None => {
                        let message = "somebody has to allow it, and nobody did in time";
                        return Err(Denial {
                            rule: found.rule,
                            ..Denial::new(
                                StatusCode::FORBIDDEN,
                                DecisionReason::AskTimeout,
                                message,
                            )
                        });
                    }
                }
            }
        }
        Ok(DecidedRequest { found, request })
    }

    /// Refuses a request that is for another host than was dialled.
    fn check_host(&self, request: &Request<Incoming>) -> Result<(), Denial> {
        let named = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let hosts = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        let mut any = false;
        for name in named.into_iter().chain(hosts) {
            any = true;
            let is_it = std::str::from_utf8(name).is_ok_and(|name| self.is_dialled(name));
            if !is_it {
                let message = format!(
                    "the request is for {:?}, and {} was dialled",
                    String::from_utf8_lossy(name),
                    self.flow.host
                );
                return Err(Denial::new(
                    StatusCode::MISDIRECTED_REQUEST,
                    DecisionReason::WrongHost,
                    message,
                ));
            }
        }
        if any {
            return Ok(());
        }
        Err(Denial::new(
            StatusCode::BAD_REQUEST,
            DecisionReason::BadRequest,
            "the request names no host",
        ))
    }

    fn is_dialled(&self, authority: &str) -> bool {
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        // It is sent as it was written: whoever reads it must not need the rules by which it is understood here.
        let is_plain = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let port_fits =
            port.is_none_or(|port| is_plain(port) && port.parse() == Ok(self.flow.port));
        authority.is_ascii()
            && port_fits
            && Host::parse(host).is_ok_and(|host| host == self.flow.host)
    }

    /// Sets what the rule injects, and fills placeholders.
    fn put_secrets(
        &self,
        active: &ActivePolicy,
        found: &Explanation,
        target: &str,
        headers: &mut HeaderMap,
    ) -> Result<InjectedSecrets, Denial> {
        let mut sent = InjectedSecrets::default();
        let forbidden = |message: String| {
            let why = DecisionReason::SecretExfiltration;
            Denial { rule: found.rule, ..Denial::new(StatusCode::FORBIDDEN, why, message) }
        };
        let rule = found.rule.and_then(|index| active.policy.rules.get(index));
        for inject in rule.into_iter().flat_map(|rule| &rule.inject) {
            if !self.is_tls {
                return Err(forbidden("secrets go nowhere in the clear".to_owned()));
            }
            // Whatever the program sent in its place is dropped.
            let name = HeaderName::from_bytes(inject.header.as_bytes());
            let name = name.map_err(|_| forbidden("a header cannot be set".to_owned()))?;
            let value = active.secrets.fill(&inject.value, &mut sent).map_err(forbidden)?;
            headers.insert(name, value);
        }
        let host = &self.flow.host;
        active
            .secrets
            .put_in(&active.policy, host, self.is_tls, target, headers, &mut sent)
            .map_err(|found| forbidden(format!("the secret {}: {}", found.name, found.message)))?;
        if !sent.is_empty() {
            // What comes back is looked through.
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
        Ok(sent)
    }

    /// Goes on with bytes both ways.
    fn switch(
        self: &Arc<Self>,
        upgrade: Option<OnUpgrade>,
        mut response: Response<Incoming>,
        guard: RequestGuard,
        sent: InjectedSecrets,
    ) -> Result<Response<Body>, Denial> {
        let Some(inside) = upgrade else {
            let message = "the server switches protocols and was not asked to";
            return Err(Denial::new(
                StatusCode::BAD_GATEWAY,
                DecisionReason::UpstreamUnreachable,
                message,
            ));
        };
        let outside = hyper::upgrade::on(&mut response);
        let relayed = async move {
            // As long as bytes are carried, a new policy may end it.
            let _guard = guard;
            let (Ok(inside), Ok(outside)) = tokio::join!(inside, outside) else { return };
            // However it ends, it has ended.
            drop(relay_upgraded(TokioIo::new(inside), TokioIo::new(outside), &sent).await);
        };
        self.upgraded.lock().unwrap_or_else(PoisonError::into_inner).spawn(relayed);
        let (parts, _) = response.into_parts();
        Ok(Response::from_parts(parts, empty()))
    }
}

/// Decides a request.
pub(crate) fn explain(
    active: &ActivePolicy,
    host: &Host,
    port: u16,
    request: &InFlight,
) -> Explanation {
    let http = HttpRequest {
        method: &request.method,
        path: &request.path,
        query: request.query.as_deref(),
        headers: &request.headers,
    };
    active.policy.explain(&Flow { host, port, http: Some(http) })
}

/// The upgrade that a request asks for; only WebSocket is one.
fn wanted_upgrade(request: &mut Request<Incoming>) -> Result<Option<OnUpgrade>, Denial> {
    let value = request.headers().get(header::UPGRADE);
    let is_web_socket =
        value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if is_web_socket && request.version() != Version::HTTP_11 {
        let message = "only HTTP/1.1 has upgrades";
        return Err(Denial::new(StatusCode::BAD_REQUEST, DecisionReason::BadRequest, message));
    }
    Ok(is_web_socket.then(|| hyper::upgrade::on(request)))
}

/// Whom a request is for, as it says.
fn authority_of(parts: &Parts) -> Result<HeaderValue, Denial> {
    let authority_header =
        parts.uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    let authority_header =
        authority_header.and_then(Result::ok).or_else(|| parts.headers.get(header::HOST).cloned());
    authority_header.ok_or_else(|| {
        Denial::new(
            StatusCode::BAD_REQUEST,
            DecisionReason::BadRequest,
            "the request names no host",
        )
    })
}

/// The request as it is sent: in the form that was decided.
fn outgoing(
    mut parts: Parts,
    body: Body,
    upstream_sender: &UpstreamSender,
    authority: &HeaderValue,
    target: &str,
) -> Result<Request<Body>, Denial> {
    let bad =
        |message: &str| Denial::new(StatusCode::BAD_REQUEST, DecisionReason::BadRequest, message);
    let uri = if upstream_sender.is_http2() {
        let authority = authority.to_str().map_err(|_| bad("the host is none"))?;
        parts.headers.remove(header::HOST);
        parts.version = Version::HTTP_2;
        Uri::builder().scheme("https").authority(authority).path_and_query(target).build()
    } else {
        parts.headers.insert(header::HOST, authority.clone());
        parts.version = Version::HTTP_11;
        Uri::builder().path_and_query(target).build()
    };
    parts.uri = uri.map_err(|_| bad("the path or the query is none"))?;
    parts.extensions.clear();
    Ok(Request::from_parts(parts, body))
}
