#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod request;
mod server;
mod signature;
mod xml;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bastide::snapshot::store::Objects;
use bastide::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use request::{Method, Request};
use server::{Failure, Server};
use signature::Keys;

/// Files up to this length are sent in one piece; longer ones in parts of this length, which may be ten thousand.
const PART: u64 = 8 << 20;

/// How many parts are under way at once.
const AT_ONCE: usize = 4;

/// The most pages of one listing, of a thousand names each: a server that never comes to an end is given up.
const MOST_PAGES: usize = 10_000;

/// Where a bucket is, and who we are there.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct BucketOptions {
    /// The server, such as `http://127.0.0.1:9000`; Amazon's own if none.
    pub endpoint: Option<String>,
    /// The region; `us-east-1` if none.
    pub region: Option<String>,
    /// The access key; requests are not signed if none.
    pub access_key: Option<String>,
    /// The secret that belongs to it.
    pub secret_key: Option<String>,
    /// The token of a temporary key.
    pub session_token: Option<String>,
}

impl BucketOptions {
    /// Asks that server.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Asks in that region.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Signs requests with that key.
    #[must_use]
    pub fn access_key(mut self, access_key: impl Into<String>) -> Self {
        self.access_key = Some(access_key.into());
        self
    }

    /// Has the secret that belongs to the key.
    #[must_use]
    pub fn secret_key(mut self, secret_key: impl Into<String>) -> Self {
        self.secret_key = Some(secret_key.into());
        self
    }

    /// Has the token of a temporary key.
    #[must_use]
    pub fn session_token(mut self, session_token: impl Into<String>) -> Self {
        self.session_token = Some(session_token.into());
        self
    }
}

impl std::fmt::Debug for BucketOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("BucketOptions");
        out.field("endpoint", &self.endpoint).field("region", &self.region).finish_non_exhaustive()
    }
}

/// A part of a bucket: all objects whose names begin with a prefix.
#[derive(Debug)]
pub struct Bucket {
    server: Server,
    /// Empty, or ends with a slash.
    prefix: String,
    address: String,
}

impl Bucket {
    /// The bucket at `s3://bucket/prefix`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for any other address, or options that make no sense.
    pub fn open(address: &str, options: BucketOptions) -> Result<Self> {
        let bad = || {
            Error::new(ErrorKind::InvalidInput, format!("{address:?} is no address of a bucket"))
                .with_hint("it looks like s3://bucket/prefix")
        };
        let rest = address.strip_prefix("s3://").ok_or_else(bad)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/');
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !is_part(bucket) || !(prefix.is_empty() || prefix.split('/').all(is_part)) {
            return Err(bad());
        }
        let region = options.region.unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint =
            options.endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let keys = match (options.access_key, options.secret_key) {
            (Some(access), Some(secret)) => {
                Some(Keys { access, secret, token: options.session_token })
            }
            (None, None) => None,
            // Unsigned, the server would refuse it for another reason, or not at all.
            (access, _) => {
                let (there, missing) = match access {
                    Some(_) => ("an access key", "the secret that belongs to it"),
                    None => ("a secret", "the access key that it belongs to"),
                };
                let message = format!("there is {there} for {address}, and not {missing}");
                return Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("give both, or neither for what anybody may use"));
            }
        };
        let server = Server::new(&endpoint, bucket, region, keys)?;
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { server, prefix, address: address.to_owned() })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn failed(&self, doing: &str, failure: Failure) -> Error {
        let kind = match failure.status {
            Some(404) => ErrorKind::NotFound,
            Some(401 | 403) => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("cannot {doing} {}", self.address))
            .with_source(io::Error::other(failure.to_string()))
    }

    /// Sends a file in parts, of which the server makes an object when all are there.
    async fn write_parts(&self, key: &str, file: File, length: u64) -> Result<()> {
        let failed = |failure| self.failed("write to", failure);
        let begin = Request::new(Method::Post, key).query("uploads", "");
        let begun = self.server.send(begin).await.map_err(failed)?;
        let upload = xml::text_of(&begun.text(), "UploadId")
            .ok_or_else(|| failed(Failure::new("the server began no upload")))?;
        let written = self.write_all_parts(key, &upload, Arc::new(file), length).await;
        if written.is_err() {
            // What is there of it is paid for until somebody says so.
            let abort = Request::new(Method::Delete, key).query("uploadId", &upload);
            drop(self.server.send(abort).await);
        }
        written
    }

    async fn write_all_parts(
        &self,
        key: &str,
        upload: &str,
        file: Arc<File>,
        length: u64,
    ) -> Result<()> {
        let parts = (0..length.div_ceil(PART)).map(|part| {
            let file = Arc::clone(&file);
            async move {
                let content = read_part(file, part, length).await?;
                let put = Request::new(Method::Put, key)
                    .query("partNumber", &(part + 1).to_string())
                    .query("uploadId", upload)
                    .body(content);
                let sent = self.server.send(put).await;
                let sent = sent.map_err(|failure| self.failed("write to", failure))?;
                let missing = || Failure::new("the server did not say what it got");
                sent.tag.ok_or_else(|| self.failed("write to", missing()))
            }
        });
        let tags: Vec<String> = stream::iter(parts).buffered(AT_ONCE).try_collect().await?;
        let complete = Request::new(Method::Post, key)
            .query("uploadId", upload)
            .body(Bytes::from(xml::complete_upload(&tags)));
        let done = self.server.send(complete).await;
        let done = done.map_err(|failure| self.failed("write to", failure))?;
        // This answer begins before it is known how it ends.
        match xml::text_of(&done.text(), "ETag") {
            Some(_) => Ok(()),
            None => Err(self.failed("write to", Failure::of_answer(200, &done.text()))),
        }
    }
}

