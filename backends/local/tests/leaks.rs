//! Many sessions, and nothing of them left: in a process of its own, so that everything it holds can be
//! counted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "counting/processes.rs"]
mod processes;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::{Entry, Manifest};
use bastide::{Client, Command, CreateOptions, SessionId};
use bastide_local::LocalBackend;

use processes::{children, guests};

/// What sessions of this test could leave behind; others may come and go meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeldResources {
    descriptors: Vec<String>,
    children: Vec<String>,
    guests: usize,
    mounts: usize,
    cgroups: usize,
    folders: usize,
    files: usize,
}

impl HeldResources {
    fn of(home: &Path, ids: &[SessionId]) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let home_text = fs::canonicalize(home).unwrap().to_string_lossy().into_owned();
        let is_group = |name: &str| ids.iter().any(|id| name == format!("bastide-{id}"));
        Self {
            descriptors: descriptors(),
            children: children(),
            guests: guests(home),
            mounts: mounts.lines().filter(|line| line.contains(&home_text)).count(),
            cgroups: count(Path::new("/sys/fs/cgroup"), &is_group),
            folders: fs::read_dir(home.join("sessions")).unwrap().count(),
            files: count(home, &|_| true),
        }
    }
}

/// What this process has open, by kind: numbers change.
fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let kinds = targets.map(|target| {
        let target = target.to_string_lossy().into_owned();
        target.split(":[").next().unwrap_or_default().to_owned()
    });
    let mut kinds: Vec<_> = kinds.filter(|kind| !kind.ends_with("/fd")).collect();
    kinds.sort_unstable();
    kinds
}

/// How much is beneath a folder that has a certain name. What cannot be looked into is not ours.
fn count(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let each = entries.map(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let beneath = if is_folder { count(&entry.path(), is_wanted) } else { 0 };
        beneath + usize::from(is_wanted(&entry.file_name().to_string_lossy()))
    });
    each.sum()
}

async fn use_session(client: &Client, number: usize) -> SessionId {
    let mut manifest = Manifest::default();
    manifest.entries.insert("a/file".to_owned(), Entry::file("content"));
    let mut options = CreateOptions::default();
    options.tied_to_owner = number.is_multiple_of(2);
    // So that there are cgroups to be left behind, where the machine has them.
    options.limits.pids = Some(64);
    let session = client.create(&manifest, options).await.unwrap();
    let id = session.id().clone();
    let line = format!("cat a/file; mkdir -p b/c; (setsid sleep {} >/dev/null 2>&1 &)", nap());
    let output = session.exec(Command::shell(&line)).await.unwrap();
    assert_eq!((&output.stdout[..], output.exit.code), (&b"content"[..], 0));
    if number.is_multiple_of(3) {
        session.expose(8080).await.unwrap();
    }
    match number % 4 {
        0 | 1 => session.delete().await.unwrap(),
        2 => assert!(client.delete(session.id()).await.unwrap()),
        _ => {
            // As another process would.
            let other = client.attach(session.id()).await.unwrap();
            drop(session);
            other.delete().await.unwrap();
        }
    }
    id
}

/// How long what a command leaves running sleeps: so that it can be told from what others run.
fn nap() -> String {
    format!("8001.{}", std::process::id())
}

#[test]
fn leaves_nothing_of_two_hundred_sessions() {
    let home = tempfile::tempdir().unwrap();
    let total = if std::env::var_os("BASTIDE_TEST_FULL").is_some() { 200 } else { 20 };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let backend = LocalBackend::new(home.path()).unwrap().without_spare();
    let client = Client::new(Arc::new(backend));
    let many = |numbers: std::ops::Range<usize>| {
        runtime.block_on(async {
            let numbers: Vec<_> = numbers.collect();
            let mut ids = Vec::new();
            for batch in numbers.chunks(16) {
                let uses = batch.iter().map(|number| use_session(&client, *number));
                ids.extend(futures::future::join_all(uses).await);
            }
            client.flush().await;
            ids
        })
    };
    // What is made once, such as the index and its thread, is made now.
    let mut ids = many(0..4);
    let before = HeldResources::of(home.path(), &ids);
    assert_eq!((before.guests, before.folders, before.children.len()), (0, 0, 0));
    assert_eq!((before.mounts, before.cgroups), (0, 0));
    ids.extend(many(0..total));
    // A warden whose session was let go of is collected in its own time.
    let deadline = Instant::now() + Duration::from_secs(20);
    while HeldResources::of(home.path(), &ids) != before && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(HeldResources::of(home.path(), &ids), before);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let left = format!("sleep\0{}\0", nap());
        assert!(line != left.as_bytes(), "a process outlived its session");
    }
    let report = runtime.block_on(client.sweep()).unwrap();
    assert!(report.removed.iter().all(|swept| swept.id.is_none()), "{report:?}");
    assert_eq!(report.failed, []);
}
