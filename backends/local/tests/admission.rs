//! A home with room for few sessions, and many who want one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorKind};
use bastide_local::LocalBackend;
use bastide_testkit::admission::storm;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_all_who_wait_and_never_has_more_than_there_is_room_for() {
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let (many, room) = if full { (200, 20) } else { (20, 4) };
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), format!("max_sessions = {room}\n")).unwrap();
    let client = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap()));
    storm(&client, many, room).await.unwrap();
    let left = std::fs::read_dir(home.path().join("queue")).unwrap().count();
    assert_eq!(left, 0, "no ticket is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_those_who_wait_in_the_order_in_which_they_came() {
    const WAITERS: usize = 8;
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), "max_sessions = 1\n").unwrap();
    let client = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap()));
    let first = client.create(&Manifest::default(), CreateOptions::default()).await.unwrap();
    let tickets = || std::fs::read_dir(home.path().join("queue")).map_or(0, Iterator::count);
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..WAITERS {
        let (client, served) = (client.clone(), served.clone());
        tokio::spawn(async move {
            let options = CreateOptions::default().wait(Duration::from_secs(600));
            let made = client.create(&Manifest::default(), options).await;
            drop(served.send((number, made)));
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while tickets() <= number {
            assert!(Instant::now() < deadline, "number {number} never waits");
            tokio::task::yield_now().await;
        }
    }
    first.delete().await.unwrap();
    for number in 0..WAITERS {
        let (came, made) = order.recv().await.unwrap();
        assert_eq!(came, number, "somebody was served before their turn");
        made.unwrap().delete().await.unwrap();
    }
    assert_eq!(tickets(), 0);
}

#[tokio::test]
async fn bounds_who_asks_for_nothing_and_refuses_what_never_fits() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config.toml");
    std::fs::write(&config, "memory = \"1g\"\ndefault_memory = \"600m\"\n").unwrap();
    let client = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap()));
    let manifest = Manifest::default();
    let create = |options| client.create(&manifest, options);
    let mut large = CreateOptions::default();
    large.limits.memory = Some(2 << 30);
    assert_eq!(create(large).await.unwrap_err().kind(), ErrorKind::LimitExceeded);
    let first = create(CreateOptions::default()).await.unwrap();
    // Twice 600 MiB are more than there is, and what is left is enough for a small one.
    let error = create(CreateOptions::default()).await.unwrap_err();
    assert!(error.message().contains("no room"), "{error}");
    let mut small = CreateOptions::default();
    small.limits.memory = Some(300 << 20);
    let second = create(small).await.unwrap();
    second.delete().await.unwrap();
    // What stops gives its room back, and takes it again when it goes on.
    first.delete().await.unwrap();
    std::fs::write(&config, "max_session = 1\n").unwrap();
    let error = create(CreateOptions::default()).await.unwrap_err();
    assert!(error.message().contains("config.toml"), "{error}");
}
