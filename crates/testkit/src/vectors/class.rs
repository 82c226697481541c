//! How far a function of the recorded cases binds this project.

/// What a function's cases are to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// What a program can see; compared in full.
    Contract,
    /// The outcome binds, the way there does not; compared after a projection.
    Projection,
    /// How the reference does it inside; counted, not run.
    Mechanism,
    /// Prose the reference puts before a model; counted, not run.
    Wording,
}

impl Class {
    /// The class's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Contract => "contract",
            Self::Projection => "projection",
            Self::Mechanism => "mechanism",
            Self::Wording => "wording",
        }
    }

    /// The class of a function; whatever is not named is contract.
    #[must_use]
    pub fn of(function: &str) -> Self {
        let named = [
            (PROJECTION, Self::Projection),
            (MECHANISM, Self::Mechanism),
            (WORDING, Self::Wording),
        ];
        let found = named.into_iter().find(|(functions, _)| functions.contains(&function));
        found.map_or(Self::Contract, |(_, class)| class)
    }
}

const PROJECTION: &[&str] = &[
    "apply_manifest",
    "apply_manifest_outcome",
    "capability_tools",
    "mount_activate",
    "mount_deactivate",
    "mount_outcome",
    "mount_restore_after_snapshot",
    "mount_teardown_for_snapshot",
    "session_events",
    "session_start",
    "tool_schema",
    "unix_local_create",
    "unix_local_exec_live",
    "unix_local_op",
    "unix_local_op_outcome",
    "unix_local_pty",
    "unix_local_snapshot_roundtrip",
];

const MECHANISM: &[&str] = &[
    "access_check_script",
    "docker_create_kwargs",
    "docker_exec",
    "docker_existing_container_check",
    "docker_op",
    "docker_op_outcome",
    "docker_persist_workspace",
    "fingerprint_command",
    "fingerprint_helper",
    "prepare_exec_command",
    "read_path_probe",
    "rebase_symlink_target",
    "render_shell_exports",
    "resolve_workspace_path_helper",
    "runtime_helper",
    "runtime_scripts",
    "unix_local_exec",
    "unix_local_rebase_symlink_target",
];

const WORDING: &[&str] = &[
    "default_sandbox_instructions",
    "filesystem_instructions",
    "remote_mount_policy",
    "sandbox_instructions",
    "shell_instructions",
];

/// Functions that need a running session: their cases wait while no handler is registered.
const NEEDS_A_SESSION: &[&str] = &[
    "apply_manifest",
    "apply_manifest_outcome",
    "session_events",
    "session_start",
    "unix_local_create",
    "unix_local_exec_live",
    "unix_local_hydrate_workspace",
    "unix_local_op",
    "unix_local_op_outcome",
    "unix_local_persist_workspace",
    "unix_local_pty",
    "unix_local_snapshot_roundtrip",
];

/// Whether cases of a function without a handler wait instead of failing.
pub(crate) fn may_wait(function: &str) -> bool {
    NEEDS_A_SESSION.contains(&function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_in_full_unless_named() {
        assert_eq!(Class::of("manifest_validate"), Class::Contract);
        assert_eq!(Class::of("unix_local_exec_env"), Class::Contract);
        assert_eq!(Class::of("a_function_of_tomorrow"), Class::Contract);
        assert_eq!(Class::of("unix_local_exec"), Class::Mechanism);
    }

    #[test]
    fn only_functions_that_need_a_session_wait() {
        assert!(may_wait("unix_local_op"));
        assert!(!may_wait("unix_local_exec_env") && !may_wait("ephemeral_entries"));
    }
}
