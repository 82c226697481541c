//! How containers end, and what is left of them.

use std::time::{Duration, Instant};

use bastide::model::{Entry, Manifest};
use bastide::{Client, CreateOptions, ErrorKind, Session, SessionId, SessionStatus, SweepOptions};
use bastide_testkit::suite::{Context, Outcome, Trial, say};
use bastide_testkit::trials;

use super::setting::{Setting, base, container};

pub(crate) const TRIALS: &[Trial] = trials![
    reuses_the_container_on_resume_with_everything_in_it,
    replaces_a_container_that_is_gone,
    says_that_the_container_was_removed_under_it,
    is_stopped_by_others_at_once,
    refuses_a_container_that_is_not_what_it_was,
    sweeps_away_what_no_session_leads_to,
    sweeps_away_nothing_of_another_machine,
    removes_nothing_of_the_original_with_a_copy,
    labels_everything_it_makes,
];

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(20);

async fn detached(client: &Client, manifest: &Manifest) -> bastide::Result<Session> {
    let options = CreateOptions::default().detached();
    client.create(manifest, options).await
}

async fn until_ended(client: &Client, id: &SessionId) -> Result<bastide::SessionInfo, String> {
    let deadline = Instant::now() + SOON;
    loop {
        let info = client.inspect(id).await.map_err(|error| error.to_string())?;
        if info.status == SessionStatus::Ended {
            return Ok(info);
        }
        if Instant::now() > deadline {
            return Err(format!("it is {:?}", info.status));
        }
        tokio::task::yield_now().await;
    }
}

async fn reuses_the_container_on_resume_with_everything_in_it(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = detached(&client, &Manifest::default()).await?;
    let id = session.id().clone();
    let first = setting.docker(&["inspect", "--format", "{{.Id}}", &container(&session)])?;
    say(&session, "echo kept > file; echo system > /opt/file").await?;
    drop(session);
    client.stop(&id).await?;
    let session = client.resume(&id).await?;
    let second = setting.docker(&["inspect", "--format", "{{.Id}}", &container(&session)])?;
    assert_eq!(first, second, "it is the same container");
    assert_eq!(say(&session, "cat file /opt/file").await?, "kept\nsystem\n");
    Ok(session.delete().await?)
}

async fn replaces_a_container_that_is_gone(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let mut manifest = Manifest::default();
    manifest.entries.insert("file".to_owned(), Entry::file("of the manifest"));
    let session = detached(&client, &manifest).await?;
    let id = session.id().clone();
    let name = container(&session);
    drop(session);
    client.stop(&id).await?;
    setting.docker(&["rm", "--force", &name])?;
    let session = client.resume(&id).await?;
    assert_eq!(session.files().read("file").await?, "of the manifest", "laid out anew");
    Ok(session.delete().await?)
}

async fn says_that_the_container_was_removed_under_it(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = detached(&client, &Manifest::default()).await?;
    let id = session.id().clone();
    let mut process = session.spawn(bastide::Command::shell("echo up; sleep 7901")).await?;
    process.next().await?;
    setting.docker(&["rm", "--force", &container(&session)])?;
    let ended = tokio::time::timeout(SOON, process.next()).await?;
    assert!(ended.is_err(), "{ended:?}");
    until_ended(&client, &id).await?;
    let attached = client.attach(&id).await.map(drop).map_err(|error| error.kind());
    assert_eq!(attached, Err(ErrorKind::BackendLost));
    assert!(client.delete(&id).await?);
    Ok(())
}

/// The engine's own way to stop a container waits for nothing.
async fn is_stopped_by_others_at_once(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = detached(&client, &Manifest::default()).await?;
    let id = session.id().clone();
    let name = container(&session);
    say(&session, "echo kept > file").await?;
    drop(session);
    setting.docker(&["stop", &name])?;
    let code = setting.docker(&["inspect", "--format", "{{.State.ExitCode}}", &name])?;
    assert_eq!(code.trim(), "137");
    until_ended(&client, &id).await?;
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    Ok(session.delete().await?)
}

