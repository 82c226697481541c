//! Sessions from a pool of agent-sandbox, with its own definitions and controller.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorKind, MachineSpec};
use bastide_kubernetes::{KubernetesOptions, PodPull, pool_manifest};
use bastide_testkit::engine::images;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for, say, skip};
use bastide_testkit::trials;

use crate::{NAMESPACE, administer, backend_with, is_not_what_replaces_its_pod, objects, until};

pub(crate) const TRIALS: &[Trial] = trials![
    takes_a_pod_that_is_ready,
    is_not_what_is_put_in_the_place_of_a_pod_of_a_pool,
    says_that_there_is_no_such_pool,
    says_what_a_pool_waits_for,
    takes_no_pod_of_another_kind,
];

/// The kinds, in full.
const CLAIMS: &str = "sandboxclaims.extensions.agents.x-k8s.io";
const POOLS: &str = "sandboxwarmpools.extensions.agents.x-k8s.io";
const TEMPLATES: &str = "sandboxtemplates.extensions.agents.x-k8s.io";

const SOON: Duration = Duration::from_secs(40);

/// A pool for one trial.
struct Pool(&'static str);

impl Pool {
    /// Makes one, as an administrator is told to.
    fn apply(
        name: &'static str,
        replicas: u32,
        change: impl FnOnce(&mut KubernetesOptions),
    ) -> Result<Self, TrialError> {
        if administer(&["get", "crd", POOLS]).is_err() {
            return Err(skip("agent-sandbox is not installed in the cluster"));
        }
        let mut options = KubernetesOptions::new(images::BASE);
        options.pull = PodPull::Never;
        change(&mut options);
        let spec = MachineSpec::new("/workspace".parse()?);
        let text = pool_manifest(NAMESPACE, name, replicas, &spec, &options)?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        administer(&["apply", "--server-side", "-f", &file.path().to_string_lossy()])?;
        Ok(Self(name))
    }

    async fn has_ready(&self, count: usize) -> Outcome {
        let is_ready = || {
            let path = "jsonpath={.status.readyReplicas}";
            let ready = administer(&["-n", NAMESPACE, "get", POOLS, self.0, "-o", path])?;
            Ok(ready.parse::<usize>().unwrap_or(0) >= count)
        };
        until(SOON, "the pool has its pods", is_ready).await.map(drop)
    }

    fn client(&self, home: &Path) -> Result<Client, TrialError> {
        let backend = backend_with(home, |options| {
            *options = KubernetesOptions::from_pool(self.0);
            options.boot_seconds = Some(20);
        })?;
        Ok(client_for(Arc::new(backend)))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for kind in [POOLS, TEMPLATES] {
            // What stays is in nobody's way.
            drop(administer(&["-n", NAMESPACE, "delete", kind, self.0, "--ignore-not-found"]));
        }
    }
}

fn nothing_is_left(home: &Path) -> Result<bool, TrialError> {
    let identity = bastide::home_identity(home)?;
    Ok(objects(CLAIMS, &format!("bastide.home={identity}"))?.is_empty()
        && objects("pods", &format!("sandbox.users.io/bastide-home={identity}"))?.is_empty())
}

async fn takes_a_pod_that_is_ready(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let pool = Pool::apply("ready", 1, |_| {})?;
    pool.has_ready(1).await?;
    let client = pool.client(home.path())?;
    let session = client.create(&Manifest::default(), CreateOptions::default().detached()).await?;
    let selector = format!("bastide.session={}", session.id());
    assert_eq!(objects(CLAIMS, &selector)?, [format!("bastide-{}", session.id())]);
    assert!(objects("jobs", &selector)?.is_empty());
    let of_pod = format!("sandbox.users.io/bastide-session={}", session.id());
    assert!(objects("pods", &of_pod)?[0].starts_with("ready-"), "it was ready");
    assert_eq!(say(&session, "id -u; pwd; echo kept > file").await?, "1000\n/workspace\n");
    let id = session.id().clone();
    drop(session);
    let session = client.attach(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    drop(session);
    client.stop(&id).await?;
    assert!(nothing_is_left(home.path())?, "it was stopped");
    // Whether or not another is ready.
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    session.delete().await?;
    // One that ends with its maker.
    let tied = client.create(&Manifest::default(), CreateOptions::default()).await?;
    assert_eq!(say(&tied, "ls").await?, "", "another's files");
    drop(tied);
    until(SOON, "nothing is left", || nothing_is_left(home.path())).await?;
    assert!(client.sweep().await?.removed.is_empty());
    Ok(())
}

/// Somebody deletes the pod, and the controller makes another of the same name.
async fn is_not_what_is_put_in_the_place_of_a_pod_of_a_pool(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let pool = Pool::apply("swapped", 1, |_| {})?;
    let client = pool.client(home.path())?;
    let session = client.create(&Manifest::default(), CreateOptions::default().detached()).await?;
    let selector = format!("sandbox.users.io/bastide-session={}", session.id());
    is_not_what_replaces_its_pod(&client, &session, &selector).await?;
    session.delete().await?;
    until(SOON, "nothing is left", || nothing_is_left(home.path())).await?;
    Ok(())
}

async fn says_that_there_is_no_such_pool(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let pool = Pool::apply("gone", 0, |_| {})?;
    administer(&["-n", NAMESPACE, "delete", POOLS, pool.0])?;
    let begun = Instant::now();
    let client = pool.client(home.path())?;
    let made = client.create(&Manifest::default(), CreateOptions::default()).await;
    let error = made.err().ok_or("it was had")?;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.message().contains("no pool gone"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    until(SOON, "nothing is left", || nothing_is_left(home.path())).await?;
    Ok(())
}

async fn says_what_a_pool_waits_for(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let pool = Pool::apply("pending", 0, |options| {
        options.node_selector.insert("no".to_owned(), "such".to_owned());
    })?;
    let client = pool.client(home.path())?;
    let made = client.create(&Manifest::default(), CreateOptions::default()).await;
    let error = made.err().ok_or("it was had")?;
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.message().contains("no node takes the pod"), "{error}");
    until(SOON, "nothing is left", || nothing_is_left(home.path())).await?;
    Ok(())
}

/// A template that somebody wrote, and not for these sessions.
async fn takes_no_pod_of_another_kind(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let pool = Pool::apply("another", 0, |_| {})?;
    let patch = r#"[{"op": "replace", "path": "/spec/podTemplate/spec/containers/0/command/1", "value": "another"}]"#;
    administer(&["-n", NAMESPACE, "patch", TEMPLATES, pool.0, "--type", "json", "-p", patch])?;
    let client = pool.client(home.path())?;
    let made = client.create(&Manifest::default(), CreateOptions::default()).await;
    let error = made.err().ok_or("it was had")?;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("another version"), "{error}");
    until(SOON, "nothing is left", || nothing_is_left(home.path())).await?;
    Ok(())
}
