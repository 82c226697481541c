//! The suites of the test kit, in pods.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide_kubernetes::{ClusterAccess, KubernetesBackend, KubernetesOptions, PodPull};
use bastide_testkit::engine::images;
use bastide_testkit::kubernetes;
use bastide_testkit::suite::{self, Context};
use bastide_testkit::{chaos, conformance, escape};

fn main() -> ExitCode {
    if let Some(code) = escape::probe::run_if_asked() {
        return code;
    }
    let mut trials = [conformance::trials(), chaos::trials(), escape::trials()].concat();
    trials.retain(|trial| !ELSEWHERE.contains(&trial.name));
    let kubeconfig = match kubernetes::for_tests() {
        Ok(kubeconfig) => kubeconfig,
        Err(why) => return suite::skip_all("kubernetes", &trials, &why),
    };
    let home = tempfile::tempdir().expect("a folder for the sessions of this run");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let mut options = KubernetesOptions::new(images::BASE);
    options.pull = PodPull::Never;
    // The cluster of the tests keeps no policies of its network.
    options.unproved_network = true;
    let access = ClusterAccess::new(vec![kubeconfig]);
    let backend = KubernetesBackend::new(home.path(), access, options).expect("a home");
    let context = Context { backend: Arc::new(backend), full };
    suite::run(&[("kubernetes", &context, trials)])
}

/// Trials about what a pod does not have: a server on this host's loopback.
const ELSEWHERE: &[&str] = &["fetches_repositories_inside"];
