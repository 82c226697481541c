//! Google Cloud Storage by its own interface.

use std::fmt::Write;

use bytes::Bytes;
use http::{Method, header};
use serde::Deserialize;

use super::http::{Call, Http, StoreError};
use super::names::{encode_value, listing_url};
use super::sign::Signer;
use super::{Body, ListPage, ObjectMeta, Part, Upload, parse_time};
use crate::spec::GcsAuth;

/// The rounds a copy may take; each copies at least a GiB.
const MAX_ROUNDS: u32 = 10_000;

/// An upload of an empty object.
const EMPTY: &str = "--parts\r\nContent-Type: application/json\r\n\r\n{\"name\":NAME}\r\n\
    --parts\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--parts--\r\n";

#[derive(Debug)]
pub(crate) struct Gcs {
    http: Http,
    signer: Signer,
    server: String,
    bucket: String,
    store_address: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    #[serde(default)]
    items: Vec<Object>,
    #[serde(default)]
    prefixes: Vec<String>,
    next_page_token: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Object {
    name: String,
    size: Number,
    #[serde(default)]
    updated: String,
    #[serde(default)]
    generation: Option<Number>,
    #[serde(default)]
    etag: String,
}

/// Numbers are text there; emulators are not so strict.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Text(String),
    Number(u64),
}

impl Number {
    fn value(&self) -> Result<u64, StoreError> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => text
                .parse()
                .map_err(|_| StoreError::Inconsistent(format!("{text:?} is not a number"))),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rewrite {
    done: bool,
    rewrite_token: Option<String>,
    resource: Option<Object>,
}

fn parse<T: for<'de> Deserialize<'de>>(page: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(page)
        .map_err(|error| StoreError::Inconsistent(format!("not a document of Google's: {error}")))
}

impl Object {
    fn meta(&self) -> Result<ObjectMeta, StoreError> {
        let version = match &self.generation {
            Some(generation) => generation.value()?.to_string(),
            None => format!("@{}", self.etag),
        };
        let mtime = parse_time(&self.updated);
        Ok(ObjectMeta { size: self.size.value()?, mtime, version: version.into() })
    }
}

impl Gcs {
    pub(super) fn new(
        http: Http,
        bucket: &str,
        endpoint: Option<&str>,
        auth: &GcsAuth,
    ) -> Result<Self, StoreError> {
        let server = endpoint.unwrap_or("https://storage.googleapis.com").trim_end_matches('/');
        // rclone's setting includes the interface.
        let server = server.trim_end_matches("/storage/v1").to_owned();
        reqwest::Url::parse(&server)
            .map_err(|error| StoreError::Settings(format!("the endpoint {server:?}: {error}")))?;
        let signer = Signer::google(http.client(), bucket, auth)?;
        let bucket = encode_value(bucket);
        let store_address = format!("{server}/storage/v1/b/{bucket}");
        Ok(Self { http, signer, server, bucket, store_address })
    }

    pub(super) fn cache_scope(&self) -> &blake3::Hash {
        self.http.cache_scope()
    }

    pub(super) fn store_address(&self) -> &str {
        &self.store_address
    }

    fn url(&self, key: &str) -> String {
        format!("{}/o/{}", self.store_address, encode_value(key))
    }

    async fn send(&self, call: Call) -> Result<Body, StoreError> {
        self.http.send(&self.signer, &call).await
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        flat: bool,
        token: Option<&str>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        let start = format!("{}/o?maxResults={limit}", self.store_address);
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let url = listing_url(start, flat, [("prefix", prefix), ("pageToken", token)]);
        let page = self.send(Call::new(Method::GET, url)).await?.page().await?;
        let listing: Listing = parse(&page)?;
        let mut objects = Vec::with_capacity(listing.items.len());
        for object in listing.items {
            let meta = object.meta()?;
            objects.push((object.name, meta));
        }
        let next = listing.next_page_token.filter(|token| !token.is_empty());
        Ok(ListPage { objects, folders: listing.prefixes, next })
    }

    pub(super) async fn head(&self, key: &str) -> Result<ObjectMeta, StoreError> {
        let page = self.send(Call::new(Method::GET, self.url(key))).await?.page().await?;
        parse::<Object>(&page)?.meta()
    }

