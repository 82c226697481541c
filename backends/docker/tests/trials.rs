//! The suites of the test kit, in containers.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_testkit::engine::{self, images};
use bastide_testkit::suite::{self, Context};
use bastide_testkit::{chaos, conformance, escape};

fn main() -> ExitCode {
    if let Some(code) = escape::probe::run_if_asked() {
        return code;
    }
    let mut trials = [conformance::trials(), chaos::trials(), escape::trials()].concat();
    // Its server is on the host's loopback, which no container shares but by the host's network.
    trials.retain(|trial| trial.name != "fetches_repositories_inside");
    let host = match engine::for_tests() {
        Ok(host) => host,
        Err(why) => return suite::skip_all("docker", &trials, &why),
    };
    let home = tempfile::tempdir().expect("a folder for the sessions of this run");
    let address = EngineAddress::parse(&host, None).expect("an address of a daemon");
    let options = DockerOptions::new(images::BASE);
    let backend = DockerBackend::new(home.path(), address, options).expect("a home");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let context = Context { backend: Arc::new(backend), full };
    suite::run(&[("docker", &context, trials)])
}