async fn refuses_a_container_that_is_not_what_it_was(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = detached(&client, &Manifest::default()).await?;
    let id = session.id().clone();
    let name = container(&session);
    drop(session);
    client.stop(&id).await?;
    setting.docker(&["rm", "--force", &name])?;
    let image = bastide_testkit::engine::images::BASE;
    let folder = setting.home.path().display();
    let secret = format!("{folder}:/secret");
    setting.docker(&["create", "--name", &name, "--volume", &secret, image, "sleep", "1"])?;
    let resumed = client.resume(&id).await.map(drop).map_err(|error| error.kind());
    assert_eq!(resumed, Err(ErrorKind::Conflict));
    assert!(client.delete(&id).await?);
    // What has the name of ours and not its labels is somebody else's.
    let state = setting.docker(&["inspect", "--format", "{{.State.Status}}", &name])?;
    assert_eq!(state.trim(), "created");
    setting.docker(&["rm", "--force", &name])?;
    Ok(())
}

/// A container that looks like that of a session of some home.
fn stray(setting: &Setting, home: &str) -> std::io::Result<SessionId> {
    let id = SessionId::random();
    let labels = [format!("bastide.session={id}"), format!("bastide.home={home}")];
    let name = format!("bastide-{id}");
    let image = bastide_testkit::engine::images::BASE;
    let create = ["create", "--name", &name, "--label", &labels[0], "--label", &labels[1], image];
    setting.docker(&[&create[..], &["sleep", "1"]].concat())?;
    Ok(id)
}

fn is_there(setting: &Setting, id: &SessionId) -> std::io::Result<bool> {
    let left = setting.docker(&["ps", "--all", "--quiet", "--filter", &format!("name={id}")])?;
    Ok(!left.is_empty())
}

async fn sweeps_away_what_no_session_leads_to(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let live = detached(&client, &Manifest::default()).await?;
    let own = stray(&setting, &bastide::home_identity(setting.home.path())?)?;
    let options = SweepOptions::default().dry_run();
    let report = client.sweep_with(options).await?;
    assert!(report.removed.iter().any(|swept| swept.what.contains(own.as_str())), "{report:?}");
    assert!(is_there(&setting, &own)?, "it was only said");
    let report = client.sweep().await?;
    assert_eq!(report.failed, []);
    assert!(report.removed.iter().any(|swept| swept.what.contains(own.as_str())), "{report:?}");
    assert!(!is_there(&setting, &own)?);
    assert_eq!(say(&live, "echo here").await?, "here\n");
    Ok(live.delete().await?)
}

/// Machines share a daemon, and have homes at the same path. Containers of earlier versions say only the
/// path.
async fn sweeps_away_nothing_of_another_machine(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let path = setting.home.path().canonicalize()?.display().to_string();
    let (earlier, other) = (stray(&setting, &path)?, stray(&setting, "0123456789abcdef")?);
    let report = client.sweep().await?;
    assert_eq!((&report.removed[..], &report.failed[..]), (&[][..], &[][..]));
    let named = report.unclear.iter().filter(|swept| swept.what.contains(earlier.as_str()));
    assert_eq!(named.count(), 1, "{report:?}");
    for id in [earlier, other] {
        assert!(is_there(&setting, &id)?, "{id}");
        setting.docker(&["rm", "--force", &format!("bastide-{id}")])?;
    }
    Ok(())
}

async fn removes_nothing_of_the_original_with_a_copy(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = detached(&client, &Manifest::default()).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    for verb in ["rm", "stop", "resume", "sweep"] {
        let copy = Setting::new(&setting.host)?;
        let (from, to) = (setting.home.path().join("."), copy.home.path().join("."));
        let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status()?;
        assert!(copied.success());
        let other = copy.client(base())?;
        assert_eq!(other.inspect(&id).await?.status, SessionStatus::Ended);
        match verb {
            "rm" => assert!(other.delete(&id).await?),
            "stop" => drop(other.stop(&id).await?),
            "resume" => {
                let refused = other.resume(&id).await.map(drop).map_err(|error| error.kind());
                assert_eq!(refused, Err(ErrorKind::Conflict));
            }
            _ => {
                std::fs::remove_dir_all(copy.home.path().join("sessions").join(id.as_str()))?;
                let swept = other.sweep().await?;
                assert_eq!(swept.removed, [], "{swept:?}");
            }
        }
        assert_eq!(say(&session, "cat file").await?, "kept\n", "after {verb}");
    }
    Ok(session.delete().await?)
}

async fn labels_everything_it_makes(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let mut options = base();
    options.labels.insert("team".to_owned(), "blue".to_owned());
    let session = setting.session(options).await?;
    let format = "{{index .Config.Labels \"bastide.session\"}} {{.Config.Labels.team}}";
    let seen = setting.docker(&["inspect", "--format", format, &container(&session)])?;
    assert_eq!(seen.trim(), format!("{} blue", session.id()));
    Ok(session.delete().await?)
}
