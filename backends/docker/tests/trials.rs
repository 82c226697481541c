//! The suites of the test kit, in containers.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_testkit::engine::{self, images};
use bastide_testkit::suite::{self, Context};
use bastide_testkit::{chaos, conformance, egress, escape, mounts};

fn main() -> ExitCode {
    if let Some(code) = escape::probe::run_if_asked() {
        return code;
    }
    let mut trials =
        [conformance::trials(), chaos::trials(), escape::trials(), mounts::trials()].concat();
    // Its server is on the host's loopback, which no container shares but by the host's network.
    trials.retain(|trial| trial.name != "fetches_repositories_inside");
    let host = match engine::for_tests() {
        Ok(host) => host,
        Err(why) => return suite::skip_all("docker", &trials, &why),
    };
    let home = tempfile::tempdir().expect("a folder for the sessions of this run");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let context = |name: &str, options: DockerOptions| {
        let address = EngineAddress::parse(&host, None).expect("an address of a daemon");
        let backend = DockerBackend::new(home.path().join(name), address, options).expect("a home");
        Context { backend: Arc::new(backend), full }
    };
    let plain = context("runc", DockerOptions::new(images::BASE));
    let other = context("runsc", DockerOptions::new(images::BASE).runtime("runsc"));
    let mut elsewhere = Vec::new();
    if has_runsc(&host) {
        elsewhere = conformance::trials();
        elsewhere.retain(|trial| BEHIND_ANOTHER_KERNEL.contains(&trial.name));
    }
    let with_policy = match rustix::process::geteuid().is_root() {
        true => egress::trials(),
        false => egress::trials_without(),
    };
    let kernel = if elsewhere.is_empty() { Vec::new() } else { egress::trials_without() };
    suite::run(&[
        ("docker", &plain, trials),
        ("egress", &plain, with_policy),
        ("runsc", &other, elsewhere),
        ("runsc-egress", &other, kernel),
    ])
}

/// What is tried behind a kernel that is not Linux as well: that commands, streams, terminals, users and
/// files are the same there. The README says what it does not have; walls, limits and ports are that
/// kernel's own business, and lifetimes are the engine's.
const BEHIND_ANOTHER_KERNEL: &[&str] = &[
    "reports_exit_codes",
    "keeps_output_apart",
    "passes_arguments_and_environment_unchanged",
    "hands_input_over_exactly",
    "ends_everything_descended_at_the_timeout",
    "lays_out_the_manifest",
    "reads_what_it_wrote_whatever_its_size",
    "follows_links_that_stay_and_refuses_those_that_leave",
    "t12_drives_a_shell_on_a_terminal",
    "passes_split_characters_whole",
    "prunes_and_ends_interactive_processes",
    "runs_commands_as_users_by_name_and_number",
    "ends_everything_of_a_user_at_the_timeout",
    "serves_more_users_than_it_keeps_launchers_for",
    "refuses_users_there_are_not",
    "removes_what_users_made",
    "restores_over_what_is_there",
    "stops_and_resumes_with_its_files",
];

/// Whether the daemon has gVisor.
fn has_runsc(host: &str) -> bool {
    let runtimes = engine::docker(host, &["info", "--format", "{{.Runtimes}}"]);
    std::path::Path::new("/usr/bin/runsc").exists()
        && runtimes.is_ok_and(|names| names.contains("runsc"))
}
