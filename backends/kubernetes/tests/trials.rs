//! The suites of the test kit, in pods: as one user in a namespace that enforces Pod Security `restricted`, and as several in
//! one that enforces `baseline`.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide_kubernetes::{ClusterAccess, KubernetesBackend, KubernetesOptions, PodPull};
use bastide_testkit::engine::images;
use bastide_testkit::kubernetes::{self, MANY_USERS, SOME};
use bastide_testkit::suite::{self, Context, Trial};
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
    let context = |name: Option<&str>| {
        let mut options = KubernetesOptions::new(images::BASE).pull(PodPull::Never);
        options.many_users = name == Some(MANY_USERS);
        let access = ClusterAccess::new(vec![kubeconfig.clone()]).context(name.map(str::to_owned));
        let home = home.path().join(name.unwrap_or("restricted"));
        let backend = KubernetesBackend::new(home, access, options).expect("a home");
        Context { backend: Arc::new(backend), full }
    };
    let some = std::env::var_os(SOME).is_some();
    let chosen = |names: &[&str]| -> Vec<Trial> {
        let is_chosen = |trial: &&Trial| !some || names.contains(&trial.name);
        trials.iter().filter(is_chosen).copied().collect()
    };
    let (restricted, many) = (context(None), context(Some(MANY_USERS)));
    suite::run(&[
        ("kubernetes", &restricted, chosen(RESTRICTED)),
        ("many-users", &many, chosen(MANY)),
    ])
}

/// Trials about what a pod does not have: a server on this host's loopback, and mounts, which are refused by name.
const ELSEWHERE: &[&str] = &[
    "fetches_repositories_inside",
    "names_the_port_itself_on_the_hosts_network",
    "has_the_host_mount_what_the_manifest_names",
    "undoes_host_mounts_when_one_of_them_fails",
];

/// What a plain run of all tests has: what is different in a pod, and one of each kind of the rest.
const RESTRICTED: &[&str] = &[
    "reports_exit_codes",
    "reports_signals",
    "keeps_output_apart",
    "starts_in_the_workspace_with_home_set",
    "t11_hands_input_over_exactly",
    "ends_everything_descended_at_the_timeout",
    "carries_many_calls_at_once",
    "t12_drives_a_shell_on_a_terminal",
    "lays_out_the_manifest",
    "reads_what_it_wrote_whatever_its_size",
    "follows_links_that_stay_and_refuses_those_that_leave",
    "brings_back_everything_a_workspace_holds",
    "restores_over_what_is_there",
    "t10_undo_takes_back_what_commands_did",
    "t8_a_fork_has_every_byte_written_before_it",
    "outlives_its_maker_and_is_found_again",
    "ends_with_its_owner",
    "stops_and_resumes_with_its_files",
    "t25_is_deleted_from_every_state",
    "is_deleted_while_it_is_made",
    "sweeps_away_what_ended_and_nothing_else",
    "expires_with_nobody_there_and_begins_anew_when_resumed",
    "is_not_idle_while_anything_runs_in_it",
    "lasts_as_long_as_somebody_says",
    "keeps_every_operation_on_record",
    "t4_says_that_memory_ran_out",
    "bounds_the_number_of_processes",
    "cannot_read_secrets_of_the_host",
    "cannot_write_outside_the_workspace",
    "cannot_mount_or_make_namespaces",
    "cannot_use_set_user_id_programs",
    "says_exactly_what_it_does_not_hold",
    "has_guest_and_init_that_are_confined_themselves",
    "cannot_end_or_trace_guest_or_launcher",
    "has_no_inherited_descriptors",
    "cannot_reach_the_network",
    "cannot_reach_another_session",
    "t20_publishes_a_server_inside_under_an_address_that_survives_reconnect",
    "refuses_connections_where_nobody_listens",
    "cannot_outlive_its_session",
];

/// The same for several users.
const MANY: &[&str] = &[
    "runs_commands_as_users_by_name_and_number",
    "gives_root_inside_what_package_managers_need_and_others_nothing",
    "ends_everything_of_a_user_at_the_timeout",
    "removes_what_users_made",
    "cannot_end_or_trace_guest_or_launcher",
    "says_exactly_what_it_does_not_hold",
];
