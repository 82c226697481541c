//! A home that was copied, with a session whose workspace is a folder elsewhere.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions};
use bastide_local::LocalBackend;

/// The copy goes on with the folder of the original, and is not the one it was made for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_the_workspace_of_the_original_when_a_copy_that_was_resumed_is_removed() {
    let client = |home: &Path| Client::new(Arc::new(LocalBackend::new(home).unwrap()));
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let original = client(home.path());
    let options = CreateOptions::default().detached().unix_local();
    let session = original.create(&Manifest::default(), options).await.unwrap();
    let (id, root) = (session.id().clone(), session.root().as_str().to_owned());
    let file = Path::new(&root).join("file");
    std::fs::write(&file, "kept").unwrap();
    drop(session);
    original.stop(&id).await.unwrap();
    let (from, to) = (home.path().join("."), other.path().join("."));
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    let copy = client(other.path());
    drop(copy.resume(&id).await.unwrap());
    copy.delete(&id).await.unwrap();
    assert!(file.exists(), "the workspace went with a copy of its session");
    assert!(original.delete(&id).await.unwrap());
    assert!(!Path::new(&root).exists(), "the workspace is left");
}
