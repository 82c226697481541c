//! Tests of what is kept, for whom, and for how long.

use bastide_model::policy::Action;

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &str)| {
        (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    pairs.iter().map(pair).collect()
}

fn key(policy: &Policy) -> CacheKey {
    key_by(policy, &Rule::new(Action::Allow, Vec::new()), "/a-1.0.tgz")
}

fn key_by(policy: &Policy, rule: &Rule, path: &str) -> CacheKey {
    CacheKey::new(policy, rule, &Host::parse("files.test").unwrap(), 443, path)
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
        ("/archive/debian/20250520T000000Z/pool/main/h/hello_2.10_amd64.deb", true),
        ("/me/it/-/archive/main/it-main.tar.gz", false),
        ("/me/it/archive/main.zip", false),
        ("/me/it/raw/branch/main/it.tgz", false),
        ("/simple/a/", false),
        ("/a", false),
        ("/download", false),
    ] {
        assert_eq!(is_kept("GET", path, None, &none), want, "{path}");
    }
    let path = "/a-1.0.tgz";
    assert!(!is_kept("HEAD", path, None, &none) && !is_kept("GET", path, Some("t=1"), &none));
    for (name, value) in [
        ("authorization", "x"),
        ("cookie", "a=b"),
        ("range", "bytes=0-1"),
        ("private-token", "x"),
        ("x-jfrog-art-api", "x"),
        ("upgrade", "websocket"),
    ] {
        assert!(!is_kept("GET", path, None, &headers(&[(name, value)])), "{name}");
    }
    assert!(is_kept("GET", path, None, &headers(&[("npm-auth-type", "web")])));
}

#[tokio::test]
async fn keeps_what_came_whole_and_serves_only_what_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let cache = PackageCache::open(folder.path()).unwrap();
    let policy = Policy::default();
    let whole = headers(&[("content-length", "6"), ("content-type", "application/gzip")]);
    assert!(cache.find(&key(&policy)).await.is_none());
    for (pieces, is_kept) in
        [(&[&b"abc"[..], b"de"][..], false), (&[b"abc", b"defg"], false), (&[b"abc", b"def"], true)]
    {
        let mut keeping = cache.keep(key(&policy), StatusCode::OK, &whole).unwrap();
        pieces.iter().for_each(|piece| keeping.add(piece));
        keeping.finish();
        let found = content(&cache, &key(&policy)).await;
        assert_eq!(found, is_kept.then(|| b"abcdef".to_vec()), "{pieces:?}");
    }
    drop(cache.keep(key(&policy), StatusCode::OK, &whole));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
    // Who gets there by another way does not get what others did.
    let mut other = policy.clone();
    other.upstream.roots = Some("/etc/other.pem".to_owned());
    assert!(content(&cache, &key(&other)).await.is_none());
    let private = Rule { private: true, ..Rule::new(Action::Allow, Vec::new()) };
    assert!(content(&cache, &key_by(&policy, &private, "/a-1.0.tgz")).await.is_none());
    // Something else in its place is not served.
    let object = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    let object = object.into_iter().find(|path| path.extension().unwrap() == "package").unwrap();
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
        (StatusCode::OK, ("cache-control", "private=\"x-a\"")),
        (StatusCode::OK, ("cache-control", "no-store")),
        (StatusCode::OK, ("cache-control", "public, no-cache")),
        (StatusCode::OK, ("cache-control", "max-age=0")),
        (StatusCode::OK, ("content-encoding", "gzip")),
    ] {
        let headers = headers(&[length, more]);
        assert!(cache.keep(key(&Policy::default()), status, &headers).is_none(), "{more:?}");
    }
    let mut twice = headers(&[length, ("cache-control", "public, max-age=9")]);
    assert!(cache.keep(key(&Policy::default()), StatusCode::OK, &twice).is_some());
    twice.append(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    assert!(cache.keep(key(&Policy::default()), StatusCode::OK, &twice).is_none());
    let none = HeaderMap::new();
    assert!(cache.keep(key(&Policy::default()), StatusCode::OK, &none).is_none());
    let large = headers(&[("content-length", "2000000000")]);
    assert!(cache.keep(key(&Policy::default()), StatusCode::OK, &large).is_none());
}

#[tokio::test]
async fn has_no_more_than_there_is_room_for_while_it_runs() {
    const FILE: usize = 6000;
    const MOST: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let cache = PackageCache::with_room(folder.path(), MOST).unwrap();
    let policy = Policy::default();
    let length = headers(&[("content-length", "6000")]);
    for number in 0..10_u8 {
        let key = key_by(&policy, &Rule::new(Action::Allow, Vec::new()), &format!("/{number}.tgz"));
        let mut keeping = cache.keep(key.clone(), StatusCode::OK, &length).unwrap();
        keeping.add(&[number; FILE]);
        keeping.finish();
        assert_eq!(content(&cache, &key).await, Some(vec![number; FILE]));
        let files = fs::read_dir(folder.path()).unwrap().flatten();
        let all: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
        // Names are small, and counted when somebody looks again.
        assert!(all <= MOST + 2000, "{all}");
    }
}
