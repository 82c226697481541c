//! Packages that came through, kept on this machine for the next session.
//!
//! Only what is the same for everybody is kept: a whole file that a rule of a preset let be fetched over TLS that is read,
//! without a query, credentials, cookies or conditions. It is asked for with no header of the program's, so that nothing a
//! program says can change what others get. A file is called by its digest, and looked at again before it is served; a
//! name says which file an address led to. Who gets there by another way (other roots, addresses or a proxy) has names of
//! their own.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bastide_model::policy::{Host, Policy};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use ring::digest::{Context as Digest, SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::body::{Body, BoxError};

/// The largest file that is kept.
const MAX_FILE: u64 = 1 << 30;

/// How much is kept in all, and how much of it is left where that was too much.
const MAX_ALL: u64 = 16 << 30;
const LEFT: u64 = 12 << 30;

/// After how long something unfinished was left by somebody who is gone.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// How much of a file is read at a time.
const CHUNK: usize = 64 << 10;

/// How the names of packages end that never change under their address.
const PACKAGES: [&str; 12] = [
    ".whl",
    ".whl.metadata",
    ".tar.gz",
    ".tgz",
    ".tar.bz2",
    ".tar.xz",
    ".zip",
    ".crate",
    ".deb",
    ".gem",
    ".egg",
    ".mod",
];

/// Headers with which an answer is not the same for everybody, or not whole.
const PERSONAL: [header::HeaderName; 8] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
];

/// Files there have been, in this program.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Whether a request is for something that is kept.
pub(crate) fn is_kept(method: &str, path: &str, query: Option<&str>, headers: &HeaderMap) -> bool {
    let is_package = PACKAGES.iter().any(|end| path.ends_with(end))
        || path.starts_with("/api/v1/crates/") && path.ends_with("/download");
    method == "GET"
        && query.is_none()
        && is_package
        && !PERSONAL.iter().any(|name| headers.contains_key(name))
}

