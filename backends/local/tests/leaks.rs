//! Many sessions, and nothing of them left: in a process of its own, so that everything it holds can be
//! counted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::{Entry, Manifest};
use bastide::{Client, Command, CreateOptions};
use bastide_local::LocalBackend;

/// What a session could leave behind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holdings {
    descriptors: Vec<String>,
    children: Vec<String>,
    guests: usize,
    mounts: usize,
    cgroups: usize,
    folders: usize,
    files: usize,
}

impl Holdings {
    fn of(home: &Path) -> Self {
        Self {
            descriptors: descriptors(),
            children: children(),
            guests: guests(home),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            cgroups: count(Path::new("/sys/fs/cgroup"), &|name| name.contains("bastide")),
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

/// The children of this process, ended ones that nobody collected included.
fn children() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Processes that run a guest of this home.
fn guests(home: &Path) -> usize {
    let folder = fs::canonicalize(home).unwrap().join("guests");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let programs = entries.filter_map(|entry| fs::read_link(entry.path().join("exe")).ok());
    programs.filter(|program| program.parent() == Some(&folder)).count()
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

async fn use_session(client: &Client, number: usize) {
    let mut manifest = Manifest::default();
    manifest.entries.insert("a/file".to_owned(), Entry::file("content"));
    let mut options = CreateOptions::default();
    options.tied_to_owner = number.is_multiple_of(2);
    let session = client.create(&manifest, options).await.unwrap();
    let line = "cat a/file; mkdir -p b/c; (setsid sleep 8001 >/dev/null 2>&1 &)";
    let output = session.exec(Command::shell(line)).await.unwrap();
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
            for batch in numbers.chunks(16) {
                let uses = batch.iter().map(|number| use_session(&client, *number));
                futures::future::join_all(uses).await;
            }
            client.flush().await;
        });
    };
    // What is made once, such as the index and its thread, is made now.
    many(0..4);
    let before = Holdings::of(home.path());
    assert_eq!((before.guests, before.folders, before.children.len()), (0, 0, 0));
    many(0..total);
    // A warden whose session was let go of is collected in its own time.
    let deadline = Instant::now() + Duration::from_secs(20);
    while Holdings::of(home.path()) != before && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(Holdings::of(home.path()), before);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        assert!(line != b"sleep\x008001\x00", "a process outlived its session");
    }
    let report = runtime.block_on(client.sweep()).unwrap();
    assert!(report.removed.iter().all(|swept| swept.id.is_none()), "{report:?}");
    assert_eq!(report.failed, []);
}

/// Waits for something that is bound to happen.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// The wardens of this process.
fn wardens() -> Vec<i32> {
    children().iter().map(|child| child.parse().unwrap()).collect()
}

#[test]
fn keeps_one_foundation_ready_and_leaves_nothing_of_it() {
    let home = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let client = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap()));
    let session = || {
        runtime.block_on(async {
            let manifest = Manifest::default();
            let session = client.create(&manifest, CreateOptions::default()).await.unwrap();
            let output = session.exec(Command::shell("hostname; ls /workspace")).await.unwrap();
            let hostname = format!("bastide-{}\n", &session.id().as_str()[..8]);
            assert_eq!(String::from_utf8_lossy(&output.stdout), hostname);
            let rung = session.receipt().rung;
            session.delete().await.unwrap();
            rung
        })
    };
    let rung = session();
    until("the first session leaves nothing", || guests(home.path()) == 0 && wardens().is_empty());
    session();
    if rung != bastide::Rung::Namespaces {
        return;
    }
    // A warden, and the first process of a sandbox that has no session yet.
    until("there is a foundation for the third", || guests(home.path()) == 2);
    let report = runtime.block_on(client.sweep()).unwrap();
    // Locks of ids are everybody's; those of sessions that were killed elsewhere may be among them.
    let ours: Vec<_> =
        report.removed.iter().filter(|one| !one.what.contains("id-ranges")).collect();
    assert_eq!((ours.len(), report.failed.len()), (0, 0), "{report:?}");
    let ready = wardens();
    assert_eq!(ready.len(), 1);
    session();
    until("it was used, and there is another", || {
        guests(home.path()) == 2 && wardens().iter().all(|warden| !ready.contains(warden))
    });
    // Whoever ends it does no harm.
    let spare = rustix::process::Pid::from_raw(wardens()[0]).unwrap();
    rustix::process::kill_process(spare, rustix::process::Signal::KILL).unwrap();
    session();
    until("there is another", || guests(home.path()) == 2 && wardens().len() == 1);
    drop(client);
    until("it ends with its client", || guests(home.path()) == 0 && wardens().is_empty());
}
