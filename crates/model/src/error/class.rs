//! The classes of the reference's errors, as one table.
//!
//! A class decides what a program sees of an error before anybody adds anything: its code, the
//! operation it belongs to, its words, whether trying again may help, and which wider classes it
//! can be caught as.

use std::error::Error as StdError;
use std::{fmt, io};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::{Error, ErrorKind};

/// Every `error_code` of the reference, in its order.
pub const CODES: [&str; 33] = [
    "invalid_manifest_path",
    "invalid_compression_scheme",
    "exposed_port_unavailable",
    "exec_nonzero",
    "exec_timeout",
    "exec_transport_error",
    "pty_session_not_found",
    "apply_patch_invalid_path",
    "apply_patch_invalid_diff",
    "apply_patch_file_not_found",
    "apply_patch_decode_error",
    "workspace_read_not_found",
    "workspace_archive_read_error",
    "workspace_archive_write_error",
    "workspace_write_type_error",
    "workspace_stop_error",
    "workspace_start_error",
    "workspace_root_not_found",
    "local_file_read_error",
    "local_dir_read_error",
    "local_checksum_error",
    "git_missing_in_image",
    "git_clone_error",
    "git_subpath_error",
    "git_copy_error",
    "mount_missing_tool",
    "mount_failed",
    "mount_config_invalid",
    "skills_config_invalid",
    "sandbox_config_invalid",
    "snapshot_persist_error",
    "snapshot_restore_error",
    "snapshot_not_restorable",
];

/// Every operation an error or an event can name, in the reference's order.
pub const OPS: [&str; 14] = [
    "start",
    "stop",
    "exec",
    "read",
    "write",
    "shutdown",
    "running",
    "persist_workspace",
    "hydrate_workspace",
    "resolve_exposed_port",
    "materialize",
    "snapshot_persist",
    "snapshot_restore",
    "apply_patch",
];

/// The code of that name, if the reference has it.
#[must_use]
pub fn code_named(name: &str) -> Option<&'static str> {
    CODES.into_iter().find(|code| *code == name)
}

/// The operation of that name, if the reference has it.
#[must_use]
pub fn op_named(name: &str) -> Option<&'static str> {
    OPS.into_iter().find(|op| *op == name)
}

/// An error class of the reference.
///
/// The plain classes at the end are the language's own, those of libraries the reference is built
/// on, and those of it that are outside its tree: they have a name and a kind, and the raiser chooses the
/// rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the reference's; the table says what each is")]
pub enum ErrorClass {
    SandboxError,
    ConfigurationError,
    SandboxRuntimeError,
    ArtifactError,
    SnapshotError,
    ApplyPatchError,
    InvalidManifestPathError,
    InvalidCompressionSchemeError,
    ExposedPortUnavailableError,
    ExecFailureError,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    PtySessionNotFoundError,
    WorkspaceIOError,
    ApplyPatchPathError,
    ApplyPatchDiffError,
    ApplyPatchFileNotFoundError,
    ApplyPatchDecodeError,
    WorkspaceReadNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceWriteTypeError,
    WorkspaceStopError,
    WorkspaceStartError,
    WorkspaceRootNotFoundError,
    LocalArtifactError,
    LocalFileReadError,
    LocalDirReadError,
    LocalChecksumError,
    GitArtifactError,
    GitMissingInImageError,
    GitCloneError,
    GitSubpathError,
    GitCopyError,
    MountArtifactError,
    MountToolMissingError,
    MountConfigError,
    MountCommandError,
    SkillsConfigError,
    SnapshotPersistError,
    SnapshotRestoreError,
    SnapshotNotRestorableError,
    ValueError,
    TypeError,
    RuntimeError,
    UnicodeDecodeError,
    JSONDecodeError,
    OverflowError,
    OSError,
    FileExistsError,
    TimeoutError,
    ValidationError,
    PydanticSerializationError,
    InvalidRawMountManifestError,
    ReadError,
    BadZipFile,
    UnsafeTarMemberError,
    UnsafeZipMemberError,
    ArchiveResourceLimitError,
    DependenciesError,
    DependenciesBindingError,
    DependenciesMissingDependencyError,
}

/// What the table says about one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorClassRow {
    /// The class.
    pub class: ErrorClass,
    /// Its name in the reference.
    pub name: &'static str,
    /// The next wider class; `None` for the root of the tree and for the plain classes.
    pub base: Option<ErrorClass>,
    /// Its kind.
    pub kind: ErrorKind,
    /// Its code; `None` where the raiser chooses.
    pub code: Option<&'static str>,
    /// Its operation; `None` where the raiser chooses.
    pub op: Option<&'static str>,
    /// Whether trying again may help, unless the raiser knows better.
    pub retryable: Option<bool>,
    /// Its words; `{key}` stands for a value of the context, empty where the raiser chooses.
    pub message: &'static str,
    /// The keys its context always has, in order.
    pub context: &'static [&'static str],
}

