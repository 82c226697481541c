use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::sync::mpsc;

use super::*;
use crate::control::Channel;
use crate::spec::{MountSpec, Source, Start};
use crate::store::Store;

/// A store that takes whatever it is given, and says what it was asked for.
fn store() -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, is_asked) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            while !request.ends_with(b"written") {
                match stream.read(&mut chunk) {
                    Ok(size) if size > 0 => request.extend_from_slice(&chunk[..size]),
                    _ => break,
                }
            }
            let line = String::from_utf8_lossy(&request);
            drop(asked.send(line.lines().next().unwrap_or_default().to_owned()));
            let answer =
                "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    (port, is_asked)
}

fn mounted(port: u16, folder: &std::path::Path) -> Fs {
    let source = Source::S3 {
        bucket: "b".into(),
        region: None,
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        keys: None,
        path_style: None,
    };
    let spec = MountSpec { read_only: false, ..MountSpec::new("m", source) };
    let start =
        Start { cache: None, staging: folder.into(), staging_size: None, mounts: Vec::new() };
    let (channel, far) = Channel::pair().unwrap();
    // Nobody reads what is reported, and it stays open.
    let _ = far.into_raw_fd();
    Fs::new(&spec, Store::open(&spec).unwrap(), &start, None, Arc::new(channel)).unwrap()
}

/// Whoever reads the device goes on while the rest ends, and may be in the middle of a write.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_written_at_the_end_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (port, _is_asked) = store();
    let fs = mounted(port, folder.path());
    let Reply::Created { entry, handle } = fs.create(1, b"file", EXCLUSIVE).await.unwrap() else {
        panic!("it was not created")
    };
    fs.write(handle, 0, b"written".to_vec()).await.unwrap();
    let file = fs.file(entry.node).unwrap();
    let (holds, is_held) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let content = file.content.blocking_lock();
            holds.send(()).unwrap();
            (0..10_000).for_each(|_| std::thread::yield_now());
            drop(content);
        });
        is_held.recv().unwrap();
        fs.keep_unstored();
    });
    let kept = fs.staging.kept();
    let [(path, Some(copy))] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((path.as_str(), std::fs::read(copy).unwrap()), ("file", b"written".to_vec()));
}

/// Pages of a mapping are written after every descriptor was closed; nobody is told then, so it is stored at the end.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_close_at_once_one_stores_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let (port, is_asked) = store();
    let fs = Arc::new(mounted(port, folder.path()));
    let Reply::Created { entry, handle } = fs.create(1, b"file", EXCLUSIVE).await.unwrap() else {
        panic!("it was not created")
    };
    let Reply::Opened { handle: other, .. } = fs.open(entry.node, WRITES).await.unwrap() else {
        panic!("it was not opened")
    };
    fs.write(handle, 0, b"written".to_vec()).await.unwrap();
    let file = fs.file(entry.node).unwrap();
    let held = file.content.lock().await;
    let mut closing = Vec::new();
    for handle in [handle, other] {
        let fs = Arc::clone(&fs);
        let mut release = Box::pin(async move { fs.release(handle).await });
        // Both have looked whether they are the last one, and wait.
        assert!(futures::poll!(&mut release).is_pending());
        closing.push(release);
    }
    drop(held);
    for closing in closing {
        closing.await.unwrap();
    }
    assert!(is_asked.recv().unwrap().starts_with("PUT /b/file"));
    assert_eq!(fs.staging.kept(), []);
    assert!(!file.is_local());
}