/// What a request for a package says, whoever asks.
pub(crate) fn plain_headers(headers: &mut HeaderMap) {
    headers.clear();
    headers.insert(header::USER_AGENT, HeaderValue::from_static("bastide"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// The packages of a home.
#[derive(Debug)]
pub(crate) struct PackageCache {
    folder: PathBuf,
}

/// What an address led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CacheEntry {
    /// The address, for people.
    url: String,
    sha256: String,
    bytes: u64,
    content_type: Option<String>,
}

/// The name of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheKey {
    name: String,
    url: String,
}

impl CacheKey {
    /// The name of a path of a host, as somebody with this policy gets there.
    pub(crate) fn new(policy: &Policy, host: &Host, port: u16, path: &str) -> Self {
        let url = format!("https://{host}:{port}{path}");
        let upstream = &policy.upstream;
        let route = json!({
            "url": url,
            "hosts": policy.hosts.get(&host.to_string()),
            "proxy": upstream.proxy.as_ref().map(ToString::to_string),
            "roots": upstream.roots,
            "dns": upstream.dns.map(|dns| dns.to_string()),
        });
        Self { name: hex(digest(&SHA256, route.to_string().as_bytes()).as_ref()), url }
    }
}

impl PackageCache {
    /// The cache in a folder, which exists. Clears away what is too much, and what was never finished.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        let mut all = 0;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // One that is gone by now was somebody else's to clear away.
            let Ok(found) = entry.metadata() else { continue };
            let age = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let is_old = age.elapsed().is_ok_and(|age| age > ABANDONED);
            if entry.file_name().to_string_lossy().starts_with('.') && is_old {
                drop(fs::remove_file(entry.path()));
                continue;
            }
            all += found.len();
            files.push((age, found.len(), entry.path()));
        }
        if all > MAX_ALL {
            files.sort_unstable();
            for (_, bytes, path) in files {
                if all <= LEFT {
                    break;
                }
                // A name without its file leads nowhere, and is made again.
                drop(fs::remove_file(path));
                all -= bytes;
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    fn name_file(&self, key: &CacheKey) -> PathBuf {
        self.folder.join(format!("{}.name", key.name))
    }

    fn object(&self, sha256: &str) -> PathBuf {
        self.folder.join(format!("{sha256}.package"))
    }

    /// The answer to a request for something that is kept, if it is what it was when it came.
    pub(crate) async fn find(&self, key: &CacheKey) -> Option<Response<Body>> {
        let cached: CacheEntry =
            serde_json::from_slice(&fs::read(self.name_file(key)).ok()?).ok()?;
        if cached.url != key.url || !is_hex(&cached.sha256) {
            return None;
        }
        let path = self.object(&cached.sha256);
        let mut file = File::open(&path).ok()?;
        if !is_whole(&mut file, &cached).await {
            // The next one who asks gets it from where it came from.
            drop(fs::remove_file(&path));
            return None;
        }
        let mut response = Response::new(PackageBody { file, left: cached.bytes }.boxed());
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, cached.bytes.into());
        let kind = cached.content_type.and_then(|kind| HeaderValue::from_str(&kind).ok());
        let kind = kind.unwrap_or(HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_TYPE, kind);
        Some(response)
    }

    /// Keeps the answer to such a request as it passes, if it is one for everybody.
    pub(crate) fn keep(
        &self,
        key: CacheKey,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<PackageWriter> {
        let text =
            |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let control = text(header::CACHE_CONTROL).unwrap_or_default().to_ascii_lowercase();
        let bytes: u64 = text(header::CONTENT_LENGTH)?.parse().ok()?;
        let is_for_all = status == StatusCode::OK
            && bytes <= MAX_FILE
            && !headers.contains_key(header::CONTENT_ENCODING)
            && !headers.contains_key(header::SET_COOKIE)
            && !control.contains("no-store")
            && !control.contains("private");
        if !is_for_all {
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!(".{}-{number}", std::process::id()));
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).ok()?;
        Some(PackageWriter {
            folder: Self { folder: self.folder.clone() },
            key,
            content_type: text(header::CONTENT_TYPE).map(str::to_owned),
            file: Some((file, path)),
            digest: Digest::new(&SHA256),
            bytes,
            received: 0,
        })
    }
}

/// Whether a file is still what was kept. Others go on meanwhile.
async fn is_whole(file: &mut File, cached: &CacheEntry) -> bool {
    let mut found = Digest::new(&SHA256);
    let mut chunk = vec![0; CHUNK];
    let mut left = cached.bytes;
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                found.update(&chunk[..count]);
                let Some(rest) = left.checked_sub(count as u64) else { return false };
                left = rest;
            }
            Err(_) => return false,
        }
        tokio::task::yield_now().await;
    }
    let is_same = left == 0 && hex(found.finish().as_ref()) == cached.sha256;
    is_same && io::Seek::rewind(file).is_ok()
}

fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file that is being kept. If it is dropped before its end, nothing of it is.
pub(crate) struct PackageWriter {
    folder: PackageCache,
    key: CacheKey,
    content_type: Option<String>,
    file: Option<(File, PathBuf)>,
    digest: Digest,
    bytes: u64,
    received: u64,
}

