//! The classes of the reference's errors, as one table.
//!
//! A class decides what a program sees of an error before anybody adds anything: its code, the
//! operation it belongs to, its words, whether trying again may help, and which wider classes it
//! can be caught as.

mod table;

use std::error::Error as StdError;
use std::{fmt, io};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::{Error, ErrorKind};

pub use table::CLASSES;

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
