//! Snapshots on an S3 server on loopback, which checks who asks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;

use bastide::snapshot::store::Objects;
use bastide::{ErrorKind, Store};
use bastide_remote::{Bucket, BucketOptions};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// A server with one bucket. It ends with the test.
async fn server() -> (SocketAddr, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("kept")).unwrap();
    let files = s3s_fs::FileSystem::new(folder.path()).unwrap();
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single("key", "secret"));
    let service = builder.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let http = Builder::new(TokioExecutor::new());
                drop(http.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    (address, folder)
}

fn bucket(address: SocketAddr, secret: &str) -> Bucket {
    let options = BucketOptions::default()
        .endpoint(format!("http://{address}"))
        .access_key("key")
        .secret_key(secret);
    Bucket::open("s3://kept/of/mine", options).unwrap()
}

/// A tar archive with a few files.
fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    use bastide::archive::tar::{TarKind, TarMember, TarWriter};
    let mut tar = Vec::new();
    let mut writer = TarWriter::new(&mut tar);
    for (name, content) in files {
        let mut member = TarMember::new(name.as_bytes(), TarKind::File);
        member.size = content.len() as u64;
        writer.append(&member, &mut content.as_slice()).unwrap();
    }
    writer.finish().unwrap();
    tar
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[6]
    };
    std::iter::repeat_with(step).take(length).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_and_pulls_only_what_is_missing() {
    let (address, _folder) = server().await;
    let bucket = bucket(address, "secret");
    let here = tempfile::tempdir().unwrap();
    let store = Store::open(here.path().join("store")).unwrap();
    let large = noise(12 << 20, 1);
    let first = archive(&[("a", b"one".to_vec()), ("large", large.clone())]);
    store.import("first", first.as_slice()).unwrap();
    // Something else that is here and must not go there.
    store.import("private", archive(&[("secret", b"unseen".to_vec())]).as_slice()).unwrap();
    let pushed = store.push(&bucket, "first").await.unwrap();
    assert!(pushed.bytes > 12 << 20, "{pushed:?}");
    let again = store.push(&bucket, "first").await.unwrap();
    assert_eq!((again.chunks, again.bytes), (0, 0));
    let second = archive(&[("a", b"two".to_vec()), ("large", large)]);
    store.import("second", second.as_slice()).unwrap();
    let more = store.push(&bucket, "second").await.unwrap();
    assert!(more.bytes < 10_000, "{more:?}");
    let names = bucket.list("snapshots/").await.unwrap();
    assert_eq!(names, ["snapshots/first", "snapshots/second"]);

    let there = tempfile::tempdir().unwrap();
    let other = Store::open(there.path().join("store")).unwrap();
    let pulled = other.pull(&bucket, "first").await.unwrap();
    assert_eq!(pulled.info.fingerprint, pushed.info.fingerprint);
    let few = other.pull(&bucket, "second").await.unwrap();
    assert!(few.bytes < 10_000, "{few:?}");
    assert!(other.verify(None, None).unwrap().is_intact());
    let (mut one, mut two) = (Vec::new(), Vec::new());
    store.export("second", &mut one).unwrap();
    other.export("second", &mut two).unwrap();
    assert!(one == two, "what came back is not what was sent");
    let missing = other.pull(&bucket, "private").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_refused_with_the_wrong_secret() {
    let (address, _folder) = server().await;
    let here = tempfile::tempdir().unwrap();
    let store = Store::open(here.path().join("store")).unwrap();
    store.import("first", archive(&[("a", b"one".to_vec())]).as_slice()).unwrap();
    let refused = store.push(&bucket(address, "wrong"), "first").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_nothing_that_is_not_what_was_sent() {
    let (address, folder) = server().await;
    let bucket = bucket(address, "secret");
    let here = tempfile::tempdir().unwrap();
    let store = Store::open(here.path().join("store")).unwrap();
    store.import("first", archive(&[("a", noise(100_000, 7))]).as_slice()).unwrap();
    store.push(&bucket, "first").await.unwrap();
    let packs = folder.path().join("kept/of/mine/packs");
    let is_pack = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "pack");
    let mut listed = std::fs::read_dir(&packs).unwrap().map(|entry| entry.unwrap().path());
    let pack = listed.find(is_pack).unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let there = tempfile::tempdir().unwrap();
    let other = Store::open(there.path().join("store")).unwrap();
    let refused = other.pull(&bucket, "first").await.unwrap_err();
    assert!(refused.message().contains("damaged"), "{refused}");
    assert!(other.list().unwrap().is_empty());
}

/// A server that answers every request with what `answer` makes of how many came before it.
fn hostile(answer: impl Fn(usize) -> Vec<u8> + Send + 'static) -> SocketAddr {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut count = 0;
        while let Ok((stream, _)) = listener.accept() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut writer = stream;
            loop {
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                if line != "\r\n" || writer.write_all(&answer(count)).is_err() {
                    break;
                }
                count += 1;
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gives_up_a_listing_without_end() {
    let address = hostile(|count| {
        let page = format!(
            "<ListBucketResult><NextContinuationToken>{count}</NextContinuationToken></ListBucketResult>"
        );
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len()).into_bytes()
    });
    let endless = bucket(address, "secret").list("").await.unwrap_err();
    assert!(format!("{endless:?}").contains("no end"), "{endless:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_no_more_than_was_asked_for() {
    let address = hostile(|_| {
        let mut answer = b"HTTP/1.1 206 Partial Content\r\nconnection: close\r\n\r\n".to_vec();
        answer.resize(1 << 20, b'x');
        answer
    });
    let refused = bucket(address, "secret").read("a", 0, 100).await.unwrap_err();
    assert!(format!("{refused:?}").contains("longer than"), "{refused:?}");
}
