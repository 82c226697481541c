//! Sending something to a server.

use std::io::{Read, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::{Error, ErrorKind, Result};

/// The first pause before trying again; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// Where to send something, and how.
#[derive(Debug, Clone)]
pub(super) struct HttpPost {
    agent: ureq::Agent,
    url: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) timeout: Duration,
    pub(super) attempts: u32,
    pub(super) gzip: bool,
}

/// Why something was not taken.
#[derive(Debug)]
struct Refused {
    why: String,
    /// Whether it may be taken later.
    later: bool,
}

impl HttpPost {
    pub(super) fn new(url: &str) -> Result<Self> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        if !matches!(scheme, Some("http" | "https")) {
            let message = format!("{url:?} is no address to send events to");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("it starts with http:// or https://"));
        }
        if scheme == Some("https") && !cfg!(feature = "tls") {
            let message = format!("{url}: this build cannot encrypt what it sends");
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("build it with the feature `tls`"));
        }
        let config = ureq::Agent::config_builder();
        // Only the command line tool reads the environment; and an answer that leads elsewhere is none.
        let config = config.proxy(None).max_redirects(0).http_status_as_error(false);
        Ok(Self {
            agent: config.build().into(),
            url: url.to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 3,
            gzip: false,
        })
    }

    /// Sends a body, and again if that may help.
    pub(super) async fn send(&self, content_type: &'static str, body: Vec<u8>) -> Result<()> {
        let body = if self.gzip { compressed(&body)? } else { body };
        let mut pause = PAUSE;
        for attempt in 1.. {
            let (post, copy) = (self.clone(), body.clone());
            let sent = tokio::task::spawn_blocking(move || post.once(content_type, &copy)).await;
            let gone = |error: tokio::task::JoinError| {
                Err(Refused { why: error.to_string(), later: false })
            };
            match sent.unwrap_or_else(gone) {
                Ok(()) => break,
                Err(Refused { later: true, .. }) if attempt < self.attempts => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST);
                }
                Err(Refused { why, later }) => {
                    return Err(Error::new(ErrorKind::Io, why).with_retryable(later));
                }
            }
        }
        Ok(())
    }

    fn once(&self, content_type: &str, body: &[u8]) -> std::result::Result<(), Refused> {
        let mut request = self.agent.post(&self.url).content_type(content_type);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if self.gzip {
            request = request.header("content-encoding", "gzip");
        }
        let request = request.config().timeout_global(Some(self.timeout)).build();
        let answer = request.send(body);
        let mut answer = answer.map_err(|error| Refused { why: error.to_string(), later: true })?;
        let status = answer.status().as_u16();
        // What the server says is not needed, but read: so the connection can be used again.
        let mut rest = answer.body_mut().as_reader().take(64 << 10);
        drop(std::io::copy(&mut rest, &mut std::io::sink()));
        match status {
            200..300 => Ok(()),
            _ => Err(Refused {
                why: format!("the server answered {status}"),
                later: matches!(status, 408 | 429 | 500..),
            }),
        }
    }
}

fn compressed(body: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(body).and_then(|()| encoder.finish());
    written.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}
