#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::path::Path as HostPath;
use std::sync::Arc;

use async_trait::async_trait;
use bastide::snapshot::store::Objects;
use bastide::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};

/// Files up to this length are sent in one piece; longer ones in parts of this length.
const PART: u64 = 8 << 20;

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
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    place: String,
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
        if bucket.is_empty() {
            return Err(bad());
        }
        let prefix = Path::parse(prefix.trim_matches('/')).map_err(|_| bad())?;
        let region = options.region.unwrap_or_else(|| "us-east-1".to_owned());
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket).with_region(region);
        if let Some(endpoint) = options.endpoint {
            // Who runs a server of their own says by its address whether it speaks in the clear.
            let in_the_clear = endpoint.starts_with("http://");
            builder = builder.with_endpoint(endpoint).with_allow_http(in_the_clear);
        }
        builder = match (options.access_key, options.secret_key) {
            (Some(key), Some(secret)) => {
                builder.with_access_key_id(key).with_secret_access_key(secret)
            }
            _ => builder.with_skip_signature(true),
        };
        if let Some(token) = options.session_token {
            builder = builder.with_token(token);
        }
        // The client takes the implementation of the process; a choice that was made already stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        let store = builder.build().map_err(|error| bad().with_source(error))?;
        Ok(Self { store: Arc::new(store), prefix, place: address.to_owned() })
    }

    fn path(&self, name: &str) -> Result<Path> {
        let full = match self.prefix.as_ref() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        };
        Path::parse(full).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("{name} is no name of an object"))
                .with_source(error)
        })
    }

    fn failed(&self, doing: &str, error: object_store::Error) -> Error {
        let kind = match &error {
            object_store::Error::NotFound { .. } => ErrorKind::NotFound,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => ErrorKind::PermissionDenied,
            // A listing that is refused comes as any other failure.
            error if format!("{error:?}").contains("status: 403") => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("cannot {doing} {}", self.place)).with_source(error)
    }
}

#[async_trait]
impl Objects for Bucket {
    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let at = self.path(prefix.trim_end_matches('/'))?;
        let own = self.prefix.as_ref().len();
        let skipped = if own == 0 { 0 } else { own + 1 };
        let found = self.store.list(Some(&at)).map_ok(|object| object.location);
        let found: Vec<Path> =
            found.try_collect().await.map_err(|error| self.failed("list", error))?;
        let name = |path: &Path| path.as_ref().get(skipped..).map(str::to_owned);
        Ok(found.iter().filter_map(name).collect())
    }

    async fn length(&self, name: &str) -> Result<Option<u64>> {
        match self.store.head(&self.path(name)?).await {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("look at", error)),
        }
    }

    async fn read(&self, name: &str, offset: u64, length: u64) -> Result<Bytes> {
        let end = offset.saturating_add(length);
        let read = self.store.get_range(&self.path(name)?, offset..end).await;
        let bytes = read.map_err(|error| self.failed("read from", error))?;
        match u64::try_from(bytes.len()) == Ok(length) {
            true => Ok(bytes),
            false => Err(Error::new(ErrorKind::Io, format!("{name} is cut off at {}", self.place))),
        }
    }

    async fn write(&self, name: &str, file: &HostPath) -> Result<()> {
        let unreadable = |error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot read {}: {error}", file.display()))
        };
        let path = self.path(name)?;
        let length = std::fs::metadata(file).map_err(unreadable)?.len();
        if length <= PART {
            let bytes = std::fs::read(file).map_err(unreadable)?;
            let put = self.store.put(&path, PutPayload::from(bytes)).await;
            return put.map(drop).map_err(|error| self.failed("write to", error));
        }
        let writing = self.store.put_multipart(&path).await;
        let writing = writing.map_err(|error| self.failed("write to", error))?;
        let mut writing =
            WriteMultipart::new_with_chunk_size(writing, usize::try_from(PART).unwrap_or(1 << 23));
        let mut input = std::fs::File::open(file).map_err(unreadable)?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let came = std::io::Read::read(&mut input, &mut buffer).map_err(unreadable)?;
            if came == 0 {
                break;
            }
            let room = writing.wait_for_capacity(4).await;
            room.map_err(|error| self.failed("write to", error))?;
            writing.write(&buffer[..came]);
        }
        writing.finish().await.map(drop).map_err(|error| self.failed("write to", error))
    }

    async fn remove(&self, name: &str) -> Result<()> {
        match self.store.delete(&self.path(name)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("remove from", error)),
        }
    }
}
