//! Amazon S3 and everything that speaks its interface.

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderName, Method, header};
use serde::Deserialize;

use super::http::{Call, Http, StoreError};
use super::names::{decode, encode_key, encode_value, listing_url};
use super::sign::Signer;
use super::{Body, ListPage, ObjectMeta, Part, Upload, parse_time};
use crate::spec::Keys;

const COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");

#[derive(Debug)]
pub(crate) struct S3 {
    http: Http,
    signer: Signer,
    bucket: String,
    /// The bucket's address, without a slash at its end.
    base: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listing {
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
    #[serde(default)]
    contents: Vec<Object>,
    #[serde(default)]
    common_prefixes: Vec<Prefix>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Object {
    #[serde(default)]
    key: String,
    #[serde(default)]
    last_modified: String,
    #[serde(default, rename = "ETag")]
    etag: String,
    size: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Prefix {
    #[serde(default)]
    prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadStarted {
    upload_id: String,
}

#[derive(Debug, Deserialize)]
struct Copied {
    #[serde(default, rename = "ETag")]
    etag: String,
}

/// The version without what some servers put around it and others do not. A server that has none is
/// taken at its word about size and time.
fn version(etag: &str, size: u64, modified: &str) -> String {
    let plain = etag.trim_start_matches("W/").trim_matches('"');
    if plain.is_empty() { format!("@{size}-{modified}") } else { plain.to_owned() }
}

fn parse<T: for<'de> Deserialize<'de>>(page: &[u8]) -> Result<T, StoreError> {
    let lies = |error: &dyn std::fmt::Display| {
        StoreError::Inconsistent(format!("not a document of S3: {error}"))
    };
    let text = std::str::from_utf8(page).map_err(|error| lies(&error))?;
    quick_xml::de::from_str(text).map_err(|error| lies(&error))
}

/// Some failures come with a status that says success.
fn succeeded(page: &[u8]) -> Result<(), StoreError> {
    if page.windows(7).any(|part| part == b"<Error>") {
        let text = String::from_utf8_lossy(page).chars().take(300).collect();
        return Err(StoreError::Inconsistent(text));
    }
    Ok(())
}

impl S3 {
    pub(super) fn new(
        http: Http,
        bucket: &str,
        region: &str,
        endpoint: &str,
        keys: Option<&Keys>,
        path_style: bool,
    ) -> Result<Self, StoreError> {
        let address = reqwest::Url::parse(endpoint)
            .map_err(|error| StoreError::Settings(format!("the endpoint {endpoint:?}: {error}")))?;
        let Some(host) = address.host_str() else {
            return Err(StoreError::Settings(format!("the endpoint {endpoint:?} names no server")));
        };
        let base = if path_style {
            format!("{}/{}", endpoint.trim_end_matches('/'), encode_value(bucket))
        } else {
            let port = address.port().map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}://{bucket}.{host}{port}", address.scheme())
        };
        Ok(Self { http, signer: Signer::aws(keys, region), bucket: bucket.to_owned(), base })
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
        self.http.send(&self.signer, &call).await
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        flat: bool,
        token: Option<&str>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        let start = format!("{}?encoding-type=url&list-type=2&max-keys={limit}", self.base);
        let values = [("prefix", Some(prefix)), ("continuation-token", token)];
        let url = listing_url(start, flat, values);
        let page = self.send(Call::new(Method::GET, url)).await?.page().await?;
        // Any document could be a listing of nothing.
        if !page.windows(17).any(|part| part == b"<ListBucketResult") {
            return Err(StoreError::Inconsistent("not a listing of S3".into()));
        }
        let listing: Listing = parse(&page)?;
        let encoded = listing.encoding_type.as_deref() == Some("url");
        // What cannot be decoded cannot be the name of a file: nothing is called this.
        let plain = |text: String| if encoded { decode(&text).unwrap_or_default() } else { text };
        let object = |object: Object| {
            let version = version(&object.etag, object.size, &object.last_modified).into();
            let mtime = parse_time(&object.last_modified);
            (plain(object.key), ObjectMeta { size: object.size, mtime, version })
        };
        let next = listing.next_continuation_token.filter(|_| listing.is_truncated);
        if listing.is_truncated && next.is_none() {
            return Err(StoreError::Inconsistent(
                "a listing goes on, and does not say where".into(),
            ));
        }
        Ok(ListPage {
            objects: listing.contents.into_iter().map(object).collect(),
            folders: listing.common_prefixes.into_iter().map(|one| plain(one.prefix)).collect(),
            next,
        })
    }

    pub(super) async fn head(&self, key: &str) -> Result<ObjectMeta, StoreError> {
        let body = self.send(Call::new(Method::HEAD, self.url(key))).await?;
        let size = body.header("content-length").and_then(|text| text.parse().ok());
        let size =
            size.ok_or_else(|| StoreError::Inconsistent("an object without a size".into()))?;
        let modified = body.header("last-modified").unwrap_or_default();
        let version = version(body.header("etag").unwrap_or_default(), size, modified).into();
        Ok(ObjectMeta { size, mtime: parse_time(modified), version })
    }

    pub(super) async fn get(
        &self,
        key: &str,
        meta: &ObjectMeta,
        from: u64,
        to: u64,
    ) -> Result<Body, StoreError> {
        let mut call = Call::new(Method::GET, self.url(key));
        if from > 0 || to < meta.size {
            call = call.range(from, to);
        }
        if !meta.version.starts_with('@') {
            call = call.header(header::IF_MATCH, &format!("\"{}\"", meta.version));
        }
        self.send(call).await
    }

    pub(super) async fn put(&self, key: &str, bytes: Bytes) -> Result<String, StoreError> {
        let body = self.send(Call::new(Method::PUT, self.url(key)).body(bytes)).await?;
        let version = body.header("etag").unwrap_or_default().trim_matches('"').to_owned();
        body.finish().await?;
        Ok(version)
    }

    pub(super) async fn begin(&self, key: &str) -> Result<String, StoreError> {
        let call = Call::new(Method::POST, format!("{}?uploads=", self.url(key)));
        let page = self.send(call.body(Bytes::new())).await?.page().await?;
        parse::<UploadStarted>(&page).map(|begun| begun.upload_id)
    }

    pub(super) async fn part(&self, upload: &Upload, part: Part) -> Result<String, StoreError> {
        let (key, id) = (self.url(&upload.key), encode_value(&upload.id));
        let url = format!("{key}?partNumber={}&uploadId={id}", part.number);
        let body = self.send(Call::new(Method::PUT, url).body(part.bytes)).await?;
        let etag = body.header("etag").map(str::to_owned);
        body.finish().await?;
        etag.ok_or_else(|| StoreError::Inconsistent("a part without a name".into()))
    }

    pub(super) async fn complete(
        &self,
        upload: &Upload,
        parts: &[String],
    ) -> Result<String, StoreError> {
        let mut document = String::from("<CompleteMultipartUpload>");
        for (number, etag) in (1..).zip(parts) {
            let etag = etag.trim_matches('"').replace(['<', '>', '&'], "");
            let _ = write!(
                document,
                "<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag></Part>"
            );
        }
        document.push_str("</CompleteMultipartUpload>");
        let url = format!("{}?uploadId={}", self.url(&upload.key), encode_value(&upload.id));
        match self.send(Call::new(Method::POST, url).body(document.into())).await {
            Ok(body) => succeeded(&body.page().await?).map(|()| String::new()),
            // The answer to the first request was lost, and a second one found the work done.
            Err(fault) if fault.is_missing() => {
                let done = self.head(&upload.key).await?;
                let parts = format!("-{}", parts.len());
                let ours = done.size == upload.size && done.version.ends_with(&parts);
                if ours { Ok(String::new()) } else { Err(fault) }
            }
            Err(fault) => Err(fault),
        }
    }

    pub(super) async fn abort(&self, upload: &Upload) -> Result<(), StoreError> {
        let url = format!("{}?uploadId={}", self.url(&upload.key), encode_value(&upload.id));
        self.send(Call::new(Method::DELETE, url)).await?.finish().await
    }

    pub(super) async fn copy(&self, from: &str, to: &str) -> Result<String, StoreError> {
        let source = format!("/{}/{}", encode_value(&self.bucket), encode_key(from));
        let call = Call::new(Method::PUT, self.url(to)).header(COPY_SOURCE, &source);
        let page = self.send(call.body(Bytes::new())).await?.page().await?;
        succeeded(&page)?;
        Ok(parse::<Copied>(&page)?.etag.trim_matches('"').to_owned())
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.send(Call::new(Method::DELETE, self.url(key))).await?.finish().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_page_in_any_order() {
        let page = b"<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">
            <CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated>
            <Contents><Key>x</Key><Size>3</Size><ETag>&quot;e&quot;</ETag></Contents>
            <NextContinuationToken>t</NextContinuationToken>
            <CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>
            <Contents><Key>y</Key><Size>0</Size></Contents></ListBucketResult>";
        let listing: Listing = parse(page).unwrap();
        assert_eq!((listing.contents.len(), listing.common_prefixes.len()), (2, 2));
        assert_eq!(version(&listing.contents[0].etag, 3, ""), "e");
        assert!(listing.is_truncated);
    }

    #[test]
    fn refuses_a_size_that_is_none() {
        for size in ["-1", "1e9", "99999999999999999999", ""] {
            let page = format!(
                "<ListBucketResult><Contents><Key>x</Key><Size>{size}</Size></Contents></ListBucketResult>"
            );
            assert!(parse::<Listing>(page.as_bytes()).is_err(), "{size}");
        }
    }
}
