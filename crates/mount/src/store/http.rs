//! Requests to a store that nobody trusts: no redirect is followed, every body has a bound, and no
//! progress for the mount's timeout is an end.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use rustix::io::Errno;

use super::sign::Signer;
use crate::spec::MountSpec;

/// The largest page of a listing: a thousand keys of the longest kind, encoded, fit in.
const MAX_PAGE: usize = 4 << 20;
const MAX_ERROR: usize = 64 << 10;
/// How often a request is sent that might succeed another time.
const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Pieces in which larger bodies are handed over, each a sign of progress.
const CHUNK: usize = 256 << 10;

/// Why a store did not do as it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{0}")]
    Settings(String),
    #[error("no credentials: {0}")]
    Credentials(String),
    #[error("cannot reach the store: {message}")]
    Unreachable { message: String, kind: Unreachable },
    #[error("the store made no progress for {0:?}")]
    Stalled(Duration),
    #[error("the store answered {status} {code}: {message}")]
    Refused { status: StatusCode, code: String, message: String, skew: Option<u64> },
    #[error("the store contradicts itself: {0}")]
    Inconsistent(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Name,
    Refused,
    Tls,
    Other,
}

impl StoreError {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status, code, .. }
            if *status == StatusCode::NOT_FOUND && code != "NoSuchBucket" && code != "ContainerNotFound")
    }

    /// What a program hears of it.
    pub(crate) fn errno(&self) -> Errno {
        let Self::Refused { status, code, .. } = self else { return Errno::IO };
        match (status.as_u16(), code.as_str()) {
            (_, "QuotaExceeded" | "QuotaExceededException" | "XMinioStorageQuotaExceeded") => {
                Errno::DQUOT
            }
            (507, _) | (_, "XMinioStorageFull" | "InsufficientStorage") => Errno::NOSPC,
            (401 | 403, _) => Errno::ACCESS,
            (413, _) | (_, "EntityTooLarge") => Errno::FBIG,
            (_, "KeyTooLongError") => Errno::NAMETOOLONG,
            // The content that was asked for is not there any more.
            (412 | 416, _) => Errno::STALE,
            _ if self.is_missing() => Errno::NOENT,
            _ => Errno::IO,
        }
    }

    fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { kind, .. } => {
                matches!(kind, Unreachable::Other | Unreachable::Refused)
            }
            Self::Refused { status, code, .. } => {
                status.is_server_error() && *status != StatusCode::INSUFFICIENT_STORAGE
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
                    || code == "RequestTimeout"
            }
            Self::Settings(_) | Self::Credentials(_) | Self::Stalled(_) | Self::Inconsistent(_) => {
                false
            }
        }
    }
}

/// A request before it is signed.
#[derive(Clone)]
pub(crate) struct Call {
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Call {
    pub(super) fn new(method: Method, url: String) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(super) fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        // Azure's signature covers the length.
        let length = HeaderValue::from(self.body.len());
        self.headers.insert(http::header::CONTENT_LENGTH, length);
        self
    }

    /// Adds a header; a value that cannot be one is left out, and the store refuses the request.
    pub(super) fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    pub(super) fn range(self, from: u64, to: u64) -> Self {
        self.header(http::header::RANGE, &format!("bytes={from}-{}", to - 1))
    }
}

/// The way to one server.
pub(crate) struct Http {
    client: reqwest::Client,
    time_limit: Duration,
    cache_scope: blake3::Hash,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("patience", &self.time_limit).finish_non_exhaustive()
    }
}

impl Http {
    pub(super) fn new(spec: &MountSpec) -> Result<Self, StoreError> {
        let time_limit = spec.timeout();
        // The client takes the implementation of the process; a choice that was made already stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(time_limit.min(Duration::from_secs(5)))
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(16)
            .dns_resolver(super::super::dns::Dns::from_system());
        if let Some(path) = &spec.ca_file {
            let wrong = |error: &dyn fmt::Display| {
                StoreError::Settings(format!("the certificates in {}: {error}", path.display()))
            };
            let text = std::fs::read(path).map_err(|error| wrong(&error))?;
            let certificates =
                reqwest::Certificate::from_pem_bundle(&text).map_err(|error| wrong(&error))?;
            builder = builder.tls_certs_only(certificates);
        }
        let client = builder
            .build()
            .map_err(|error| StoreError::Settings(format!("the HTTP client: {}", chain(&error))))?;
        let source = serde_json::to_vec(&spec.source)
            .map_err(|error| StoreError::Settings(format!("the source: {error}")))?;
        Ok(Self { client, time_limit, cache_scope: blake3::hash(&source) })
    }

