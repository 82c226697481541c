//! Sending requests to a server, and again where that may help.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use bytes::Bytes;
use tokio::time::Instant;
use ureq::http;
use ureq::tls::{RootCerts, TlsConfig};

use crate::request::{Method, Request, encoded};
use crate::signature::{Keys, Signed, timestamp};
use crate::xml;

/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long it may say nothing, or take nothing.
const SILENCE: Duration = Duration::from_secs(60);

/// How long one try may take altogether: a server that sends a byte a minute is not silent, and still of no use.
const LONGEST_TRY: Duration = Duration::from_secs(600);

/// The first pause before trying again; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(15);

/// How long a request is tried again.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The most that is read of an answer that is no part of an object: a page of a listing, or an error. A page of a
/// thousand names of a kilobyte is far below, however they are written.
const MOST_OF_A_PAGE: u64 = 16 << 20;

/// The most that is read where a part of an object was asked for and something shorter than this comes instead.
const MOST_OF_AN_ERROR: u64 = 64 << 10;

/// A server of S3's kind, one bucket of it, and who we are there.
pub(crate) struct Server(Arc<Connection>);

struct Connection {
    agent: ureq::Agent,
    /// Scheme and host.
    origin: String,
    host: String,
    /// The path of the bucket, without a slash at its end.
    bucket: String,
    region: String,
    keys: Option<Keys>,
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) content: Bytes,
    /// How long the object is that was asked about.
    pub(crate) length: Option<u64>,
    /// What the server calls what it got.
    pub(crate) tag: Option<String>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }
}

/// Why there is no answer, or none that helps.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Option<u16>,
    why: String,
}

