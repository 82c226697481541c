//! What is made ready for the next session, and that nothing is left of it: in a process of its own, so that
//! its children can be counted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "counting/processes.rs"]
mod processes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions};
use bastide_local::LocalBackend;

use processes::{children, guests};

/// Waits for something that is bound to happen.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// The children of this process: the warden of a first session, then the zygote.
fn own() -> Vec<i32> {
    children().iter().map(|child| child.parse().unwrap()).collect()
}

/// The wardens that a zygote of this process has forked.
fn wardens() -> Vec<i32> {
    let lists = own().into_iter().map(|pid| format!("/proc/{pid}/task/{pid}/children"));
    let lists = lists.filter_map(|list| std::fs::read_to_string(list).ok());
    lists.flat_map(|list| numbers(&list)).collect()
}

fn numbers(list: &str) -> Vec<i32> {
    list.split_whitespace().map(|number| number.parse().unwrap()).collect()
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
    until("the first session leaves nothing", || guests(home.path()) == 0 && own().is_empty());
    session();
    if rung != bastide::Rung::Namespaces {
        return;
    }
    // A zygote, its warden, and the first process of a sandbox that has no session yet.
    until("there is a foundation for the third", || {
        guests(home.path()) == 3 && wardens().len() == 1
    });
    let report = runtime.block_on(client.sweep()).unwrap();
    // Locks of ids are everybody's; those of sessions that were killed elsewhere may be among them.
    let ours: Vec<_> =
        report.removed.iter().filter(|one| !one.what.contains("id-ranges")).collect();
    assert_eq!((ours.len(), report.failed.len()), (0, 0), "{report:?}");
    let ready = wardens();
    assert_eq!(ready.len(), 1);
    session();
    until("it was used, and there is another", || {
        let others = wardens();
        guests(home.path()) == 3 && others.len() == 1 && others != ready
    });
    // Whoever ends it does no harm.
    for ended in [wardens()[0], own()[0]] {
        let ended = rustix::process::Pid::from_raw(ended).unwrap();
        rustix::process::kill_process(ended, rustix::process::Signal::KILL).unwrap();
        session();
        session();
        until("there is another", || guests(home.path()) == 3 && wardens().len() == 1);
    }
    drop(client);
    until("it ends with its client", || guests(home.path()) == 0 && own().is_empty());
}