    pub(super) async fn get(
        &self,
        key: &str,
        meta: &ObjectMeta,
        from: u64,
        to: u64,
    ) -> Result<Body, StoreError> {
        let mut url = format!("{}?alt=media", self.url(key));
        if !meta.version.starts_with('@') {
            let _ = write!(url, "&ifGenerationMatch={}", meta.version);
        }
        let mut call = Call::new(Method::GET, url);
        if from > 0 || to < meta.size {
            call = call.range(from, to);
        }
        self.send(call).await
    }

    pub(super) async fn put(&self, key: &str, bytes: Bytes) -> Result<String, StoreError> {
        // A body of nothing is no upload to every server; two parts, one of them empty, are.
        let (kind, content, bytes) = if bytes.is_empty() {
            let parts = EMPTY.replace("NAME", &serde_json::Value::from(key).to_string());
            ("multipart", "multipart/related; boundary=parts", Bytes::from(parts))
        } else {
            ("media", "application/octet-stream", bytes)
        };
        let call = Call::new(Method::POST, self.upload_url(kind, key))
            .header(header::CONTENT_TYPE, content)
            .body(bytes);
        let page = self.send(call).await?.page().await?;
        Ok(parse::<Object>(&page)?.meta()?.version.as_ref().to_owned())
    }

    fn upload_url(&self, kind: &str, key: &str) -> String {
        let (server, bucket, name) = (&self.server, &self.bucket, encode_value(key));
        format!("{server}/upload/storage/v1/b/{bucket}/o?uploadType={kind}&name={name}")
    }

    /// Begins a resumable upload. The store says where it goes on, which has to be at the store.
    pub(super) async fn begin(&self, key: &str) -> Result<String, StoreError> {
        let document = serde_json::json!({ "name": key }).to_string();
        let call = Call::new(Method::POST, self.upload_url("resumable", key))
            .header(header::CONTENT_TYPE, "application/json")
            .body(document.into());
        let body = self.send(call).await?;
        let location = body.header("location").unwrap_or_default().to_owned();
        body.finish().await?;
        let same = |one: &str, other: &str| {
            let (one, other) = (reqwest::Url::parse(one).ok()?, reqwest::Url::parse(other).ok()?);
            Some(one.origin() == other.origin())
        };
        if same(&location, &self.server) == Some(true) {
            return Ok(location);
        }
        Err(StoreError::Inconsistent("an upload that leads to another server".into()))
    }

    pub(super) async fn part(&self, upload: &Upload, part: Part) -> Result<String, StoreError> {
        let end = part.offset + part.bytes.len() as u64;
        let range = format!("bytes {}-{}/{}", part.offset, end - 1, upload.size);
        let call = Call::new(Method::PUT, upload.id.clone())
            .header(header::CONTENT_RANGE, &range)
            .body(part.bytes);
        let page = self.send(call).await?.page().await?;
        if end < upload.size {
            return Ok(String::new());
        }
        Ok(parse::<Object>(&page)?.meta()?.version.as_ref().to_owned())
    }

    /// The last part has completed it.
    #[expect(clippy::unused_async, reason = "stores are called alike")]
    pub(super) async fn complete(
        &self,
        _: &Upload,
        parts: &[String],
    ) -> Result<String, StoreError> {
        Ok(parts.last().cloned().unwrap_or_default())
    }

    pub(super) async fn abort(&self, upload: &Upload) -> Result<(), StoreError> {
        self.send(Call::new(Method::DELETE, upload.id.clone())).await?.finish().await
    }

    pub(super) async fn copy(&self, from: &str, to: &str) -> Result<String, StoreError> {
        let base = format!("{}/rewriteTo/b/{}/o/{}", self.url(from), self.bucket, encode_value(to));
        let mut url = base.clone();
        for _ in 0..MAX_ROUNDS {
            let call = Call::new(Method::POST, url).body(Bytes::new());
            let page = self.send(call).await?.page().await?;
            let rewrite: Rewrite = parse(&page)?;
            if rewrite.done {
                let object = rewrite.resource.map(|object| object.meta()).transpose()?;
                return Ok(object.map(|meta| meta.version.as_ref().to_owned()).unwrap_or_default());
            }
            let token = rewrite.rewrite_token.unwrap_or_default();
            url = format!("{base}?rewriteToken={}", encode_value(&token));
        }
        Err(StoreError::Inconsistent("a copy without an end".into()))
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.send(Call::new(Method::DELETE, self.url(key))).await?.finish().await
    }
}