impl PackageWriter {
    /// Keeps the next piece.
    pub(crate) fn add(&mut self, chunk: &[u8]) {
        self.digest.update(chunk);
        self.received += chunk.len() as u64;
        let written = match &mut self.file {
            Some((file, _)) if self.received <= self.bytes => file.write_all(chunk),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        if written.is_err() {
            self.give_up();
        }
    }

    /// Whether all of it came.
    pub(crate) fn is_whole(&self) -> bool {
        self.received == self.bytes
    }

    /// Keeps it under its name from here on, if all of it came.
    pub(crate) fn finish(mut self) {
        let Some((file, path)) = self.file.take() else { return };
        let kept = (|| {
            if self.received != self.bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let sha256 = hex(self.digest.clone().finish().as_ref());
            drop(file);
            fs::rename(&path, self.folder.object(&sha256))?;
            let CacheKey { url, .. } = self.key.clone();
            let content_type = self.content_type.take();
            let cached = CacheEntry { url, sha256, bytes: self.bytes, content_type };
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(&serde_json::to_vec(&cached)?)?;
            fs::rename(&path, self.folder.name_file(&self.key))
        })();
        if kept.is_err() {
            drop(fs::remove_file(&path));
        }
    }

    fn give_up(&mut self) {
        if let Some((_, path)) = self.file.take() {
            drop(fs::remove_file(path));
        }
    }
}

impl Drop for PackageWriter {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A file on its way inside.
struct PackageBody {
    file: File,
    left: u64,
}

impl HttpBody for PackageBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(self.left).unwrap_or(CHUNK))];
        if chunk.is_empty() {
            return Poll::Ready(None);
        }
        match self.file.read(&mut chunk) {
            Ok(0) => Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()))),
            Ok(count) => {
                self.left -= count as u64;
                chunk.truncate(count);
                Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
            }
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn key(policy: &Policy) -> CacheKey {
        CacheKey::new(policy, &Host::parse("files.test").unwrap(), 443, "/a-1.0.tgz")
    }

    async fn content(cache: &PackageCache, key: &CacheKey) -> Option<Vec<u8>> {
        let response = cache.find(key).await?;
        Some(response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[test]
    fn is_for_packages_that_are_the_same_for_everybody() {
        let none = HeaderMap::new();
        for (path, want) in [
            ("/packages/a-1.0-py3-none-any.whl", true),
            ("/a/-/a-1.0.tgz", true),
            ("/api/v1/crates/a/1.0.0/download", true),
            ("/crates/a/a-1.0.0.crate", true),
            ("/m/@v/v1.0.0.zip", true),
            ("/simple/a/", false),
            ("/a", false),
            ("/download", false),
        ] {
            assert_eq!(is_kept("GET", path, None, &none), want, "{path}");
        }
        let path = "/a-1.0.tgz";
        assert!(!is_kept("HEAD", path, None, &none) && !is_kept("GET", path, Some("t=1"), &none));
        for (name, value) in [("authorization", "x"), ("cookie", "a=b"), ("range", "bytes=0-1")] {
            assert!(!is_kept("GET", path, None, &headers(&[(name, value)])), "{name}");
        }
    }

    #[tokio::test]
    async fn keeps_what_came_whole_and_serves_only_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackageCache::open(folder.path()).unwrap();
        let policy = Policy::default();
        let whole = headers(&[("content-length", "6"), ("content-type", "application/gzip")]);
        assert!(cache.find(&key(&policy)).await.is_none());
        for (chunks, is_kept) in [
            (&[&b"abc"[..], b"de"][..], false),
            (&[b"abc", b"defg"], false),
            (&[b"abc", b"def"], true),
        ] {
            let mut package_writer = cache.keep(key(&policy), StatusCode::OK, &whole).unwrap();
            chunks.iter().for_each(|chunk| package_writer.add(chunk));
            package_writer.finish();
            let found = content(&cache, &key(&policy)).await;
            assert_eq!(found, is_kept.then(|| b"abcdef".to_vec()), "{chunks:?}");
        }
        drop(cache.keep(key(&policy), StatusCode::OK, &whole));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
        // Who gets there by another way does not get what others did.
        let mut other = policy.clone();
        other.upstream.roots = Some("/etc/other.pem".to_owned());
        assert!(content(&cache, &key(&other)).await.is_none());
        // Something else in its place is not served.
        let object = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        let object =
            object.into_iter().find(|path| path.extension().unwrap() == "package").unwrap();
        fs::write(&object, "evil!!").unwrap();
        assert!(content(&cache, &key(&policy)).await.is_none());
        assert!(!object.exists());
    }

    #[test]
    fn keeps_nothing_that_is_for_somebody_or_is_no_success() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackageCache::open(folder.path()).unwrap();
        let length = ("content-length", "6");
        for (status, more) in [
            (StatusCode::NOT_FOUND, ("x-a", "b")),
            (StatusCode::OK, ("set-cookie", "a=b")),
            (StatusCode::OK, ("cache-control", "max-age=1, Private")),
            (StatusCode::OK, ("cache-control", "no-store")),
            (StatusCode::OK, ("content-encoding", "gzip")),
        ] {
            let headers = headers(&[length, more]);
            assert!(cache.keep(key(&Policy::default()), status, &headers).is_none(), "{more:?}");
        }
        let none = HeaderMap::new();
        assert!(cache.keep(key(&Policy::default()), StatusCode::OK, &none).is_none());
        let large = headers(&[("content-length", "2000000000")]);
        assert!(cache.keep(key(&Policy::default()), StatusCode::OK, &large).is_none());
    }
}
