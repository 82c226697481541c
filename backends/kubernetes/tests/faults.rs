//! What only a cluster of one's own can show: parts of it are killed while a command speaks, pods are ended by others, makers
//! are killed, and requests are counted. Whoever runs these says that nobody else uses the cluster.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

#[path = "faults/access.rs"]
mod access;
#[path = "faults/ends.rs"]
mod ends;
#[path = "faults/guests.rs"]
mod guests;
#[path = "faults/homes.rs"]
mod homes;
#[path = "faults/makers.rs"]
mod makers;
#[path = "faults/networks.rs"]
mod networks;
#[path = "faults/outages.rs"]
mod outages;
#[path = "faults/pools.rs"]
mod pools;
#[path = "faults/ports.rs"]
mod ports;
#[path = "faults/queues.rs"]
mod queues;
#[path = "faults/refusals.rs"]
mod refusals;
#[path = "faults/requests.rs"]
mod requests;
#[path = "faults/sandboxes.rs"]
mod sandboxes;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::{Client, Session};
use bastide_kubernetes::{ClusterAccess, KubernetesBackend, KubernetesOptions, PodPull};
use bastide_testkit::cluster::Cluster;
use bastide_testkit::engine::images;
use bastide_testkit::kubernetes;
use bastide_testkit::suite::{self, Context, Outcome, Trial, TrialError, sh, skip};

/// The variable by which `cargo xtask test` runs these, alone.
const ALONE: &str = "BASTIDE_TEST_FAULTS";

/// How long a controller may take to replace a pod.
const REPLACED: Duration = Duration::from_secs(40);

/// The namespace that tests have.
const NAMESPACE: &str = "bastide-test";

fn main() -> ExitCode {
    if let Some(code) = makers::run_if_asked().or_else(ports::run_if_asked) {
        return code;
    }
    let all = [
        access::TRIALS,
        ends::TRIALS,
        guests::TRIALS,
        homes::TRIALS,
        makers::TRIALS,
        networks::TRIALS,
        outages::TRIALS,
        pools::TRIALS,
        ports::TRIALS,
        queues::TRIALS,
        refusals::TRIALS,
        requests::TRIALS,
        sandboxes::TRIALS,
    ];
    let trials: Vec<Trial> =
        if std::env::var_os(ALONE).is_some() { all.concat() } else { Vec::new() };
    if let Err(why) = kubernetes::for_tests() {
        return suite::skip_all("faults", &trials, &why);
    }
    let home = tempfile::tempdir().expect("a folder for the sessions of this run");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let backend = backend(home.path()).expect("a home");
    let context = Context { backend: Arc::new(backend), full };
    suite::run(&[("faults", &context, trials)])
}

/// A backend that nobody has used yet.
fn backend(home: &Path) -> Result<KubernetesBackend, TrialError> {
    backend_with(home, |_| {})
}

/// The same with other options.
fn backend_with(
    home: &Path,
    change: impl FnOnce(&mut KubernetesOptions),
) -> Result<KubernetesBackend, TrialError> {
    let mut options = KubernetesOptions::new(images::BASE).pull(PodPull::Never);
    change(&mut options);
    let access = ClusterAccess::new(vec![kubernetes::for_tests()?]);
    Ok(KubernetesBackend::new(home, access, options)?)
}

/// The cluster, if it is one of ours.
fn cluster() -> Result<Cluster, TrialError> {
    let file = kubernetes::for_tests()?;
    let folder = file.parent().and_then(Path::parent).ok_or("no folder of a cluster")?;
    Cluster::of(folder).map_err(|error| skip(error.to_string()))
}

/// What the administrator of the cluster is told.
fn administer(arguments: &[&str]) -> Result<String, TrialError> {
    let output = cluster()?.kubectl(arguments).output()?;
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The objects of a kind that the namespace has, by name.
fn objects(kind: &str, selector: &str) -> Result<Vec<String>, TrialError> {
    let path = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
    let said = administer(&["-n", NAMESPACE, "get", kind, "-l", selector, "-o", path])?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Deletes the pod of a session, for which its controller makes another: that one is not the session.
async fn is_not_what_replaces_its_pod(
    client: &Client,
    session: &Session,
    selector: &str,
) -> Outcome {
    let uid = || {
        let path = "jsonpath={.items[*].metadata.uid}";
        administer(&["-n", NAMESPACE, "get", "pods", "-l", selector, "-o", path])
    };
    let before = uid()?;
    administer(&["-n", NAMESPACE, "delete", "pod", "-l", selector])?;
    let swapped = || uid().map(|now| !now.is_empty() && now != before);
    until(REPLACED, "there is another pod", swapped).await?;
    let end = client.inspect(session.id()).await?.end.ok_or("it is taken for the session")?;
    assert_eq!(end.reason, "backend_lost", "{end:?}");
    assert!(session.exec(sh("true")).await.is_err());
    Ok(())
}

/// Waits until something is so.
async fn until(
    most: Duration,
    what: &str,
    mut is_so: impl FnMut() -> Result<bool, TrialError>,
) -> Result<Duration, TrialError> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > most {
            return Err(format!("{what}: not after {most:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(begun.elapsed())
}
