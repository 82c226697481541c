//! Object stores, with keys exactly as they are.
//!
//! `object_store` signs and renews credentials. It does not carry the requests: it cannot name
//! `folder/`, and one key with an empty part makes a whole listing fail. `opendal` trims white space
//! off names and joins empty parts.

mod azure;
mod gcs;
mod http;
mod names;
mod s3;
mod sign;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::spec::{GcsAuth, MountSpec, Source};
pub(crate) use http::{Body, StoreError, Unreachable};
pub(crate) use names::{MAX_KEY, relative_name};

/// What a store says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectMeta {
    pub(crate) size: u64,
    pub(crate) mtime: SystemTime,
    /// Names the content: another content has another version.
    pub(crate) version: Arc<str>,
}

/// A part of a listing.
#[derive(Debug, Default)]
pub(crate) struct ListPage {
    pub(crate) objects: Vec<(String, ObjectMeta)>,
    /// With their trailing slash.
    pub(crate) folders: Vec<String>,
    /// Where the listing goes on.
    pub(crate) next: Option<String>,
}

/// An upload in parts that has begun.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) size: u64,
}

/// One part of an upload.
#[derive(Debug)]
pub(crate) struct Part {
    /// From 1 on.
    pub(crate) number: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
}

/// Any store.
#[derive(Debug)]
pub(crate) enum Store {
    S3(s3::S3),
    Azure(azure::Azure),
    Gcs(gcs::Gcs),
}

/// Calls the method of the same name on whichever store this is.
macro_rules! each {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Self::S3(store) => store.$method($($argument),*).await,
            Self::Azure(store) => store.$method($($argument),*).await,
            Self::Gcs(store) => store.$method($($argument),*).await,
        }
    };
}

impl Store {
    /// Prepares to talk; reads certificates and resolver settings, sends nothing.
    pub(crate) fn open(spec: &MountSpec) -> Result<Self, StoreError> {
        if let Some(fault) = spec.fault() {
            return Err(StoreError::Settings(fault));
        }
        let http = http::Http::new(spec)?;
        match &spec.source {
            Source::S3 { bucket, region, endpoint, keys, path_style } => {
                let region = region.as_deref().unwrap_or("us-east-1");
                let amazon = format!("https://s3.{region}.amazonaws.com");
                let path_style = path_style.unwrap_or(endpoint.is_some());
                let endpoint = endpoint.as_deref().unwrap_or(&amazon);
                s3::S3::new(http, bucket, region, endpoint, keys.as_ref(), path_style).map(Self::S3)
            }
            Source::R2 { bucket, account_id, custom_domain, keys } => {
                let own = format!("https://{account_id}.r2.cloudflarestorage.com");
                let endpoint = custom_domain.as_deref().unwrap_or(&own);
                s3::S3::new(http, bucket, "auto", endpoint, keys.as_ref(), true).map(Self::S3)
            }
            Source::Gcs { bucket, endpoint, region, auth: GcsAuth::Hmac { keys } } => {
                let endpoint = endpoint.as_deref().unwrap_or("https://storage.googleapis.com");
                let region = region.as_deref().unwrap_or("auto");
                s3::S3::new(http, bucket, region, endpoint, Some(keys), true).map(Self::S3)
            }
            Source::Gcs { bucket, endpoint, auth, .. } => {
                gcs::Gcs::new(http, bucket, endpoint.as_deref(), auth).map(Self::Gcs)
            }
            Source::AzureBlob { account, container, endpoint, auth } => {
                azure::Azure::new(http, account, container, endpoint.as_deref(), auth)
                    .map(Self::Azure)
            }
        }
    }

    /// Names the store and the keys that it is asked with, for the cache: what one key may read another may not, though it
    /// may see that it is there.
    pub(crate) fn cache_scope(&self) -> &blake3::Hash {
        match self {
            Self::S3(store) => store.cache_scope(),
            Self::Azure(store) => store.cache_scope(),
            Self::Gcs(store) => store.cache_scope(),
        }
    }

    /// Names the place, for errors; holds no secret.
    pub(crate) fn store_address(&self) -> &str {
        match self {
            Self::S3(store) => store.store_address(),
            Self::Azure(store) => store.store_address(),
            Self::Gcs(store) => store.store_address(),
        }
    }

    /// The largest object that the store copies in one request.
    pub(crate) fn largest_copy(&self) -> u64 {
        match self {
            Self::S3(_) => 5 << 30,
            Self::Azure(_) => 256 << 20,
            Self::Gcs(_) => 5 << 40,
        }
    }

