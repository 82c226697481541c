//! Azure Blob storage.

use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderName, Method, header};
use serde::Deserialize;

use super::http::{Call, Http, StoreError};
use super::names::{decode, encode_key, encode_value, listing_url};
use super::sign::Signer;
use super::{Body, ListPage, ObjectMeta, Part, Upload, parse_time};
use crate::spec::AzureAuth;

const VERSION: HeaderName = HeaderName::from_static("x-ms-version");
const BLOB_TYPE: HeaderName = HeaderName::from_static("x-ms-blob-type");
const COPY_SOURCE: HeaderName = HeaderName::from_static("x-ms-copy-source");
/// Copies inside an account are done at once, or nearly.
const COPY_PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Azure {
    http: Http,
    signer: Signer,
    base: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listing {
    #[serde(default)]
    blobs: Blobs,
    next_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blobs {
    #[serde(default)]
    blob: Vec<Blob>,
    #[serde(default)]
    blob_prefix: Vec<Prefix>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: Name,
    properties: Properties,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Prefix {
    name: Name,
}

#[derive(Debug, Deserialize)]
struct Name {
    #[serde(default, rename = "@Encoded")]
    encoded: bool,
    #[serde(default, rename = "$text")]
    text: String,
}

impl Name {
    fn plain(self) -> String {
        if self.encoded { decode(&self.text).unwrap_or_default() } else { self.text }
    }
}

#[derive(Debug, Deserialize)]
struct Properties {
    #[serde(default, rename = "Last-Modified")]
    modified: String,
    #[serde(default, rename = "Etag")]
    etag: String,
    #[serde(rename = "Content-Length")]
    size: u64,
}

impl Azure {
    pub(super) fn new(
        http: Http,
        account: &str,
        container: &str,
        endpoint: Option<&str>,
        auth: &AzureAuth,
    ) -> Result<Self, StoreError> {
        let own = format!("https://{account}.blob.core.windows.net");
        let endpoint = endpoint.unwrap_or(&own).trim_end_matches('/');
        reqwest::Url::parse(endpoint)
            .map_err(|error| StoreError::Settings(format!("the endpoint {endpoint:?}: {error}")))?;
        let base = format!("{endpoint}/{}", encode_value(container));
        let signer = Signer::azure(http.client(), account, container, auth)?;
        Ok(Self { http, signer, base })
    }

    pub(super) fn cache_scope(&self) -> &blake3::Hash {
        self.http.cache_scope()
    }

    pub(super) fn store_address(&self) -> &str {
        &self.base
    }

    fn url(&self, key: &str) -> String {
        format!("{}/{}", self.base, encode_key(key))
    }

    async fn send(&self, call: Call) -> Result<Body, StoreError> {
        self.http.send(&self.signer, &call.header(VERSION, "2023-11-03")).await
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        flat: bool,
        token: Option<&str>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        let start = format!("{}?restype=container&comp=list&maxresults={limit}", self.base);
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let url = listing_url(start, flat, [("prefix", prefix), ("marker", token)]);
        let page = self.send(Call::new(Method::GET, url)).await?.page().await?;
        let lies = |error: &dyn std::fmt::Display| {
            StoreError::Inconsistent(format!("not a document of Azure: {error}"))
        };
        let text = std::str::from_utf8(&page).map_err(|error| lies(&error))?;
        let text = text.trim_start_matches('\u{feff}');
        if !text.contains("<EnumerationResults") {
            return Err(lies(&"another document"));
        }
        let listing: Listing = quick_xml::de::from_str(text).map_err(|error| lies(&error))?;
        let object = |blob: Blob| {
            let Properties { modified, etag, size } = blob.properties;
            let version = etag.trim_matches('"').into();
            (blob.name.plain(), ObjectMeta { size, mtime: parse_time(&modified), version })
        };
        Ok(ListPage {
            objects: listing.blobs.blob.into_iter().map(object).collect(),
            folders: listing.blobs.blob_prefix.into_iter().map(|one| one.name.plain()).collect(),
            next: listing.next_marker.filter(|marker| !marker.is_empty()),
        })
    }

    pub(super) async fn head(&self, key: &str) -> Result<ObjectMeta, StoreError> {
        let body = self.send(Call::new(Method::HEAD, self.url(key))).await?;
        let size = body.header("content-length").and_then(|text| text.parse().ok());
        let size = size.ok_or_else(|| StoreError::Inconsistent("a blob without a size".into()))?;
        let version = body.header("etag").unwrap_or_default().trim_matches('"').into();
        let mtime = parse_time(body.header("last-modified").unwrap_or_default());
        Ok(ObjectMeta { size, mtime, version })
    }

    pub(super) async fn get(
        &self,
        key: &str,
        meta: &ObjectMeta,
        from: u64,
        to: u64,
    ) -> Result<Body, StoreError> {
        let mut call = Call::new(Method::GET, self.url(key))
            .header(header::IF_MATCH, &format!("\"{}\"", meta.version));
        if from > 0 || to < meta.size {
            call = call.range(from, to);
        }
        self.send(call).await
    }

    pub(super) async fn put(&self, key: &str, bytes: Bytes) -> Result<String, StoreError> {
        let call = Call::new(Method::PUT, self.url(key)).header(BLOB_TYPE, "BlockBlob");
        self.stored(call.body(bytes)).await
    }

    async fn stored(&self, call: Call) -> Result<String, StoreError> {
        let body = self.send(call).await?;
        let version = body.header("etag").unwrap_or_default().trim_matches('"').to_owned();
        body.finish().await?;
        Ok(version)
    }

    /// Nothing has to be begun; blocks of two uploads must not have the same names.
    #[expect(clippy::unused_async, reason = "stores are called alike")]
    pub(super) async fn begin(&self, _key: &str) -> Result<String, StoreError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{:032x}", now.as_nanos()))
    }

    pub(super) async fn part(&self, upload: &Upload, part: Part) -> Result<String, StoreError> {
        let name = BASE64_STANDARD.encode(format!("{}-{:08}", upload.id, part.number));
        let url = format!("{}?comp=block&blockid={}", self.url(&upload.key), encode_value(&name));
        self.send(Call::new(Method::PUT, url).body(part.bytes)).await?.finish().await?;
        Ok(name)
    }

    pub(super) async fn complete(
        &self,
        upload: &Upload,
        parts: &[String],
    ) -> Result<String, StoreError> {
        let mut document = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        for name in parts {
            let _ = write!(document, "<Latest>{name}</Latest>");
        }
        document.push_str("</BlockList>");
        let url = format!("{}?comp=blocklist", self.url(&upload.key));
        self.stored(Call::new(Method::PUT, url).body(document.into())).await
    }

    /// Azure removes blocks that nobody named after a week.
    #[expect(clippy::unused_async, reason = "stores are called alike")]
    pub(super) async fn abort(&self, _upload: &Upload) -> Result<(), StoreError> {
        Ok(())
    }

    pub(super) async fn copy(&self, from: &str, to: &str) -> Result<String, StoreError> {
        let call = Call::new(Method::PUT, self.url(to)).header(COPY_SOURCE, &self.url(from));
        let body = self.send(call.body(Bytes::new())).await?;
        let mut status = body.header("x-ms-copy-status").unwrap_or("success").to_owned();
        body.finish().await?;
        let deadline = Instant::now() + COPY_PATIENCE;
        while status == "pending" && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let body = self.send(Call::new(Method::HEAD, self.url(to))).await?;
            body.header("x-ms-copy-status").unwrap_or("success").clone_into(&mut status);
        }
        if status == "success" {
            // The version in the first answer may be of before the end of the copy.
            return Ok(String::new());
        }
        Err(StoreError::Inconsistent(format!("a copy that is {status}")))
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.send(Call::new(Method::DELETE, self.url(key))).await?.finish().await
    }
}