    /// Names the store and the keys that it is asked with.
    pub(super) fn cache_scope(&self) -> &blake3::Hash {
        &self.cache_scope
    }

    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Sends a request until it succeeds, cannot, or the time is over. Requests are made so that
    /// sending them twice does what sending them once does.
    pub(super) async fn send(&self, signer: &Signer, call: &Call) -> Result<Body, StoreError> {
        let deadline = Instant::now() + self.time_limit;
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let fault = match self.try_once(signer, call, deadline).await {
                Ok(body) => return Ok(body),
                Err(fault) => fault,
            };
            if attempt >= ATTEMPTS || !fault.may_pass() || Instant::now() + pause >= deadline {
                return Err(fault);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(StoreError::Stalled(self.time_limit))
    }

    async fn try_once(
        &self,
        signer: &Signer,
        call: &Call,
        deadline: Instant,
    ) -> Result<Body, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let signing = tokio::time::timeout(left, signer.sign(call)).await;
        let signed = signing.map_err(|_| StoreError::Stalled(self.time_limit))??;
        let progress = Progress::new();
        let (parts, _) = signed.into_parts();
        let url = reqwest::Url::parse(&parts.uri.to_string())
            .map_err(|error| StoreError::Settings(format!("{}: {error}", call.url)))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        if call.body.len() > CHUNK {
            *request.body_mut() = Some(progress.body(call.body.clone()));
        } else if !call.body.is_empty() {
            *request.body_mut() = Some(call.body.clone().into());
        }
        let response = tokio::select! {
            response = self.client.execute(request) => response.map_err(|e| unreachable(&e))?,
            () = progress.stalled(left) => return Err(StoreError::Stalled(self.time_limit)),
        };
        let mut body = Body { response, time_limit: self.time_limit, method: call.method.clone() };
        // Google says 308 of a part that is not the last one.
        let is_part = call.headers.contains_key(http::header::CONTENT_RANGE);
        let goes_on = is_part && body.status() == StatusCode::PERMANENT_REDIRECT;
        if body.status().is_success() || goes_on {
            return Ok(body);
        }
        Err(body.refusal().await)
    }
}

/// What has been sent of a body, so that a slow store is told from a silent one.
struct Progress {
    begin: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Progress {
    fn new() -> Self {
        Self { begin: Instant::now(), last_ms: Arc::default() }
    }

    fn body(&self, bytes: Bytes) -> reqwest::Body {
        let (begin, last) = (self.begin, Arc::clone(&self.last_ms));
        let mut rest = bytes;
        reqwest::Body::wrap_stream(futures::stream::iter(std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let now = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            last.store(now, Ordering::Relaxed);
            Some(Ok::<_, std::io::Error>(rest.split_to(rest.len().min(CHUNK))))
        })))
    }

    /// Returns when nothing has been taken for so long.
    async fn stalled(&self, time_limit: Duration) {
        loop {
            let last = self.begin + Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let end = last + time_limit;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end.into()).await;
        }
    }
}

/// An answer whose body has not been read.
#[derive(Debug)]
pub(crate) struct Body {
    response: reqwest::Response,
    time_limit: Duration,
    method: Method,
}