async fn read_part(file: Arc<File>, part: u64, length: u64) -> Result<Bytes> {
    let (offset, most) = (part * PART, PART.min(length - part * PART));
    let read = tokio::task::spawn_blocking(move || {
        let mut content = vec![0; usize::try_from(most).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut content, offset).map(|()| Bytes::from(content))
    });
    let read = read.await.map_err(io::Error::other).flatten();
    read.map_err(|error| Error::new(ErrorKind::Io, format!("cannot read what is sent: {error}")))
}

#[async_trait]
impl Objects for Bucket {
    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let mut request = Request::new(Method::Get, "")
                .query("list-type", "2")
                .query("prefix", &self.key(prefix));
            if let Some(token) = &next {
                request = request.query("continuation-token", token);
            }
            let page = self.server.send(request).await;
            let page = page.map_err(|failure| self.failed("list", failure))?.text();
            let keys = xml::texts_of(&page, "Key");
            names.extend(keys.filter_map(|key| key.strip_prefix(&self.prefix).map(str::to_owned)));
            let further = xml::text_of(&page, "NextContinuationToken");
            if further.is_none() || further == next {
                return Ok(names);
            }
            next = further;
        }
        Err(self.failed("list", Failure::new(format!("it has no end after {MOST_PAGES} pages"))))
    }

    async fn length(&self, name: &str) -> Result<Option<u64>> {
        match self.server.send(Request::new(Method::Head, &self.key(name))).await {
            Ok(answer) => Ok(answer.length),
            Err(failure) if failure.status == Some(404) => Ok(None),
            Err(failure) => Err(self.failed("look at", failure)),
        }
    }

    async fn read(&self, name: &str, offset: u64, length: u64) -> Result<Bytes> {
        let Some(last) = length.checked_sub(1) else { return Ok(Bytes::new()) };
        let request = Request::new(Method::Get, &self.key(name));
        let answer = self.server.send(request.range(offset, offset.saturating_add(last))).await;
        let content = answer.map_err(|failure| self.failed("read from", failure))?.content;
        match u64::try_from(content.len()) == Ok(length) {
            true => Ok(content),
            false => {
                Err(Error::new(ErrorKind::Io, format!("{name} is cut off at {}", self.address)))
            }
        }
    }

    async fn write(&self, name: &str, file: &Path) -> Result<()> {
        let unreadable = |error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot read {}: {error}", file.display()))
        };
        let opened = File::open(file).map_err(unreadable)?;
        let length = opened.metadata().map_err(unreadable)?.len();
        let key = self.key(name);
        if length > PART {
            return self.write_parts(&key, opened, length).await;
        }
        let content = read_part(Arc::new(opened), 0, length).await?;
        let put = self.server.send(Request::new(Method::Put, &key).body(content)).await;
        put.map(drop).map_err(|failure| self.failed("write to", failure))
    }

    async fn remove(&self, name: &str) -> Result<()> {
        match self.server.send(Request::new(Method::Delete, &self.key(name))).await {
            Err(failure) if failure.status != Some(404) => Err(self.failed("remove from", failure)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_with_a_whole_key_or_not_at_all() {
        let open = |options| Bucket::open("s3://bucket", options);
        let options = BucketOptions::default;
        assert!(open(options()).is_ok());
        assert!(open(options().access_key("id").secret_key("hidden")).is_ok());
        for half in [options().access_key("id"), options().secret_key("hidden")] {
            let error = open(half).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        }
    }
}