impl Failure {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { status: None, why: why.into() }
    }

    /// What an answer says of itself. Some servers repeat what was signed, by whom, so not all of it is told.
    pub(crate) fn of_answer(status: u16, text: &str) -> Self {
        let parts = ["Code", "Message"].iter().filter_map(|name| xml::text_of(text, name));
        let why = std::iter::once(format!("the server answered {status}")).chain(parts);
        Self { status: Some(status), why: why.collect::<Vec<_>>().join(": ") }
    }

    fn may_pass(&self) -> bool {
        matches!(self.status, None | Some(408 | 429 | 500..))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { origin, bucket, region, .. } = &*self.0;
        let mut out = f.debug_struct("Server");
        out.field("origin", origin).field("bucket", bucket).field("region", region);
        out.finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn new(
        endpoint: &str,
        bucket: &str,
        region: String,
        keys: Option<Keys>,
    ) -> Result<Self> {
        let bad = || {
            let message = format!("{endpoint:?} is no address of a server");
            Error::new(ErrorKind::InvalidInput, message)
                .with_hint("it looks like https://s3.example.org or http://127.0.0.1:9000")
        };
        let uri: http::Uri = endpoint.parse().map_err(|_| bad())?;
        let (Some(scheme @ ("http" | "https")), Some(host)) = (uri.scheme_str(), uri.authority())
        else {
            return Err(bad());
        };
        if host.as_str().contains('@') || uri.query().is_some() {
            return Err(bad());
        }
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = ureq::Agent::config_builder().tls_config(tls);
        // An answer that leads elsewhere is none: what was signed was signed for this place.
        let config = config.max_redirects(0).http_status_as_error(false);
        let config = config.timeout_connect(Some(CONNECT)).timeout_global(Some(LONGEST_TRY));
        let config = config.timeout_per_read(Some(SILENCE)).timeout_per_write(Some(SILENCE));
        Ok(Self(Arc::new(Connection {
            agent: config.build().into(),
            origin: format!("{scheme}://{host}"),
            host: host.to_string(),
            bucket: format!("{}/{}", uri.path().trim_end_matches('/'), encoded(bucket)),
            region,
            keys,
        })))
    }

    /// Sends a request until there is an answer, or it is clear that there will be none.
    pub(crate) async fn send(&self, request: Request) -> std::result::Result<Answer, Failure> {
        let deadline = Instant::now() + TIMEOUT;
        let mut pause = PAUSE;
        loop {
            let (connection, copy) = (Arc::clone(&self.0), request.clone());
            let sent = tokio::task::spawn_blocking(move || connection.once(&copy)).await;
            let failure = match sent {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => failure,
                Err(error) => return Err(Failure::new(error.to_string())),
            };
            if !failure.may_pass() || Instant::now() + pause > deadline {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }
}

impl Connection {
    fn once(&self, request: &Request) -> std::result::Result<Answer, Failure> {
        let failed = |error: ureq::Error| Failure::new(error.to_string());
        let answer = self.agent.run(self.signed(request)?).map_err(failed)?;
        let (head, body) = answer.into_parts();
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let length = header("content-length").and_then(|length| length.parse().ok());
        let tag = header("etag").map(str::to_owned);
        let mut content = Vec::new();
        if request.method != Method::Head {
            // What the server says of its length is not believed: memory is for what was asked for.
            let most =
                request.range_length().map_or(MOST_OF_A_PAGE, |asked| asked.max(MOST_OF_AN_ERROR));
            let read = body.into_reader().take(most + 1).read_to_end(&mut content);
            read.map_err(|error| Failure::new(error.to_string()))?;
            if u64::try_from(content.len()).is_ok_and(|length| length > most) {
                let why = format!("the server's answer is longer than {most} bytes");
                return Err(Failure { status: Some(head.status.as_u16()), why });
            }
        }
        let status = head.status.as_u16();
        let is_answer = match request.range_length() {
            // All of an object is not the part that was asked for.
            Some(_) => status == 206,
            None => (200..300).contains(&status),
        };
        if !is_answer {
            return Err(Failure::of_answer(status, &String::from_utf8_lossy(&content)));
        }
        Ok(Answer { content: content.into(), length, tag })
    }

    fn signed(
        &self,
        request: &Request,
    ) -> std::result::Result<http::Request<ureq::SendBody<'static>>, Failure> {
        let (mut path, query) = (self.bucket.clone(), request.query_string());
        if !request.key.is_empty() {
            path = format!("{path}/{}", request.path());
        }
        let mut address = format!("{}{path}", self.origin);
        if !query.is_empty() {
            address = format!("{address}?{query}");
        }
        let method = request.method.as_str();
        let mut built = http::Request::builder().method(method).uri(address);
        if let Some(range) = request.range_header() {
            built = built.header("range", range);
        }
        if let Some(keys) = &self.keys {
            let body = &request.body;
            let signed = Signed { method, host: &self.host, path: &path, query: &query, body };
            for (name, value) in signed.headers(keys, &self.region, &timestamp()) {
                built = built.header(name, value);
            }
        }
        let has_body = matches!(request.method, Method::Put | Method::Post);
        let body = match has_body {
            true => ureq::SendBody::from_owned_reader(std::io::Cursor::new(request.body.clone())),
            false => ureq::SendBody::none(),
        };
        if has_body {
            built = built.header("content-length", request.body.len());
        }
        built.body(body).map_err(|error| Failure::new(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_addresses_of_servers_alone() {
        let server = |endpoint| Server::new(endpoint, "b", "r".to_owned(), None);
        for bad in ["", "127.0.0.1:9000", "ftp://host", "http://me:word@host", "https://host/?a=b"]
        {
            assert!(server(bad).is_err(), "{bad}");
        }
        let kept = server("http://host:9000/below/").unwrap();
        let listing = Request::new(Method::Get, "").query("list-type", "2");
        let signed = kept.0.signed(&listing).unwrap();
        assert_eq!(signed.uri(), "http://host:9000/below/b?list-type=2");
    }

    #[test]
    fn tells_what_a_server_says_but_not_what_was_signed() {
        let said = "<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>\
                    <StringToSign>secret</StringToSign></Error>";
        let failure = Failure::of_answer(403, said);
        assert_eq!(failure.to_string(), "the server answered 403: SignatureDoesNotMatch: no");
        assert!(!failure.may_pass());
    }
}
