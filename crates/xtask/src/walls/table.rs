//! Which walls hold which claim.

use std::fmt;

/// As whom a trial is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserKind {
    User,
    Root,
}

impl fmt::Display for UserKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Root => "root",
        })
    }
}

/// Walls that are left out together, and the trials that have to notice.
#[derive(Debug)]
pub(super) struct Case {
    /// The walls, by their names in the guest.
    pub(super) out: &'static [&'static str],
    /// The suite: that of the rung.
    pub(super) rung: &'static str,
    pub(super) who: UserKind,
    pub(super) trials: &'static [&'static str],
}

/// A case on the rung `namespaces`.
const fn own(out: &'static [&'static str], trials: &'static [&'static str]) -> Case {
    Case { out, rung: "local", who: UserKind::User, trials }
}

/// A case on the rung `namespaces`, as root.
const fn root(out: &'static [&'static str], trials: &'static [&'static str]) -> Case {
    Case { out, rung: "local", who: UserKind::Root, trials }
}

/// A case on the rung `landlock`.
const fn host(out: &'static [&'static str], trials: &'static [&'static str]) -> Case {
    Case { out, rung: "landlock", who: UserKind::User, trials }
}

/// Every claim that is held by a wall: the fewest walls without which its trial fails.
pub(super) const CASES: &[Case] = &[
    own(
        &["OwnRoot"],
        &[
            "cannot_read_secrets_of_the_host",
            "runs_a_toolchain_without_the_secrets_beside_it",
            "cannot_reach_sockets_of_the_host",
            "says_exactly_what_it_does_not_hold",
            "t13_reaches_no_keys_environment_sessions_processes_or_network",
            "t22_root_inside_can_neither_see_nor_alter_the_audit_log",
        ],
    ),
    own(&["ReadOnly", "LandlockFiles"], &["cannot_write_outside_the_workspace"]),
    own(
        &["Seccomp"],
        &[
            "cannot_mount_or_make_namespaces",
            "cannot_use_what_reaches_past_the_sandbox",
            "cannot_type_into_a_terminal",
            "is_seen_by_the_kernel_as_confined",
        ],
    ),
    own(&["ReadOnly"], &["cannot_change_settings_of_the_kernel"]),
    own(&["NoNewPrivileges"], &["cannot_use_set_user_id_programs"]),
    own(&["SetUserId"], &["cannot_use_set_user_id_programs"]),
    own(
        &["Processes"],
        &["cannot_see_processes_or_environment_of_the_host", "cannot_outlive_its_session"],
    ),
    own(&["OwnRoot", "Processes"], &["cannot_reach_another_session"]),
    own(&["Seccomp", "LandlockScope", "Untraceable"], &["cannot_end_or_trace_guest_or_launcher"]),
    own(&["OwnFilters"], &["has_guest_and_init_that_are_confined_themselves"]),
    own(&["Untraceable"], &["has_guest_and_init_that_are_confined_themselves"]),
    own(&["Seccomp"], &["keeps_commands_on_their_processors"]),
    own(&["CloseOnExec"], &["has_no_inherited_descriptors"]),
    own(&["Network"], &["cannot_reach_the_network"]),
    own(&["Ipc"], &["cannot_reach_shared_memory_of_the_host"]),
    root(&["FoldersAlone"], &["gives_the_guest_no_way_up_to_the_host"]),
    own(
        &["SetIdModes"],
        &[
            "leaves_nothing_on_the_host_that_gives_more",
            "leaves_nothing_in_a_granted_folder_that_gives_more",
            "leaves_nothing_that_gives_more_by_files",
        ],
    ),
    root(
        &["SetIdModes"],
        &["leaves_nothing_on_the_host_that_gives_more", "leaves_nothing_that_gives_more_by_files"],
    ),
    root(
        &["OneOwner"],
        &["leaves_nothing_on_the_host_that_gives_more", "leaves_only_files_of_the_folders_owner"],
    ),
    own(&["ReadOnly", "LandlockFiles"], &["never_touches_what_a_grant_is_mounted_on"]),
    host(
        &["SetIdModes"],
        &[
            "leaves_nothing_on_the_host_that_gives_more",
            "leaves_nothing_in_a_granted_folder_that_gives_more",
            "leaves_nothing_that_gives_more_by_files",
            "makes_no_program_of_the_caller_set_id",
        ],
    ),
    host(
        &["LandlockFiles"],
        &[
            "cannot_read_secrets_of_the_host",
            "runs_a_toolchain_without_the_secrets_beside_it",
            "cannot_write_outside_the_workspace",
            "cannot_reach_another_session",
            "t13_reaches_no_keys_environment_sessions_processes_or_network",
            "t22_root_inside_can_neither_see_nor_alter_the_audit_log",
        ],
    ),
    host(
        &["Seccomp"],
        &[
            "cannot_mount_or_make_namespaces",
            "cannot_use_what_reaches_past_the_sandbox",
            "cannot_type_into_a_terminal",
            "is_seen_by_the_kernel_as_confined",
            "cannot_reach_the_network",
            "cannot_reach_sockets_of_the_host",
            "cannot_reach_shared_memory_of_the_host",
        ],
    ),
    host(&["NoNewPrivileges"], &["cannot_use_set_user_id_programs"]),
    host(&["LandlockScope"], &["says_exactly_what_it_does_not_hold"]),
    host(&["NoNewPrivileges"], &["cannot_see_processes_or_environment_of_the_host"]),
    host(&["Seccomp", "LandlockScope", "Untraceable"], &["cannot_end_or_trace_guest_or_launcher"]),
    host(&["OwnFilters"], &["has_guest_and_init_that_are_confined_themselves"]),
    host(&["Untraceable"], &["has_guest_and_init_that_are_confined_themselves"]),
    Case {
        out: &["Capabilities"],
        rung: "landlock",
        who: UserKind::Root,
        trials: &["is_seen_by_the_kernel_as_confined"],
    },
    host(&["Ending"], &["cannot_outlive_its_session"]),
    host(&["CloseOnExec"], &["has_no_inherited_descriptors"]),
];