impl Body {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The next piece; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match tokio::time::timeout(self.time_limit, self.response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(unreachable(&error)),
            Err(_) => Err(StoreError::Stalled(self.time_limit)),
        }
    }

    async fn bounded(&mut self, limit: usize) -> Result<Option<Bytes>, StoreError> {
        let announced = self.response.content_length().unwrap_or(0);
        if announced > limit as u64 {
            return Ok(None);
        }
        let deadline = Instant::now() + self.time_limit;
        let mut all = BytesMut::new();
        while let Some(chunk) = self.next().await? {
            // A page that comes by the byte is not progress.
            if all.len() + chunk.len() > limit || Instant::now() > deadline {
                return Ok(None);
            }
            all.extend_from_slice(&chunk);
        }
        Ok(Some(all.freeze()))
    }

    /// All of a page or a document.
    pub(super) async fn page(mut self) -> Result<Bytes, StoreError> {
        let page = self.bounded(MAX_PAGE).await?;
        page.ok_or_else(|| {
            StoreError::Inconsistent(format!("a page of more than {MAX_PAGE} bytes"))
        })
    }

    /// Reads what is left, so that the connection can be used again.
    pub(super) async fn finish(mut self) -> Result<(), StoreError> {
        self.bounded(MAX_ERROR).await.map(drop)
    }

    async fn refusal(&mut self) -> StoreError {
        let status = self.status();
        let skew = self.header("date").and_then(|date| {
            let theirs = httpdate::parse_http_date(date).ok()?;
            let ours = std::time::SystemTime::now();
            let apart = ours.duration_since(theirs).or_else(|_| theirs.duration_since(ours));
            apart.ok().map(|apart| apart.as_secs())
        });
        let said = self.header("x-ms-error-code").map(str::to_owned);
        let text = if self.method == Method::HEAD {
            Bytes::new()
        } else {
            self.bounded(MAX_ERROR).await.ok().flatten().unwrap_or_default()
        };
        let text = String::from_utf8_lossy(&text);
        let code =
            said.or_else(|| tag(&text, "Code")).or_else(|| reason(&text)).unwrap_or_default();
        let message = tag(&text, "Message").unwrap_or_else(|| text.chars().take(200).collect());
        StoreError::Refused { status, code, message, skew }
    }

    /// Makes sure that this is the range that was asked for, of an object of this size.
    pub(super) fn check_range(self, from: u64, to: u64, size: u64) -> Result<Self, StoreError> {
        let length = self.response.content_length();
        let right = match self.status() {
            StatusCode::PARTIAL_CONTENT => {
                let expected = format!("bytes {from}-{}/{size}", to - 1);
                self.header("content-range") == Some(expected.as_str())
            }
            StatusCode::OK => from == 0 && to == size && length.is_none_or(|length| length == size),
            _ => false,
        };
        if right {
            return Ok(self);
        }
        let got = self.header("content-range").unwrap_or("all of it").to_owned();
        Err(StoreError::Inconsistent(format!(
            "asked for {from}..{to} of {size} bytes, and got {got}"
        )))
    }
}

/// The text in an element of an error.
fn tag(text: &str, name: &str) -> Option<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let from = text.find(&open)? + open.len();
    let to = from + text.get(from..)?.find(&close)?;
    text.get(from..to).map(|inner| inner.chars().take(200).collect())
}

/// The reason in an error of Google's.
fn reason(text: &str) -> Option<String> {
    let error: serde_json::Value = serde_json::from_str(text).ok()?;
    error.pointer("/error/errors/0/reason")?.as_str().map(str::to_owned)
}

fn unreachable(error: &reqwest::Error) -> StoreError {
    let message = chain(error);
    let kind = if message.contains("dns error") {
        Unreachable::Name
    } else if message.contains("refused") {
        Unreachable::Refused
    } else if message.contains("certificate") || message.contains("TLS") {
        Unreachable::Tls
    } else {
        Unreachable::Other
    };
    StoreError::Unreachable { message, kind }
}

/// An error with its causes. Addresses are in it, keys are not: they are sent in headers alone.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> StoreError {
        let status = StatusCode::from_u16(status).unwrap();
        StoreError::Refused { status, code: code.into(), message: String::new(), skew: None }
    }

    #[test]
    fn says_truly_why_a_change_failed() {
        let table = [
            (403, "AccessDenied", Errno::ACCESS),
            (507, "", Errno::NOSPC),
            (403, "QuotaExceeded", Errno::DQUOT),
            (400, "EntityTooLarge", Errno::FBIG),
            (404, "NoSuchKey", Errno::NOENT),
            (404, "NoSuchBucket", Errno::IO),
            (412, "PreconditionFailed", Errno::STALE),
            (500, "InternalError", Errno::IO),
        ];
        for (status, code, errno) in table {
            assert_eq!(refused(status, code).errno(), errno, "{status} {code}");
        }
    }

    #[test]
    fn finds_the_code_of_an_error() {
        let text = "<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>";
        assert_eq!(tag(text, "Code").as_deref(), Some("NoSuchKey"));
        assert_eq!(tag(text, "Nothing"), None);
        assert_eq!(tag("<Code>cut", "Code"), None);
    }
}
