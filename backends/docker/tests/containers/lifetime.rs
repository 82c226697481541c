//! How containers end, and what is left of them.

use std::time::{Duration, Instant};

use bastide::model::{Entry, Manifest};
use bastide::{Client, CreateOptions, ErrorKind, Session, SessionId, SessionState};
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
    labels_everything_it_makes,
];

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(20);

async fn untied(client: &Client, manifest: &Manifest) -> bastide::Result<Session> {
    let mut options = CreateOptions::default();
    options.tied_to_owner = false;
    client.create(manifest, options).await
}

async fn until_ended(client: &Client, id: &SessionId) -> Result<bastide::SessionInfo, String> {
    let deadline = Instant::now() + SOON;
    loop {
        let info = client.inspect(id).await.map_err(|error| error.to_string())?;
        if info.state == SessionState::Ended {
            return Ok(info);
        }
        if Instant::now() > deadline {
            return Err(format!("it is {:?}", info.state));
        }
        tokio::task::yield_now().await;
    }
}

async fn reuses_the_container_on_resume_with_everything_in_it(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = untied(&client, &Manifest::default()).await?;
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
    let session = untied(&client, &manifest).await?;
    let id = session.id().clone();
    let name = container(&session);
    drop(session);
    client.stop(&id).await?;
    setting.docker(&["rm", "--force", &name])?;
    let session = client.resume(&id).await?;
    assert_eq!(session.read("file").await?, "of the manifest", "laid out anew");
    Ok(session.delete().await?)
}

async fn says_that_the_container_was_removed_under_it(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = untied(&client, &Manifest::default()).await?;
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
    let session = untied(&client, &Manifest::default()).await?;
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
    let session = untied(&client, &Manifest::default()).await?;
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
    Ok(())
}

async fn sweeps_away_what_no_session_leads_to(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let live = untied(&client, &Manifest::default()).await?;
    let stray = SessionId::random();
    let home = setting.home.path().canonicalize()?;
    let labels = [format!("bastide.session={stray}"), format!("bastide.home={}", home.display())];
    let name = format!("bastide-{stray}");
    let image = bastide_testkit::engine::images::BASE;
    let create = ["create", "--name", &name, "--label", &labels[0], "--label", &labels[1], image];
    setting.docker(&[&create[..], &["sleep", "1"]].concat())?;
    let report = client.sweep().await?;
    assert_eq!(report.failed, []);
    assert!(report.removed.iter().any(|swept| swept.what.contains(stray.as_str())), "{report:?}");
    let left = setting.docker(&["ps", "--all", "--quiet", "--filter", &format!("name={stray}")])?;
    assert_eq!(left, "");
    assert_eq!(say(&live, "echo here").await?, "here\n");
    Ok(live.delete().await?)
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