impl ErrorClassRow {
    /// A class that groups others, or that the raiser fills in.
    const fn new(class: ErrorClass, name: &'static str, kind: ErrorKind) -> Self {
        Self {
            class,
            name,
            base: None,
            kind,
            code: None,
            op: None,
            retryable: None,
            message: "",
            context: &[],
        }
    }

    const fn under(self, base: ErrorClass) -> Self {
        Self { base: Some(base), ..self }
    }

    const fn raised(self, code: &'static str, op: &'static str, retry: Option<bool>) -> Self {
        Self { code: Some(code), op: Some(op), retryable: retry, ..self }
    }

    const fn says(self, message: &'static str, context: &'static [&'static str]) -> Self {
        Self { message, context, ..self }
    }
}

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

impl ErrorClass {
    /// What the table says about this class.
    #[must_use]
    pub fn row(self) -> &'static ErrorClassRow {
        &CLASSES[self as usize]
    }

    /// The class of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        CLASSES.iter().find(|row| row.name == name).map(|row| row.class)
    }

    /// Its name in the reference.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The wider classes this one can be caught as, the nearest first.
    ///
    /// ```
    /// use bastide_model::ErrorClass;
    ///
    /// let wider: Vec<_> = ErrorClass::ExecTimeoutError.bases().map(ErrorClass::name).collect();
    /// assert_eq!(wider, ["ExecFailureError", "SandboxRuntimeError", "SandboxError"]);
    /// ```
    pub fn bases(self) -> impl Iterator<Item = Self> {
        std::iter::successors(self.row().base, |class| class.row().base)
    }

    /// Whether an error of this class can be caught as `other`.
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        self == other || self.bases().any(|base| base == other)
    }

    /// Whether the class belongs to the reference's tree of structured errors.
    #[must_use]
    pub fn is_structured(self) -> bool {
        self.is(Self::SandboxError)
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Programs see the name.
impl Serialize for ErrorClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl ErrorClassRow {
    /// The words of an error of this class with that context.
    pub(super) fn message_for(&self, context: &Map<String, Value>) -> String {
        let mut message = String::new();
        let mut rest = self.message;
        while let Some((text, tail)) = rest.split_once('{')
            && let Some((key, tail)) = tail.split_once('}')
        {
            message.push_str(text);
            match context.get(key) {
                Some(Value::String(value)) => message.push_str(value),
                Some(value) => message.push_str(&value.to_string()),
                None => {}
            }
            rest = tail;
        }
        message.push_str(rest);
        message
    }
}

/// The name of the class the reference would have raised for `error`.
///
/// Failures of the operating system have a class for each well-known number; what the reference
/// has no word for is `Exception`.
///
/// ```
/// let missing = std::io::Error::from_raw_os_error(2);
/// assert_eq!(bastide_model::error::class_name(&missing), "FileNotFoundError");
/// ```
#[must_use]
pub fn class_name(error: &(dyn StdError + 'static)) -> &'static str {
    if let Some(error) = error.downcast_ref::<Error>() {
        return error.class().map_or("Exception", ErrorClass::name);
    }
    let Some(error) = error.downcast_ref::<io::Error>() else { return "Exception" };
    match error.kind() {
        io::ErrorKind::NotFound => "FileNotFoundError",
        io::ErrorKind::PermissionDenied => "PermissionError",
        io::ErrorKind::AlreadyExists => "FileExistsError",
        io::ErrorKind::IsADirectory => "IsADirectoryError",
        io::ErrorKind::NotADirectory => "NotADirectoryError",
        io::ErrorKind::TimedOut => "TimeoutError",
        io::ErrorKind::WouldBlock => "BlockingIOError",
        io::ErrorKind::BrokenPipe => "BrokenPipeError",
        io::ErrorKind::ConnectionAborted => "ConnectionAbortedError",
        io::ErrorKind::ConnectionRefused => "ConnectionRefusedError",
        io::ErrorKind::ConnectionReset => "ConnectionResetError",
        io::ErrorKind::Interrupted => "InterruptedError",
        _ => "OSError",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_every_class_at_its_place() {
        for (index, row) in CLASSES.iter().enumerate() {
            assert_eq!(row.class as usize, index, "{}", row.name);
            assert_eq!(format!("{:?}", row.class), row.name.trim_start_matches('_'));
            assert!(row.code.is_none_or(|code| CODES.contains(&code)), "{}", row.name);
            assert!(row.op.is_none_or(|op| OPS.contains(&op)), "{}", row.name);
        }
    }
}
