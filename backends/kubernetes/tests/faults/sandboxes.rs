//! Sessions that are a `Sandbox` of agent-sandbox, with its own definitions and controller.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, Session};
use bastide_kubernetes::Owner;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for, say, skip};
use bastide_testkit::trials;
use k8s_openapi::jiff::Timestamp;

use crate::{NAMESPACE, administer, backend_with, is_not_what_replaces_its_pod, objects, until};

pub(crate) const TRIALS: &[Trial] = trials![
    is_a_sandbox_and_nothing_else,
    lasts_as_long_as_its_lifetime_when_it_is_let_go_of,
    is_not_what_its_controller_puts_in_its_place,
    says_what_forbids_the_pod_of_a_sandbox,
];

/// The kind, in full: there may be another of that name.
const KIND: &str = "sandboxes.agents.x-k8s.io";

const SOON: Duration = Duration::from_secs(40);

fn client(home: &Path) -> Result<Client, TrialError> {
    if administer(&["get", "crd", KIND]).is_err() {
        return Err(skip("agent-sandbox is not installed in the cluster"));
    }
    let backend = backend_with(home, |options| options.owner = Owner::Sandbox)?;
    Ok(client_for(Arc::new(backend)))
}

fn of(session: &Session) -> String {
    format!("bastide.session={}", session.id())
}

fn shutdown(selector: &str) -> Result<String, TrialError> {
    let path = "jsonpath={.items[0].spec.shutdownTime}";
    administer(&["-n", NAMESPACE, "get", KIND, "-l", selector, "-o", path])
}

async fn is_a_sandbox_and_nothing_else(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let client = client(home.path())?;
    let tied = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let soon = shutdown(&of(&tied))?;
    let session = client.create(&Manifest::default(), CreateOptions::default().detached()).await?;
    let selector = of(&session);
    assert_eq!(objects(KIND, &selector)?, [format!("bastide-{}", session.id())]);
    assert!(objects("jobs", &selector)?.is_empty());
    assert_eq!(say(&session, "id -u").await?, "1000\n");
    // One that was let go of lasts a day; times of this form are in order as text.
    let late = shutdown(&selector)?;
    assert!(soon[..10] <= late[..10] && late[..13] > soon[..13], "{soon} {late}");
    let id = session.id().clone();
    drop(session);
    let session = client.attach(&id).await?;
    assert_eq!(say(&session, "echo there").await?, "there\n");
    drop(session);
    client.stop(&id).await?;
    assert!(objects(KIND, &selector)?.is_empty(), "it was stopped");
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "echo again").await?, "again\n");
    session.delete().await?;
    let tied_of = of(&tied);
    drop(tied);
    let gone = || {
        Ok(objects(KIND, &selector)?.is_empty()
            && objects(KIND, &tied_of)?.is_empty()
            && objects("pods", &tied_of)?.is_empty())
    };
    until(SOON, "nothing is left", gone).await?;
    Ok(())
}

async fn lasts_as_long_as_its_lifetime_when_it_is_let_go_of(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    client(home.path())?;
    let backend = backend_with(home.path(), |options| {
        options.owner = Owner::Sandbox;
        options.lifetime_seconds = Some(3600);
    })?;
    let client = client_for(Arc::new(backend));
    let session = client.create(&Manifest::default(), CreateOptions::default().detached()).await?;
    let path = "jsonpath={.items[0].metadata.creationTimestamp} {.items[0].spec.shutdownTime}";
    let shown = administer(&["-n", NAMESPACE, "get", KIND, "-l", &of(&session), "-o", path])?;
    let (made, end) = shown.split_once(' ').ok_or("no times")?;
    let (made, end) = (made.parse::<Timestamp>()?, end.parse::<Timestamp>()?);
    assert_eq!(end.duration_since(made).as_secs(), 3600, "{shown}");
    Ok(session.delete().await?)
}

/// Somebody deletes the pod, and the controller makes another of the same name.
async fn is_not_what_its_controller_puts_in_its_place(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let client = client(home.path())?;
    let session = client.create(&Manifest::default(), CreateOptions::default().detached()).await?;
    let selector = of(&session);
    is_not_what_replaces_its_pod(&client, &session, &selector).await?;
    assert!(client.attach(session.id()).await.is_err());
    session.delete().await?;
    until(SOON, "it is gone", || Ok(objects(KIND, &selector)?.is_empty())).await?;
    Ok(())
}

async fn says_what_forbids_the_pod_of_a_sandbox(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    client(home.path())?;
    let backend = backend_with(home.path(), |options| {
        options.owner = Owner::Sandbox;
        options.many_users = true;
        options.boot_seconds = Some(30);
    })?;
    let client = client_for(Arc::new(backend));
    let made = client.create(&Manifest::default(), CreateOptions::default()).await;
    let error = made.err().ok_or("a pod of root was taken")?;
    assert_eq!(error.kind(), bastide::ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("restricted"), "{error}");
    let home = format!("bastide.home={}", bastide::home_identity(home.path())?);
    until(SOON, "nothing is left", || Ok(objects(KIND, &home)?.is_empty())).await?;
    Ok(())
}
