//! Packages that came through, kept on this machine for the next session.
//!
//! Only what is the same for everybody is kept: a whole file that a rule of a preset let be fetched over TLS that is read,
//! without a query, a body, credentials, cookies or conditions. It is asked for with no header of the program's, and by the
//! one spelling of its host, so that nothing a program says can change what others get. A file is called by its digest, and
//! looked at again before it is served; a name says which file an address led to. Who gets there by another way (other
//! roots, addresses, a proxy, or leave to reach private places) has names of their own.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bastide_model::policy::{Host, HostPattern, Policy, Rule};
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

/// How much is kept in all. Where that was too much, three quarters of it are left.
const MAX_ALL: u64 = 16 << 30;

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

/// What is in addresses of a branch of a repository: another file is there tomorrow.
const OF_BRANCHES: [&str; 2] = ["/archive/", "/raw/"];

/// Headers with which an answer is not the same for everybody, not whole, or not the last that is said by HTTP.
const PERSONAL: [header::HeaderName; 9] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
    header::UPGRADE,
];

/// How the names of headers end by which programs say who they are to one kind of server.
const CREDENTIALS: [&str; 4] = ["-token", "-key", "-api", "-secret"];

/// What a server says of answers that are not for everybody, or not for long.
const NOT_KEPT: [&str; 5] = ["no-store", "no-cache", "private", "max-age=0", "s-maxage=0"];

/// Files there have been, in this program.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Whether a request is for something that is kept.
pub(crate) fn is_kept(method: &str, path: &str, query: Option<&str>, headers: &HeaderMap) -> bool {
    let changes = OF_BRANCHES.iter().any(|part| path.contains(part)) && !path.ends_with(".deb");
    let is_package = PACKAGES.iter().any(|end| path.ends_with(end)) && !changes
        || path.starts_with("/api/v1/crates/") && path.ends_with("/download");
    let is_personal = |name: &header::HeaderName| {
        PERSONAL.contains(name) || CREDENTIALS.iter().any(|end| name.as_str().ends_with(end))
    };
    method == "GET" && query.is_none() && is_package && !headers.keys().any(is_personal)
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
    /// How many bytes may be there.
    most: u64,
    /// How many there were when somebody looked, and how many this program has kept or begun to since.
    bytes: AtomicU64,
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
    authority: String,
}

impl CacheKey {
    /// The name of a path of a host, as somebody with this policy gets there by this rule of it.
    pub(crate) fn new(policy: &Policy, rule: &Rule, host: &Host, port: u16, path: &str) -> Self {
        let host_in_url = match host {
            Host::Address(IpAddr::V6(address)) => format!("[{address}]"),
            host => host.to_string(),
        };
        let authority = match port {
            443 => host_in_url,
            port => format!("{host_in_url}:{port}"),
        };
        let url = format!("https://{authority}{path}");
        let upstream = &policy.upstream;
        let addresses = rule.hosts.iter().filter(|host| matches!(host, HostPattern::Addresses(_)));
        let route = json!({
            "private": rule.private,
            "addresses": addresses.map(ToString::to_string).collect::<Vec<_>>(),
            "url": url,
            "hosts": policy.hosts.get(&host.to_string()),
            "proxy": upstream.proxy.as_ref().map(ToString::to_string),
            "roots": upstream.roots,
            "dns": upstream.dns.map(|dns| dns.to_string()),
        });
        let name = hex::encode(digest(&SHA256, route.to_string().as_bytes()).as_ref());
        Self { name, url, authority }
    }

    /// The host and the port as the server is told them, however a program writes them.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.name", self.name))
    }
}

impl PackageCache {
    /// The cache in a folder, which exists. Clears away what is too much, and what was never finished.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        Self::with_room(folder, MAX_ALL)
    }

    fn with_room(folder: &Path, most: u64) -> io::Result<Self> {
        let bytes = AtomicU64::new(clear(folder, most)?);
        Ok(Self { folder: folder.to_owned(), most, bytes })
    }

    /// Makes room for a file. Other programs keep files in the same folder: where it seems full, it is looked at.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if all > self.most {
            let left = clear(&self.folder, self.most.saturating_sub(bytes))?;
            self.bytes.store(left.saturating_add(bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The answer to a request for something that is kept, if it is what it was when it came.
    pub(crate) async fn find(&self, key: &CacheKey) -> Option<Response<Body>> {
        let cached = fs::read(key.file(&self.folder)).ok()?;
        let cached: CacheEntry = serde_json::from_slice(&cached).ok()?;
        if cached.url != key.url || !is_hex(&cached.sha256) {
            return None;
        }
        let path = object(&self.folder, &cached.sha256);
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
        let controls = headers.get_all(header::CACHE_CONTROL).iter();
        let forbids = |control: &HeaderValue| {
            let control = control.to_str().unwrap_or("no-store").to_ascii_lowercase();
            control.split(',').any(|word| {
                let word = word.trim();
                let name = word.split('=').next().unwrap_or_default();
                NOT_KEPT.contains(&word) || NOT_KEPT.contains(&name)
            })
        };
        let bytes: u64 = text(header::CONTENT_LENGTH)?.parse().ok()?;
        let is_for_all = status == StatusCode::OK
            && bytes <= MAX_FILE
            && !headers.contains_key(header::CONTENT_ENCODING)
            && !headers.contains_key(header::SET_COOKIE)
            && !controls.into_iter().any(forbids);
        if !is_for_all || self.make_room(bytes).is_err() {
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!(".{}-{number}", std::process::id()));
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).ok()?;
        Some(PackageWriter {
            folder: self.folder.clone(),
            key,
            content_type: text(header::CONTENT_TYPE).map(str::to_owned),
            file: Some((file, path)),
            digest: Digest::new(&SHA256),
            bytes,
            received: 0,
        })
    }
}

/// Clears away what was never finished and, where more is there than may be, the oldest. Gives how many bytes are left.
fn clear(folder: &Path, most: u64) -> io::Result<u64> {
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
    if all > most {
        files.sort_unstable();
        for (_, bytes, path) in files {
            if all <= most / 4 * 3 {
                break;
            }
            // A name without its file leads nowhere, and is made again.
            drop(fs::remove_file(path));
            all -= bytes;
        }
    }
    Ok(all)
}

/// Where a file of this digest is.
fn object(folder: &Path, sha256: &str) -> PathBuf {
    folder.join(format!("{sha256}.package"))
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
    let is_same = left == 0 && hex::encode(found.finish().as_ref()) == cached.sha256;
    is_same && io::Seek::rewind(file).is_ok()
}

fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A file that is being kept. If it is dropped before its end, nothing of it is.
pub(crate) struct PackageWriter {
    folder: PathBuf,
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
            let sha256 = hex::encode(self.digest.clone().finish().as_ref());
            drop(file);
            fs::rename(&path, object(&self.folder, &sha256))?;
            let CacheKey { url, .. } = self.key.clone();
            let content_type = self.content_type.take();
            let cached = CacheEntry { url, sha256, bytes: self.bytes, content_type };
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(&serde_json::to_vec(&cached)?)?;
            fs::rename(&path, self.key.file(&self.folder))
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
