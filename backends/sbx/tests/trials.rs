//! The suites of the test kit, in sandboxes of the stand-in for `sbx`.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide_sbx::{Sbx, SbxBackend, SbxOptions};
use bastide_sbx_stand_in::StandIn;
use bastide_testkit::suite::{self, Context};
use bastide_testkit::{conformance, escape};

fn main() -> ExitCode {
    if let Some(code) = escape::probe::run_if_asked() {
        return code;
    }
    // Not beneath /tmp, which is looked at from inside.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.expect("a folder for the sessions of this run");
    let stand_in = StandIn::install(folder.path(), "0.45.1").expect("the stand-in for sbx");
    let sbx = Sbx::new(stand_in.program());
    let home = folder.path().join("home");
    let backend = SbxBackend::new(home, sbx, SbxOptions::new()).expect("a home");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let context = Context { backend: Arc::new(backend), full };
    let mut trials = conformance::trials();
    let is_left_out = |name: &str| LEFT_OUT.iter().any(|(_, names)| names.contains(&name));
    trials.retain(|trial| !is_left_out(trial.name));
    if !full {
        trials.retain(|trial| ALWAYS.contains(&trial.name));
    }
    suite::run(&[("sbx", &context, trials)])
}

/// Trials that say nothing here, and why.
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "the stand-in has one user, as a local sandbox has for commands of commands",
        &[
            "does_with_files_what_the_user_may",
            "ends_everything_of_a_user_at_the_timeout",
            "gives_a_user_its_terminal_and_streams",
            "gives_root_inside_what_package_managers_need_and_others_nothing",
            "lays_trees_out_as_a_user",
            "removes_what_users_made",
            "runs_commands_as_users_by_name_and_number",
            "serves_more_users_than_it_keeps_launchers_for",
        ],
    ),
    (
        "the stand-in's workspace is a folder of the host, where a local sandbox makes no set-id files and \
         no links between folders",
        &[
            "brings_back_everything_a_workspace_holds",
            "brings_everything_back_from_a_tar_file",
            "keeps_set_id_files_that_are_installed_and_saved",
            "lists_and_describes_files",
            "replaces_a_file_whole_and_keeps_its_permissions",
            "replaces_a_name_that_others_could_have_made",
            "takes_back_what_it_archived",
        ],
    ),
    ("a microVM has not the host's network", &["names_the_port_itself_on_the_hosts_network"]),
    (
        "there are no mounts",
        &[
            "has_the_host_mount_what_the_manifest_names",
            "undoes_host_mounts_when_one_of_them_fails",
        ],
    ),
    ("so deep a tree is not made in time behind two sandboxes", &["removes_trees_of_any_depth"]),
    (
        "there is no warden",
        &["ends_with_its_owner", "keeps_what_was_there_when_whoever_went_on_with_it_is_gone"],
    ),
    (
        "the workspace is at a path of its session, which a state that is stored cannot ask for elsewhere",
        &["t6_keeps_every_write_over_twenty_cycles"],
    ),
];

/// What is tried in every run; all others with the big counts.
const ALWAYS: &[&str] = &[
    "reports_exit_codes",
    "reports_signals",
    "keeps_output_apart",
    "starts_in_the_workspace_with_home_set",
    "passes_arguments_and_environment_unchanged",
    "t11_hands_input_over_exactly",
    "ends_everything_descended_at_the_timeout",
    "ends_everything_when_the_caller_gives_up",
    "kills_everything_descended_from_a_process",
    "lays_out_the_manifest",
    "reads_what_it_wrote_whatever_its_size",
    "follows_links_that_stay_and_refuses_those_that_leave",
    "t12_drives_a_shell_on_a_terminal",
    "t20_publishes_a_server_inside_under_an_address_that_survives_reconnect",
    "prunes_and_ends_interactive_processes",
    "restores_over_what_is_there",
    "stops_and_resumes_with_its_files",
    "survives_a_command_that_kills_its_own_supervisor",
    "t23_a_stored_state_grants_nothing",
];
