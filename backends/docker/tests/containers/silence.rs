//! Daemons that do not answer, and containers that cannot: what is not known is not said.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorKind, SessionId, SessionStatus};
use bastide_testkit::engine::DaemonOptions;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say};
use bastide_testkit::trials;

use super::daemons::own_daemon;
use super::setting::{Setting, base, container};

pub(crate) const TRIALS: &[Trial] = trials![
    says_unknown_of_what_a_silent_daemon_keeps_and_waits_for_it_once,
    says_that_a_container_is_paused,
];

async fn detached(client: &Client) -> Result<SessionId, TrialError> {
    let options = CreateOptions::default().detached();
    let session = client.create(&Manifest::default(), options).await?;
    say(&session, "echo kept > file").await?;
    Ok(session.id().clone())
}

/// A daemon that takes connections and answers none of them; how many came.
fn frozen(socket: &Path) -> std::io::Result<Arc<AtomicUsize>> {
    let listener = UnixListener::bind(socket)?;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    // It ends with the process; nobody finds it once its socket has gone.
    thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept() {
            counted.fetch_add(1, Ordering::SeqCst);
            held.push(connection);
        }
    });
    Ok(count)
}

async fn says_unknown_of_what_a_silent_daemon_keeps_and_waits_for_it_once(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let live =
        DaemonOptions { arguments: vec!["--live-restore".to_owned()], ..DaemonOptions::default() };
    let mut daemon = own_daemon(&folder.path().join("daemon"), &live)?;
    let setting = Setting::new(&daemon.host())?;
    let client = setting.client(base())?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(detached(&client).await?);
    }
    let host = daemon.host();
    let socket = Path::new(host.strip_prefix("unix://").ok_or("a daemon without a socket")?);
    daemon.end();
    let states = |listed: &[bastide::SessionInfo]| -> Vec<SessionStatus> {
        listed.iter().map(|info| info.status).collect()
    };
    // One that talked to it before, and one that did not.
    for client in [client, setting.client(base())?] {
        let listed = client.list().await?;
        assert_eq!(states(&listed), [SessionStatus::Unknown; 3], "{listed:?}");
        assert!(listed.iter().all(|info| info.trouble.is_some()), "{listed:?}");
    }
    drop(fs::remove_file(socket));
    let count = frozen(socket)?;
    let client = setting.client(base())?;
    let listed = client.list().await?;
    assert_eq!(states(&listed), [SessionStatus::Unknown; 3], "{listed:?}");
    assert_eq!(count.load(Ordering::SeqCst), 1, "it was waited for once");
    fs::remove_file(socket)?;
    daemon.restart()?;
    let client = setting.client(base())?;
    let listed = client.list().await?;
    assert_eq!(states(&listed), [SessionStatus::Running; 3], "{listed:?}");
    for id in &ids {
        let session = client.attach(id).await?;
        assert_eq!(say(&session, "cat file").await?, "kept\n");
        session.delete().await?;
    }
    Ok(())
}

async fn says_that_a_container_is_paused(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let id = detached(&client).await?;
    let name = container(&client.attach(&id).await?);
    setting.docker(&["pause", &name])?;
    let info = client.inspect(&id).await?;
    assert_eq!(info.status, SessionStatus::Paused);
    assert!(info.trouble.is_some_and(|trouble| trouble.contains("docker unpause")));
    let attached = client.attach(&id).await.map(drop);
    let stopped = client.stop(&id).await.map(drop);
    for refused in [attached, stopped] {
        let error = refused.err().ok_or("it was used though it is paused")?;
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.message().contains("is paused"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("docker unpause")), "{error}");
    }
    client.sweep().await?;
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Paused, "nobody lost it");
    setting.docker(&["unpause", &name])?;
    let session = client.attach(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    drop(session);
    // Whoever does not want it any more need not let it run before.
    setting.docker(&["pause", &name])?;
    assert!(client.delete(&id).await?);
    assert!(client.inspect(&id).await.is_err());
    Ok(())
}
