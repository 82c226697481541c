//! Parts of a cluster that are killed while a command speaks: it does not notice. Whoever runs these says that nobody else
//! uses the cluster.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bastide::{Command, Session};
use bastide_kubernetes::{ClusterAccess, KubernetesBackend, KubernetesOptions, PodPull};
use bastide_testkit::cluster::Cluster;
use bastide_testkit::engine::images;
use bastide_testkit::kubernetes;
use bastide_testkit::suite::{self, Context, Outcome, Trial, TrialError, say, sh, skip};
use bastide_testkit::trials;

/// The variable by which `cargo xtask test` runs these, alone.
const ALONE: &str = "BASTIDE_TEST_FAULTS";

/// How many lines a command says, a hundred a tenth of a second.
const LINES: usize = 15_000;

const TRIALS: &[Trial] = trials![
    output_goes_on_when_the_api_server_is_killed,
    output_goes_on_when_the_store_is_stopped,
    output_goes_on_when_a_kubelet_restarts,
    output_goes_on_when_an_engine_restarts,
];

fn main() -> ExitCode {
    let trials: &[Trial] = if std::env::var_os(ALONE).is_some() { TRIALS } else { &[] };
    let kubeconfig = match kubernetes::for_tests() {
        Ok(kubeconfig) => kubeconfig,
        Err(why) => return suite::skip_all("faults", trials, &why),
    };
    let home = tempfile::tempdir().expect("a folder for the sessions of this run");
    let mut options = KubernetesOptions::new(images::BASE);
    options.pull = PodPull::Never;
    options.unproved_network = true;
    let access = ClusterAccess::new(vec![kubeconfig]);
    let backend = KubernetesBackend::new(home.path(), access, options).expect("a home");
    let context = Context { backend: Arc::new(backend), full: false };
    suite::run(&[("faults", &context, trials.to_vec())])
}

/// The cluster, if it is one of ours.
fn cluster() -> Result<Cluster, TrialError> {
    let file = kubernetes::for_tests()?;
    let folder = file.parent().and_then(Path::parent).ok_or("no folder of a cluster")?;
    Cluster::of(folder).map_err(|error| skip(error.to_string()))
}

fn numbered() -> Command {
    sh(&format!(
        "i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; [ $((i % 100)) -ne 0 ] || sleep 0.1; done; exit 7"
    ))
}

/// Runs the command while something of the cluster is away for a time.
async fn disturb(context: &Context, name: &'static str, pause: Duration) -> Outcome {
    let cluster = cluster()?;
    let session: Session = context.session().await?;
    let away = tokio::task::spawn_blocking(move || cluster.restart(name, pause));
    let output = session.exec(numbered()).await?;
    away.await??;
    let expected: String = (1..=LINES).map(|number| format!("line {number}\n")).collect();
    assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    assert_eq!(output.exit.code, 7);
    assert_eq!(say(&session, "echo still there").await?, "still there\n");
    Ok(session.delete().await?)
}

async fn output_goes_on_when_the_api_server_is_killed(context: Context) -> Outcome {
    disturb(&context, "apiserver", Duration::from_secs(10)).await
}

async fn output_goes_on_when_the_store_is_stopped(context: Context) -> Outcome {
    disturb(&context, "etcd", Duration::from_secs(5)).await
}

async fn output_goes_on_when_a_kubelet_restarts(context: Context) -> Outcome {
    disturb(&context, "kubelet", Duration::ZERO).await?;
    disturb(&context, "kubelet2", Duration::ZERO).await
}

async fn output_goes_on_when_an_engine_restarts(context: Context) -> Outcome {
    disturb(&context, "containerd", Duration::ZERO).await?;
    disturb(&context, "containerd2", Duration::ZERO).await
}