    /// Whether the parts of an upload have to be sent in their order.
    pub(crate) fn uploads_in_order(&self) -> bool {
        matches!(self, Self::Gcs(_))
    }

    /// Keys that begin with `prefix`; with `flat` those in its folders too.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        flat: bool,
        token: Option<&str>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        each!(self.list(prefix, flat, token, limit))
    }

    /// What is known of one object.
    pub(crate) async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, StoreError> {
        match each!(self.head(key)) {
            Ok(meta) => Ok(Some(meta)),
            Err(fault) if fault.is_missing() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// A range of exactly this version of an object, which is not empty.
    pub(crate) async fn get(
        &self,
        key: &str,
        meta: &ObjectMeta,
        from: u64,
        to: u64,
    ) -> Result<Body, StoreError> {
        let body = each!(self.get(key, meta, from, to))?;
        body.check_range(from, to, meta.size)
    }

    /// Stores an object whole; its version.
    pub(crate) async fn put(&self, key: &str, bytes: Bytes) -> Result<ObjectMeta, StoreError> {
        let size = bytes.len() as u64;
        let version: String = each!(self.put(key, bytes))?;
        self.stored(key, size, &version).await
    }

    pub(crate) async fn begin(&self, key: &str, size: u64) -> Result<Upload, StoreError> {
        let id = each!(self.begin(key))?;
        Ok(Upload { key: key.to_owned(), id, size })
    }

    /// Sends one part; what the store calls it.
    pub(crate) async fn part(&self, upload: &Upload, part: Part) -> Result<String, StoreError> {
        each!(self.part(upload, part))
    }

    /// Makes the object of its parts.
    pub(crate) async fn complete(
        &self,
        upload: &Upload,
        parts: &[String],
    ) -> Result<ObjectMeta, StoreError> {
        let version = each!(self.complete(upload, parts))?;
        self.stored(&upload.key, upload.size, &version).await
    }

    pub(crate) async fn abort(&self, upload: &Upload) {
        // What stays of it the store's own rules remove.
        drop(each!(self.abort(upload)));
    }

    /// Copies an object of this size inside the store.
    pub(crate) async fn copy(
        &self,
        from: &str,
        to: &str,
        size: u64,
    ) -> Result<ObjectMeta, StoreError> {
        let version = each!(self.copy(from, to))?;
        self.stored(to, size, &version).await
    }

    /// Removes an object; one that is gone is removed.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        match each!(self.delete(key)) {
            Err(fault) if fault.is_missing() => Ok(()),
            other => other,
        }
    }

    /// Some stores do not say which version they made.
    async fn stored(&self, key: &str, size: u64, version: &str) -> Result<ObjectMeta, StoreError> {
        if version.is_empty() {
            let meta = self.head(key).await?;
            return match meta {
                Some(meta) if meta.size == size => Ok(meta),
                _ => Err(StoreError::Inconsistent("an object that was stored is not there".into())),
            };
        }
        Ok(ObjectMeta { size, mtime: SystemTime::now(), version: version.into() })
    }
}

/// Reads the times of every store; one that cannot be read is the beginning of time.
fn parse_time(text: &str) -> SystemTime {
    if let Ok(time) = httpdate::parse_http_date(text) {
        return time;
    }
    parse_iso(text).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// `2024-05-06T07:08:09.123Z`
fn parse_iso(text: &str) -> Option<SystemTime> {
    let digits = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970 by the civil calendar, in years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
    let seconds = (days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second;
    let millis = text.get(19..).and_then(|rest| rest.strip_prefix('.')).map_or(0, |rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).take(3).collect();
        format!("{digits:0<3}").parse().unwrap_or(0)
    });
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(seconds.checked_mul(1000)? + millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since_epoch(text: &str) -> u128 {
        parse_time(text).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
    }

    #[test]
    fn reads_the_times_of_all_stores() {
        assert_eq!(since_epoch("1970-01-01T00:00:00Z"), 0);
        assert_eq!(since_epoch("2024-02-29T12:34:56.789Z"), 1_709_210_096_789);
        assert_eq!(since_epoch("2024-02-29T12:34:56Z"), 1_709_210_096_000);
        assert_eq!(since_epoch("Thu, 29 Feb 2024 12:34:56 GMT"), 1_709_210_096_000);
        for wrong in ["", "yesterday", "2024-99-01T00:00:00Z", "0000-01-01T00:00:00Z"] {
            assert_eq!(since_epoch(wrong), 0, "{wrong}");
        }
    }
}
