//! What each class of the reference says.

use super::{ErrorClass, ErrorClassRow};
use crate::error::ErrorKind;

/// The table, in the order of [`ErrorClass`].
pub static CLASSES: [ErrorClassRow; 63] = {
    use ErrorClass as C;
    use ErrorKind as K;
    const NO: Option<bool> = Some(false);
    const UNKNOWN: Option<bool> = None;
    [
        ErrorClassRow::new(C::SandboxError, "SandboxError", K::Internal),
        ErrorClassRow::new(C::ConfigurationError, "ConfigurationError", K::InvalidInput)
            .under(C::SandboxError),
        ErrorClassRow::new(C::SandboxRuntimeError, "SandboxRuntimeError", K::Io)
            .under(C::SandboxError),
        ErrorClassRow::new(C::ArtifactError, "ArtifactError", K::Io).under(C::SandboxError),
        ErrorClassRow::new(C::SnapshotError, "SnapshotError", K::Io).under(C::SandboxError),
        ErrorClassRow::new(C::ApplyPatchError, "ApplyPatchError", K::InvalidInput)
            .under(C::ConfigurationError),
        ErrorClassRow::new(
            C::InvalidManifestPathError,
            "InvalidManifestPathError",
            K::InvalidInput,
        )
        .under(C::ConfigurationError)
        .raised("invalid_manifest_path", "materialize", NO)
        .says("manifest path must not escape root: {rel}", &["rel", "reason"]),
        ErrorClassRow::new(
            C::InvalidCompressionSchemeError,
            "InvalidCompressionSchemeError",
            K::InvalidInput,
        )
        .under(C::ConfigurationError)
        .raised("invalid_compression_scheme", "write", NO)
        .says("compression scheme must be one of 'zip' 'tar'", &["path", "scheme"]),
        ErrorClassRow::new(
            C::ExposedPortUnavailableError,
            "ExposedPortUnavailableError",
            K::NotFound,
        )
        .under(C::SandboxRuntimeError)
        .raised("exposed_port_unavailable", "resolve_exposed_port", UNKNOWN)
        .says(
            "port {port} could not be resolved for host exposure",
            &["port", "exposed_ports", "reason"],
        ),
        ErrorClassRow::new(C::ExecFailureError, "ExecFailureError", K::Io)
            .under(C::SandboxRuntimeError),
        ErrorClassRow::new(C::ExecNonZeroError, "ExecNonZeroError", K::CommandFailed)
            .under(C::ExecFailureError)
            .raised("exec_nonzero", "exec", NO)
            .says(
                "command exited with code {exit_code}",
                &["command", "command_str", "exit_code", "stdout", "stderr"],
            ),
        ErrorClassRow::new(C::ExecTimeoutError, "ExecTimeoutError", K::Timeout)
            .under(C::ExecFailureError)
            .raised("exec_timeout", "exec", NO)
            .says("command timed out", &["command", "command_str", "timeout_s"]),
        ErrorClassRow::new(C::ExecTransportError, "ExecTransportError", K::Io)
            .under(C::ExecFailureError)
            .raised("exec_transport_error", "exec", UNKNOWN)
            .says("exec transport error", &["command", "command_str"]),
        ErrorClassRow::new(C::PtySessionNotFoundError, "PtySessionNotFoundError", K::NotFound)
            .under(C::SandboxRuntimeError)
            .raised("pty_session_not_found", "exec", NO)
            .says("PTY session not found: {session_id}", &["session_id"]),
        ErrorClassRow::new(C::WorkspaceIOError, "WorkspaceIOError", K::Io)
            .under(C::SandboxRuntimeError),
        ErrorClassRow::new(C::ApplyPatchPathError, "ApplyPatchPathError", K::InvalidInput)
            .under(C::ApplyPatchError)
            .raised("apply_patch_invalid_path", "apply_patch", NO)
            .says("apply_patch path must not escape root: {path}", &["path", "reason"]),
        ErrorClassRow::new(C::ApplyPatchDiffError, "ApplyPatchDiffError", K::InvalidInput)
            .under(C::ApplyPatchError)
            .raised("apply_patch_invalid_diff", "apply_patch", NO),
        ErrorClassRow::new(
            C::ApplyPatchFileNotFoundError,
            "ApplyPatchFileNotFoundError",
            K::NotFound,
        )
        .under(C::WorkspaceIOError)
        .raised("apply_patch_file_not_found", "apply_patch", NO)
        .says("apply_patch missing file: {path}", &["path"]),
        ErrorClassRow::new(C::ApplyPatchDecodeError, "ApplyPatchDecodeError", K::InvalidInput)
            .under(C::WorkspaceIOError)
            .raised("apply_patch_decode_error", "apply_patch", NO)
            .says("apply_patch could not decode file: {path}", &["path"]),
        ErrorClassRow::new(
            C::WorkspaceReadNotFoundError,
            "WorkspaceReadNotFoundError",
            K::NotFound,
        )
        .under(C::WorkspaceIOError)
        .raised("workspace_read_not_found", "read", NO)
        .says("file not found: {path}", &["path"]),
        ErrorClassRow::new(C::WorkspaceArchiveReadError, "WorkspaceArchiveReadError", K::Io)
            .under(C::WorkspaceIOError)
            .raised("workspace_archive_read_error", "read", UNKNOWN)
            .says("failed to read archive for path: {path}", &["path"]),
        ErrorClassRow::new(C::WorkspaceArchiveWriteError, "WorkspaceArchiveWriteError", K::Io)
            .under(C::WorkspaceIOError)
            .raised("workspace_archive_write_error", "write", UNKNOWN)
            .says("failed to write archive for path: {path}", &["path"]),
        ErrorClassRow::new(C::WorkspaceWriteTypeError, "WorkspaceWriteTypeError", K::InvalidInput)
            .under(C::WorkspaceIOError)
            .raised("workspace_write_type_error", "write", NO)
            .says("write() expects a binary file-like object", &["path", "actual_type"]),
        ErrorClassRow::new(C::WorkspaceStopError, "WorkspaceStopError", K::Io)
            .under(C::SandboxRuntimeError)
            .raised("workspace_stop_error", "stop", UNKNOWN)
            .says("failed to stop session", &["path"]),
        ErrorClassRow::new(C::WorkspaceStartError, "WorkspaceStartError", K::Io)
            .under(C::SandboxRuntimeError)
            .raised("workspace_start_error", "start", UNKNOWN)
            .says("failed to start session", &["path"]),
        ErrorClassRow::new(
            C::WorkspaceRootNotFoundError,
            "WorkspaceRootNotFoundError",
            K::NotFound,
        )
        .under(C::SandboxRuntimeError)
        .raised("workspace_root_not_found", "exec", NO)
        .says("workspace root not found: {path}", &["path"]),
        ErrorClassRow::new(C::LocalArtifactError, "LocalArtifactError", K::Io)
            .under(C::ArtifactError),
        ErrorClassRow::new(C::LocalFileReadError, "LocalFileReadError", K::Io)
            .under(C::LocalArtifactError)
            .raised("local_file_read_error", "materialize", NO)
            .says("failed to read local file artifact: {src}", &["src"]),
        ErrorClassRow::new(C::LocalDirReadError, "LocalDirReadError", K::Io)
            .under(C::LocalArtifactError)
            .raised("local_dir_read_error", "materialize", NO)
            .says("failed to read local dir artifact: {src}", &["src"]),
        ErrorClassRow::new(C::LocalChecksumError, "LocalChecksumError", K::Io)
            .under(C::LocalArtifactError)
            .raised("local_checksum_error", "materialize", NO)
            .says("failed to checksum local artifact: {src}", &["src"]),
        ErrorClassRow::new(C::GitArtifactError, "GitArtifactError", K::Io).under(C::ArtifactError),
        ErrorClassRow::new(C::GitMissingInImageError, "GitMissingInImageError", K::Unsupported)
            .under(C::GitArtifactError)
            .raised("git_missing_in_image", "materialize", NO)
            .says("git is required in the container image to materialize git_repo artifacts", &[]),
        ErrorClassRow::new(C::GitCloneError, "GitCloneError", K::CommandFailed)
            .under(C::GitArtifactError)
            .raised("git_clone_error", "materialize", UNKNOWN)
            .says("git clone failed for {url}@{ref}", &["url", "ref", "stderr"]),
        ErrorClassRow::new(C::GitSubpathError, "GitSubpathError", K::InvalidInput)
            .under(C::GitArtifactError)
            .raised("git_subpath_error", "materialize", NO)
            .says(
                "git repo subpath must be a relative path inside the repository: {subpath}",
                &["repo", "subpath", "reason"],
            ),
        ErrorClassRow::new(C::GitCopyError, "GitCopyError", K::CommandFailed)
            .under(C::GitArtifactError)
            .raised("git_copy_error", "materialize", UNKNOWN)
            .says("copy from git repo failed", &["src_root", "dest", "stderr"]),
        ErrorClassRow::new(C::MountArtifactError, "MountArtifactError", K::Io)
            .under(C::ArtifactError),
        ErrorClassRow::new(C::MountToolMissingError, "MountToolMissingError", K::Unsupported)
            .under(C::MountArtifactError)
            .raised("mount_missing_tool", "materialize", NO)
            .says("required mount tool missing: {tool}", &["tool"]),
        ErrorClassRow::new(C::MountConfigError, "MountConfigError", K::InvalidInput)
            .under(C::MountArtifactError)
            .raised("mount_config_invalid", "materialize", NO),
        ErrorClassRow::new(C::MountCommandError, "MountCommandError", K::CommandFailed)
            .under(C::MountArtifactError)
            .raised("mount_failed", "materialize", NO)
            .says("mount command failed", &["command", "stderr"]),
        ErrorClassRow::new(C::SkillsConfigError, "SkillsConfigError", K::InvalidInput)
            .under(C::ConfigurationError)
            .raised("skills_config_invalid", "materialize", NO),
        ErrorClassRow::new(C::SnapshotPersistError, "SnapshotPersistError", K::Io)
            .under(C::SnapshotError)
            .raised("snapshot_persist_error", "snapshot_persist", UNKNOWN)
            .says("failed to persist snapshot", &["snapshot_id", "path"]),
        ErrorClassRow::new(C::SnapshotRestoreError, "SnapshotRestoreError", K::Io)
            .under(C::SnapshotError)
            .raised("snapshot_restore_error", "snapshot_restore", UNKNOWN)
            .says("failed to restore snapshot", &["snapshot_id", "path"]),
        ErrorClassRow::new(
            C::SnapshotNotRestorableError,
            "SnapshotNotRestorableError",
            K::NotFound,
        )
        .under(C::SnapshotError)
        .raised("snapshot_not_restorable", "snapshot_restore", NO)
        .says("snapshot is not restorable", &["snapshot_id", "path"]),
        ErrorClassRow::new(C::ValueError, "ValueError", K::InvalidInput),
        ErrorClassRow::new(C::TypeError, "TypeError", K::InvalidInput),
        ErrorClassRow::new(C::RuntimeError, "RuntimeError", K::Internal),
        ErrorClassRow::new(C::UnicodeDecodeError, "UnicodeDecodeError", K::InvalidInput),
        ErrorClassRow::new(C::JSONDecodeError, "JSONDecodeError", K::InvalidInput),
        ErrorClassRow::new(C::OverflowError, "OverflowError", K::InvalidInput),
        ErrorClassRow::new(C::OSError, "OSError", K::Io),
        ErrorClassRow::new(C::FileExistsError, "FileExistsError", K::Conflict),
        ErrorClassRow::new(C::TimeoutError, "TimeoutError", K::Timeout),
        ErrorClassRow::new(C::ValidationError, "ValidationError", K::InvalidInput),
        ErrorClassRow::new(
            C::PydanticSerializationError,
            "PydanticSerializationError",
            K::InvalidInput,
        ),
        ErrorClassRow::new(
            C::InvalidRawMountManifestError,
            "_InvalidRawMountManifestError",
            K::InvalidInput,
        ),
        ErrorClassRow::new(C::ReadError, "ReadError", K::InvalidInput),
        ErrorClassRow::new(C::BadZipFile, "BadZipFile", K::InvalidInput),
        ErrorClassRow::new(C::UnsafeTarMemberError, "UnsafeTarMemberError", K::InvalidInput),
        ErrorClassRow::new(C::UnsafeZipMemberError, "UnsafeZipMemberError", K::InvalidInput),
        ErrorClassRow::new(
            C::ArchiveResourceLimitError,
            "ArchiveResourceLimitError",
            K::LimitExceeded,
        ),
        ErrorClassRow::new(C::DependenciesError, "DependenciesError", K::Conflict),
        ErrorClassRow::new(C::DependenciesBindingError, "DependenciesBindingError", K::Conflict),
        ErrorClassRow::new(
            C::DependenciesMissingDependencyError,
            "DependenciesMissingDependencyError",
            K::NotFound,
        ),
    ]
};
