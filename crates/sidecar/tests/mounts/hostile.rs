//! A store that wishes us ill.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use bastide_mount::{MountSpec, Source};
use rustix::io::Errno;

use crate::harness::{Mounted, may_mount};
use crate::proxy::{Listener, read_head, reply};

/// A store that answers as `answer` says: status and body.
pub(crate) fn store(answer: impl Fn(&str) -> (String, String) + Send + Sync + 'static) -> Listener {
    Listener::new(move |mut stream| {
        let head = read_head(&mut stream)?;
        let (status, body) = answer(&head);
        // More headers may follow the status.
        let (status, headers) = status.split_once('\n').unwrap_or((&status, ""));
        let headers = if headers.is_empty() { String::new() } else { format!("{headers}\r\n") };
        reply(&mut stream, status, &headers, body.as_bytes())
    })
}

pub(crate) fn spec(store: &Listener) -> MountSpec {
    let source = Source::S3 {
        bucket: "data".into(),
        region: None,
        endpoint: Some(store.endpoint()),
        keys: None,
        path_style: None,
    };
    MountSpec { read_only: false, timeout_ms: 5000, ..MountSpec::new("m", source) }
}

/// A listing with this in it.
pub(crate) fn page(inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType>{inner}</ListBucketResult>"
    )
}

fn object(key: &str, size: u64) -> String {
    format!("<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"e\"</ETag></Contents>")
}

fn first_error(path: &std::path::Path) -> Option<i32> {
    fs::read_dir(path).unwrap().find_map(Result::err).and_then(|error| error.raw_os_error())
}

#[test]
fn names_that_no_file_can_have_are_left_out_and_counted() {
    if !may_mount() {
        return;
    }
    let bad = ["..", ".", "a%2Fb", "%00", "a%00b", "", "%2Fetc%2Fpasswd", "..%2Fx", "%FF%FE"];
    let long = "x".repeat(256);
    let mut inner: String = bad.iter().map(|key| object(key, 1)).collect();
    inner += &object(&long, 1);
    for prefix in ["..%2F", ".%2F", "%2F", "a%2Fb%2F", "", "a%00%2F"] {
        inner += &format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    }
    for good in ["line%0Abreak", "%20space", "plus%2B", "good", "Good", "GOOD"] {
        inner += &object(good, 1);
    }
    let answer = page(&inner);
    let store = store(move |_| ("200 OK".into(), answer.clone()));
    let mount = Mounted::with_cache(spec(&store), None);
    let entries = fs::read_dir(&mount.path).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, [" space", "GOOD", "Good", "good", "line\nbreak", "plus+"]);
    // The empty key is the folder itself, which the root is anyway; every other one is counted.
    assert!(mount.counts().names_left_out >= 14, "{:?}", mount.counts());
}

#[test]
fn pages_without_bound_or_end_are_refused() {
    if !may_mount() {
        return;
    }
    let large = page(&object(&"a".repeat(10 << 20), 1));
    let same =
        page("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>");
    let lost = page("<IsTruncated>true</IsTruncated>");
    for (what, answer, errno) in [
        ("10 MiB", large, Errno::IO),
        ("the same page again", same, Errno::OVERFLOW),
        ("a page that does not say where it goes on", lost, Errno::IO),
        ("not a page", "<html>hello</html".to_owned(), Errno::IO),
        ("nesting", "<a>".repeat(100_000), Errno::IO),
    ] {
        let store = store(move |_| ("200 OK".into(), answer.clone()));
        let mount = Mounted::with_cache(spec(&store), None);
        assert_eq!(first_error(&mount.path), Some(errno.raw_os_error()), "{what}");
    }
    let number = AtomicU64::new(0);
    let store = store(move |_| {
        let token = number.fetch_add(1, Ordering::SeqCst);
        let next = format!("<NextContinuationToken>{token}</NextContinuationToken>");
        ("200 OK".into(), page(&format!("<IsTruncated>true</IsTruncated>{next}")))
    });
    let mount = Mounted::with_cache(spec(&store), None);
    assert_eq!(first_error(&mount.path), Some(Errno::OVERFLOW.raw_os_error()), "empty pages");
}

#[test]
fn a_folder_without_end_is_not_moved() {
    if !may_mount() {
        return;
    }
    let number = AtomicU64::new(0);
    let store = store(move |head| {
        if head.contains("delimiter") {
            let folder = "<CommonPrefixes><Prefix>folder%2F</Prefix></CommonPrefixes>";
            return ("200 OK".into(), page(folder));
        }
        let token = number.fetch_add(1, Ordering::SeqCst);
        let next = format!("<NextContinuationToken>{token}</NextContinuationToken>");
        ("200 OK".into(), page(&format!("<IsTruncated>true</IsTruncated>{next}")))
    });
    let mount = Mounted::with_cache(spec(&store), None);
    let refused = fs::rename(mount.at("folder"), mount.at("other")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::XDEV.raw_os_error()));
}

#[test]
fn sizes_that_lie_give_no_bytes() {
    if !may_mount() {
        return;
    }
    let range = |text: &str| format!("206 Partial Content\nContent-Range: {text}");
    let answers = [
        ("too short", "200 OK".to_owned(), 5),
        ("too long", "200 OK".to_owned(), 20),
        ("nothing", "200 OK".to_owned(), 0),
        ("another range", range("bytes 1-10/10"), 10),
        ("of another size", range("bytes 0-9/999"), 10),
        ("not modified", "304 Not Modified".to_owned(), 0),
    ];
    for (what, status, length) in answers {
        let store = store(move |head| {
            if head.starts_with("GET /data?") {
                return ("200 OK".into(), page(&object("file", 10)));
            }
            (status.clone(), "x".repeat(length))
        });
        let mount = Mounted::with_cache(spec(&store), None);
        let read = fs::read(mount.at("file"));
        assert!(read.is_err(), "{what}: {read:?}");
    }
}

#[test]
fn redirects_are_not_followed() {
    if !may_mount() {
        return;
    }
    let elsewhere = store(|_| ("200 OK".into(), page(&object("secret", 1))));
    let target = elsewhere.endpoint();
    for status in
        ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent"]
    {
        let location = format!("{status}\nLocation: {target}/data?list-type=2");
        let store = store(move |_| (location.clone(), String::new()));
        let mount = Mounted::with_cache(spec(&store), None);
        assert_eq!(first_error(&mount.path), Some(Errno::IO.raw_os_error()), "{status}");
        assert!(fs::write(mount.at("x"), "x").is_err() || !mount.at("x").exists());
        assert!(store.connections.load(Ordering::SeqCst) > 0);
    }
    assert_eq!(elsewhere.connections.load(Ordering::SeqCst), 0);
}
